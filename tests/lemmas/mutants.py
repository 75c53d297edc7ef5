"""Changed lemmas: one guard dropped, or one place of the equation changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from verifycompile.rewrites.lemmas.lemma import NUMBER, OPERATORS, VALUE, Lemma, Pattern, names

_OTHER_OPERATOR = {
    "add": "mul", "mul": "add", "less": "less_equal", "less_equal": "less", "plus": "times", "times": "plus",
    "exp": "log", "log": "exp", "sum": "max", "max": "sum",
}  # fmt: skip
_TRANSPARENT = {
    "not": 0,
    "exp": 0,
    "log": 0,
    "absolute": 0,
    "at": 0,
    "sum": 1,
    "each": 1,
    "scale": 1,
    "power": 1,
    "max": 1,
}
"""Operators that may be left out, with the argument that stays."""


def without_a_guard(lemma: Lemma) -> Iterator[tuple[str, Lemma]]:
    for guard in lemma.guards:
        rest = tuple(other for other in lemma.guards if other != guard)
        yield f"without {guard}", dataclasses.replace(lemma, guards=rest)


def with_another_equation(lemma: Lemma) -> Iterator[tuple[str, Lemma]]:
    others = {kind: names(lemma, kind) for kind in (VALUE, NUMBER)}
    for side in ("left", "right"):
        for changed in _changed(getattr(lemma, side), VALUE, others):
            if changed != getattr(lemma, side):
                yield f"{side} side {changed}", dataclasses.replace(lemma, **{side: changed})


def _changed(pattern: Pattern, role: str, others: dict[str, tuple[str, ...]]) -> Iterator[Pattern]:
    if isinstance(pattern, str):
        yield from (name for name in others.get(role, ()) if name != pattern)
        return
    operator, *arguments = pattern
    if operator in _OTHER_OPERATOR:
        yield (_OTHER_OPERATOR[str(operator)], *arguments)
    if operator in _TRANSPARENT:
        yield arguments[_TRANSPARENT[str(operator)]]
    roles = OPERATORS[str(operator)]
    for place, argument in enumerate(arguments):
        if operator in ("mul", "add"):
            rest = [*arguments[:place], *arguments[place + 1 :]]
            yield rest[0] if len(rest) == 1 else (operator, *rest)
        for changed in _changed(argument, roles[min(place, len(roles) - 1)], others):
            yield (operator, *arguments[:place], changed, *arguments[place + 1 :])
