"""Where along a dimension the largest or smallest element is, and the same as the least of numbers that ranks hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, IOTA, combine, has_infinity, open_view
from verifycompile.ir.exponential import WHERE
from verifycompile.ir.indicator import EQUAL, LESS, LESS_EQUAL, NOT
from verifycompile.ir.relabel import insert_dim
from verifycompile.ir.size import product
from verifycompile.ir.term import Operation, TermPool, View
from verifycompile.rewrites.builder import Builder

ARG_EXTREME = {kind: Operation(f"arg{kind}", whole=True, places=True) for kind in ("max", "min")}
"""Of several largest elements the first, as torch says of `argmax` and of `max` along a dimension."""
OTHER_END = {"max": "min", "min": "max"}


def reduced(
    b: Builder, operation: Operation, attributes: tuple[object, ...], view: View, dim: int, keepdim: bool
) -> View:
    """One element from all of ``dim``."""
    if b.rank(view) == 0:
        return b.select(b.along(operation, attributes, b.unsqueeze(view, 0), 0, 1), 0, 0)
    result = b.along(operation, attributes, view, dim, 1)
    return result if keepdim else b.squeeze(result, [dim])


def without_what_is_added(b: Builder, view: View, dim: int) -> tuple[View, View]:
    """A value without what is added to all elements along a dimension alike, which changes no order; and that."""
    position = b.dim(view, dim)
    if view.term.operation is COMBINE:
        parts = [part.scaled(view.coefficient) for part in open_view(view.unscaled()).operands]
        alike = [part for part in parts if not part.uses(position)]
        if 0 < len(alike) < len(parts) and not any(map(has_infinity, alike)):
            return combine(b.pool, [part for part in parts if part not in alike]), combine(b.pool, alike)
    return view, b.pool.zero(view.shape)


def place(b: Builder, kind: str, view: View, dim: int, keepdim: bool) -> View:
    """Where along ``dim`` the extreme is: at 0 where there is only one element. The largest is the smallest negated."""
    shape = list(b.shape(view))
    if shape and shape[dim] != 1:
        rest = without_what_is_added(b, view, dim)[0]
        if isinstance(rest.coefficient, Fraction) and rest.coefficient != 0:
            kind = kind if rest.coefficient > 0 else OTHER_END[kind]
            rest = rest.unscaled()
        return reduced(b, ARG_EXTREME[kind], (), rest, dim, keepdim)
    if shape and not keepdim:
        del shape[dim]
    return b.full(0, shape)


def first_of_best(pool: TermPool, view: View, dims: Sequence[int], extreme: Callable[..., View]) -> View | None:
    """The least number among the parts that hold the best element, where all others have a larger number.

    The number of part r is n r + p, where p is a place among n elements: the first such part has the least one.
    ``extreme``: what makes the best element of all parts. VL193.
    """
    chosen = _numbers_of_best(pool, view, dims, extreme)
    if chosen is None:
        return None
    kind, value, numbers, others = chosen
    (dim,), count = dims, view.shape[dims[0]]
    opened = open_view(numbers.unscaled()).operands if numbers.term.operation is COMBINE else (numbers.unscaled(),)
    parts = [part.scaled(numbers.coefficient) for part in opened]
    counter = next((v for v in parts if v.term.operation is IOTA and v.axes == (((dim, 1, count),),)), None)
    if counter is None or not isinstance(count, int) or not isinstance(length := counter.coefficient, Fraction):
        return None
    places = [part for part in parts if part is not counter]
    if len(places) > 1 or any(v.term.operation not in ARG_EXTREME.values() or v.coefficient != 1 for v in places):
        return None
    size = product(v.term.index_sizes[k] for v in places for core in v.term.cores for k in core)
    if not isinstance(size, int) or size > length or others.term is not pool.unit:
        return None
    if not isinstance(others.coefficient, Fraction) or others.coefficient < length * count - 1:
        return None
    b = Builder(pool)
    part = place(b, kind, value, dim, True)
    mask = b.equal(part, counter.unscaled())
    pool.lemma_trace.append(("first-of-best", ""))
    return b.add(b.squeeze(part, [dim]).scaled(length), *(b.sum(b.mul(mask, other), [dim]) for other in places))


def _numbers_of_best(
    pool: TermPool, view: View, dims: Sequence[int], extreme: Callable[..., View]
) -> tuple[str, View, View, View] | None:
    """Which extreme, of which value; the numbers where the value is its extreme, and those of all others."""
    if len(dims) != 1 or view.term.operation is not WHERE or view.coefficient != 1:
        return None
    condition, numbers, others = open_view(view).operands
    if condition.term.operation is NOT:
        condition, numbers, others = *open_view(condition).operands, others, numbers
    operation = condition.term.operation
    if operation not in {EQUAL, LESS, LESS_EQUAL}:
        return None
    left, right = open_view(condition).operands
    # What is less than the largest is not it, and what is at least the largest is.
    turned, straight = ("max", right, left), ("max", left, right)
    if operation is LESS:
        numbers, others = others, numbers
    sides = {LESS: [straight], LESS_EQUAL: [turned], EQUAL: [straight, turned]}[operation]
    for kind, value, best in (*sides, *(("min", best, value) for _, value, best in sides)):
        if value.uses(dims[0]) and not best.uses(dims[0]):
            found = insert_dim(extreme(pool, value, dims, kind), dims[0])
            if (found.term, found.axes, found.coefficient) == (best.term, best.axes, best.coefficient):
                return kind, value, numbers, others
    return None
