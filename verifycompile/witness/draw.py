"""Random inputs that a program may be called with: ordinary ones, and those at the edges of what is legal."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping

import sympy
import torch

from verifycompile.program import Program, ProgramInput, Role
from verifycompile.torch_interface.operators.evaluation import operator_name, size_hint
from verifycompile.witness.ignored import ignored_classes
from verifycompile.witness.indices import compared_numbers, counts_from_the_end, index_bound, is_searched
from verifycompile.witness.inputs import Inputs, spec_sizes, tangent_inputs, tensor_inputs, traced_shape
from verifycompile.witness.layout import is_shard


class Distribution(enum.Enum):
    """How the elements of inputs are drawn."""

    NORMAL = "normal"
    """Normal floats of the size that initialisations have, random Booleans."""
    POSITIVE = "positive"
    """Positive floats (for logarithms, roots, variances), Booleans all True."""
    POSITIVE_UNSET = "positive, unset"
    """Positive floats, Booleans all False."""
    SMALL = "small"
    """Positive floats so small that what is added to them for stability counts."""
    FAINT = "faint"
    """As normal, and so much smaller that bounds on values (the clipping of gradients) do not act."""
    SPREAD = "spread"
    """As normal, of many magnitudes: where a function saturates, as `tanh` and a rounding do, some still tell."""
    WIDE = "wide"
    """As normal, and growing up to the numbers that the programs compare elements with: on one rank none is reached."""
    REVERSED = "reversed"
    """As normal, the floats of each input in reverse order."""
    SLOPED = "sloped"
    """As normal, the floats of each input larger towards one end of a dimension: parts differ in their norms."""
    WHOLE = "whole"
    """Small whole numbers: many elements are equal, and some are 0."""
    ONE_INDEX = "one index"
    """As normal, all integers of an input equal, so that all but one group, expert or row is empty."""
    IGNORED = "ignored"
    """As normal, and some labels are of the class that the loss ignores: more on one rank than on another."""
    NEGATIVE = "negative"
    """As normal, and some of the integers that index a dimension count from its end."""
    EMPTY = "empty"
    """As normal, and one rank's part of every mask is False, and of all labels of the class that the loss ignores."""


_SMALL = 1e-6
_FAINT = 1 / 32
_LEAST_OF_SLOPE = 1 / 8
_MANY = 256
"""Of so many normal numbers the norm is nearly that of any others."""
_BOUNDED = frozenset({"aten.clamp.default", "aten.clamp_max.default", "aten.hardtanh.default", "aten.minimum.default"})
"""Operators that have no effect on values that are small enough."""
_COMPARING = frozenset(f"aten.{name}.Scalar" for name in ("gt", "ge", "lt", "le"))
_SATURATING = frozenset({"aten.tanh.default", "aten.sigmoid.default", "aten.erf.default"}) | _BOUNDED
_MAGNITUDES = 14
"""Powers of two over which spread values lie."""
_POSITIVE = (Distribution.POSITIVE, Distribution.POSITIVE_UNSET, Distribution.SMALL)


