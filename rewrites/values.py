"""Values of FX nodes that are no single tensor: pieces of a split, process groups."""

from __future__ import annotations

import dataclasses

from verifycompile.ir.size import Size
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder


@dataclasses.dataclass(frozen=True)
class Group:
    """A process group: the mesh axes that it spans, outermost first in its rank order."""

    axes: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Pieces:
    """The result of a split; pieces are made only when something other than a concatenation asks for them."""

    view: View
    dim: int
    lengths: tuple[Size, ...]

    def __len__(self) -> int:
        return len(self.lengths)


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """One element of ``Pieces``."""

    pieces: Pieces
    index: int

    def view(self, builder: Builder) -> View:
        pieces = self.pieces
        start: Size = 0
        if pieces.lengths[: self.index].count(pieces.lengths[0]) == self.index:
            start = pieces.lengths[0] * self.index
        else:
            for length in pieces.lengths[: self.index]:
                start = start + length
        return builder.narrow(pieces.view, pieces.dim, start, pieces.lengths[self.index])
