"""One small random input for both programs, laid out over the ranks as the implementation declares."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import sympy
import torch
import torch.fx
from torch.distributed.tensor.placement_types import Placement, Replicate

from verifycompile.program import Program, ProgramInput, Role
from verifycompile.torch_interface.operators.evaluation import size_hint, symbolic_expression
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.layout import distribute, is_shard, shared


@dataclasses.dataclass(frozen=True)
class Inputs:
    """``spec``: whole tensors by name of the spec's inputs. ``sizes``: values of the spec's size symbols."""

    spec: Mapping[str, torch.Tensor]
    tangents: Mapping[str, torch.Tensor]
    sizes: Mapping[sympy.Symbol, int]

    @property
    def are_whole(self) -> bool:
        """Whether all numbers are whole, so that no rounding went into them."""
        return all(_is_whole(value) for value in (*self.spec.values(), *self.tangents.values()))


def _is_whole(value: torch.Tensor) -> bool:
    parts = torch.view_as_real(value) if value.is_complex() else value
    return not parts.is_floating_point() or torch.equal(parts, parts.round())


def tensor_inputs(program: Program) -> dict[str, ProgramInput]:
    """The program's tensor inputs by name, tangents excluded."""
    return {entry.name: entry for entry in program.inputs if is_tensor(entry) and entry.role is not Role.TANGENT}


def tangent_inputs(program: Program) -> dict[str, ProgramInput]:
    """The program's tangents, by the name of their output."""
    return {entry.name: entry for entry in program.inputs if is_tensor(entry) and entry.role is Role.TANGENT}


def is_tensor(entry: ProgramInput) -> bool:
    """Whether the placeholder holds a tensor."""
    return isinstance(entry.node.meta.get("val"), torch.Tensor)


def traced_shape(entry: ProgramInput, sizes: Mapping[sympy.Symbol, int]) -> tuple[int, ...]:
    """The placeholder's local shape with the sizes that it was traced with."""
    dims = [size_hint(dim, sizes) for dim in entry.node.meta["val"].shape]
    known = [dim for dim in dims if dim is not None]
    if len(known) != len(dims):
        raise EvaluationError(f"the size of the input {entry.name} is unknown")
    return tuple(known)


def global_shape(shape: Sequence[int], placements: Sequence[Placement], mesh_shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of the tensor whose shards have ``shape``."""
    result = list(shape)
    for placement, size in zip(placements, mesh_shape, strict=True):
        if is_shard(placement):
            dim: int = placement.dim  # pyright: ignore[reportAttributeAccessIssue]  # shards alone come here
            if dim >= len(result):
                raise EvaluationError(f"{placement} of a tensor of {len(result)} dimensions")
            result[dim] *= size
    return tuple(result)


def spec_sizes(spec: Program, implementation: Program) -> dict[sympy.Symbol, int]:
    """Values of the spec's size symbols under which its inputs have the whole shapes of the implementation's."""
    sizes: dict[sympy.Symbol, int] = {}
    mesh_shape = implementation.mesh.shape if implementation.mesh is not None else ()
    implemented = tensor_inputs(implementation)
    for name, entry in tensor_inputs(spec).items():
        if (twin := implemented.get(name)) is None:
            continue
        shape = global_shape(traced_shape(twin, {}), placements_of(twin, len(mesh_shape)), mesh_shape)
        traced = entry.node.meta["val"].shape
        for dim, size in zip(traced, shape, strict=len(traced) == len(shape)):
            expression = symbolic_expression(dim)
            if isinstance(expression, sympy.Symbol):
                sizes.setdefault(expression, size)
    return sizes


def placements_of(entry: ProgramInput, mesh_dims: int) -> tuple[Placement, ...]:
    """The input's declared placements; replicated where none are declared."""
    return entry.placements if entry.placements is not None else (Replicate(),) * mesh_dims


def perturbed(inputs: Inputs, seed: int, relative: float) -> Inputs:
    """The inputs with every floating element changed by a random factor of about ``1 + relative``."""
    generator = torch.Generator().manual_seed(seed + 1)

    def change(value: torch.Tensor) -> torch.Tensor:
        if not value.is_floating_point():
            return value
        return value * (1 + relative * torch.randn(value.shape, generator=generator, dtype=value.dtype))

    return dataclasses.replace(
        inputs,
        spec={name: change(value) for name, value in inputs.spec.items()},
        tangents={name: change(value) for name, value in inputs.tangents.items()},
    )


def with_traced_strides(value: torch.Tensor, node: torch.fx.Node) -> torch.Tensor:
    """``value`` in the memory layout that the placeholder was traced with, where that is dense."""
    traced: torch.Tensor = node.meta["val"]
    strides = traced.stride()
    # A comparison with a symbolic size would be a guard of the frame under compilation.
    shape = tuple(size_hint(size, {}) for size in traced.shape)
    if not any(symbolic_expression(stride) for stride in strides) and shape == tuple(value.shape):
        if value.stride() == strides:
            return value
        order = sorted(range(value.dim()), key=lambda dim: -strides[dim])
        dense = value.permute(order).contiguous().permute([order.index(dim) for dim in range(value.dim())])
        return dense if dense.stride() == strides else value.contiguous()
    return value.contiguous()


def size_values(program: Program, sizes: Mapping[sympy.Symbol, int]) -> dict[torch.fx.Node, int]:
    """Values of the program's placeholders of symbolic integers."""
    values: dict[torch.fx.Node, int] = {}
    for entry in program.inputs:
        traced = entry.node.meta.get("val")
        if isinstance(traced, (int, torch.SymInt)) and not isinstance(traced, bool):
            hint = size_hint(traced, sizes)
            if hint is None:
                raise EvaluationError(f"the size {entry.name} is unknown")
            values[entry.node] = hint
    return values


def rank_values(
    entry: ProgramInput, value: torch.Tensor, implementation: Program, placements: Sequence[Placement], seed: int
) -> list[torch.Tensor]:
    """Each rank's part of an input. Raises where its shape is not the one that the implementation was traced with."""
    mesh_shape = implementation.mesh.shape if implementation.mesh is not None else ()
    generator = torch.Generator().manual_seed(seed + 2)
    parts = shared(distribute(value, mesh_shape, placements, generator))
    shape = traced_shape(entry, {})
    if any(tuple(part.shape) != shape for part in parts):
        raise EvaluationError(f"input {entry.name}: local shape {tuple(parts[0].shape)}, traced with {shape}")
    laid_out: dict[int, torch.Tensor] = {}
    for part in parts:
        if id(part) not in laid_out:
            laid_out[id(part)] = with_traced_strides(part, entry.node)
    return [laid_out[id(part)] for part in parts]
