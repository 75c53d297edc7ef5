"""Writing by index or to a part. Sums over indices are contractions with indicators.

Where values may overwrite each other the operator is taken as it is: which of two values stays is torch's matter.
Where no two indices are equal there is nothing to overwrite, and writing into zeros is a sum over one-hot lookups.
"""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch

from verifycompile.ir.size import Size
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operators import known_places
from verifycompile.rewrites.operators.bounds import require_within
from verifycompile.rewrites.operators.distinct import is_distinct
from verifycompile.rewrites.operators.elementwise import cast, require_exact
from verifycompile.rewrites.operators.filling import filled
from verifycompile.rewrites.operators.indexing import one_hot
from verifycompile.rewrites.operators.scalar_rows import scalars_as_rows
from verifycompile.rewrites.parts.rank_places import placed_by_coordinate
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten

SCATTER = Operation("scatter")
SCATTER_MASK = Operation("scatter_mask", indicator=True)


# ------------------------------------------------------------------------------------------------ along one dimension


def require_equal_batch(b: Builder, dim: int, view: View, *others: View) -> None:
    """All dimensions but ``dim`` have one size, so that they are batch dimensions."""
    shapes = [[s for d, s in enumerate(b.shape(v)) if d != dim] for v in (view, *others)]
    if any(shape != shapes[0] for shape in shapes):
        raise UnsupportedError(UNSUPPORTED, "a scatter whose index is smaller than its operand in other dimensions")


def written(b: Builder, src: View, index: View, dim: int) -> View:
    """The part of ``src`` that is read: torch takes as much of it as the index has."""
    if b.rank(src) != b.rank(index):
        raise UnsupportedError(UNSUPPORTED, "a scatter of a tensor of another rank than its index")
    for d, (size, wanted) in enumerate(zip(b.shape(src), b.shape(index), strict=True)):
        if size != wanted:
            src = b.narrow(src, d, 0, wanted)
    return src


def dim_last(b: Builder, view: View, dim: int) -> View:
    return b.permute(view, [*(d for d in range(b.rank(view)) if d != dim), dim])


def dim_back(b: Builder, view: View, dim: int) -> View:
    order = list(range(b.rank(view) - 1))
    order.insert(dim, b.rank(view) - 1)
    return b.permute(view, order)


def _position(b: Builder, view: View, dim: int) -> int:
    if b.rank(view) == 0:
        raise UnsupportedError(UNREPRESENTABLE, "a write to a part of a tensor without dimensions")
    return dim % b.rank(view)


Write = Callable[[View, View, View | None, int], View]
"""``(self, index, src, position)`` -> the result, where all dimensions but ``position`` have one size."""


def _scattered(b: Builder, self: View, dim: int, index: View, src: View | None, write: Write) -> View:
    """``write`` on rows where there are no dimensions, and on the leading part that the index reaches."""
    if 0 in b.shape(index):
        return self
    if b.rank(self) == 0:
        row = b.unsqueeze(src, 0) if src is not None and b.rank(src) == 0 else src
        places = b.unsqueeze(index, 0) if b.rank(index) == 0 else index
        return b.select(write(b.unsqueeze(self, 0), places, row, 0), 0, 0)
    position = dim % b.rank(self)
    if b.rank(index) != b.rank(self):
        raise UnsupportedError(UNSUPPORTED, "a scatter by an index of another rank")
    if src is not None:
        src = written(b, src, index, position)
    shape, reached = b.shape(self), b.shape(index)
    shorter = [d for d in range(b.rank(self)) if d != position and shape[d] != reached[d]]
    parts = [self]
    for d in shorter:
        parts.append(b.narrow(parts[-1], d, 0, reached[d]))
    result = write(parts[-1], index, src, position)
    for d, whole in zip(reversed(shorter), reversed(parts[:-1]), strict=True):
        size, length = shape[d], reached[d]
        if not isinstance(size, int) or not isinstance(length, int):
            raise UnsupportedError(UNSUPPORTED, f"a scatter to {length} of {size} rows")
        result = _replaced(b, whole, d, 0, length, result)
    return result


