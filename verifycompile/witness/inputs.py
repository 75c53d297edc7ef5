"""One small random input for both programs, laid out over the ranks as the implementation declares."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence

import sympy
import torch
import torch.fx
from torch.distributed.tensor.placement_types import Placement, Replicate

from verifycompile.program import Program, ProgramInput, Role
from verifycompile.torch_interface.evaluation import size_hint, symbolic_expression
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.ignored import ignored_classes
from verifycompile.witness.indices import index_bound
from verifycompile.witness.layout import distribute, is_shard


class Distribution(enum.Enum):
    """How floating and boolean inputs are drawn."""

    NORMAL = "normal"
    """Normal floats of the size that initialisations have, random Booleans."""
    POSITIVE = "positive"
    """Positive floats (for logarithms, roots, variances), Booleans all True."""
    POSITIVE_UNSET = "positive, unset"
    """Positive floats, Booleans all False."""
    SMALL = "small"
    """Positive floats so small that what is added to them for stability counts."""
    REVERSED = "reversed"
    """As normal, the floats of each input in reverse order."""
    IGNORED = "ignored"
    """As normal, and some labels are of the class that the loss ignores: more on one rank than on another."""


_SMALL = 1e-6


@dataclasses.dataclass(frozen=True)
class Inputs:
    """``spec``: whole tensors by name of the spec's inputs. ``sizes``: values of the spec's size symbols."""

    spec: Mapping[str, torch.Tensor]
    tangents: Mapping[str, torch.Tensor]
    sizes: Mapping[sympy.Symbol, int]


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
            dim: int = placement.dim  # pyright: ignore[reportAttributeAccessIssue]
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


def draw(
    spec: Program, implementation: Program, seed: int, distribution: Distribution, index_limit: int | None
) -> Inputs:
    """Random values for every tensor input and tangent of the spec.

    ``index_limit`` caps integers below what :func:`index_bound` finds.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = spec_sizes(spec, implementation)
    values = {
        name: _draw_input(entry, sizes, generator, distribution, index_limit)
        for name, entry in tensor_inputs(spec).items()
    }
    if distribution is Distribution.IGNORED:
        ignored = ignored_classes(spec, implementation)
        for name, entry in tensor_inputs(spec).items():
            if entry.node in ignored:
                values[name] = _with_ignored(values[name], ignored[entry.node], implementation)
    tangents = {
        name: torch.randn(traced_shape(entry, sizes), generator=generator, dtype=torch.float64) + 0.5
        for name, entry in tangent_inputs(spec).items()
    }
    return Inputs(values, tangents, sizes)


def _draw_input(
    entry: ProgramInput,
    sizes: Mapping[sympy.Symbol, int],
    generator: torch.Generator,
    distribution: Distribution,
    index_limit: int | None,
) -> torch.Tensor:
    traced: torch.Tensor = entry.node.meta["val"]
    shape = traced_shape(entry, sizes)
    if traced.dtype == torch.bool:
        if distribution not in (Distribution.POSITIVE, Distribution.POSITIVE_UNSET):
            return torch.randint(0, 2, shape, generator=generator).bool()
        return torch.full(shape, distribution is Distribution.POSITIVE)
    if traced.dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.complex128)
    if not traced.dtype.is_floating_point:
        bound = index_bound(entry.node, lambda size: _known_size(size, sizes))
        bound = bound if index_limit is None else min(bound, index_limit)
        lowest = 1 if not shape and bound > 1 else 0  # a single number may be a count, by which programs divide
        return torch.randint(lowest, max(bound, 1), shape, generator=generator).to(traced.dtype)
    if distribution not in (Distribution.NORMAL, Distribution.REVERSED, Distribution.IGNORED):
        size = _SMALL if distribution is Distribution.SMALL else 1.0
        return (torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5) * size
    # Products with a matrix keep the size of their operand: activations neither saturate nor vanish with depth.
    fan_in = shape[-1] if entry.role is Role.PARAMETER and len(shape) > 1 else 1
    values = torch.randn(shape, generator=generator, dtype=torch.float64) / math.sqrt(fan_in)
    return values.flip(tuple(range(len(shape)))) if distribution is Distribution.REVERSED else values


def _with_ignored(labels: torch.Tensor, ignored: int, implementation: Program) -> torch.Tensor:
    """A few labels at the beginning ignored, so that the first rank keeps some and has fewer than the others."""
    ranks = len(implementation.mesh.ranks) if implementation.mesh is not None else 1
    flat = labels.flatten().clone()
    flat[: max(1, flat.numel() // (3 * ranks))] = ignored
    return flat.reshape(labels.shape)


def _known_size(size: object, sizes: Mapping[sympy.Symbol, int]) -> int | None:
    return size_hint(size, sizes) if isinstance(size, (int, torch.SymInt)) else None


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
    if not any(symbolic_expression(stride) for stride in strides) and tuple(traced.shape) == tuple(value.shape):
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
    parts = distribute(value, mesh_shape, placements, generator)
    shape = traced_shape(entry, {})
    if any(tuple(part.shape) != shape for part in parts):
        raise EvaluationError(f"input {entry.name}: local shape {tuple(parts[0].shape)}, traced with {shape}")
    laid_out: dict[int, torch.Tensor] = {}
    for part in parts:
        if id(part) not in laid_out:
            laid_out[id(part)] = with_traced_strides(part, entry.node)
    return [laid_out[id(part)] for part in parts]
