"""The program in which a cause is sought: one graph that all ranks run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.failures import UNFIT
from verifycompile.cause.moves.move import Move
from verifycompile.program import Mesh, Program
from verifycompile.reduction.reduce import Reduced


class Subject(Protocol):
    """Drafts of what the ranks run, and the two programs to be compared that they make."""

    mesh: Mesh
    values: bool
    """Whether nodes of the drafts are nodes of the implementation."""

    def drafts(self) -> Sequence[Draft]:
        """The drafts in which moves are sought: one for each graph that differs from the others."""
        ...

    def axes(self, draft: Draft) -> tuple[int, ...]:
        """The mesh axes with several ranks along which all ranks run the calls of a draft."""
        ...

    def parts(self, draft: Draft, program: Program) -> Mapping[str, Sequence[torch.fx.Node]]:
        """Names of the nodes of a draft -> the nodes of ``program``, made of all drafts, that hold their values: one
        for each rank that runs the draft, or one for all.
        """
        ...

    def apply(self, draft: Draft, moves: Sequence[Move]) -> bool:
        """Changes ``draft`` and all that run the same graph; False, and nothing changed, where that is impossible.

        What else than ``UNFIT`` a move raises is raised, and nothing changed.
        """
        ...

    def undo(self) -> None:
        """Takes back the last change that was applied."""
        ...

    def programs(self) -> tuple[Program, Program] | None:
        """Spec and implementation as they are now; None where the ranks' programs do not fit together."""
        ...

    def reduced(self, reduced: Reduced) -> Subject | None:
        """The same drafts, unchanged, at the sizes of ``reduced``, which is made of ``programs()``."""
        ...


class OneGraph:
    """One graph for all ranks."""

    values = True

    def __init__(self, spec: Program, implementation: Program) -> None:
        self.mesh = implementation.mesh or Mesh((), (0,))
        self._spec, self._draft = spec, Draft(implementation, spec=spec)
        self._marks: list[int] = []

    def drafts(self) -> Sequence[Draft]:
        return (self._draft,)

    def axes(self, draft: Draft) -> tuple[int, ...]:
        del draft
        return tuple(axis for axis, item in enumerate(self.mesh.axes) if item.size > 1)

    def parts(self, draft: Draft, program: Program) -> Mapping[str, Sequence[torch.fx.Node]]:
        del draft
        return {node.name: (node,) for node in program.graph.graph.nodes}

    def apply(self, draft: Draft, moves: Sequence[Move]) -> bool:
        mark = draft.mark()
        try:
            for move in moves:
                move.apply(draft)
            draft.check_order()
        except Exception as error:
            draft.undo(mark)
            if isinstance(error, UNFIT):
                return False
            raise
        self._marks.append(mark)
        return True

    def undo(self) -> None:
        self._draft.undo(self._marks.pop())

    def programs(self) -> tuple[Program, Program] | None:
        return self._spec, self._draft.program

    def reduced(self, reduced: Reduced) -> Subject:
        return OneGraph(reduced.spec, reduced.implementation)
