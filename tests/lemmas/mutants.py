"""Changed lemmas: one guard dropped, weakened or about another name, or one place of the equation changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from verifycompile.rewrites.lemmas.lemma import FUNCTIONS, INDEX, NUMBER, OPERATORS, VALUE, Guard, Lemma, Pattern
from verifycompile.rewrites.lemmas.spelling import names

_OTHER_OPERATOR = {
    "add": "mul", "mul": "add", "less": "less_equal", "less_equal": "less", "plus": "times", "times": "plus",
    "exp": "log", "log": "exp", "sum": "max", "max": "sum", "or": "mul", "maximum": "minimum", "minimum": "maximum",
    "sin": "cos", "cos": "sin", "sinh": "cosh", "cosh": "sinh", "tan": "sin", "tanh": "sigmoid", "sigmoid": "tanh",
    "erf": "erfc", "erfc": "erf", "log1p": "log", "log_sigmoid": "sigmoid",
    "zero": "one", "one": "zero", "half": "two", "two": "half", "minus_one": "two", "minus_infinity": "zero",
}  # fmt: skip
_TRANSPARENT = {
    "not": 0,
    "exp": 0,
    "log": 0,
    **dict.fromkeys(FUNCTIONS, 0),
    "at": 0,
    "sum": 1,
    "each": 1,
    "scale": 1,
    "power": 1,
    "max": 1,
}
"""Operators that may be left out, with the argument that stays."""
_WEAKER: dict[str, tuple[Callable[..., Guard], ...]] = {
    "positive": (lambda a: ("nonnegative", a), lambda a: ("finite", a)),
    "nonnegative": (lambda a: ("finite", a),),
    "indicator": (lambda a: ("nonnegative", a), lambda a: ("whole", a)),
    "within": (lambda a, i: ("whole", a), lambda a, i: ("nonnegative", a)),
    "digit": (lambda a, q: ("whole", a),),
    "above": (lambda a, p: ("not_below", a, p),),
    "equivalent": (lambda m, n: ("implies", m, n), lambda m, n: ("implies", n, m)),
    "known": (lambda m: ("indicator", m),),
}
"""What each kind of guard implies, by its arguments."""


def mutants_of(lemma: Lemma) -> Iterator[tuple[str, Lemma]]:
    """``(change, changed lemma)``."""
    yield from without_a_guard(lemma)
    yield from with_a_weaker_guard(lemma)
    yield from with_another_guard(lemma)
    yield from with_another_equation(lemma)


def without_a_guard(lemma: Lemma) -> Iterator[tuple[str, Lemma]]:
    for guard in lemma.guards:
        rest = tuple(other for other in lemma.guards if other != guard)
        yield f"without {guard}", dataclasses.replace(lemma, guards=rest)


def with_a_weaker_guard(lemma: Lemma) -> Iterator[tuple[str, Lemma]]:
    for guard in lemma.guards:
        for weaken in _WEAKER.get(str(guard[0]), ()):
            weaker = weaken(*guard[1:])
            guards = tuple(weaker if other == guard else other for other in lemma.guards)
            if weaker not in lemma.guards and all(isinstance(name, str) for name in weaker[-1:]):
                yield f"{weaker} for {guard}", dataclasses.replace(lemma, guards=guards)


def with_another_guard(lemma: Lemma) -> Iterator[tuple[str, Lemma]]:
    """A guard about another value, index or number than its own; one that is there besides would be one dropped."""
    for guard in lemma.guards:
        for place, argument in enumerate(guard[1:], start=1):
            kind = next((k for k in (VALUE, NUMBER, INDEX) if argument in names(lemma, k)), None)
            for name in names(lemma, kind) if kind else ():
                changed = (*guard[:place], name, *guard[place + 1 :])
                if changed not in lemma.guards:
                    guards = tuple(changed if other == guard else other for other in lemma.guards)
                    yield f"{changed} for {guard}", dataclasses.replace(lemma, guards=guards)


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
