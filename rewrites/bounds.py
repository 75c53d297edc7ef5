"""Whether a computed index stays within its table.

An index outside of a table is an error in torch, or counts from the end; a one-hot lookup finds nothing there. So
an index that is shifted to a shard of the table must be shown to be masked, and is refused otherwise.
"""

from __future__ import annotations

from verifycompile.ir.algebra import COMBINE, CONTRACT, IOTA
from verifycompile.ir.size import Size
from verifycompile.ir.term import UNIT, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.elementwise import MAXIMUM, MINIMUM, WHERE
from verifycompile.rewrites.formula import both
from verifycompile.rewrites.one_hot import Translator, UntranslatableError
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError
from verifycompile.rewrites.solver import holds

_ARITHMETIC = (COMBINE, CONTRACT, WHERE, MAXIMUM, MINIMUM)
_COMPUTED = (*_ARITHMETIC, IOTA, UNIT)


def within(index: View, size: Size) -> bool:
    """Whether z3 proves ``0 <= index < size`` for every value of what the index is computed from."""
    if not isinstance(size, int) or not (index.is_zero or index.term.operation in _COMPUTED):
        return False
    translator = Translator()
    try:
        value = translator.integer(index)
    except UntranslatableError:
        return False
    return holds(both(value >= 0, value < size), translator.indices, index.shape)


def require_within(b: Builder, index: View, size: Size) -> None:
    """Refuse an index that is computed from a rank's coordinate and may leave a table of ``size`` rows.

    An index that every rank takes as it is given is the spec's too, where it is right by assumption.
    """
    computed = index.coefficient != 1 or index.term.operation in _ARITHMETIC
    if computed and any(index.uses(axis) for axis in range(b.lead)) and not within(index, size):
        raise UnsupportedError(UNREPRESENTABLE, f"an index that may lie outside of a table of size {size}")
