"""Steps of random compositions on a mesh: collectives, and numbers and places that are read from a rank's coordinates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from tests.operators.test_collectives import block, reduced, size_of
from tests.soundness.composed_steps import Call, Drawn, but

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
dtensor = torch.ops._dtensor

COORDINATES = tuple(sympy.Symbol(f"u{axis}", integer=True, nonnegative=True) for axis in range(2))
GROUPS: Mapping[str, tuple[int, ...]] = {"0": (0,), "1": (1,), "01": (0, 1)}
REDUCTIONS = ("sum", "sum", "avg", "max", "min", "product")
Inputs = Sequence[torch.Tensor]
"""Those of the ranks of one group."""

COLLECTIVES: Mapping[Any, Callable[..., torch.Tensor]] = {
    c10d.all_reduce.default: lambda inputs, k, kind: reduced(inputs, kind),
    c10d.all_gather_into_tensor.default: lambda inputs, k, count: torch.cat(inputs),
    c10d.reduce_scatter_tensor.default: lambda inputs, k, kind, count: block(reduced(inputs, kind), 0, k, count),
    c10d.all_to_all_single.default: lambda inputs, k, into, out: torch.cat([block(x, 0, k, len(inputs)) for x in inputs]),
    dtensor.shard_dim_alltoall.default: lambda inputs, k, gather, split: (
        torch.cat([block(x, split, k, len(inputs)) for x in inputs], gather)
    ),
    c10d.broadcast.default: lambda inputs, k, source: inputs[source],
}  # fmt: skip
"""What rank ``k`` of a group gets."""


def _group(d: Drawn) -> tuple[str, int]:
    name = d.draw.choice([name for name, axes in GROUPS.items() if len(d.mesh) > max(axes)])
    return name, size_of(d.mesh, GROUPS[name])


def _all_reduce(d: Drawn) -> Call:
    return c10d.all_reduce.default, (d.real()[0], d.draw.choice(REDUCTIONS), _group(d)[0])


def _all_gather(d: Drawn) -> Call:
    name, count = _group(d)
    return c10d.all_gather_into_tensor.default, (d.value(lambda v: v.dim() > 0)[0], count, name)


def _reduce_scatter(d: Drawn) -> Call:
    name, count = _group(d)
    place, _ = d.real(lambda v: v.dim() > 0 and v.shape[0] % count == 0)
    return c10d.reduce_scatter_tensor.default, (place, d.draw.choice(REDUCTIONS[:-1]), count, name)


def _all_to_all(d: Drawn) -> Call:
    name, count = _group(d)
    place, value = d.value(lambda v: v.dim() > 0 and v.shape[0] % count == 0)
    sizes = [value.shape[0] // count] * count
    return c10d.all_to_all_single.default, (place, sizes, sizes, name)


def _exchange(d: Drawn) -> Call:
    name, count = _group(d)
    place, value = d.real(lambda v: v.dim() > 0 and any(n % count == 0 for n in v.shape))
    split = d.draw.choice([dim for dim, n in enumerate(value.shape) if n % count == 0])
    return dtensor.shard_dim_alltoall.default, (place, d.draw.randrange(value.dim()), split, name)


def _broadcast(d: Drawn) -> Call:
    name, count = _group(d)
    return c10d.broadcast.default, (d.value(lambda _: True)[0], d.draw.randrange(count), name)


# ------------------------------------------------------------------------------------------------ coordinates


def _axis(d: Drawn) -> tuple[sympy.Symbol, int]:
    axis = d.draw.randrange(len(d.mesh))
    return COORDINATES[axis], d.mesh[axis]


def _number(d: Drawn) -> Call:
    u, _ = _axis(d)
    operator = d.draw.choice((aten.add.Scalar, aten.mul.Scalar, aten.sub.Scalar))
    return operator, (d.value(lambda v: v.dtype is not torch.bool)[0], d.draw.choice((1, 2, -1)) * u + d.draw.choice((0, 0, 1)))


def _compared(d: Drawn) -> Call:
    u, _ = _axis(d)
    operator = d.draw.choice((aten.eq.Scalar, aten.lt.Scalar, aten.ge.Scalar, aten.ne.Scalar))
    return operator, (d.whole()[0], d.draw.choice((1, 2)) * u + d.draw.choice((0, 1)))


def _part(d: Drawn) -> Call:
    u, count = _axis(d)
    place, _, dim, size = d.along(lambda v: max(v.shape) >= count)
    if size < count:
        raise IndexError("too short")
    length = d.draw.randrange(1, size // count + 1)
    first = d.draw.randrange(size - length * count + 1)
    return aten.slice.Tensor, (place, dim, length * u + first, length * u + first + length)


def _place(d: Drawn) -> Call:
    u, count = _axis(d)
    place, _, dim, size = d.along(lambda v: max(v.shape) >= count)
    if size < count:
        raise IndexError("too short")
    return aten.select.int, (place, dim, u + d.draw.randrange(size - count + 1))


def _part_backward(d: Drawn) -> Call:
    u, count = _axis(d)
    place, value, dim, size = d.along()
    first, last = d.draw.randrange(2), d.draw.randrange(2)
    sizes = [*value.shape[:dim], first + count * size + last, *value.shape[dim + 1 :]]
    return aten.slice_backward.default, (place, sizes, dim, size * u + first, size * u + first + size, 1)


def _place_backward(d: Drawn) -> Call:
    u, count = _axis(d)
    place, value = d.real()
    dim = d.draw.randrange(value.dim() + 1)
    return aten.select_backward.default, (place, [*value.shape[:dim], count, *value.shape[dim:]], dim, u)


def _written_part(d: Drawn) -> Call:
    u, count = _axis(d)
    place, value, dim, size = d.along()
    source, part = d.real(
        lambda v: v.dim() == value.dim() and but(dim, v) == but(dim, value) and v.shape[dim] * count <= size
    )
    length = part.shape[dim]
    first = length * u + d.draw.randrange(size - length * count + 1)
    return aten.slice_scatter.default, (place, source, dim, first, first + length)


def _written_place(d: Drawn) -> Call:
    u, count = _axis(d)
    place, value, dim, size = d.along()
    if size < count:
        raise IndexError("too short")
    source, _ = d.real(lambda v: v.shape == but(dim, value))
    return aten.select_scatter.default, (place, source, dim, u + d.draw.randrange(size - count + 1))


def _padded(d: Drawn) -> Call:
    u, count = _axis(d)
    place, value = d.real(lambda v: v.dim() > 0)
    length = value.shape[-1]
    return aten.constant_pad_nd.default, (place, [length * u, length * (count - 1) - length * u], 0.0)


def _triangle(d: Drawn) -> Call:
    u, _ = _axis(d)
    operator = d.draw.choice((aten.tril.default, aten.triu.default))
    return operator, (d.real(lambda v: v.dim() >= 2)[0], d.draw.choice((u, 1 - u, u - 1)))


RANK_STEPS: tuple[Callable[[Drawn], Call], ...] = (
    _all_reduce, _all_reduce, _all_gather, _all_gather, _reduce_scatter, _reduce_scatter, _all_to_all, _exchange, _broadcast,
    _number, _number, _compared, _part, _part, _place, _part_backward, _place_backward, _written_part, _written_place, _padded,
    _triangle,
)  # fmt: skip
