"""Of which operands an index is computed."""

from __future__ import annotations

from verifycompile.ir.algebra import COMBINE, CONTRACT, open_view
from verifycompile.ir.exponential import MAXIMUM, WHERE
from verifycompile.ir.indicator import EQUAL, LESS, LESS_EQUAL, NOT
from verifycompile.ir.inequality import AT_MOST
from verifycompile.ir.term import Axis, Term, View
from verifycompile.rewrites.operations import FLOOR, MINIMUM, TRUNCATED

_ARITHMETIC = (COMBINE, EQUAL, LESS, LESS_EQUAL, AT_MOST, NOT, MAXIMUM, MINIMUM, WHERE, FLOOR, TRUNCATED)


def is_arithmetic(view: View) -> bool:
    """Whether a view is integer arithmetic on its operands."""
    return view.term.operation in _ARITHMETIC or (view.term.operation is CONTRACT and not view.term.summed)


def integer_leaves(view: View) -> list[View]:
    """Operands reached through integer arithmetic that are no arithmetic themselves, as views over the same space."""
    leaves: list[View] = []
    pending = [view]
    seen: set[tuple[Term, tuple[Axis, ...]]] = set()
    while pending:
        current = pending.pop()
        if (current.term, current.axes) in seen:
            continue
        seen.add((current.term, current.axes))
        if is_arithmetic(current):
            pending.extend(open_view(current).operands)
        elif current.term.index_sizes:
            leaves.append(current.unscaled())
    return leaves
