"""Is an output of the implementation, on all ranks, the spec's output under its required or any clean relation?"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections.abc import Sequence

import torch
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from verifycompile.torch_interface.ranks.mesh import place_at
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.layout import assemble
from verifycompile.witness.rounding import ROUNDING_FACTOR

RELATIVE_TOLERANCE = 1e-6
"""Accepted difference, relative to the largest element of the spec's output."""
PERTURBATION = 1e-10
"""Relative input perturbation whose response measures how the output amplifies rounding."""
RESPONSE_FACTOR = 1e4
"""Accepted difference in multiples of that response: far above what float64 arithmetic can make of rounding."""
UNCERTAINTY_FACTOR = 1e3
"""Accepted difference in multiples of the response to other rounding, which is millions of times what rounding does."""
SCALE_FLOOR = 1e-12
"""Accepted difference, relative to the largest element of any output: a gradient that is zero on paper is noise."""

PERMUTED = "a permutation of the spec's elements"
"""Of an output whose layout nobody asked for: which of its elements is which is not known."""


class Agreement(enum.Enum):
    """Outcome of comparing one output."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    """Not comparable: not finite, not evaluated, or of a shape that only a wider relation could explain."""


@dataclasses.dataclass(frozen=True)
class OutputComparison:
    """One output. ``relation``: placements under which it equals the spec's, None unless EQUAL.

    For DIFFERENT: ``rank`` (position in the mesh, row-major) holds or, for partial values, takes part in the element
    ``index`` of the spec's output, where the implementation has ``impl_value`` instead of ``spec_value``.
    ``under``: the placements under which they were compared, None where there are several that would do.
    """

    name: str
    agreement: Agreement
    relation: tuple[Placement, ...] | None = None
    detail: str = ""
    rank: int = 0
    index: tuple[int, ...] = ()
    spec_value: float = math.nan
    impl_value: float = math.nan
    max_abs_difference: float = 0.0
    tolerance: float = 0.0
    under: tuple[Placement, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Reference:
    """The spec's output ``name``: its value and the largest difference that counts as equal."""

    name: str
    value: torch.Tensor
    tolerance: float


def tolerance_of(value: torch.Tensor, perturbed: torch.Tensor, scale: float) -> float:
    """Largest accepted difference from ``value``; ``perturbed`` is its response, ``scale`` the largest output."""
    response = _largest(_real(perturbed) - _real(value))
    return RELATIVE_TOLERANCE * _largest(_real(value)) + RESPONSE_FACTOR * response + SCALE_FLOOR * scale


def rounding_of(value: torch.Tensor, moved: torch.Tensor) -> float:
    """What rounding of the values on the way may make of ``value``, which changes of these made into ``moved``."""
    return ROUNDING_FACTOR * _largest(_real(moved) - _real(value))


def uncertainty_of(value: torch.Tensor, moved: torch.Tensor) -> float:
    """What rounding alone may make of ``value``, on inputs that are exact: whatever hangs on it is uncertain."""
    return UNCERTAINTY_FACTOR * _largest(_real(moved) - _real(value))


def compare(
    reference: Reference,
    parts: Sequence[torch.Tensor],
    mesh_shape: Sequence[int],
    placements: Sequence[Placement] | None,
    open_axes: frozenset[int] = frozenset(),
    *,
    partial: bool = True,
) -> OutputComparison:
    """Compares the ranks' ``parts`` under ``placements``, or under every clean relation where that is None.

    ``open_axes``: mesh axes of which ``placements`` says nothing, so that every clean relation will do there.
    ``partial``: whether a relation that nobody declared may be a reduction.
    """
    if not math.isfinite(reference.tolerance) or not bool(torch.isfinite(_real(reference.value)).all()):
        return OutputComparison(reference.name, Agreement.UNKNOWN, detail="the spec's output is not finite")
    if placements is not None and not open_axes:
        return _compare_under(reference, parts, mesh_shape, tuple(placements))
    candidates = candidate_placements(reference.value.dim(), mesh_shape, placements, open_axes, partial=partial)
    return _compare_any(reference, parts, mesh_shape, candidates)


def candidate_placements(
    dims: int,
    mesh_shape: Sequence[int],
    placements: Sequence[Placement] | None,
    open_axes: frozenset[int],
    *,
    partial: bool,
) -> list[tuple[Placement, ...]]:
    """The placements under any of which an output of ``dims`` dimensions may be the spec's; see :func:`compare`."""
    if placements is not None and not open_axes:
        return [tuple(placements)]
    candidates = clean_placements(dims, mesh_shape)
    if placements is not None:
        opened = (
            tuple(f if a in open_axes else p for a, (p, f) in enumerate(zip(placements, found, strict=True)))
            for found in candidates
        )
        return list(dict.fromkeys(opened))
    if not partial:
        return [found for found in candidates if not any(isinstance(item, Partial) for item in found)]
    return candidates


