"""The program in which a cause is sought, where each rank has a graph of its own.

Every change assembles the ranks' graphs again, so that a change which the ranks do not make alike is none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch.fx

from verifycompile.capture.ranks.merged_ranks import HELD_AS
from verifycompile.cause.draft import Draft
from verifycompile.cause.failures import UNFIT
from verifycompile.cause.moves.move import Move
from verifycompile.program import Mesh, Program
from verifycompile.reduction.reduce import Reduced
from verifycompile.reduction.rewrite import UnreducibleError
from verifycompile.torch_interface.communication.in_place_collectives import key_of
from verifycompile.torch_interface.ranks.mesh import line_through, place_at
from verifycompile.torch_interface.source_lines.model_lines import pass_over_functions_of_spec

Merge = Callable[[Program, Mesh, Sequence[Program]], tuple[Program, Program]]
"""Spec and implementation that the spec and the ranks' programs make together; raises where they do not fit."""


class RankGraphs:
    """One graph a rank. Ranks whose graphs have the same calls under the same names are changed together."""

    values = False

    def __init__(self, spec: Program, ranks: Sequence[Program], mesh: Mesh, merge: Merge) -> None:
        self.mesh = mesh
        self._spec, self._ranks, self._merge = spec, ranks, merge
        for program in ranks:
            pass_over_functions_of_spec(spec.graph.graph, program.graph.graph)
        self._drafts = [
            Draft(program, place_at(at, mesh.shape), functools.partial(_group_key, mesh.ranks[at], mesh), spec)
            for at, program in enumerate(ranks)
        ]
        alike: dict[object, list[Draft]] = {}
        for draft in self._drafts:
            alike.setdefault(_calls(draft), []).append(draft)
        self._alike = {id(same[-1]): same for same in alike.values()}
        position = {id(draft): at for at, draft in enumerate(self._drafts)}
        for same in alike.values():
            others = tuple(other[-1] for other in alike.values() if other is not same)
            members = tuple(mesh.ranks[position[id(draft)]] for draft in same)
            for draft in same:
                draft.ranks, draft.others = members, others
        self._marks: list[list[tuple[Draft, int]]] = []

    def drafts(self) -> Sequence[Draft]:
        """The last of the ranks that run the same calls: its coordinates are not all zero where others' are not."""
        return [draft for draft in self._drafts if id(draft) in self._alike]

    def axes(self, draft: Draft) -> tuple[int, ...]:
        """The mesh axes along which all ranks run the calls of a draft."""
        members = {other.rank for other in self._alike[id(draft)]}
        return tuple(
            axis
            for axis, item in enumerate(self.mesh.axes)
            if item.size > 1
            and all(
                (*place[:axis], index, *place[axis + 1 :]) in members
                for place in members
                if place is not None
                for index in range(item.size)
            )
        )

    def parts(self, draft: Draft, program: Program) -> Mapping[str, Sequence[torch.fx.Node]]:
        positions = [self._drafts.index(other) for other in self._alike[id(draft)]]
        found: dict[str, dict[int, torch.fx.Node]] = {}
        for node in program.graph.graph.nodes:
            for position, names in node.meta.get(HELD_AS, {}).items():
                for name in names if position in positions else ():
                    found.setdefault(name, {})[position] = node
        return {
            name: [nodes[position] for position in positions]
            for name, nodes in found.items()
            if len(nodes) == len(positions)
        }

    def apply(self, draft: Draft, moves: Sequence[Move]) -> bool:
        marks = [(other, other.mark()) for other in self._alike[id(draft)]]
        try:
            for move in moves:
                for other, _ in marks:
                    move.apply(other)
            for other, _ in marks:
                other.check_order()
        except Exception as error:
            _undo(marks)
            if isinstance(error, UNFIT):
                return False
            raise
        self._marks.append(marks)
        return True

    def undo(self) -> None:
        _undo(self._marks.pop())

    def programs(self) -> tuple[Program, Program] | None:
        try:
            return self._merge(self._spec, self.mesh, [draft.program for draft in self._drafts])
        except UNFIT:  # ranks that no longer fit together are no repaired program
            return None

    def reduced(self, reduced: Reduced) -> RankGraphs | None:
        try:
            spec, *ranks = (reduced.also(program, self._spec) for program in (self._spec, *self._ranks))
        except UnreducibleError:
            return None
        return RankGraphs(spec, ranks, self.mesh, self._merge)


def _undo(marks: Sequence[tuple[Draft, int]]) -> None:
    for draft, mark in marks:
        draft.undo(mark)


def _calls(draft: Draft) -> tuple[tuple[str, str], ...]:
    return tuple((node.name, str(node.target)) for node in draft.program.graph.graph.nodes if node.op != "placeholder")


def _group_key(rank: int, mesh: Mesh, axes: tuple[int, ...]) -> str:
    return key_of(line_through(rank, axes, mesh))