@operator(aten.scatter_add.default)
@scalars_as_rows
def scatter_add(b: Builder, self: View, dim: int, index: View, src: View) -> View:
    """``self[..., index[..., i], ...] += src[..., i, ...]``."""

    def write(self: View, index: View, src: View | None, position: int) -> View:
        assert src is not None
        return b.add(self, _spread(b, index, src, position, b.shape(self)[position]))

    return _scattered(b, self, dim, index, src, write)


def _spread(b: Builder, index: View, src: View, position: int, size: Size) -> View:
    """Each element of ``src`` at its index along ``position``; what meets in one place is added."""
    require_within(b, index, size)
    known = known_places.spread_along(b, position, index, src, size)
    if known is not None:
        return known
    lookup = one_hot(b, dim_last(b, index, position), size)
    added = b.contraction("*b i v, *b i -> *b v", lookup, dim_last(b, src, position))
    return dim_back(b, added, position)


@operator(aten.scatter.src)
@scalars_as_rows
def scatter(b: Builder, self: View, dim: int, index: View, src: View) -> View:
    def write(self: View, index: View, src: View | None, position: int) -> View:
        assert src is not None
        return overwritten(b, self, index, src, position)

    return _scattered(b, self, dim, index, src, write)


def overwritten(b: Builder, self: View, index: View, src: View, position: int) -> View:
    """``self[..., index[..., i], ...] = src[..., i, ...]``, all other dimensions of one size."""
    known = known_places.put_along(b, self, position, index, src)
    if known is not None:
        return known
    writes_all = b.shape(index)[position] == b.shape(self)[position]
    if (self.is_zero or writes_all) and is_distinct(b, index, position):
        return _spread(b, index, src, position, b.shape(self)[position])
    operands = [dim_last(b, v, position) for v in (self, index, src)]
    result = b.core(
        SCATTER, (), "*b v, *b i, *b i -> *b w", *operands, cores="v i", fresh={"w": b.shape(self)[position]}
    )
    return dim_back(b, result, position)


@operator(aten.scatter.value)
@scalars_as_rows
def scatter_value(b: Builder, self: View, dim: int, index: View, value: Number) -> View:
    stored = _stored(b, value)

    def write(self: View, index: View, src: View | None, position: int) -> View:
        size = b.shape(self)[position]
        known = known_places.put_along(b, self, position, index, b.full(stored, b.shape(index)))
        if known is not None:
            return known
        if self.is_zero and is_distinct(b, index, position):
            return _spread(b, index, b.full(stored, b.shape(index)), position, size)
        mask = b.core(SCATTER_MASK, (size,), "*b i -> *b w", dim_last(b, index, position), cores="i", fresh={"w": size})
        return filled(b, dim_back(b, mask, position), value, self)

    return _scattered(b, self, dim, index, None, write)


def _stored(b: Builder, value: Number) -> Number:
    """The number that is written: among booleans the truth of ``value``."""
    if b.call.dtype is torch.bool and isinstance(value, (int, float)):
        return int(bool(value))
    require_exact(b, value=value)
    return value


@operator(aten.index_add.default)
@scalars_as_rows
def index_add(b: Builder, self: View, dim: int, index: View, source: View, alpha: Number) -> View:
    """``self[..., index[i], ...] += alpha * source[..., i, ...]``."""
    require_exact(b, alpha=alpha)
    position = _position(b, self, dim)
    if b.rank(index) != 1 or b.rank(source) != b.rank(self):
        raise UnsupportedError(UNSUPPORTED, "index_add of scalars")
    size = b.shape(self)[position]
    require_within(b, index, size)
    known = known_places.spread(b, position, index, source, size)
    if known is not None:
        return b.combination((1, self), (alpha, known))
    added = b.contraction("i v, *b i -> *b v", one_hot(b, index, size), dim_last(b, source, position))
    return b.combination((1, self), (alpha, dim_back(b, added, position)))


@operator(aten.index_copy.default)
@scalars_as_rows
def index_copy(b: Builder, self: View, dim: int, index: View, source: View) -> View:
    """``self[..., index[i], ...] = source[..., i, ...]``: a scatter with one index for all other dimensions."""
    position = _position(b, self, dim)
    if b.rank(index) != 1 or b.rank(source) != b.rank(self):
        raise UnsupportedError(UNSUPPORTED, "index_copy of scalars")
    require_equal_batch(b, position, self, source)
    require_within(b, index, b.shape(self)[position])
    return rows_overwritten(b, self, index, source, position)


