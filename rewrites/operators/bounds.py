"""Whether a computed index stays within its table.

An index outside of a table is an error in torch, or counts from the end; a one-hot lookup finds nothing there. So
an index that is shifted to a shard of the table must be shown to be masked, and is refused otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.ir.algebra import COMBINE, CONTRACT, IOTA
from verifycompile.ir.exponential import MAXIMUM
from verifycompile.ir.size import Size
from verifycompile.ir.term import INTEGER_LEAF, UNIT, IndexFact, Term, TermPool, View, terms_of
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operations import FLOOR, MINIMUM, TRUNCATED
from verifycompile.rewrites.operators.elementwise import WHERE
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError
from verifycompile.rewrites.side_conditions.formula import Formula, both, floor, implies
from verifycompile.rewrites.side_conditions.index_arithmetic import Translator, UntranslatableError
from verifycompile.rewrites.side_conditions.solver import holds
from verifycompile.walks import reached

_ARITHMETIC = (COMBINE, CONTRACT, WHERE, MAXIMUM, MINIMUM, FLOOR, TRUNCATED)
_COMPUTED = (*_ARITHMETIC, IOTA, UNIT, INTEGER_LEAF)


def within(pool: TermPool, index: View, size: Size, *, whole: bool = False) -> bool:
    """Whether z3 proves ``0 <= index < size`` for every value of what the index is computed from.

    If need be, for every value that an operator of the spec takes without error; that is listed as an assumption.
    ``whole``: and that it is a whole number, as the type says of what torch takes as an index.
    """
    if index.term.operation.copies and size != 0:  # what is copied, or zero
        return all(within(pool, view.scaled(index.coefficient), size, whole=whole) for view in index.term.operands)
    for facts in ({}, pool.facts) if pool.facts else ({},):
        used = proved(
            facts, index, size, lambda value, n: both(value >= 0, value < n, value == floor(value) if whole else both())
        )
        if used is not None:
            pool.assumptions.update(dict.fromkeys(used))
            return True
    return False


def proved(
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

    An index that every rank takes as it is given is the spec's too, where it is right by assumption; so is one that
    the spec computes and takes for as many rows.
    """
    text = f"the indices of a look-up are within [0, {size})"
    b.assume_index(index, size, None, Assumption(text, AssumptionKind.VALUES))
    if not b.spec_takes(index, size, "from the start") and is_of_rank(b, index) and not within(b.pool, index, size):
        raise UnsupportedError(UNREPRESENTABLE, f"an index that may lie outside of a table of size {size}")


def is_of_rank(b: Builder, index: View) -> bool:
    """Whether an index is computed from a rank's coordinate, and be it moved afterwards."""
    terms = reached([index.term], lambda term: terms_of(term) if term.operation.copies else ())
    views = [index, *(operand for term in terms if term.operation.copies for operand in term.operands)]
    computed = any(view.coefficient != 1 or view.term.operation in _ARITHMETIC for view in views)
    return computed and any(index.uses(axis) for axis in range(b.lead))
