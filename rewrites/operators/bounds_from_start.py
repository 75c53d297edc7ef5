"""Whether a computed index counts from the start of its table, and never from the end; else it must be a position."""

from __future__ import annotations

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.ir.size import Size
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.bounds import is_of_rank, proved, within
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError
from verifycompile.rewrites.side_conditions.formula import both, either


def from_the_start(pool: TermPool, index: View, size: Size) -> bool:
    """Whether no element of an index counts from the end of its dimension: what is outside of it is no position at all.

    Where the spec takes a number that is no position, as a loss takes a class that it ignores, torch raises an error.
    """
    if within(pool, index, size):
        return True
    used = proved(pool.facts, index, size, lambda value, n: either(value >= 0, value < -n)) if pool.facts else None
    if used is None:
        return False
    pool.assumptions.update(dict.fromkeys(used))
    text = f"no index is outside of its dimension of size {size}, where torch raises an error"
    pool.assumptions[Assumption(text, AssumptionKind.VALUES)] = None
    return True


def require_position(b: Builder, index: View, size: Size) -> None:
    """Refuse an index that is computed from a rank's coordinate, and may be no position counted from either end.

    Where the spec computes and takes the same one, torch raises an error for both programs, or for none.
    """
    if b.spec_takes(index, size, "from both ends") or not is_of_rank(b, index):
        return
    used = proved(b.pool.facts, index, size, lambda value, n: both(value >= -n, value < n))
    if used is None:
        raise UnsupportedError(UNREPRESENTABLE, f"an index that may lie outside of a table of size {size}")
    b.pool.assumptions.update(dict.fromkeys(used))
