"""A counterexample of all ranks' programs as one, told of the rank that holds the element."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from torch.distributed.tensor.placement_types import Placement

from verifycompile.capture.ranks.merged_ranks import ON_RANK, MergedRanks, assemble
from verifycompile.counterexamples import ranks_of
from verifycompile.diagnostics.finding import Counterexample
from verifycompile.diagnostics.report import Report
from verifycompile.program import Mesh
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
    held = {
        position: _Part(position, found.shapes.get(node.name, tuple(node.meta["val"].shape)))
        for position, node in merged.held[name].items()
    }
    owners = assemble(held, layouts[name], mesh, _joined, _first)
    first = mesh.ranks.index(int(whole_on)) if whole_on else owners[0][0]
    owner: _Part | _Joined = dict(owners)[first]
    position = owner.holder(found.index) if len(owner.shape) == len(found.index) else first
    placed = describe_placements(layouts[name], mesh)
    shape = found.detail if math.isnan(found.spec_value) else ""
    return dataclasses.replace(
        found,
        output=name,
        rank=mesh.ranks[position],
        mesh=ranks_of(mesh),
        detail=f"{shape}, with {placed}" if shape else placed,
    )


@dataclasses.dataclass(frozen=True)
class _Part:
    """What the rank at ``position`` of the mesh holds: a shape, because a value of real size takes real memory."""

    position: int
    shape: tuple[int, ...]

    def holder(self, index: tuple[int, ...]) -> int:
        """The position that holds an element."""
        del index
        return self.position


@dataclasses.dataclass(frozen=True)
class _Joined:
    """Parts one behind the other along ``dim``."""

    parts: tuple[_Part | _Joined, ...]
    dim: int

    @property
    def shape(self) -> tuple[int, ...]:
        first = list(self.parts[0].shape)
        first[self.dim] = sum(part.shape[self.dim] for part in self.parts)
        return tuple(first)

    def holder(self, index: tuple[int, ...]) -> int:
        """The position that holds an element."""
        place = index[self.dim]
        for part in self.parts[:-1]:
            if place < part.shape[self.dim]:
                break
            place -= part.shape[self.dim]
        else:
            part = self.parts[-1]
        return part.holder((*index[: self.dim], place, *index[self.dim + 1 :]))


def _joined(values: Sequence[_Part | _Joined], dim: int) -> _Joined:
    return _Joined(tuple(values), dim % len(values[0].shape))


def _first(values: Sequence[_Part | _Joined], _: str) -> _Part | _Joined:
    return values[0]
