"""DTensors that leave a program, as DTensor reads them.

That the ranks' parts, one after the other, are the spec's value is not enough. A DTensor keeps its shape apart from
its shards, and takes them for the chunks into which ``torch.chunk`` divides that shape: ``full_tensor()`` of other
pieces is wrong, however right the pieces are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import sympy
import torch
import torch.fx
from torch.distributed.tensor.placement_types import Shard

from verifycompile.lowering.lower import Lowering
from verifycompile.program import Mesh, OutputKind, Program, ProgramOutput, Size
from verifycompile.refinement.result import Mismatch

_CODE = "VC110"


@dataclasses.dataclass(frozen=True)
class RankOutput:
    """A DTensor output on one rank, whose coordinates are ``place``; ``shape`` is that of its shard."""

    output: ProgramOutput
    place: tuple[int, ...]
    shape: tuple[int, ...]


def misread_output(spec: Lowering, implementation: Lowering) -> Mismatch | None:
    """The first DTensor of a program for all ranks whose record is not that of the spec's value.

    That shards are of equal size and the spec's pieces is for its relation to say.
    """
    expected = {output.name: output for output in spec.program.outputs}
    for output in implementation.program.outputs:
        whole = expected.get(output.name)
        if whole is None or output.global_shape is None:
            continue
        shape = tuple(implementation.sizes.size(size) for size in output.global_shape)
        spec_shape = spec.sizes.shape_of(whole.node) or ()
        if not _equal(shape, spec_shape):
            message = (
                f"`{output.name}` is a DTensor of shape {_listed(shape)}, the spec's has shape {_listed(spec_shape)}"
            )
            return Mismatch(_CODE, message, output.name, whole.node, output.node, certain=True)
        message = _misread_strides(whole, output)
        if message is not None:
            return Mismatch(_CODE, message, output.name, whole.node, output.node)
    return None


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
                message = f"`{output.name}` is a DTensor of shape {shapes}, the spec's has shape {_listed(whole)}"
                return Mismatch(
                    _CODE, message, output.name, output.node, item.output.node, certain=True, notes=(_RECORD,)
                )
            message = _misread_strides(output, item.output)
            if message is not None:
                return Mismatch(_CODE, f"{message}, on rank {rank}", output.name, output.node, item.output.node)
        chunks = {rank: _chunk(whole, item, mesh) for rank, item in held.items()}
        wrong = next((rank for rank, item in held.items() if item.shape != chunks[rank]), None)
        if wrong is not None:
            shapes = _by_rank({rank: item.shape for rank, item in held.items()})
            message = (
                f"the shards of `{output.name}` have shape {shapes}, DTensor's chunks have shape {_by_rank(chunks)}"
            )
            return Mismatch(
                _CODE, message, output.name, output.node, held[wrong].output.node, certain=True, notes=(_CHUNKS,)
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


# ------------------------------------------------------------------------------------------------ strides


def _misread_strides(spec: ProgramOutput, output: ProgramOutput) -> str | None:
    """What is wrong with the strides that a returned DTensor records; None also where they are no numbers.

    Right are the spec's, and those that follow from how the shard lies in memory.
    """
    shape, recorded = output.global_shape or (), output.global_stride or ()
    numbers = (*shape, *recorded, *_strides(spec.node), *_strides(output.node))
    if output.kind is not OutputKind.VALUE or not all(isinstance(number, int) for number in numbers):
        return None
    counted = [dim for dim, size in enumerate(shape) if size != 1]
    order = sorted(counted, key=lambda dim: _strides(output.node)[dim])
    dense = {dim: math.prod(shape[inner] for inner in order[:place]) for place, dim in enumerate(order)}
    found = [recorded[dim] for dim in counted]
    expected = [_strides(spec.node)[dim] for dim in counted]
    if 0 in shape or found in (expected, [dense[dim] for dim in counted]):
        return None
    return (
        f"`{output.name}` is a DTensor of strides {_listed(recorded)}; the spec's has strides "
        f"{_listed(_strides(spec.node))}, and the shard's memory says otherwise too"
    )


def _strides(node: torch.fx.Node) -> tuple[Size, ...]:
    value = node.meta["val"]
    return tuple(value.stride()) if value.layout is torch.strided else ()


# ------------------------------------------------------------------------------------------------ texts


def _equal(left: Sequence[Size], right: Sequence[Size]) -> bool:
    same_rank = len(left) == len(right)
    return same_rank and all(
        sympy.simplify(sympy.sympify(a) - sympy.sympify(b)) == 0 for a, b in zip(left, right, strict=True)
    )


def _listed(sizes: Sequence[Size]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _by_rank(shapes: Mapping[int, Sequence[Size]]) -> str:
    """``[2, 3] on rank 0, [2, 2] on rank 1``; one shape alone where all ranks have it."""
    if len(set(map(tuple, shapes.values()))) == 1:
        return _listed(next(iter(shapes.values())))
    return ", ".join(f"{_listed(shape)} on rank {rank}" for rank, shape in shapes.items())