def draw(
    spec: Program, implementation: Program, seed: int, distribution: Distribution, index_limit: int | None
) -> Inputs:
    """Random values for every tensor input and tangent of the spec.

    ``index_limit`` caps integers below what :func:`index_bound` finds.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = spec_sizes(spec, implementation)
    entries = tensor_inputs(spec)
    values = {name: _draw_input(entry, sizes, generator, distribution, index_limit) for name, entry in entries.items()}
    if distribution is Distribution.WIDE:
        largest = _largest_threshold(spec)
        values = {name: _growing(value, largest) for name, value in values.items()}
    change = _CHANGES.get(distribution)
    if change is not None:
        values.update(change(spec, implementation, values))
    values.update({name: values[name].sort().values for name, entry in entries.items() if is_searched(entry.node)})
    tangents = {
        name: _tangent(traced_shape(entry, sizes), generator, distribution)
        for name, entry in tangent_inputs(spec).items()
    }
    tangents.update({name: torch.zeros_like(tangents[name]) for name in _entering_elsewhere(spec, implementation)})
    return Inputs(values, tangents, sizes)


def _entering_elsewhere(spec: Program, implementation: Program) -> set[str]:
    """Outputs whose cotangent the implementation takes with another's, or outside of its graph.

    It returns one tensor twice, or an input as it is: its gradients are the spec's where these cotangents are zero.
    """
    passing_on = {output.name for output in implementation.outputs if output.requires_grad}
    return (tangent_inputs(spec).keys() - tangent_inputs(implementation).keys()) & passing_on


def applies(spec: Program, distribution: Distribution) -> bool:
    """Whether the programs have inputs that make ``distribution`` another one than ``NORMAL``."""
    entries = tensor_inputs(spec).values()
    dtypes = {entry.node.meta["val"].dtype for entry in entries if entry.node.meta["val"].dim()}
    if distribution is Distribution.IGNORED:
        return bool(ignored_classes(spec))
    if distribution is Distribution.SLOPED:
        sizes = (size for entry in entries for size in entry.node.meta["val"].shape)
        return any(isinstance(size, int) and size > _MANY for size in sizes)
    if distribution is Distribution.FAINT:
        return any(operator_name(node.target) in _BOUNDED for node in spec.graph.graph.nodes)
    if distribution is Distribution.WIDE:
        return _largest_threshold(spec) > 1
    if distribution is Distribution.SPREAD:
        return any(operator_name(node.target) in _SATURATING for node in spec.graph.graph.nodes)
    if distribution is Distribution.NEGATIVE:
        return any(counts_from_the_end(entry.node) for entry in entries)
    if distribution is Distribution.ONE_INDEX:
        return any(not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool for dtype in dtypes)
    if distribution is Distribution.EMPTY:
        return torch.bool in dtypes or bool(ignored_classes(spec))
    return True


def _largest_threshold(spec: Program) -> float:
    """The largest number that elements are compared with; 0 where there is none."""
    compared = (node for node in spec.graph.graph.nodes if operator_name(node.target) in _COMPARING)
    numbers = (node.args[1] for node in compared)
    return max((abs(number) for number in numbers if isinstance(number, (int, float))), default=0.0)


def _growing(value: torch.Tensor, largest: float) -> torch.Tensor:
    if not value.is_floating_point():
        return value
    return value * torch.linspace(0, largest, value.numel(), dtype=value.dtype).reshape(value.shape)


def _tangent(shape: tuple[int, ...], generator: torch.Generator, distribution: Distribution) -> torch.Tensor:
    if distribution is Distribution.WHOLE:
        return torch.randint(1, 4, shape, generator=generator).double()
    return torch.randn(shape, generator=generator, dtype=torch.float64) + 0.5


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
        drawn = torch.randint(lowest, max(bound, 1), shape, generator=generator).to(traced.dtype)
        if distribution is Distribution.ONE_INDEX:
            return torch.full_like(drawn, max(bound, 1) - 1)
        near = {number + step for number in compared_numbers(entry.node) for step in (-1, 0, 1)}
        near = torch.tensor(sorted(number for number in near if lowest <= number < bound), dtype=traced.dtype)
        if near.numel():
            chosen = near[torch.randint(0, near.numel(), shape, generator=generator)]
            drawn = torch.where(torch.randint(0, 3, shape, generator=generator) == 0, chosen, drawn)
        return drawn
    if distribution is Distribution.WHOLE:
        return torch.randint(-1, 3, shape, generator=generator).double()
    if distribution in _POSITIVE:
        size = _SMALL if distribution is Distribution.SMALL else 1.0
        return (torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5) * size
    # Products with a matrix keep the size of their operand: activations neither saturate nor vanish with depth.
    fan_in = shape[-1] if entry.role is Role.PARAMETER and len(shape) > 1 else 1
    values = torch.randn(shape, generator=generator, dtype=torch.float64) / math.sqrt(fan_in)
    if distribution is Distribution.FAINT:
        return values * _FAINT
    if distribution is Distribution.SPREAD:
        return values * torch.exp2(-torch.randint(0, _MAGNITUDES, shape, generator=generator).double())
    if distribution is Distribution.SLOPED:
        for dim, size in enumerate(shape):
            ends = torch.rand(2, generator=generator, dtype=torch.float64) + _LEAST_OF_SLOPE
            slope = torch.linspace(float(ends[0]), float(ends[1]), size, dtype=torch.float64)
            values *= slope.reshape(size, *(1 for _ in shape[dim + 1 :]))
        return values
    return values.flip(tuple(range(len(shape)))) if distribution is Distribution.REVERSED else values


def _known_size(size: object, sizes: Mapping[sympy.Symbol, int]) -> int | None:
    return size_hint(size, sizes) if isinstance(size, (int, torch.SymInt)) else None


_Changes = dict[str, torch.Tensor]


def _ignored(spec: Program, implementation: Program, values: Mapping[str, torch.Tensor]) -> _Changes:
    """A few labels at the beginning ignored, so that the first rank keeps some and has fewer than the others."""
    classes = ignored_classes(spec)
    ranks = len(implementation.mesh.ranks) if implementation.mesh is not None else 1
    changed: _Changes = {}
    for name, entry in tensor_inputs(spec).items():
        if entry.node in classes and values[name].numel():
            flat = values[name].flatten().clone()
            flat[: max(1, flat.numel() // (3 * ranks))] = classes[entry.node]
            changed[name] = flat.reshape(values[name].shape)
    return changed


def _negative(spec: Program, _: Program, values: Mapping[str, torch.Tensor]) -> _Changes:
    """Every second index counts from the end of its dimension."""
    changed: _Changes = {}
    for name, entry in tensor_inputs(spec).items():
        if counts_from_the_end(entry.node) and values[name].numel():
            flat = values[name].flatten().clone()
            flat[::2] = -flat[::2] - 1
            changed[name] = flat.reshape(values[name].shape)
    return changed


def _empty(spec: Program, implementation: Program, values: Mapping[str, torch.Tensor]) -> _Changes:
    """Masks and labels of which one rank has nothing left."""
    classes = ignored_classes(spec)
    implemented = tensor_inputs(implementation)
    changed: _Changes = {}
    for name, entry in tensor_inputs(spec).items():
        value = values[name]
        if value.dim() == 0 or (value.dtype != torch.bool and entry.node not in classes):
            continue
        twin = implemented.get(name)
        dim, count = _first_division(twin, implementation)
        dim = dim if -value.dim() <= dim < value.dim() else 0
        changed[name] = value.clone()
        first = max(1, value.shape[dim] // count)
        changed[name].narrow(dim, 0, min(first, value.shape[dim])).fill_(classes.get(entry.node, 0))
    return changed


def _first_division(entry: ProgramInput | None, implementation: Program) -> tuple[int, int]:
    """The dimension that the outermost mesh axis divides, and in how many parts; the first in two where none does."""
    if entry is None or entry.placements is None or implementation.mesh is None:
        return 0, 2
    for placement, size in zip(entry.placements, implementation.mesh.shape, strict=True):
        if is_shard(placement) and size > 1:
            dim: int = placement.dim  # pyright: ignore[reportAttributeAccessIssue]  # shards alone come here
            return dim, size
    return 0, 2


_CHANGES: Mapping[Distribution, Callable[[Program, Program, Mapping[str, torch.Tensor]], _Changes]] = {
    Distribution.IGNORED: _ignored,
    Distribution.NEGATIVE: _negative,
    Distribution.EMPTY: _empty,
}
