"""Contents of the tensors that each rank's model holds: what is taken to be replicated must be equal on all ranks."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.fx
from torch.distributed.tensor import DTensor

from verifycompile.capture.boundary import Export
from verifycompile.capture.names import InputName
from verifycompile.program import Blocker, Mesh, ProgramInput
from verifycompile.torch_interface.data_parallel.unwrapped import is_without_contents
from verifycompile.torch_interface.dtensor.placements import sharded_dimension
from verifycompile.torch_interface.dynamo.aot import Origin, Part
from verifycompile.torch_interface.operators.contents import content_of
from verifycompile.torch_interface.ranks.mesh import coordinate_of

Contents = Mapping[str, bytes]
"""Name of a tensor -> digest of its values, for those whose values are known."""
_SAMPLE = 1 << 16
"""Of larger tensors a checksum and so many elements are compared."""


def contents_of(exported: Export, shared: Export) -> dict[str, bytes]:
    """Of the plain tensors that enter a rank's graph, but for those of ``shared``: one object, as arguments are.

    The shards of a DTensor are not compared, nor what `fully_shard` gathers: what distributes them communicates, which
    one process alone does not.
    """
    found: dict[str, bytes] = {}
    for name, _, value in plain_tensors(exported, shared):
        is_distributed = isinstance(value, DTensor) or is_without_contents(value)
        digest = None if is_distributed else digest_of(value)
        if digest is not None:
            found[name.name] = digest
    return found


def digest_of(value: torch.Tensor) -> bytes | None:
    """Of its dtype, shape and elements; None where these are not known."""
    content = content_of(value, _SAMPLE)
    return None if content is None else hashlib.sha256(f"{value.dtype}{list(value.shape)}".encode() + content).digest()


def plain_tensors(exported: Export, shared: Export) -> Iterator[tuple[InputName, torch.fx.Node | None, torch.Tensor]]:
    """Name, node and value of the plain tensors that enter a graph, but for those of ``shared``, if it is another."""
    same = {id(value) for value in shared.traced.example_inputs} if shared is not exported else set[int]()
    for flat in exported.joint.inputs:
        if flat.origin is Origin.ARGUMENT and flat.part is Part.WHOLE:
            value = exported.traced.example_inputs[flat.index]
            if isinstance(value, torch.Tensor) and id(value) not in same:
                yield exported.names[flat.index], flat.node, value


@dataclasses.dataclass(frozen=True)
class _Different:
    name: str
    ranks: tuple[int, int]
    axes: tuple[str, ...]


def differing_contents(
    contents: Mapping[int, Contents], inputs: Sequence[ProgramInput], mesh: Mesh
) -> tuple[Blocker, ...]:
    """A blocker for each tensor that two ranks hold with other values, though its placements make them equal there."""
    return tuple(
        Blocker(
            None,
            "VC207",
            f"`{item.name}` holds other values on rank {item.ranks[1]} than on rank {item.ranks[0]} in the models that "
            f"`build` makes, and is taken to be replicated over {', '.join(f'`{axis}`' for axis in item.axes)}. Say "
            "how it lies with `param_placements`, or compute it of the rank in `forward`.",
        )
        for item in _differing(contents, inputs, mesh)
    )


def _differing(contents: Mapping[int, Contents], inputs: Sequence[ProgramInput], mesh: Mesh) -> Iterator[_Different]:
    for item in inputs:
        placements = item.placements or ()
        sharded = [axis for axis, placement in enumerate(placements) if sharded_dimension(placement) is not None]
        first: dict[tuple[int, ...], int] = {}
        for rank, held in contents.items():
            if item.name not in held:
                continue
            place = coordinate_of(rank, mesh)
            other = first.setdefault(tuple(place[axis] for axis in sharded), rank)
            if contents[other][item.name] != held[item.name]:
                axes = tuple(mesh.axes[axis].name for axis in range(len(mesh.axes)) if axis not in sharded)
                yield _Different(item.name, (other, rank), axes)
                break
