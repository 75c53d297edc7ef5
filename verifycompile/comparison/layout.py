"""Whole tensors from the ranks' parts: under a known layout, or under every layout that the shapes allow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from verifycompile.capture.layouts import shard_degrees
from verifycompile.errors import UsageError
from verifycompile.program import Mesh
from verifycompile.torch_interface.dtensor.placements import outer_blocks, reduction_name, sharded_dimension
from verifycompile.torch_interface.dtensor.strided import joined, selected
from verifycompile.torch_interface.ranks.mesh import coordinate_of
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.layout import reduce

Known = tuple[Placement | None, ...]
"""A placement for each axis of the mesh, None where it is not known."""
Placements = tuple[Placement, ...]

_MOST = 4096
"""Layouts that are tried for one tensor."""


class MergeError(Exception):
    """The ranks' parts do not make up a whole under a layout: a gap, an overlap, or a shape that does not fit."""


def merge(parts: Mapping[int, torch.Tensor], layout: Placements, mesh: Mesh) -> dict[int, torch.Tensor]:
    """The whole values that the parts are under ``layout``, each under the first rank that holds it.

    Ranks that are replicas of one another give a whole value each. Raises ``MergeError``.
    """
    level = {coordinate_of(rank, mesh): (rank, part) for rank, part in parts.items()}
    for axis in reversed(range(len(mesh.axes))):
        level = _without_axis(level, axis, layout[axis], mesh.axes[axis].size)
    return dict(level.values())


def merge_given(
    name: str, parts: Mapping[int, torch.Tensor], layout: Placements, mesh: Mesh
) -> dict[int, torch.Tensor]:
    """``merge`` of an input or a parameter, whose layout the user gave. Raises ``UsageError`` VC303."""
    try:
        return merge(parts, layout, mesh)
    except MergeError as error:
        raise UsageError("VC303", f"the ranks' parts of `{name}` are no tensor under its layout: {error}.") from error


Level = dict[tuple[int, ...], tuple[int, torch.Tensor]]


def _without_axis(level: Level, axis: int, placement: Placement, size: int) -> Level:
    """Whole along ``axis``, which stays in the coordinates of replicas."""
    if isinstance(placement, Replicate) or size == 1:
        return level
    lines: dict[tuple[int, ...], list[tuple[int, torch.Tensor]]] = {}
    for place in sorted(level):
        lines.setdefault((*place[:axis], 0, *place[axis + 1 :]), []).append(level[place])
    merged: Level = {}
    for place, line in lines.items():
        if len(line) != size:
            raise MergeError("a rank holds no part of it")
        merged[place] = (line[0][0], _joined([value for _, value in line], placement, size))
    return merged


def _joined(values: Sequence[torch.Tensor], placement: Placement, size: int) -> torch.Tensor:
    dim = sharded_dimension(placement)
    if dim is not None:
        shapes = {(*value.shape[:dim], *value.shape[dim + 1 :]) for value in values}
        if dim >= values[0].dim() or len(shapes) != 1 or len({value.dtype for value in values}) != 1:
            raise MergeError(f"parts of shapes {[list(value.shape) for value in values]} are no shards")
        blocks = outer_blocks(placement)
        whole = torch.cat(list(values), dim)
        if blocks == 1:
            return whole
        if whole.shape[dim] % (size * blocks):
            raise MergeError(f"uneven shards under {placement}")
        return joined(whole, dim, size, blocks)
    if isinstance(placement, Partial):
        if len({(value.shape, value.dtype) for value in values}) != 1:
            raise MergeError("parts of a sum have different shapes")
        return _reduced(values, reduction_name(placement))
    raise MergeError(f"the placement {placement} is not understood")


def _reduced(values: Sequence[torch.Tensor], operation: str) -> torch.Tensor:
    """In double precision, as the sum is none of the program's own."""
    try:
        return reduce([value.double() if value.is_floating_point() else value for value in values], operation)
    except EvaluationError as error:
        raise MergeError(str(error)) from error


