"""What stands for the variables of a lemma in one instance of it, and where the instance is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from verifycompile.ir.scalar import Scalar
from verifycompile.ir.size import Size
from verifycompile.ir.term import View

Factors = tuple[View, ...]
"""A value as the product of these views; without any it is one."""


@dataclasses.dataclass(frozen=True)
class Substitution:
    """``values``: a product for each value. ``numbers``: for each number.

    ``indices``: for each index of a ``sum`` or ``max`` the dimensions that spell it, most significant first. Dimensions
    that an operand binds follow those of its view, as ``open_view`` numbers them.
    ``each``: for a value that differs from summand to summand, what it is in each, in their order.
    """

    values: Mapping[str, Factors] = dataclasses.field(default_factory=dict[str, Factors])
    numbers: Mapping[str, Scalar] = dataclasses.field(default_factory=dict[str, Scalar])
    indices: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict[str, tuple[int, ...]])
    each: Mapping[str, tuple[Factors, ...]] = dataclasses.field(default_factory=dict[str, tuple[Factors, ...]])

    @property
    def count(self) -> int:
        """The number of summands of ``each``. Raises LookupError where no value differs from summand to summand."""
        for summands in self.each.values():
            return len(summands)
        raise LookupError("no value differs from summand to summand")

    def at(self, summand: int) -> Substitution:
        """The substitution in one of the summands of ``each``."""
        return dataclasses.replace(self, values={**self.values, **{n: v[summand] for n, v in self.each.items()}})


@dataclasses.dataclass(frozen=True)
class InProduct:
    """``matched``, some of the factors of a product, which is summed over its dimensions from ``free`` on."""

    factors: Sequence[View]
    free: int
    matched: Sequence[View]


@dataclasses.dataclass(frozen=True)
class InSum:
    """``matched``, some of the summands of a sum of shape ``shape``."""

    summands: Sequence[View]
    shape: tuple[Size, ...]
    matched: Sequence[View]


Position = InProduct | InSum
