"""Placements in which a value may be held: proposed by its shapes, and tried."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from verifycompile.ir import relabel
from verifycompile.ir.term import TermPool, View
from verifycompile.program import Mesh
from verifycompile.refinement.placement import Placements, holds, with_open_axes
from verifycompile.rewrites.registry import UnsupportedError


def infer(
    pool: TermPool,
    spec: View,
    implementation: View,
    mesh: Mesh,
    *,
    allow_partial: bool = True,
    declared: tuple[Placements, frozenset[int]] | None = None,
) -> Placements | None:
    """Placements in which the stacked tensor is the spec value, or None. Prefers fewer partial axes.

    ``declared``: placements that must hold on all mesh axes but the ones in the set.
    """
    candidates = candidate_placements(spec, implementation, mesh, allow_partial)
    if declared is not None:
        placements, open_axes = declared
        candidates = dict.fromkeys(with_open_axes(placements, found, open_axes) for found in candidates)
    for placements in sorted(candidates, key=_partial_count):
        try:
            if holds(pool, spec, implementation, placements, mesh):
                return placements
        except (UnsupportedError, relabel.UnalignedError):
            continue
    return None


def _partial_count(placements: Placements) -> int:
    return sum(isinstance(p, Partial) for p in placements)


def candidate_placements(spec: View, implementation: View, mesh: Mesh, allow_partial: bool) -> Iterator[Placements]:
    """Placements whose shapes fit."""
    lead = len(mesh.axes)
    local = implementation.shape[lead:]
    if len(local) != spec.rank:
        return
    choices: list[list[Placement]] = []
    for axis in range(lead):
        options: list[Placement] = [Replicate()]
        if implementation.uses(axis):
            options = [Shard(d) for d in range(spec.rank) if spec.shape[d] != local[d]]
            if allow_partial:
                options += [Partial("sum"), Partial("avg")]
        elif mesh.axes[axis].size == 1:
            options = [Replicate()]
        choices.append(options)
    yield from itertools.product(*choices)