def part_of(whole: torch.Tensor, layout: Placements, rank: int, mesh: Mesh) -> torch.Tensor:
    """The part of ``whole`` that ``rank`` holds; of a sum all of it, where it is the first rank of the axis, else 0."""
    part = whole
    for axis, placement, number in zip(mesh.axes, layout, coordinate_of(rank, mesh), strict=True):
        if axis.size == 1 or isinstance(placement, Replicate):
            continue
        dim = sharded_dimension(placement)
        if dim is not None:
            blocks = outer_blocks(placement)
            if blocks > 1:
                part = selected(part, dim, axis.size, blocks, number)
                continue
            step = -(-part.shape[dim] // axis.size)
            first = min(number * step, part.shape[dim])
            part = part.narrow(dim, first, min(step, part.shape[dim] - first))
        elif isinstance(placement, Partial) and reduction_name(placement) == "sum" and number > 0:
            part = torch.zeros_like(part)
    return part


def whole_shape(shape: Sequence[int], layout: Placements, mesh: Mesh) -> tuple[int, ...]:
    """The shape of the tensor of which every rank holds a part of ``shape``."""
    degrees = shard_degrees(layout, mesh, len(shape))
    return tuple(size * degree for size, degree in zip(shape, degrees, strict=True))


def candidates(
    known: Known | None, shapes: Mapping[int, Sequence[int]], whole: Sequence[int], mesh: Mesh, *, sums: bool
) -> Iterator[Placements]:
    """Layouts under which parts of ``shapes`` can be a tensor of shape ``whole``; what needs no reduction first.

    ``sums``: whether parts of a sum are a layout that is allowed.
    """
    held = _axes_held(shapes, mesh)
    choices: list[list[Placement]] = []
    for index, axis in enumerate(mesh.axes):
        placement = known[index] if known is not None else None
        if placement is not None:
            choices.append([placement])
        elif axis.size == 1 or index not in held:
            choices.append([Replicate()])
        else:
            shards: list[Placement] = [Shard(dim) for dim in range(len(whole))]
            reductions: list[Placement] = [Partial("sum"), Partial("avg")] if sums else []
            choices.append([Replicate(), *shards, *reductions])
    sizes = {tuple(shape) for shape in shapes.values()}
    for layout in itertools.islice(itertools.product(*choices), _MOST):
        if _fits(layout, sizes, whole, mesh):
            yield layout


def _axes_held(shapes: Mapping[int, Sequence[int]], mesh: Mesh) -> set[int]:
    """The axes on which more than one coordinate holds a part: a pipeline's stages hold it at one."""
    places = [coordinate_of(rank, mesh) for rank in shapes]
    return {axis for axis in range(len(mesh.axes)) if len({place[axis] for place in places}) > 1}


def _fits(layout: Placements, sizes: set[tuple[int, ...]], whole: Sequence[int], mesh: Mesh) -> bool:
    degrees = [1] * len(whole)
    for axis, placement in zip(mesh.axes, layout, strict=True):
        dim = sharded_dimension(placement)
        if dim is None:
            continue
        if dim >= len(whole):
            return False
        degrees[dim] *= axis.size
    for size in sizes:
        if len(size) != len(whole):
            return False
        for own, full, degree in zip(size, whole, degrees, strict=True):
            if (
                own > -(-full // degree)
                or (degree == 1 and own != full)
                or (full % degree == 0 and own * degree != full)
            ):
                return False
    return True


def text(layout: Placements, mesh: Mesh) -> str:
    """``S(0) over tp, replicated over dp``."""
    words: list[str] = []
    for axis, placement in zip(mesh.axes, layout, strict=True):
        if axis.size == 1:
            continue
        dim = sharded_dimension(placement)
        if dim is not None:
            words.append(f"S({dim}) over {axis.name}")
        elif isinstance(placement, Partial):
            words.append(f"partial {reduction_name(placement)} over {axis.name}")
        else:
            words.append(f"replicated over {axis.name}")
    return ", ".join(words) or "whole"
