"""DTensors that leave a program, as DTensor reads them.

That the ranks' parts, one after the other, are the spec's value is not enough. A DTensor keeps its shape apart from
its shards, and takes them for the chunks into which ``torch.chunk`` divides that shape: ``full_tensor()`` of other
pieces is wrong, however right the pieces are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import sympy
import torch
import torch.fx
from torch.distributed.tensor import Shard

from verifycompile.lowering.lower import Lowering
from verifycompile.program import OutputKind, ProgramOutput, Size
from verifycompile.refinement.mismatch import Mismatch

CODE = "VC110"


def misread_output(spec: Lowering, implementation: Lowering) -> Mismatch | None:
    """The first DTensor of a program for all ranks whose record is not that of the spec's value.

    That shards are of equal size and the spec's pieces is for its relation to say.
    """
    wholes = {output.name: output for output in spec.program.outputs}
    for output in implementation.program.outputs:
        whole = wholes.get(output.name)
        if whole is None or output.global_shape is None:
            continue
        shape = tuple(implementation.sizes.size(size) for size in output.global_shape)
        expected = _of_shards(output, implementation) if output.open_axes else spec.sizes.shape_of(whole.node) or ()
        if not _equal(shape, expected):
            of = "its shards make" if output.open_axes else "the spec's has"
            message = f"`{output.name}` is a DTensor of shape {listed(shape)}, {of} shape {listed(expected)}"
            return Mismatch(CODE, message, output.name, whole.node, output.node, certain=True)
        message = misread_strides(whole, output)
        if message is not None:
            return Mismatch(CODE, message, output.name, whole.node, output.node)
    return None


def _of_shards(output: ProgramOutput, implementation: Lowering) -> list[Size]:
    """The shape of a DTensor on a part of the mesh: its relation says which part of the spec's value that is."""
    shape, mesh = list(implementation.sizes.shape_of(output.node) or ()), implementation.program.mesh
    for axis, placement in enumerate(output.placements or ()):
        if isinstance(placement, Shard) and axis not in output.open_axes:
            shape[placement.dim] *= 1 if mesh is None else mesh.axes[axis].size
    return shape


def misread_strides(spec: ProgramOutput, output: ProgramOutput) -> str | None:
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
        f"`{output.name}` is a DTensor of strides {listed(recorded)}; the spec's has strides "
        f"{listed(_strides(spec.node))}, and the shard's memory says otherwise too"
    )


def _strides(node: torch.fx.Node) -> tuple[Size, ...]:
    value = node.meta["val"]
    return tuple(value.stride()) if value.layout is torch.strided else ()


def _equal(left: Sequence[Size], right: Sequence[Size]) -> bool:
    same = (sympy.simplify(sympy.sympify(a) - b) == 0 for a, b in zip(left, right, strict=True))
    return len(left) == len(right) and all(same)


def listed(sizes: Sequence[Size]) -> str:
    return f"[{', '.join(map(str, sizes))}]"
