"""What is done with rows whose number is read from data, by all families that declare operators on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import sympy
import torch

from verifycompile.ir.algebra import CONTRACT, contract, open_view
from verifycompile.ir.size import Size, exact_quotient, normalize_size, product
from verifycompile.ir.term import CONSTANT, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError, bind, declaration_of
from verifycompile.rewrites.rows.row_values import Counts, Ragged, Rows, Sorted, Sorting, Unsorted

aten = torch.ops.aten

_MOST_GROUPS = 1024
"""Into no more parts a table is cut to find out which of them a slice takes."""


def require(condition: bool, what: str) -> None:
    if not condition:
        raise UnsupportedError(UNREPRESENTABLE, f"{what} a dimension whose size is read from a tensor")


def dense(b: Builder, target: object, *args: Any, **kwargs: Any) -> Any:
    """The operator on whole tensors."""
    declaration = declaration_of(target)
    assert declaration is not None
    return declaration.handler(b, **bind(declaration, args, kwargs))


def masked(b: Builder, value: Ragged) -> View:
    """The whole tensor, with zeros for the rows that are not there."""
    require(value.rows.defined is None, "memory that nothing was written to, in rows of")
    mask = value.rows.present
    for _ in range(b.rank(value.view) - 1 - value.dim):
        mask = b.unsqueeze(mask, -1)
    return b.mul(value.view, mask)


def group_counts(b: Builder, rows: Rows, groups: int) -> list[View] | None:
    """How many rows are there in each of so many equal stretches of the table that they are taken from."""
    length = exact_quotient(rows.total, groups)
    if length is None:
        return None
    numbers = b.sum(b.reshape(rows.present, (groups, length)), [1])
    return [settled(b, b.select(numbers, 0, k)) for k in range(groups)]


def settled(b: Builder, number: View) -> View:
    """An element of a table of sums as the sum of elements, so that both are one term."""
    fixed = any(digit[0] == CONSTANT for axis in number.axes for digit in axis)
    if number.term.operation is not CONTRACT or not fixed:
        return number
    opened = open_view(number)
    labels = tuple(range(len(opened.shape)))
    operands = [View(v.coefficient, v.term, opened.shape, v.axes) for v in opened.operands]
    kept = labels[: number.rank]
    result = contract(b.pool, operands, [labels] * len(operands), kept, frozenset(labels[number.rank :]))
    return result.scaled(number.coefficient)


def stretch(b: Builder, value: Ragged, number: int, groups: int) -> Ragged:
    """The rows in one of so many equal stretches of the table that they are taken from."""
    length = exact_quotient(value.rows.total, groups)
    assert length is not None
    require(value.rows.defined is None, "memory that nothing was written to, in rows of")
    present = b.narrow(value.rows.present, 0, number * length, length)
    ties = None if value.rows.ties is None else (value.rows.ties, number, groups)
    view = b.narrow(value.view, value.dim, number * length, length)
    return Ragged(view, value.dim, Rows(length, present, None, ties, _within_stretch(value.rows.table, groups)))


def _within_stretch(table: tuple[Size, ...], groups: int) -> tuple[Size, ...]:
    """The table of one of so many equal stretches."""
    if not table or groups == 1:
        return table
    first, rest = table[0], table[1:]
    if not isinstance(first, int):
        return ()
    if first <= groups:
        return _within_stretch(rest, groups // first) if groups % first == 0 else ()
    return (first // groups, *rest) if first % groups == 0 else ()


def parts_of_table(counts: Counts, rows: Rows) -> list[tuple[Size, Size]]:
    """The first row and the number of rows of the part before the cut, and of the part behind it, if there is a cut."""
    sorting = counts.sortings.get(rows)
    if sorting is None or sorting.cut is None:
        return [(0, rows.total)]
    first = product((sorting.cut, sorting.length))
    return [(0, first), (first, product((sorting.groups - sorting.cut, sorting.length)))]


def before_and_after_cut(b: Builder, counts: Counts, value: Ragged) -> list[Ragged]:
    """The rows in the groups before the cut, and those behind it; all rows where there is no cut."""
    sorting = counts.sortings.get(value.rows)
    if sorting is None or sorting.cut is None:
        return [value]
    require(value.rows.defined is None, "memory that nothing was written to, in rows of")
    edges = (0, sorting.cut), (sorting.cut, sorting.groups)
    return [_groups_between(b, sorting, value, start, stop) for start, stop in edges]


def _groups_between(b: Builder, sorting: Sorting, value: Ragged, start: int, stop: int) -> Ragged:
    size = product((stop - start, sorting.length))
    group = b.unsqueeze(b.iota(stop - start, start), 1)
    present = b.reshape(b.equal(b.unsqueeze(sorting.key, 0), group), (size,))
    ties = None if value.rows.ties is None else (value.rows.ties, start, stop)
    view = b.narrow(value.view, value.dim, product((start, sorting.length)), size)
    return Ragged(view, value.dim, Rows(size, present, None, ties, (stop - start, sorting.length)))


def collapsed(b: Builder, counts: Counts, value: Ragged, groups: int, length: Size) -> View:
    """For each of ``length`` rows what the sorted row that it became is: the only one of its groups that is there."""
    view = _by_groups(b, value, groups, length)
    if not view.uses(b.dim(view, value.dim)):
        return b.select(view, value.dim, 0)
    parts = before_and_after_cut(b, counts, value)
    sums = [(dataclasses.replace(part, view=masked(b, part)), groups_in(part, length)) for part in parts]
    return b.add(*(b.sum(_by_groups(b, part, number, length), [value.dim]) for part, number in sums))


def _by_groups(b: Builder, value: Ragged, groups: Size, length: Size) -> View:
    shape = b.shape(value.view)
    return b.reshape(value.view, [*shape[: value.dim], groups, length, *shape[value.dim + 1 :]])


def groups_in(value: Ragged, length: Size) -> Size:
    """How many groups of so many rows the table has."""
    found = exact_quotient(value.rows.total, length)
    assert found is not None
    return found


def laid_out(b: Builder, counts: Counts, value: Ragged | Unsorted) -> View | None:
    """All rows of a tensor that were sorted, or their places, as a tensor; None for other rows."""
    sorting = counts.sortings.get(value.rows)
    if sorting is None or value.rows.defined is not None:
        return None
    if isinstance(value, Unsorted):
        place = b.equal(b.unsqueeze(sorting.index, 1), b.iota(sorting.length))
        return b.contraction("i v, i -> v", place, b.iota(sorting.length)) if value.source is None else None
    if b.rank(value.view) == 1 and value.view == row_numbers(b, sorting.groups, sorting.length):
        return sorting.index
    whole = collapsed(b, counts, value, sorting.groups, sorting.length)
    return dense(b, aten.index_select.default, whole, value.dim, sorting.index)


def between(b: Builder, counts: Counts, total: Size, start: sympy.Expr, stop: sympy.Expr) -> Rows:
    position = b.iota(total)
    factors: list[View] = []
    if start != 0:
        factors.append(b.less_equal(b.unsqueeze(counts.number(b, start), 0), position))
    if stop != total:
        factors.append(b.less(position, b.unsqueeze(counts.number(b, stop), 0)))
    present = b.mul(*factors) if factors else b.full(1, (total,))
    return Rows(total, b.expand(present, (total,)), (start, stop))


def groups_up_to(b: Builder, counts: Counts, value: Ragged, end: sympy.Expr, groups: int) -> int | None:
    """How many stretches of the table hold so many rows; None where that is not known."""
    found = group_counts(b, value.rows, groups)
    terms = sympy.expand(end).as_coefficients_dict() if end != 0 else {}
    if found is None or any(factor != 1 or symbol not in counts.views for symbol, factor in terms.items()):
        return None
    open_numbers = [settled(b, counts.views[symbol]) for symbol in terms]
    for count in found[: len(open_numbers)]:
        if count not in open_numbers:
            return None
        open_numbers.remove(count)
    return len(terms)


def groups_of(rows: Rows) -> Iterator[int]:
    """Into how many equal stretches the table of the rows may be cut."""
    groups = 1
    for size in rows.table:
        if not isinstance(size, int) or groups * size > _MOST_GROUPS:
            return
        yield from (groups * part for part in range(1, size + 1) if size % part == 0)
        groups *= size


def has_groups(b: Builder, counts: Counts, rows: Rows, sizes: Sequence[Number]) -> bool:
    """Whether the sizes are the numbers of rows in as many equal stretches of the table."""
    found = group_counts(b, rows, len(sizes))
    return found is not None and found == [settled(b, counts.number(b, sympy.sympify(size))) for size in sizes]


def joined(b: Builder, parts: Sequence[Ragged]) -> Ragged:
    """The rows of several tables one after the other are the rows of one table."""
    first = parts[0]
    require(all(part.rows.defined is None for part in parts), "memory that nothing was written to, in rows of")
    present = b.concatenate([part.rows.present for part in parts], 0)
    ties = [part.rows.ties for part in parts]
    total = normalize_size(sum((sympy.sympify(part.rows.total) for part in parts), sympy.Integer(0)))
    rows = Rows(total, present, None, _joined_ties(ties), (len(parts), *first.rows.table))
    return Ragged(b.concatenate([part.view for part in parts], first.dim), first.dim, rows)


def _joined_ties(ties: Sequence[Hashable]) -> Hashable:
    if all(tie is None for tie in ties):
        return None
    first: Any = ties[0]
    if isinstance(first, tuple) and list(ties) == [(first[0], k, len(ties)) for k in range(len(ties))]:
        return first[0]
    return tuple(ties)


def put_back(b: Builder, counts: Counts, value: Ragged, places: Unsorted) -> Ragged | View:
    """Sorted rows where they came from."""
    found = collapsed(b, counts, value, places.groups, places.length)
    return found if places.source is None else Ragged(found, value.dim, places.source)


def as_unsorted(counts: Counts, b: Builder, index: Any) -> Unsorted | None:
    """What puts sorted rows back where ``index``, the places as the sort gives them, puts each of them."""
    if isinstance(index, Sorted):
        return Unsorted(index.source, index.rows, index.groups, index.source.total)
    if not isinstance(index, Ragged) or b.rank(index.view) != 1:
        return None
    sorting = counts.sortings.get(index.rows)
    if sorting is None or index.view != row_numbers(b, sorting.groups, sorting.length):
        return None
    return Unsorted(None, index.rows, sorting.groups, sorting.length)


def group_numbers(b: Builder, groups: int, length: Size) -> View:
    """The first number of each of the pairs (group, row)."""
    return b.reshape(b.expand(b.unsqueeze(b.iota(groups), 1), (groups, length)), (product((groups, length)),))


def numbers_of_groups(b: Builder, sorting: Sorting) -> View:
    """The key of each row of the table of a sort, its groups before and after the cut one after the other."""
    if sorting.cut is None:
        return group_numbers(b, sorting.groups, sorting.length)
    first, last = (group_numbers(b, n, sorting.length) for n in (sorting.cut, sorting.groups - sorting.cut))
    return b.concatenate([first, b.add(last, sorting.cut)], 0)


def row_numbers(b: Builder, groups: int, length: Size) -> View:
    """The second number of each of the pairs (group, row)."""
    return b.reshape(b.expand(b.unsqueeze(b.iota(length), 0), (groups, length)), (product((groups, length)),))


def sorted_rows(b: Builder, places: Unsorted, value: View) -> Ragged:
    """The rows of a tensor as the sort orders them."""
    shape = b.shape(value)
    wide = b.expand(b.unsqueeze(value, 0), (places.groups, *shape))
    return Ragged(b.reshape(wide, (places.rows.total, *shape[1:])), 0, places.rows)