def rows_overwritten(b: Builder, view: View, index: View, source: View, position: int) -> View:
    """``view[..., index[i], ...] = source[..., i, ...]``; of two values at one place torch chooses which one stays."""
    from verifycompile.rewrites.operators.index_writes import put_distinct  # here, because it imports this module

    if (put := put_distinct(b, view, position, index, source)) is not None:
        return put
    operands = dim_last(b, view, position), index, dim_last(b, source, position)
    size = b.shape(view)[position]
    result = b.core(SCATTER, (), "*b v, i, *b i -> *b w", *operands, cores="v i", fresh={"w": size})
    return dim_back(b, result, position)


# ------------------------------------------------------------------------------------------------ writing to a part


@operator(aten.slice_scatter.default)
def slice_scatter(
    b: Builder, self: View, src: View, dim: int, start: Number | None, end: Number | None, step: Number
) -> View:
    """``self`` with ``src`` in the place of a slice."""
    position = _position(b, self, dim)
    size = b.shape(self)[position]
    if isinstance(start, sympy.Expr) and b.depends_on_rank(start) and step == 1 and end is not None:
        if sympy.expand(end - start) != b.shape(src)[position]:
            raise UnsupportedError(UNREPRESENTABLE, f"a write of {b.shape(src)[position]} elements to {start}:{end}")
        return _replaced_by_coordinate(b, self, position, start, cast(b, src, b.dtype_of("src"), b.dtype_of("self")))
    if step != 1 or not isinstance(size, int) or not isinstance(start, int | None) or not isinstance(end, int | None):
        raise UnsupportedError(UNSUPPORTED, f"a write to a slice from {start} to {end} with step {step}")
    first, last, _ = slice(start, end).indices(size)
    return _replaced(b, self, position, first, last, cast(b, src, b.dtype_of("src"), b.dtype_of("self")))


def _replaced(b: Builder, view: View, position: int, first: int, last: int, source: View) -> View:
    """``view`` with ``source`` from ``first`` to ``last``."""
    size = b.shape(view)[position]
    assert isinstance(size, int)
    if last <= first:
        return view
    parts = [source]
    if first > 0:
        parts.insert(0, b.narrow(view, position, 0, first))
    if last < size:
        parts.append(b.narrow(view, position, last, size - last))
    return b.concatenate(parts, position) if len(parts) > 1 else source


def _replaced_by_coordinate(b: Builder, view: View, position: int, start: Number, source: View) -> View:
    """``view`` with ``source`` from ``start`` on, another place on each rank."""
    size = b.shape(view)[position]
    places = b.pad(*placed_by_coordinate(b, b.full(1, b.shape(source)), position, start), size)
    placed = b.pad(*placed_by_coordinate(b, source, position, start), size)
    return b.add(b.mul(view, b.sub(1, places)), placed)


@operator(aten.select_scatter.default)
def select_scatter(b: Builder, self: View, src: View, dim: int, index: int) -> View:
    """``self`` with ``src`` in the place of one index of ``dim``."""
    position = _position(b, self, dim)
    size = b.shape(self)[position]
    source = b.unsqueeze(cast(b, src, b.dtype_of("src"), b.dtype_of("self")), position)
    if b.depends_on_rank(index):
        return _replaced_by_coordinate(b, self, position, index, source)
    if not isinstance(size, int):
        raise UnsupportedError(UNSUPPORTED, f"a write to the index {index} of a dimension of size {size}")
    first = index % size
    return _replaced(b, self, position, first, first + 1, source)


@operator(aten.copy.default)
def copy(b: Builder, self: View, src: View) -> View:
    """``src`` in the shape and dtype of ``self``."""
    return b.expand(cast(b, src, b.dtype_of("src"), b.dtype_of("self")), b.shape(self))


@operator(aten.fill.Scalar)
def fill(b: Builder, self: View, value: Number) -> View:
    require_exact(b, value=value)
    return b.full(value, b.shape(self))


@operator(aten.fill.Tensor)
def fill_tensor(b: Builder, self: View, value: View) -> View:
    return b.expand(cast(b, value, b.dtype_of("value"), b.dtype_of("self")), b.shape(self))
