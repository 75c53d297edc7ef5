"""What a proof rests on without proving it: a sentence for a reader, and for a program what it is about."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any, Self


class AssumptionKind(enum.Enum):
    """What an assumption is about."""

    PLACEMENT = "how an input lies on the ranks"
    CONSUMER = "what code after the program does with a result"
    RANKS = "what the other ranks run"
    CORRESPONDENCE = "which tensors and groups of both programs are the same"
    WRAPPER = "what a wrapper, or a hook, does outside of the graph"
    LATER = "what later calls do"
    PRECISION = "rounding"
    OPERATOR = "what an operator computes"
    VALUES = "values that the program reads"
    NUMBER = "a number of a recovered spec"
    REMOVED = "what the spec is without"
    UNCOMPARED = "what is not compared"
    SIZES = "other sizes"
    OTHER = "something else"


class Assumption(str):
    """The sentence. ``names``: of the inputs, parameters or outputs that it is about, where it is about some alone."""

    __slots__ = ("kind", "names")

    kind: AssumptionKind
    names: tuple[str, ...]

    def __new__(cls, text: str, kind: AssumptionKind, names: Iterable[str] = ()) -> Self:
        made = super().__new__(cls, text)
        made.kind = kind
        made.names = tuple(names)
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return str(self), self.kind, self.names


def kind_of(assumption: str) -> AssumptionKind:
    """Of a sentence that is not known to be an assumption: OTHER."""
    return assumption.kind if isinstance(assumption, Assumption) else AssumptionKind.OTHER


def to_data(assumptions: Iterable[str]) -> list[list[Any]]:
    """As data, for another rank."""
    return [[str(text), kind_of(text).name, list(getattr(text, "names", ()))] for text in assumptions]


def from_data(data: Iterable[Sequence[Any]]) -> tuple[Assumption, ...]:
    """What ``to_data`` gave."""
    return tuple(Assumption(text, AssumptionKind[kind], names) for text, kind, names in data)