def _compare_under(
    reference: Reference,
    parts: Sequence[torch.Tensor],
    mesh_shape: Sequence[int],
    placements: tuple[Placement, ...],
) -> OutputComparison:
    name, spec_value, tolerance = reference.name, reference.value, reference.tolerance
    wholes = assemble(parts, mesh_shape, placements)
    first = list({id(whole): position for position, whole in reversed(list(enumerate(wholes)))}.values())[::-1]
    for whole in (wholes[position] for position in first):
        if whole.shape != spec_value.shape:
            detail = f"shape {list(whole.shape)}, the spec's is {list(spec_value.shape)}"
            agreement = Agreement.DIFFERENT if _squeezed(whole) != _squeezed(spec_value) else Agreement.UNKNOWN
            return OutputComparison(name, agreement, detail=detail, under=placements)
    differences = {position: _difference(wholes[position], spec_value) for position in first}
    sizes = {position: _largest(difference) for position, difference in differences.items()}
    worst = max(first, key=sizes.__getitem__)
    if sizes[worst] <= tolerance:
        return OutputComparison(name, Agreement.EQUAL, placements, max_abs_difference=sizes[worst], tolerance=tolerance)
    position = int(differences[worst].argmax())
    owners = assemble(
        [torch.full_like(part, rank, dtype=torch.int64) for rank, part in enumerate(parts)],
        mesh_shape,
        placements,
        lambda values, _: values[0],
    )
    real_index = place_at(position, differences[worst].shape)
    index = real_index[: spec_value.dim()]
    return OutputComparison(
        name,
        Agreement.DIFFERENT,
        rank=int(owners[worst][index]),
        index=index,
        spec_value=float(_real(spec_value)[real_index]),
        impl_value=float(_real(wholes[worst])[real_index]),
        max_abs_difference=sizes[worst],
        tolerance=tolerance,
        under=placements,
    )


def _compare_any(
    reference: Reference,
    parts: Sequence[torch.Tensor],
    mesh_shape: Sequence[int],
    candidates: Sequence[tuple[Placement, ...]],
) -> OutputComparison:
    name, spec_value = reference.name, reference.value
    closest: OutputComparison | None = None
    for placements in candidates:
        try:
            wholes = assemble(parts, mesh_shape, placements)
            result = _compare_under(reference, parts, mesh_shape, placements)
        except EvaluationError:
            continue
        if result.agreement is Agreement.EQUAL:
            return result
        if result.agreement is Agreement.UNKNOWN or wholes[0].shape != spec_value.shape:
            continue
        if any(_is_permutation(whole, spec_value, reference.tolerance) for whole in wholes):
            return OutputComparison(name, Agreement.UNKNOWN, detail=PERMUTED)
        if closest is None or result.max_abs_difference < closest.max_abs_difference:
            closest = result
    if closest is None:
        shapes = sorted({tuple(part.shape) for part in parts})
        detail = f"shapes {shapes} for the spec's {tuple(spec_value.shape)}"
        return OutputComparison(name, Agreement.UNKNOWN, detail=detail)
    return dataclasses.replace(closest, detail="under no clean relation", under=None)


def clean_placements(dims: int, mesh_shape: Sequence[int]) -> list[tuple[Placement, ...]]:
    """Every combination of replicated, sharded and reduced mesh axes, replicated first."""
    reductions = [Partial("sum"), Partial("avg"), Partial("max"), Partial("min")]
    one_axis: list[Placement] = [Replicate(), *(Shard(dim) for dim in range(dims)), *reductions]
    axes: list[list[Placement]] = [one_axis if size > 1 else [Replicate()] for size in mesh_shape]
    return list(itertools.product(*axes))


def _difference(whole: torch.Tensor, spec_value: torch.Tensor) -> torch.Tensor:
    difference = (_real(whole) - _real(spec_value)).abs()
    return difference.nan_to_num(nan=math.inf, posinf=math.inf)


def _real(value: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value.to(torch.float64)


def _largest(value: torch.Tensor) -> float:
    return float(value.abs().max()) if value.numel() else 0.0


def _squeezed(value: torch.Tensor) -> tuple[int, ...]:
    return tuple(size for size in value.shape if size != 1)


def _is_permutation(whole: torch.Tensor, spec_value: torch.Tensor, tolerance: float) -> bool:
    if spec_value.numel() <= 1:
        return False
    first, second = _real(whole).flatten().sort().values, _real(spec_value).flatten().sort().values
    return _largest(first - second) <= tolerance
