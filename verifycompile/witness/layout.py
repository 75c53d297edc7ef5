"""Tensors laid out over a mesh: from the whole tensor to each rank's part, and back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate

from verifycompile.torch_interface.dtensor.placements import order_of, reduction_name
from verifycompile.torch_interface.ranks.mesh import place_at
from verifycompile.witness.error import EvaluationError

Value = TypeVar("Value")

_STEPS = 2.0**20
_COMPARED = frozenset({torch.float64, torch.float32, torch.int64, torch.int32, torch.bool})
"""What the values of an evaluation are made of, nearly always."""


def coordinates(mesh_shape: Sequence[int]) -> list[tuple[int, ...]]:
    """The coordinate of every rank, in row-major order of the mesh."""
    return list(itertools.product(*map(range, mesh_shape)))


def split(tensor: torch.Tensor, placement: Placement, parts: int) -> list[torch.Tensor]:
    """The ``parts`` shards of ``tensor`` under one sharding placement; raises where they would be uneven."""
    dim = placement.dim  # pyright: ignore[reportAttributeAccessIssue]  # shards alone come here
    pieces: int = getattr(placement, "split_factor", 1)
    if not isinstance(dim, int) or dim >= tensor.dim() or tensor.shape[dim] % (parts * pieces) != 0:
        raise EvaluationError(f"shape {tuple(tensor.shape)} cannot be divided by {placement} over {parts} ranks")
    if pieces == 1:
        return list(tensor.chunk(parts, dim))
    grid = [piece.chunk(parts, dim) for piece in tensor.chunk(pieces, dim)]
    return [torch.cat([row[part] for row in grid], dim) for part in range(parts)]


def join(shards: Sequence[torch.Tensor], placement: Placement) -> torch.Tensor:
    """The inverse of :func:`split`."""
    dim = placement.dim  # pyright: ignore[reportAttributeAccessIssue]  # shards alone come here
    pieces: int = getattr(placement, "split_factor", 1)
    shapes = {tuple(shard.shape) for shard in shards}
    if not isinstance(dim, int) or len(shapes) != 1 or dim >= shards[0].dim() or shards[0].shape[dim] % pieces != 0:
        raise EvaluationError(f"shards of shapes {sorted(shapes)} cannot be joined by {placement}")
    grid = [shard.chunk(pieces, dim) for shard in shards]
    return torch.cat([column[piece] for piece in range(pieces) for column in grid], dim)


def shared(values: Sequence[Value]) -> list[Value]:
    """The same values, of which equal tensors are one object: ranks with the same operands share one evaluation."""
    objects = {id(value): value for value in values}
    if len(objects) == 1:
        return list(values)
    found: dict[object, Value] = {}
    first = {key: found.setdefault(_content(value), value) for key, value in objects.items()}
    return [first[id(value)] for value in values]


def _content(value: object) -> object:
    if type(value) is not torch.Tensor or value.dtype not in _COMPARED:
        return id(value)  # a tensor of another kind, such as one of symbols, has no bytes
    return value.dtype, tuple(value.shape), value.stride(), value.resolve_neg().numpy().tobytes()


def is_shard(placement: Placement) -> bool:
    """Whether a placement divides a dimension, with or without a stride."""
    return hasattr(placement, "dim")


def distribute(
    tensor: torch.Tensor, mesh_shape: Sequence[int], placements: Sequence[Placement], generator: torch.Generator
) -> list[torch.Tensor]:
    """Each rank's part, in row-major order of the mesh.

    Parts of a ``Partial`` placement are random, of whole numbers where all of ``tensor`` is, and reduce to it. Ranks
    that hold equal values share one tensor object.
    """
    parts = [tensor]
    for placement, size in zip(placements, mesh_shape, strict=True):
        parts = [piece for part in parts for piece in _divide(part, placement, size, generator)]
    return parts


def _divide(tensor: torch.Tensor, placement: Placement, size: int, generator: torch.Generator) -> list[torch.Tensor]:
    if isinstance(placement, Replicate):
        return [tensor] * size
    if is_shard(placement):
        return [shard.clone() for shard in split(tensor, placement, size)]
    if isinstance(placement, Partial):
        return _summands(tensor, reduction_name(placement), size, generator)
    raise EvaluationError(f"no values for placement {placement}")


def _summands(tensor: torch.Tensor, reduce_op: str, size: int, generator: torch.Generator) -> list[torch.Tensor]:
    if reduce_op in ("min", "max"):
        return [tensor] * size
    if reduce_op not in ("sum", "avg") or not tensor.is_floating_point():
        raise EvaluationError(f"no values of {tensor.dtype} for placement Partial({reduce_op!r})")
    whole = tensor * size if reduce_op == "avg" else tensor
    # Whole parts of what is not whole would hide what is rounded part by part: rounding a sum with a whole number
    # rounds the other summand alone.
    are_whole = type(tensor) is torch.Tensor and torch.equal(tensor, tensor.round())
    noise = [_noise(tensor, generator, whole=are_whole) for _ in range(size - 1)]
    return [*noise, whole - torch.stack(noise).sum(0)] if noise else [whole]


def _noise(tensor: torch.Tensor, generator: torch.Generator, *, whole: bool) -> torch.Tensor:
    if whole:
        return torch.randint(-3, 4, tensor.shape, generator=generator).to(tensor.dtype)
    # Of few bits, so that their sum is exact.
    return (torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) * _STEPS).round() / _STEPS


def reduce(values: Sequence[torch.Tensor], reduce_op: str) -> torch.Tensor:
    """The reduction of the values that the ranks of a group hold."""
    stacked = torch.stack(tuple(values))
    order = order_of(reduce_op)
    if order is not None:
        return (stacked**order).sum(0) ** (1 / order)
    if reduce_op == "sum":
        return stacked.sum(0, dtype=stacked.dtype)
    if reduce_op == "avg" and stacked.is_floating_point():
        return stacked.mean(0)
    if reduce_op in ("product", "prod"):
        return stacked.prod(0, dtype=stacked.dtype)
    if reduce_op == "max":
        return stacked.amax(0)
    if reduce_op == "min":
        return stacked.amin(0)
    raise EvaluationError(f"no values for the reduction {reduce_op!r} of {stacked.dtype}")


def sums_equal_parts(
    placements: Sequence[Placement], parts: Mapping[int, torch.Tensor], mesh_shape: Sequence[int]
) -> bool:
    """Whether the placements sum over an axis on which all ranks hold one value: a wrong scale, no partial value.

    ``parts``: by the position of the rank in the mesh.
    """
    for axis, placement in enumerate(placements):
        if not isinstance(placement, Partial) or mesh_shape[axis] == 1:
            continue
        lines: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for position, part in parts.items():
            place = place_at(position, mesh_shape)
            lines.setdefault((*place[:axis], *place[axis + 1 :]), []).append(part)
        if all(torch.equal(part, line[0]) for line in lines.values() for part in line):
            return True
    return False


def assemble(
    parts: Sequence[torch.Tensor],
    mesh_shape: Sequence[int],
    placements: Sequence[Placement],
    reduction: Callable[[Sequence[torch.Tensor], str], torch.Tensor] = reduce,
) -> list[torch.Tensor]:
    """The whole tensors that ``parts`` are under ``placements``: one for each coordinate of the replicated axes."""
    if len(parts) != math.prod(mesh_shape):
        raise EvaluationError(f"{len(parts)} values for a mesh of shape {tuple(mesh_shape)}")
    level = [[part] for part in parts]
    for placement, size in reversed(list(zip(placements, mesh_shape, strict=True))):
        groups = [level[start : start + size] for start in range(0, len(level), size)]
        level = [_merge(group, placement, reduction) for group in groups]
    return level[0]


def _merge(
    group: Sequence[list[torch.Tensor]],
    placement: Placement,
    reduction: Callable[[Sequence[torch.Tensor], str], torch.Tensor],
) -> list[torch.Tensor]:
    if isinstance(placement, Replicate):
        return [value for values in group for value in values]
    columns = list(zip(*group, strict=True))
    if is_shard(placement):
        return [join(column, placement) for column in columns]
    if not isinstance(placement, Partial):
        raise EvaluationError(f"no values for placement {placement}")
    if any(value.shape != column[0].shape for column in columns for value in column):
        raise EvaluationError(f"ranks hold different shapes under placement {placement}")
    return [reduction(column, reduction_name(placement)) for column in columns]
