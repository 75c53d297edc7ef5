"""Reads and writes at places that are known, such as ``x[torch.arange(2, 5)]``: slices of what is there.

A counter counts one part of the table, whose rows its digits number. Places that are written out are stretches of
neighbouring ones: reads of these are joined, and writes stand between what stays.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, IOTA, open_view
from verifycompile.ir.build import reindexed
from verifycompile.ir.pieces import concatenated_dim, pieces_of
from verifycompile.ir.relabel import permute, remove_dim
from verifycompile.ir.size import Size
from verifycompile.ir.term import CONSTANT, UNIT, Axis, Digit, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.layout import slice_tensor
from verifycompile.rewrites.operators.padding import slice_backward
from verifycompile.rewrites.operators.stored_tensors import CONSTANT as STORED
from verifycompile.rewrites.side_conditions.formula import Key, evaluate
from verifycompile.rewrites.side_conditions.index_arithmetic import Translator, UntranslatableError

_MOST_PLACES = 4096
_MOST_STRETCHES = 64


@dataclasses.dataclass(frozen=True)
class _Counter:
    """Places from ``first`` on, ``step`` apart, of which ``digits`` spell the number."""

    first: int
    step: int
    count: int
    digits: Axis


def read(b: Builder, table: View, index: View, *, counted: bool = False) -> View | None:
    """The rows of a table by number; None where the numbers are not known, or ``counted`` and they do not count."""
    size = b.shape(table)[0]
    counter = _counter(index)
    found = None if counted or b.rank(index) != 1 or _is_cut(counter, size) else _stretches(b, index, size)
    if found is None and counter is not None and isinstance(size, int):
        first, last = counter.first, counter.first + counter.step * (counter.count - 1)
        if first < 0 or last >= size:
            return None
        part = slice_tensor(b, table, 0, first, last + 1, counter.step)
        moved = b.rank(index) - 1
        replaced: dict[int, Sequence[Digit]] = {b.lead: counter.digits}
        replaced |= {d: [(d + moved, 1, part.shape[d])] for d in range(b.lead + 1, part.rank)}
        return reindexed(b.pool, part, replaced, (*b.mesh, *b.shape(index), *b.shape(table)[1:]))
    if found is None:
        return None
    return b.concatenate([b.narrow(table, 0, first, length) for first, length in found], 0)


def read_at(b: Builder, table: View, position: int, index: View) -> View | None:
    """``read`` along any dimension by an index of one dimension."""
    rows = read(b, permute(table, to_front(table, b.lead + position, b.lead)), index)
    return None if rows is None else permute(rows, from_front(rows, b.lead + position, b.lead))


def read_along(b: Builder, table: View, position: int, index: View) -> View | None:
    """``read_at`` by an index that is the same for all other dimensions."""
    row = _row(b, index, position)
    return None if row is None else read_at(b, table, position, row)


def put_along(b: Builder, view: View, position: int, index: View, values: View) -> View | None:
    """``put`` by an index that is the same for all other dimensions."""
    row = _row(b, index, position)
    return None if row is None else put(b, view, position, row, values)


def spread_along(b: Builder, position: int, index: View, values: View, size: Size) -> View | None:
    """``spread`` by an index that is the same for all other dimensions."""
    row = _row(b, index, position)
    return None if row is None else spread(b, position, row, values, size)


def put(b: Builder, view: View, dim: int, index: View, values: View) -> View | None:
    """``values`` in the place of what was at the places of an index; None where these are not known, or meet."""
    size = b.shape(view)[dim]
    found = _sorted(b, index, size)
    if found is None:
        return None
    if values.is_zero:
        kept = [(end, start - end) for end, start in _between(found, size) if start > end]
        return b.combination(*((1, b.pad(b.narrow(view, dim, *part), dim, part[0], size)) for part in kept))
    parts: list[View] = []
    for (end, first), written in zip(_between(found, size), [*found, None], strict=True):
        parts += [b.narrow(view, dim, end, first - end)] if first > end else []
        parts += [b.narrow(values, dim, written[2], written[1])] if written is not None else []
    return b.concatenate(parts, dim) if len(parts) > 1 else parts[0]


def spread(b: Builder, dim: int, index: View, values: View, size: Size) -> View | None:
    """``values`` at the places of an index, zero elsewhere; None where the places are not known, or meet."""
    counter = _counter(index)
    if counter is not None and counter.step > 1 and isinstance(size, int) and _is_cut(counter, size):
        first, last = counter.first, counter.first + counter.step * (counter.count - 1)
        if counter.digits == ((b.lead, 1, counter.count),) and first >= 0 and last < size:
            shape = [*b.shape(values)[:dim], size, *b.shape(values)[dim + 1 :]]
            return slice_backward(b, values, shape, dim, first, last + 1, counter.step)
    found = _sorted(b, index, size)
    if found is None:
        return None
    pieces = [(first, b.narrow(values, dim, start, length)) for first, length, start in found]
    return b.combination(*((1, b.pad(piece, dim, first, size)) for first, piece in pieces))


def _is_cut(counter: _Counter | None, size: Size) -> bool:
    """Whether places are a slice that digits spell; two pieces of four, the first and the last, are no such slice."""
    return counter is not None and isinstance(size, int) and size % counter.step == 0


def _between(found: Sequence[tuple[int, int, int]], size: Size) -> list[tuple[int, int]]:
    """What stretches leave: each part from the end of one to the first place of the next one."""
    ends = [0, *(first + length for first, length, _ in found)]
    return list(zip(ends, [*(first for first, _, _ in found), int(size)], strict=True))


def _row(b: Builder, index: View, position: int) -> View | None:
    """An index along one dimension as a tensor of one; None where it depends on another one."""
    others = [d for d in range(b.lead, index.rank) if d != b.lead + position]
    if any(index.uses(d) for d in others):
        return None
    for d in reversed(others):
        index = remove_dim(index, d)
    return index


def _counter(index: View) -> _Counter | None:
    summands = open_view(index).operands if index.term.operation is COMBINE else (index.unscaled(),)
    counters = [v for v in summands if v.term.operation is IOTA]
    numbers = [v for v in summands if v.term.operation is UNIT]
    if len(counters) != 1 or len(numbers) + 1 != len(summands):
        return None
    (counter,) = counters
    factor, count = index.coefficient * counter.coefficient, counter.term.index_sizes[0]
    first = sum(v.coefficient for v in numbers) * index.coefficient
    if not isinstance(factor, Fraction) or not isinstance(first, Fraction | int) or not isinstance(count, int):
        return None
    if factor <= 0 or factor.denominator != 1 or Fraction(first).denominator != 1:
        return None
    return _Counter(int(first), int(factor), count, counter.axes[0])


def _sorted(b: Builder, index: View, size: Size) -> list[tuple[int, int, int]] | None:
    """Stretches by their places, each with its length and where it begins in the index; None where two meet."""
    found = _stretches(b, index, size)
    if found is None:
        return None
    starts = itertools.accumulate((length for _, length in found), initial=0)
    ordered = sorted((first, length, start) for (first, length), start in zip(found, starts, strict=False))
    apart = all(left[0] + left[1] <= right[0] for left, right in itertools.pairwise(ordered))
    return ordered if apart else None


def _stretches(b: Builder, index: View, size: Size) -> list[tuple[int, int]] | None:
    """The places of a tensor of one dimension as stretches of neighbouring ones: first place and length."""
    count = index.shape[-1]
    if not isinstance(size, int) or not isinstance(count, int) or not 0 < count <= _MOST_PLACES:
        return None
    places = _elements(index, b.lead, count)
    if places is None or any(n.denominator != 1 or not 0 <= n < size for n in places):
        return None
    found: list[tuple[int, int]] = []
    for place in map(int, places):
        if found and sum(found[-1]) == place:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((place, 1))
    return found if len(found) <= _MOST_STRETCHES else None


def _elements(view: View, dim: int, count: int) -> list[Fraction] | None:
    """The elements along a dimension; None where they are not known, or depend on another one."""
    term = view.term
    if concatenated_dim(view) == dim:
        parts = [_elements(piece, dim, int(piece.shape[dim])) for piece in pieces_of(view, dim)]
        return None if None in parts else [n for part in parts if part is not None for n in part]
    if term.operation is STORED:
        if len(term.index_sizes) != 1 or not isinstance(view.coefficient, Fraction):
            return None
        if any(digit[0] not in (dim, CONSTANT) for digit in view.axes[0]):
            return None
        content = term.attributes[2]
        assert isinstance(content, tuple)
        return [view.coefficient * Fraction(content[_spelled(view.axes[0], place)]) for place in range(count)]
    return _computed(view, dim, count)


def _computed(view: View, dim: int, count: int) -> list[Fraction] | None:
    """The elements of what is computed of places and of known elements."""
    translator = Translator()
    try:
        number = translator.integer(view)
    except UntranslatableError:
        return None
    parts: dict[Key, list[Fraction]] = {}
    for key, part in translator.opaque.items():
        elements = None if part == view.unscaled() else _elements(part, dim, count)
        if elements is None:
            return None
        parts[key] = elements
    if set(translator.indices) - {dim}:
        return None
    places = ({("index", dim): n, **{key: elements[n] for key, elements in parts.items()}} for n in range(count))
    return [Fraction(evaluate(number, values)) for values in places]


def _spelled(digits: Axis, place: int) -> int:
    number = 0
    for dim, divisor, size in digits:
        number = number * int(size) + (int(divisor) if dim == CONSTANT else place // int(divisor) % int(size))
    return number


def to_front(view: View, position: int, lead: int) -> list[int]:
    """The order of dimensions that has ``position`` behind the ``lead`` ones of the mesh."""
    rest = [d for d in range(lead, view.rank) if d != position]
    return [*range(lead), position, *rest]


def from_front(view: View, position: int, lead: int) -> list[int]:
    """The order that undoes ``to_front``."""
    order = [*range(lead), *range(lead + 1, view.rank)]
    order.insert(position, lead)
    return order
