"""Graphs captured elsewhere, one a rank, as the one implementation that is asked about."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from verifycompile.capture.ranks.common_graph import DifferentGraphsError
from verifycompile.capture.ranks.common_program import common_program
from verifycompile.capture.ranks.merged_ranks import members_of
from verifycompile.capture.ranks.rank_schedule import OrderError, RankGraph, schedule
from verifycompile.program import Blocker, Mesh, Program
from verifycompile.torch_interface.communication.in_place_collectives import is_key, ranks_of
from verifycompile.torch_interface.ranks.mesh import axes_of_line
from verifycompile.torch_interface.source_lines.value_names import value_name


@dataclasses.dataclass(frozen=True)
class CapturedGraphs:
    """``programs``: one for each rank of ``mesh`` in order, or one that every rank runs.

    ``even``: whether the placements of all inputs give every rank a part of one size.
    """

    spec: Program
    programs: tuple[Program, ...]
    mesh: Mesh
    even: bool

    def implementation(self) -> Program:
        """One program for all ranks where their graphs and boundaries have a common form, else what each rank runs.

        The first of ``programs`` is rewritten in place.
        """
        programs, mesh = self.programs, self.mesh
        seconds = sum(program.seconds for program in programs)
        first = dataclasses.replace(programs[0], mesh=mesh, seconds=seconds)
        blockers = tuple(dict.fromkeys(blocker for program in programs for blocker in program.blockers))
        if blockers:
            return dataclasses.replace(first, blockers=blockers)
        general = _general((first, *programs[1:]), mesh) if self.even and self._is_in_order() else None
        if general is not None:
            return general
        return dataclasses.replace(first, ranks=programs if len(programs) > 1 else programs * len(mesh.ranks))

    def _is_in_order(self) -> bool:
        """Whether there is no deadlock, which ranks that run equal graphs may do as well."""
        if len(self.programs) == 1:
            return True
        graphs = [
            RankGraph(rank, program.graph, members_of(program, rank, self.mesh))
            for rank, program in zip(self.mesh.ranks, self.programs, strict=True)
        ]
        try:
            schedule(graphs)
        except OrderError:
            return False
        return True


def _general(programs: Sequence[Program], mesh: Mesh) -> Program | None:
    def axes(rank: int, key: str) -> object:
        if not is_key(key):
            return key
        found = axes_of_line(ranks_of(key), mesh)
        is_member = len(programs) == 1 or rank in ranks_of(key)
        return key if found is None or not is_member else found

    try:
        common = common_program(programs, mesh, axes)
        return dataclasses.replace(common, groups=_groups(common))
    except DifferentGraphsError as error:
        if len(programs) > 1:
            return None
        return dataclasses.replace(programs[0], blockers=(Blocker(error.node, "VC206", f"{error}."),))


def _groups(program: Program) -> dict[str, tuple[int, ...]]:
    """The mesh axes that the process groups of a graph span. Raises ``DifferentGraphsError``."""
    assert program.mesh is not None
    groups: dict[str, tuple[int, ...]] = {}
    for node in program.graph.graph.nodes:
        for key in (*node.args, *node.kwargs.values()):
            if isinstance(key, str) and is_key(key) and key not in groups:
                spans = axes_of_line(ranks_of(key), program.mesh)
                if spans is None:
                    raise DifferentGraphsError(f"the group of `{value_name(node)}` is no product of mesh axes", node)
                groups[key] = spans
    return groups
