"""A lemma as text, and the variables that its equation has."""

from __future__ import annotations

from verifycompile.rewrites.lemmas.lemma import OPERATORS, VALUE, Lemma, Pattern


def equation(lemma: Lemma) -> str:
    """Both sides as text."""
    return f"{spelled(lemma.left)} = {spelled(lemma.right)}"


def spelled(pattern: Pattern) -> str:
    """A pattern as a call: ``sum(i, mul(a, b))``."""
    if isinstance(pattern, str):
        return pattern
    operator, *arguments = pattern
    return f"{operator}({', '.join(spelled(argument) for argument in arguments)})"


def names(lemma: Lemma, kind: str) -> tuple[str, ...]:
    """The variables of a kind, in order of appearance."""
    found: dict[str, None] = {}
    for side in (lemma.left, lemma.right):
        _collect(side, VALUE, kind, found)
    return tuple(found)


def _collect(pattern: Pattern, role: str, kind: str, found: dict[str, None]) -> None:
    if isinstance(pattern, str):
        if role == kind:
            found[pattern] = None
        return
    operator, *arguments = pattern
    roles = OPERATORS[str(operator)]
    for place, argument in enumerate(arguments):
        _collect(argument, roles[min(place, len(roles) - 1)], kind, found)
