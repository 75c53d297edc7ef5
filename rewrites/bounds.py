"""Whether a computed index stays within its table.

An index outside of a table is an error in torch, or counts from the end; a one-hot lookup finds nothing there. So
an index that is shifted to a shard of the table must be shown to be masked, and is refused otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.ir.algebra import COMBINE, CONTRACT, IOTA, open_view
from verifycompile.ir.exponential import MAXIMUM
from verifycompile.ir.size import Size
from verifycompile.ir.term import CONSTANT, INTEGER_LEAF, UNIT, IndexFact, Term, TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.elementwise import WHERE
from verifycompile.rewrites.formula import Formula, both, either, implies
from verifycompile.rewrites.index_arithmetic import Translator, UntranslatableError
from verifycompile.rewrites.operations import MINIMUM
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError
from verifycompile.rewrites.solver import holds

_ARITHMETIC = (COMBINE, CONTRACT, WHERE, MAXIMUM, MINIMUM)
_COMPUTED = (*_ARITHMETIC, IOTA, UNIT, INTEGER_LEAF)


def within(pool: TermPool, index: View, size: Size) -> bool:
    """Whether z3 proves ``0 <= index < size`` for every value of what the index is computed from.

    If need be, for every value that an operator of the spec takes without error; that is listed as an assumption.
    """
    return _within({}, index, size) is not None or _within_by_facts(pool, index, size)


def _within_by_facts(pool: TermPool, index: View, size: Size) -> bool:
    used = _within(pool.facts, index, size) if pool.facts else None
    pool.assumptions.update(dict.fromkeys(used or ()))
    return used is not None


def from_the_start(pool: TermPool, index: View, size: Size) -> bool:
    """Whether no element of an index counts from the end of its dimension: what is outside of it is no position at all.

    Where the spec takes a number that is no position, as a loss takes a class that it ignores, torch raises an error.
    """
    if within(pool, index, size):
        return True
    used = _proved(pool.facts, index, size, lambda value, n: either(value >= 0, value < -n)) if pool.facts else None
    if used is None:
        return False
    pool.assumptions.update(dict.fromkeys(used))
    text = f"no index is outside of its dimension of size {size}, where torch raises an error"
    pool.assumptions[Assumption(text, AssumptionKind.VALUES)] = None
    return True


def _within(facts: Mapping[Term, Sequence[IndexFact]], index: View, size: Size) -> Sequence[str] | None:
    return _proved(facts, index, size, lambda value, n: both(value >= 0, value < n))


def _proved(
    facts: Mapping[Term, Sequence[IndexFact]], index: View, size: Size, claimed: Callable[[Formula, int], Formula]
) -> Sequence[str] | None:
    """Who says what the proof of a claim about each element rests on; None where there is no proof."""
    if not isinstance(size, int) or not (index.is_zero or index.term.operation in _COMPUTED):
        return None
    translator = Translator(facts)
    try:
        claim = claimed(translator.integer(index), size)
    except UntranslatableError:
        return None
    claim = implies(both(*translator.given.values()), claim) if translator.given else claim
    return translator.sources if holds(claim, translator.indices, index.shape) else None


def require_within(b: Builder, index: View, size: Size) -> None:
    """Refuse an index that is computed from a rank's coordinate and may leave a table of ``size`` rows.

    An index that every rank takes as it is given is the spec's too, where it is right by assumption.
    """
    computed = index.coefficient != 1 or index.term.operation in _ARITHMETIC
    if computed and any(index.uses(axis) for axis in range(b.lead)) and not within(b.pool, index, size):
        raise UnsupportedError(UNREPRESENTABLE, f"an index that may lie outside of a table of size {size}")


def bound_of(b: Builder, key: View) -> int | None:
    """A number above all elements, which are whole and not below zero; None where none is known."""
    from verifycompile.rewrites.counted import number_of_places  # here, because few indices are counted

    places = number_of_places(key)
    if places is not None:
        return places
    largest = _largest(key)
    return largest + 1 if largest is not None and within(b.pool, key, largest + 1) else None


def _largest(view: View) -> int | None:
    """A number that no element of a sum of counters exceeds. Where a number is put in place of others: that number."""
    if view.term.operation is WHERE and view.coefficient == 1:
        _, then, otherwise = open_view(view).operands
        return max((n for n in (_largest(then), _largest(otherwise)) if n is not None), default=None)
    if view.term.operation is COMBINE and view.coefficient == 1:
        parts = [_largest(part) for part in open_view(view).operands]
        return None if None in parts else sum(part for part in parts if part is not None)
    if view.term.operation is UNIT:
        return math.ceil(view.coefficient) if isinstance(view.coefficient, Fraction) else None
    if view.term.operation is not IOTA or not isinstance(view.coefficient, Fraction):
        return None
    total, weight = 0, 1
    for dim, divisor, size in reversed(view.axes[0]):
        if not isinstance(size, int) or not isinstance(divisor, int):
            return None
        total += weight * (divisor if dim == CONSTANT else size - 1)
        weight *= size
    return math.ceil(view.coefficient * total) if view.coefficient > 0 else 0
