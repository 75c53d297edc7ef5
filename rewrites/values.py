"""Values of FX nodes that are no single tensor: pieces of a split, rows that are read from data."""

from __future__ import annotations

import dataclasses
from typing import Any

from verifycompile.ir.size import Size
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder


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
        start = sum(pieces.lengths[: self.index])
        return builder.narrow(pieces.view, pieces.dim, start, pieces.lengths[self.index])


class ReadRows:
    """A value with rows of which the number, or the order, is read from data: see ``row_values.py``."""


def are_read_rows(value: Any) -> bool:
    """Whether a value, or one of several, is of rows whose number or order is read from data."""
    return any(isinstance(v, ReadRows) for v in (value if isinstance(value, tuple) else (value,)))
