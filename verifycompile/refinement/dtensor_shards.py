"""Whether what ranks with different graphs return as shards of a DTensor is the spec's value, as DTensor reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch.distributed.tensor.placement_types import Shard

from verifycompile.program import Mesh, Program, ProgramOutput, Size
from verifycompile.refinement.dtensor_results import CODE, listed, misread_strides
from verifycompile.refinement.mismatch import Mismatch


@dataclasses.dataclass(frozen=True)
class RankOutput:
    """A DTensor output on one rank, whose coordinates are ``place``; ``shape`` is that of its shard."""

    output: ProgramOutput
    place: tuple[int, ...]
    shape: tuple[int, ...]


def misread_shards(spec: Program, ranks: Sequence[Program], mesh: Mesh) -> Mismatch | None:
    """The first DTensor that is not the spec's value as DTensor reads the shards of ranks that run different graphs."""
    for output in spec.outputs:
        value = output.node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        held = dict(_held(output, ranks, mesh))
        whole = tuple(value.shape)
        for rank, item in held.items():
            if item.output.global_shape != whole:
                shapes = _by_rank({rank: item.output.global_shape or () for rank, item in held.items()})
                message = f"`{output.name}` is a DTensor of shape {shapes}, the spec's has shape {listed(whole)}"
                is_whole = not item.output.open_axes  # else it is the whole of the parts of some ranks
                return Mismatch(
                    CODE, message, output.name, output.node, item.output.node, certain=is_whole, notes=(_RECORD,)
                )
            message = misread_strides(output, item.output)
            if message is not None:
                return Mismatch(CODE, f"{message}, on rank {rank}", output.name, output.node, item.output.node)
        chunks = {rank: _chunk(whole, item, mesh) for rank, item in held.items()}
        wrong = next((rank for rank, item in held.items() if item.shape != chunks[rank]), None)
        if wrong is not None:
            shapes = _by_rank({rank: item.shape for rank, item in held.items()})
            message = (
                f"the shards of `{output.name}` have shape {shapes}, DTensor's chunks have shape {_by_rank(chunks)}"
            )
            return Mismatch(
                CODE, message, output.name, output.node, held[wrong].output.node, certain=True, notes=(_CHUNKS,)
            )
    return None


_RECORD = (
    "every rank keeps the shape of the whole; what `DTensor.from_local` computes from a rank's own shard is right only "
    "where all shards are of one size: pass it `shape` and `stride`"
)
_CHUNKS = (
    "DTensor divides a dimension as `torch.chunk` does, so that the last ranks have the smaller shards; "
    "`full_tensor()` and every operator that gathers take the shards for these chunks"
)


def _held(output: ProgramOutput, ranks: Sequence[Program], mesh: Mesh) -> Iterator[tuple[int, RankOutput]]:
    for position, program in enumerate(ranks):
        for item in program.outputs:
            value = item.node.meta.get("val")
            if item.name == output.name and item.global_shape is not None and isinstance(value, torch.Tensor):
                place = tuple(int(index) for index in torch.unravel_index(torch.tensor(position), mesh.shape))
                yield mesh.ranks[position], RankOutput(item, place, tuple(value.shape))


def _chunk(whole: tuple[int, ...], item: RankOutput, mesh: Mesh) -> tuple[int, ...]:
    """The shape of this rank's shard; where blocks of a dimension are divided, which is not judged here, its own."""
    shape = list(whole)
    for placement, axis, index in zip(item.output.placements or (), mesh.axes, item.place, strict=False):
        if type(placement) is Shard:
            each = -(-shape[placement.dim] // axis.size)
            shape[placement.dim] = max(0, min(each, shape[placement.dim] - index * each))
    blocked = {p.dim for p in item.output.placements or () if isinstance(p, Shard) and type(p) is not Shard}
    return tuple(own if dim in blocked else size for dim, (own, size) in enumerate(zip(item.shape, shape, strict=True)))


def _by_rank(shapes: Mapping[int, Sequence[Size]]) -> str:
    """``[2, 3] on rank 0, [2, 2] on rank 1``; one shape alone where all ranks have it."""
    if len(set(map(tuple, shapes.values()))) == 1:
        return listed(next(iter(shapes.values())))
    return ", ".join(f"{listed(shape)} on rank {rank}" for rank, shape in shapes.items())
