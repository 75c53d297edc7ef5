"""Steps of random compositions: each draws a call whose operands are among the values that are there."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten
LARGEST = 400
"""Elements of a value; what is larger is not kept."""
ROUNDED = 1e-6
"""What is nearer to a step than this may be rounded to either side of it."""

Call = tuple[Any, tuple[Any, ...]]


@dataclasses.dataclass(frozen=True)
class Ref:
    """A value among those computed so far, by position."""

    place: int


class Drawn:
    """Chooses operands among the values that are there. Raises ``IndexError`` where none fits.

    ``everywhere``: each value as all ranks have it; ``values``: as the first one has it.
    """

    def __init__(
        self, everywhere: Sequence[Sequence[torch.Tensor]], draw: random.Random, mesh: tuple[int, ...] = ()
    ) -> None:
        self.everywhere, self.draw, self.mesh = everywhere, draw, mesh
        self.values = [ranks[0] for ranks in everywhere]

    def value(self, fits: Callable[[torch.Tensor], bool]) -> tuple[Ref, torch.Tensor]:
        places = [place for place, ranks in enumerate(self.everywhere) if ranks[0].numel() and all(map(fits, ranks))]
        if not places:
            raise IndexError("no value fits")
        place = places[self.draw.randrange(len(places))]
        return Ref(place), self.values[place]

    def real(self, fits: Callable[[torch.Tensor], bool] = lambda _: True) -> tuple[Ref, torch.Tensor]:
        return self.value(lambda value: value.is_floating_point() and fits(value))

    def whole(self, fits: Callable[[torch.Tensor], bool] = lambda _: True) -> tuple[Ref, torch.Tensor]:
        return self.value(lambda value: value.dtype is torch.int64 and fits(value))

    def along(self, fits: Callable[[torch.Tensor], bool] = lambda _: True) -> tuple[Ref, torch.Tensor, int, int]:
        """A real value, one of its dimensions, and the size of that."""
        place, value = self.real(lambda value: value.dim() > 0 and fits(value))
        dim = self.draw.randrange(value.dim())
        return place, value, dim, value.shape[dim]

    def places(self, size: int, fits: Callable[[torch.Tensor], bool]) -> Ref:
        """Indices of a dimension of this size."""
        return self.whole(lambda v: fits(v) and v.numel() > 0 and int(v.min()) >= 0 and int(v.max()) < size)[0]


def but(dim: int, value: torch.Tensor) -> tuple[int, ...]:
    return (*value.shape[:dim], *value.shape[dim + 1 :])


def _lies_in(value: torch.Tensor, dim: int, index: torch.Tensor) -> bool:
    """Whether an index of ``dim`` is no larger than the value along its other dimensions."""
    if index.dim() != value.dim():
        return False
    return all(a <= b for a, b in zip(but(dim, index), but(dim, value), strict=True))


def _fits(*values: torch.Tensor) -> bool:
    try:
        torch.broadcast_shapes(*(value.shape for value in values))
    except RuntimeError:
        return False
    return True


def _slice_backward(d: Drawn) -> Call:
    place, value, dim, size = d.along()
    before, after = d.draw.randrange(3), d.draw.randrange(3)
    sizes = [*value.shape[:dim], before + size + after, *value.shape[dim + 1 :]]
    return aten.slice_backward.default, (place, sizes, dim, before, before + size, 1)


def _select_backward(d: Drawn) -> Call:
    place, value = d.real()
    dim, size = d.draw.randrange(value.dim() + 1), d.draw.randrange(1, 4)
    return aten.select_backward.default, (place, [*value.shape[:dim], size, *value.shape[dim:]], dim, d.draw.randrange(size))


def _slice(d: Drawn) -> Call:
    place, _, dim, size = d.along()
    start = d.draw.randrange(size)
    return aten.slice.Tensor, (place, dim, start, d.draw.randrange(start, size) + 1)


def _select(d: Drawn) -> Call:
    place, _, dim, size = d.along()
    return aten.select.int, (place, dim, d.draw.randrange(size))


def _is_distinct(value: torch.Tensor) -> bool:
    """Among equal elements torch says nothing of which is the largest, and rounding says it of almost equal ones."""
    return bool((value.flatten().sort().values.diff() > ROUNDED).all())


def _is_between(value: torch.Tensor) -> bool:
    """Whether rounding makes no other whole number of any element, and no other sign."""
    return bool(((value - value.round()).abs() > ROUNDED).all())


def _extreme(d: Drawn) -> Call:
    place, _, dim, _ = d.along(_is_distinct)
    return d.draw.choice((aten.max.dim, aten.min.dim, aten.argmax.default)), (place, dim, d.draw.random() < 0.5)


def _largest(d: Drawn) -> Call:
    place, _, dim, size = d.along(_is_distinct)
    return aten.topk.default, (place, d.draw.randrange(size) + 1, dim)


def _compared(d: Drawn) -> Call:
    return d.draw.choice((aten.eq.Scalar, aten.le.Scalar, aten.lt.Scalar, aten.ne.Scalar)), (d.whole()[0], d.draw.randrange(4))


def _compared_with_each(d: Drawn) -> Call:
    place, value = d.whole()
    other, _ = d.whole(lambda v: _fits(v, value))
    return d.draw.choice((aten.eq.Tensor, aten.le.Tensor, aten.lt.Tensor)), (place, other)


def _arithmetic(d: Drawn) -> Call:
    place, value = d.real()
    other, _ = d.value(lambda v: _fits(v, value))
    operators = (aten.add.Tensor, aten.sub.Tensor) if d.values[other.place].dtype is not torch.bool else ()
    return d.draw.choice((aten.mul.Tensor, aten.mul.Tensor, *operators)), (place, other)


def _where(d: Drawn) -> Call:
    place, value = d.real()
    mask, masks = d.value(lambda v: v.dtype is torch.bool and _fits(v, value))
    return aten.where.self, (mask, place, d.real(lambda v: _fits(v, value, masks))[0])


def _number(d: Drawn) -> Call:
    place, value = d.value(lambda v: v.dtype is not torch.bool)
    number = d.draw.choice((1, 2, -1) if value.dtype is torch.int64 else (2, -1, 0.5, 3))
    return d.draw.choice((aten.mul.Scalar, aten.add.Scalar)), (place, number)


def _bounded(d: Drawn) -> Call:
    return aten.clamp.default, (d.real()[0], d.draw.choice((None, -0.5, 0)), d.draw.choice((0.5, 1.0)))


def _function(d: Drawn) -> Call:
    operators = (aten.relu, aten.neg, aten.abs, aten.exp, aten.sigmoid, aten.tanh)
    return d.draw.choice(operators).default, (d.real()[0],)


def _reduced(d: Drawn) -> Call:
    place, _, dim, _ = d.along()
    return d.draw.choice((aten.sum.dim_IntList, aten.mean.dim)), (place, [dim], d.draw.random() < 0.5)


def _softmax(d: Drawn) -> Call:
    place, _, dim, _ = d.along()
    return aten._softmax.default, (place, dim, False)


def _running(d: Drawn) -> Call:
    place, value = d.value(lambda v: v.dim() > 0)
    return aten.cumsum.default, (place, d.draw.randrange(value.dim()))


def _unsqueezed(d: Drawn) -> Call:
    place, value = d.value(lambda _: True)
    return aten.unsqueeze.default, (place, d.draw.randrange(value.dim() + 1))


def _expanded(d: Drawn) -> Call:
    place, value = d.real()
    return aten.expand.default, (place, [2, *value.shape])


def _moved(d: Drawn) -> Call:
    place, value, dim, _ = d.along()
    other = d.draw.randrange(value.dim())
    return d.draw.choice((
        (aten.transpose.int, (place, dim, other)), (aten.flip.default, (place, [dim])),
        (aten.roll.default, (place, [d.draw.randrange(-2, 3)], [dim])), (aten.reshape.default, (place, [-1])),
        (aten.constant_pad_nd.default, (place, [d.draw.randrange(3), d.draw.randrange(3)], 0.0)),
    ))  # fmt: skip


def _product(d: Drawn) -> Call:
    place, value = d.real(lambda v: v.dim() == 2)
    return aten.mm.default, (place, d.real(lambda v: v.dim() == 2 and v.shape[0] == value.shape[1])[0])


def _concatenated(d: Drawn) -> Call:
    place, value, dim, _ = d.along()
    other, _ = d.real(lambda v: v.dim() == value.dim() and but(dim, v) == but(dim, value))
    return aten.cat.default, ([place, other], dim)


def _stacked(d: Drawn) -> Call:
    place, value = d.real()
    return aten.stack.default, ([place, d.real(lambda v: v.shape == value.shape)[0]], d.draw.randrange(value.dim() + 1))


def _gathered(d: Drawn) -> Call:
    place, value, dim, size = d.along()
    index = d.places(size, functools.partial(_lies_in, value, dim))
    return aten.gather.default, (place, dim, index)


def _rows(d: Drawn) -> Call:
    place, _, dim, size = d.along()
    return aten.index_select.default, (place, dim, d.places(size, lambda v: v.dim() == 1))


def _rows_added(d: Drawn) -> Call:
    place, value, dim, size = d.along()
    index = d.places(size, lambda v: v.dim() == 1)
    number = len(d.values[index.place])
    source, _ = d.real(lambda v: v.dim() == value.dim() and v.shape[dim] == number and but(dim, v) == but(dim, value))
    return aten.index_add.default, (place, dim, index, source)


def _scattered(d: Drawn) -> Call:
    place, value, dim, size = d.along()
    index = d.places(size, functools.partial(_lies_in, value, dim))
    source, _ = d.real(lambda v: v.shape == d.values[index.place].shape)
    return aten.scatter_add.default, (place, dim, index, source)


def _larger(d: Drawn) -> Call:
    place, value = d.real()
    return d.draw.choice((aten.maximum.default, aten.minimum.default)), (place, d.real(lambda v: _fits(v, value))[0])


def _largest_values(d: Drawn) -> Call:
    place, _, dim, _ = d.along()
    return d.draw.choice((aten.amax.default, aten.amin.default, aten.logsumexp.default)), (place, [dim], d.draw.random() < 0.5)


def _masked(d: Drawn) -> Call:
    place, value = d.real()
    mask, _ = d.value(lambda v: v.dtype is torch.bool and _fits(v, value))
    return aten.masked_fill.Scalar, (place, mask, d.draw.choice((0.0, 2.0)))


def _triangle(d: Drawn) -> Call:
    place, _ = d.real(lambda v: v.dim() >= 2)
    return d.draw.choice((aten.tril.default, aten.triu.default)), (place, d.draw.randrange(-1, 2))


def _repeated(d: Drawn) -> Call:
    place, value = d.real(lambda v: v.dim() > 0)
    return aten.repeat.default, (place, [d.draw.randrange(1, 3) for _ in range(value.dim() + d.draw.randrange(2))])


def _written_slice(d: Drawn) -> Call:
    place, value, dim, size = d.along()
    start = d.draw.randrange(size)
    source, part = d.real(lambda v: v.dim() == value.dim() and but(dim, v) == but(dim, value) and v.shape[dim] <= size - start)
    return aten.slice_scatter.default, (place, source, dim, start, start + part.shape[dim])


def _written_place(d: Drawn) -> Call:
    place, value, dim, size = d.along()
    source, _ = d.real(lambda v: v.shape == but(dim, value))
    return aten.select_scatter.default, (place, source, dim, d.draw.randrange(size))


def _put(d: Drawn) -> Call:
    place, value = d.real(lambda v: v.dim() > 0)
    index = d.places(value.shape[0], lambda v: v.dim() == 1)
    shape = (len(d.values[index.place]), *value.shape[1:])
    return aten.index_put.default, (place, [index], d.real(lambda v: v.shape == shape)[0], True)


def _every_second(d: Drawn) -> Call:
    place, _, dim, size = d.along()
    return aten.slice.Tensor, (place, dim, d.draw.randrange(size), size, 2)


def _cut(d: Drawn) -> Call:
    place, value, dim, size = d.along()
    count = d.draw.choice([n for n in range(1, size + 1) if size % n == 0])
    return aten.reshape.default, (place, [*value.shape[:dim], count, size // count, *value.shape[dim + 1 :]])


def _rounded(d: Drawn) -> Call:
    operator = d.draw.choice((aten.floor.default, aten.sign.default, aten.sin.default, aten.square.default))
    has_steps = operator in (aten.floor.default, aten.sign.default)
    return operator, (d.real(_is_between if has_steps else lambda _: True)[0],)


def _divided(d: Drawn) -> Call:
    return aten.div.Scalar, (d.real()[0], d.draw.choice((2, -4, 0.5)))


def _logical(d: Drawn) -> Call:
    place, value = d.value(lambda v: v.dtype is torch.bool)
    other, _ = d.value(lambda v: v.dtype is torch.bool and _fits(v, value))
    return d.draw.choice((aten.logical_and.default, aten.logical_or.default, aten.bitwise_xor.Tensor)), (place, other)


def _compared_reals(d: Drawn) -> Call:
    place, value = d.real()
    other, _ = d.real(lambda v: _fits(v, value))
    ranks = zip(d.everywhere[place.place], d.everywhere[other.place], strict=True)
    if any(((left - right).abs() < ROUNDED).any() for left, right in ranks):
        raise IndexError("rounding would decide")
    return d.draw.choice((aten.lt.Tensor, aten.ge.Tensor)), (place, other)


def _counted(d: Drawn) -> Call:
    place, value = d.value(lambda v: v.dtype is not torch.float64 and v.dim() > 0)
    return aten.sum.dim_IntList, (place, [d.draw.randrange(value.dim())])


def _whole_arithmetic(d: Drawn) -> Call:
    place, _ = d.whole()
    operators = (aten.remainder.Scalar, aten.floor_divide.default, aten.bitwise_and.Scalar)
    return d.draw.choice(operators), (place, d.draw.choice((2, 3)))


STEPS: tuple[Callable[[Drawn], Call], ...] = (
    _slice_backward, _select_backward, _slice, _select, _extreme, _largest, _compared, _compared_with_each, _arithmetic,
    _arithmetic, _arithmetic, _where, _number, _bounded, _function, _reduced, _softmax, _running, _unsqueezed,
    _unsqueezed, _expanded, _moved, _moved, _product, _concatenated, _stacked, _gathered, _rows, _rows_added, _scattered,
    _larger, _largest_values, _masked, _triangle, _repeated, _written_slice, _written_place, _put, _every_second, _cut,
    _rounded, _divided, _logical, _compared_reals, _counted, _whole_arithmetic,
)  # fmt: skip
