"""What a given spec must have as the model has it: contents of buffers that the program does not write to, and which
parameters lie in one memory, so that what updates one updates the other after the graphs that are compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Partial

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.boundary import Export, values_of
from verifycompile.capture.held_tensors import digest_of
from verifycompile.program import Blocker, Mesh, OutputKind, Program, ProgramInput, Role
from verifycompile.torch_interface.dtensor.placements import outer_blocks, sharded_dimension
from verifycompile.torch_interface.operators.elements import constant_value, real_tensors
from verifycompile.torch_interface.operators.memory import sharing
from verifycompile.torch_interface.ranks.mesh import own_rank


def differing_buffers(
    spec: Program, exported_spec: Export, implementation: Program, exported: Export, empty: Sequence[torch.Tensor]
) -> tuple[tuple[Blocker, ...], tuple[str, ...]]:
    """A blocker for each buffer whose values differ between a given spec and the ranks' models; and assumptions.

    The models are this rank's own, and those that `build` makes.

    Parameters are not compared: that they are equal is the input relation. Nor is a buffer that the spec writes to,
    which is state like a parameter. One whose values are not known while compiling is an assumption.
    ``empty``: tensors of the spec that stand for others and hold nobody's values.
    """
    written = {output.name for output in spec.outputs if output.kind is OutputKind.MUTATION}
    mesh = implementation.mesh
    expected, held = values_of(exported_spec, Role.BUFFER), values_of(exported, Role.BUFFER)
    blockers: list[Blocker] = []
    assumptions: list[str] = []
    for item in implementation.inputs:
        name = item.name
        if item.role is not Role.BUFFER or name not in expected or f"mutation.{name}" in written or mesh is None:
            continue
        is_empty = any(expected[name] is tensor for tensor in empty)
        same = None if is_empty else _same(expected[name], held.get(name), item, mesh)
        if same is None:
            text = f"buffer `{name}` holds the same in the spec and in the model: its values are not known"
            assumptions.append(Assumption(text, AssumptionKind.VALUES, [name]))
        elif not same:
            text = f"buffer `{name}` holds other values in the spec than in the model."
            blockers.append(Blocker(None, "VC304", text))
        elif (rank := _other_rank(expected[name], held[name], item, implementation)) is not None:
            of_rank = f"in the model that `build` makes on rank {rank}"
            text = f"buffer `{name}` holds other values than the spec's part {of_rank}."
            blockers.append(Blocker(None, "VC304", text))
    return tuple(blockers), tuple(assumptions)


def _same(whole: object, held: object, item: ProgramInput, mesh: Mesh) -> bool | None:
    """Whether ``held`` is this rank's part of ``whole``; None where the values are not known."""
    if whole is held:
        return True
    if not isinstance(whole, torch.Tensor) or not isinstance(held, torch.Tensor) or own_rank() not in mesh.ranks:
        return None
    with real_tensors():
        local = constant_value(held.to_local() if isinstance(held, DTensor) else held)
        part = _part(whole, item, mesh, own_rank())
        if local is None or part is None or local.is_meta:
            return None
        return part.shape == local.shape and bool(torch.equal(part.to(local.dtype), local))


def _other_rank(whole: object, held: object, item: ProgramInput, implementation: Program) -> int | None:
    """The first rank whose model holds something else than its part of ``whole``, where both are known.

    What is replicated is compared among the ranks.
    """
    mesh, own = implementation.mesh, implementation.own
    if mesh is None or own is None or all(sharded_dimension(placement) is None for placement in item.placements or ()):
        return None
    if not isinstance(whole, torch.Tensor) or not isinstance(held, torch.Tensor):
        return None
    for rank, contents in own.contents.items():
        with real_tensors():
            part = _part(whole, item, mesh, rank) if rank in mesh.ranks and item.name in contents else None
            if part is not None and digest_of(part.to(held.dtype)) != contents[item.name]:
                return rank
    return None


def _part(whole: torch.Tensor, item: ProgramInput, mesh: Mesh, rank: int) -> torch.Tensor | None:
    """The part of ``whole`` that lies on a rank; None where its values are not known, or are summands."""
    part = constant_value(whole)
    if part is None or part.is_meta:
        return None
    position, below = mesh.ranks.index(rank), len(mesh.ranks)
    for axis, placement in zip(mesh.axes, item.placements or (), strict=False):
        below //= axis.size
        if isinstance(placement, Partial):
            return None
        dim = sharded_dimension(placement)
        if dim is not None:
            blocks = part.chunk(outer_blocks(placement), dim)
            part = torch.cat([block.chunk(axis.size, dim)[position // below % axis.size] for block in blocks], dim)
    return part


def differing_memory(spec: Export, implementation: Export) -> tuple[Blocker, ...]:
    """A blocker for each pair of parameters that share memory in the model alone, or in a given spec alone."""
    expected, held = values_of(spec, Role.PARAMETER), values_of(implementation, Role.PARAMETER)
    common = expected.keys() & held.keys()
    whole = sharing({name: value for name, value in expected.items() if name in common})
    own = sharing({name: value for name, value in held.items() if name in common})
    return tuple(
        Blocker(
            None,
            "VC304",
            f"`{first}` and `{second}` share memory in the {has}, and not in the {lacks}: what updates one updates "
            "the other.",
        )
        for has, lacks, pairs in (("model", "spec", own - whole), ("spec", "model", whole - own))
        for first, second in sorted(pairs)
    )
