"""Sums over ranges of positions, and under masks."""

from __future__ import annotations

from verifycompile.rewrites.lemmas.lemma import Lemma, Pattern


def _over(window: tuple[str, str], line: tuple[str, str]) -> Pattern:
    return ("sum", "w", ("sum", "x", ("sum", "r", ("mul", ("range", "w", *window), ("range", "x", *line), "m", "a"))))


NEIGHBOURING_RANGES = Lemma(
    "VL71", "neighbouring-ranges", "sums of one value over neighbouring ranges are one sum",
    (
        "add", ("sum", "i", ("sum", "r", ("mul", ("range", "i", "p", "q"), "a"))),
        ("sum", "i", ("sum", "r", ("mul", ("range", "i", "q", "s"), "a"))),
    ),
    ("sum", "i", ("sum", "r", ("mul", ("range", "i", "p", "s"), "a"))),
    (("ordered", "p", "q"), ("ordered", "q", "s")),
)  # fmt: skip

NEIGHBOURING_WINDOWS = Lemma(
    "VL97", "neighbouring-windows-read", "sums over neighbouring windows that read the same of the line are one sum",
    ("add", _over(("p", "q"), ("b", "c")), _over(("q", "s"), ("d", "e"))), _over(("p", "s"), ("f", "g")),
    (
        ("ordered", "p", "q"), ("ordered", "q", "s"),
        ("reads", "m", "w", "p", "q", "x", "b", "c", "f", "g"), ("reads", "m", "w", "q", "s", "x", "d", "e", "f", "g"),
    ),
)  # fmt: skip

MASKS_THAT_EXCLUDE = Lemma(
    "VL138", "masks-that-exclude", "sums of one value under masks that exclude each other are one sum",
    ("add", ("sum", "l", ("mul", "m", "a")), ("sum", "l", ("mul", "n", "a"))), ("sum", "l", ("mul", "c", "a")),
    (
        ("indicator", "m"), ("indicator", "n"), ("indicator", "c"),
        ("equivalent", ("mul", "m", ("not", "n")), "m"),
        ("equivalent", ("not", ("mul", ("not", "m"), ("not", "n"))), "c"),
    ),
)  # fmt: skip

REST_OF_MASK = Lemma(
    "VL139", "rest-of-mask", "a sum under a mask without that under a part of the mask is one under the rest",
    ("add", ("sum", "l", ("mul", "m", "a")), ("scale", ("minus_one",), ("sum", "l", ("mul", "n", "a")))),
    ("sum", "l", ("mul", "c", "a")),
    (
        ("indicator", "m"), ("indicator", "n"), ("indicator", "c"), ("implies", "n", "m"), ("finite", "a"),
        ("equivalent", ("mul", "m", ("not", "n")), "c"),
    ),
)  # fmt: skip

RANGES = (NEIGHBOURING_RANGES, NEIGHBOURING_WINDOWS, MASKS_THAT_EXCLUDE, REST_OF_MASK)
