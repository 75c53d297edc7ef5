"""Of which operands an index is computed."""

from __future__ import annotations

from collections.abc import Iterator

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


def integer_parts(view: View) -> Iterator[View]:
    """A view and all that it is computed of by integer arithmetic, as views over the same space."""
    pending = [view]
    seen: set[tuple[Term, tuple[Axis, ...]]] = set()
    while pending:
        current = pending.pop()
        if (current.term, current.axes) in seen:
            continue
        seen.add((current.term, current.axes))
        yield current
        if is_arithmetic(current):
            pending.extend(open_view(current).operands)


def integer_leaves(view: View) -> list[View]:
    """Operands reached through integer arithmetic that are no arithmetic themselves."""
    return [v.unscaled() for v in integer_parts(view) if not is_arithmetic(v) and v.term.index_sizes]


def dividends(view: View) -> list[View]:
    """What is divided by a number and rounded down in integer arithmetic, where it is computed itself."""
    floors = (v for v in integer_parts(view) if v.term.operation is FLOOR)
    divided = (open_view(v).operands[0].unscaled() for v in floors)
    return [v for v in divided if is_arithmetic(v)]
