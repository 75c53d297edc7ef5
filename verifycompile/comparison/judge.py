"""One tensor of both programs: under which layout the ranks' parts are the spec's value, and how far they are off."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch.distributed.tensor.placement_types import Partial

from verifycompile.comparison.layout import Known, MergeError, Placements, candidates, merge, part_of, text
from verifycompile.comparison.threshold import comparable, distance, ratio_to
from verifycompile.comparison.trace import Kind
from verifycompile.program import Mesh
from verifycompile.witness.layout import sums_equal_parts


@dataclasses.dataclass(frozen=True)
class Judged:
    """A tensor of the spec and what the ranks hold of it. ``layout`` is None where none fits: it was not compared.

    ``error`` and ``threshold`` are norms, ``norm`` the spec's own. ``by_rank``: the ratio of each rank's part.
    ``dissent``: ranks whose replica is off where another one's is not. ``scale``: where the ranks' value is nearly a
    multiple of the spec's, by how much. ``fits``: a layout that is not allowed and under which it would be right.
    ``possible``: of an output all layouts under which it is right.
    """

    name: str
    kind: Kind
    module: str
    layout: Placements | None
    layout_text: str = ""
    error: float = 0.0
    threshold: float = 0.0
    norm: float = 0.0
    by_rank: Mapping[int, float] = dataclasses.field(default_factory=dict[int, float])
    dissent: tuple[int, ...] = ()
    scale: float | None = None
    fits: str = ""
    dtypes: tuple[str, str] = ("", "")
    detail: str = ""
    possible: tuple[Placements, ...] = ()

    @property
    def ratio(self) -> float:
        """Times the threshold."""
        return ratio_to(self.error, self.threshold)

    @property
    def exceeds(self) -> bool:
        """Whether the difference is more than rounding."""
        return self.layout is not None and self.ratio > 1.0


@dataclasses.dataclass(frozen=True)
class Subject:
    """A tensor of the spec that is asked about: what it is, its value and norm, and how far off rounding may be."""

    name: str
    kind: Kind
    module: str
    value: torch.Tensor
    norm: float
    threshold: float


def judge(
    subject: Subject,
    parts: Mapping[int, torch.Tensor],
    known: Known | None,
    mesh: Mesh,
    *,
    sums: bool,
    scale: float = 1.0,
) -> Judged:
    """The possible layout with the least error. ``scale``: by what the ranks' value is multiplied."""
    spec = subject.value
    dtypes = (_short(spec.dtype), _short(next(iter(parts.values())).dtype))
    best: Judged | None = None
    possible: list[Placements] = []
    at_positions = {mesh.ranks.index(rank): comparable(part) for rank, part in parts.items()}
    reason = "no layout over the mesh gives the spec's shape"
    for layout in candidates(known, {r: p.shape for r, p in parts.items()}, spec.shape, mesh, sums=sums):
        if known is None and sums_equal_parts(layout, at_positions, mesh.shape):
            continue
        try:
            replicas = merge(parts, layout, mesh)
        except MergeError as error:
            reason = str(error)
            continue
        found = _measured(subject, replicas, layout, mesh, scale)
        if best is None or _rank_of(found) < _rank_of(best):
            best = found
        if not found.exceeds:
            possible.append(layout)
        if not best.exceeds and subject.kind is not Kind.OUTPUT:
            break
    if best is None:
        detail = f"{reason}: {list(next(iter(parts.values())).shape)} on a rank, {list(spec.shape)} in the spec"
        return Judged(subject.name, subject.kind, subject.module, None, dtypes=dtypes, norm=subject.norm, detail=detail)
    best = dataclasses.replace(best, dtypes=dtypes, possible=tuple(possible))
    if not best.exceeds or best.layout is None:
        return dataclasses.replace(best, by_rank=dict.fromkeys(parts, best.ratio))
    by_rank = dict(_rank_ratios(spec, parts, best, mesh, scale))
    return dataclasses.replace(best, by_rank=by_rank)


def judge_scaled(
    subject: Subject,
    parts: Mapping[int, torch.Tensor],
    known: Known | None,
    mesh: Mesh,
    *,
    sums: bool,
    scales: Iterable[float],
) -> Judged:
    """As ``judge``; what is off may also be the spec's value multiplied by one of ``scales``."""
    found = judge(subject, parts, known, mesh, sums=sums)
    for scale in scales:
        if found.exceeds:
            other = judge(subject, parts, known, mesh, sums=sums, scale=scale)
            found = other if other.ratio < found.ratio else found
    return found


def _rank_of(found: Judged) -> tuple[bool, bool, float]:
    """Right before wrong; where all are wrong, replicas of which one is right say more than the least error."""
    return found.exceeds, not found.dissent, found.error


def _measured(
    subject: Subject, replicas: Mapping[int, torch.Tensor], layout: Placements, mesh: Mesh, scale: float
) -> Judged:
    spec, threshold = subject.value, subject.threshold
    errors: dict[int, float] = {}
    factor: float | None = None
    for rank, value in replicas.items():
        scaled = value.double() / scale if scale != 1.0 else value
        errors[rank] = distance(scaled, spec)
    worst = max(errors, key=errors.__getitem__)
    within = [rank for rank, error in errors.items() if ratio_to(error, threshold) <= 1.0]
    dissent = tuple(rank for rank in errors if rank not in within) if within else ()
    if ratio_to(errors[worst], threshold) > 1.0:
        factor = _factor(spec, replicas[worst].double() / scale, threshold)
    return Judged(
        subject.name,
        subject.kind,
        subject.module,
        layout,
        text(layout, mesh),
        errors[worst],
        threshold,
        subject.norm,
        dissent=dissent,
        scale=factor,
    )


def _factor(spec: torch.Tensor, value: torch.Tensor, threshold: float) -> float | None:
    """The number by which ``value`` is a multiple of the spec's, where it is one."""
    if value.shape != spec.shape or not spec.is_floating_point():
        return None
    whole = spec.double().flatten()
    square = float(whole @ whole)
    if square == 0.0 or not math.isfinite(square):
        return None
    factor = float(whole @ value.flatten()) / square
    rest = float(torch.linalg.vector_norm(value.flatten() - factor * whole))
    return factor if rest <= threshold * max(1.0, abs(factor)) else None


def _rank_ratios(
    spec: torch.Tensor, parts: Mapping[int, torch.Tensor], found: Judged, mesh: Mesh, scale: float
) -> Iterator[tuple[int, float]]:
    layout = found.layout
    assert layout is not None
    if any(isinstance(placement, Partial) for placement in layout):
        yield from ((rank, found.ratio) for rank in parts)
        return
    for rank, part in parts.items():
        own = part.double() / scale if part.is_floating_point() else part
        yield rank, ratio_to(distance(own, part_of(spec, layout, rank, mesh)), found.threshold)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
