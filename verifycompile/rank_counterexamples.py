"""A counterexample of all ranks' programs as one, told of the rank that holds the element."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch.distributed.tensor.placement_types import Placement

from verifycompile.capture.merged_ranks import ON_RANK, MergedRanks, assemble
from verifycompile.counterexamples import ranks_of
from verifycompile.diagnostics.finding import Counterexample
from verifycompile.diagnostics.report import Report
from verifycompile.program import Mesh
from verifycompile.torch_interface.evaluation import real_tensors
from verifycompile.witness.placed import describe_placements


def on_their_ranks(
    report: Report, merged: MergedRanks, layouts: Mapping[str, tuple[Placement, ...]], mesh: Mesh
) -> Report:
    """The report with its counterexamples on the ranks that hold the outputs.

    ``layouts``: how the ranks hold each output of the spec. What several ranks hold whole was compared for each.
    """
    findings = [
        finding
        if finding.counterexample is None
        else dataclasses.replace(finding, counterexample=_on_rank(finding.counterexample, merged, layouts, mesh))
        for finding in report.findings
    ]
    return dataclasses.replace(report, findings=tuple(findings))


def _on_rank(
    found: Counterexample, merged: MergedRanks, layouts: Mapping[str, tuple[Placement, ...]], mesh: Mesh
) -> Counterexample:
    name, _, whole_on = found.output.partition(ON_RANK)
    if name not in layouts or name not in merged.held:
        return found
    with real_tensors():
        positions = {
            position: torch.full(tuple(node.meta["val"].shape), position)
            for position, node in merged.held[name].items()
        }
        owners = assemble(positions, layouts[name], mesh, _joined, _first)
    first = mesh.ranks.index(int(whole_on)) if whole_on else owners[0][0]
    owner = dict(owners)[first]
    position = int(owner[found.index]) if owner.dim() == len(found.index) else first
    placed = describe_placements(layouts[name], mesh)
    shape = found.detail if math.isnan(found.spec_value) else ""
    return dataclasses.replace(
        found,
        output=name,
        rank=mesh.ranks[position],
        mesh=ranks_of(mesh),
        detail=f"{shape}, with {placed}" if shape else placed,
    )


def _joined(values: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    return torch.cat(list(values), dim)


def _first(values: Sequence[torch.Tensor], _: str) -> torch.Tensor:
    return values[0]
