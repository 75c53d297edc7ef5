"""What must hold of slices and places at the ranks' coordinates, as checks that their mutants must fail."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
import sympy
import torch

from tests.ir.evaluate import Evaluator
from tests.lemmas.conditions import Check
from verifycompile.ir.relabel import insert_dim
from verifycompile.ir.size import Size
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.parts.rank_places import every_step_from, placed_by_coordinate
from verifycompile.rewrites.registry import UnsupportedError

MESH = (2, 3)
P, Q = sympy.symbols("p q", integer=True, nonnegative=True)
S = sympy.Symbol("s", integer=True, positive=True)
REAL_SIZE = 2
"""What the symbolic size is where values are compared."""


def offset_checks() -> Iterator[tuple[str, Check]]:
    """Of slices."""
    for number, (size, start, length) in enumerate(_SLICES):
        yield f"rank offsets {number}", functools.partial(_sliced, size, start, length)
    for number, (size, start, length, said) in enumerate(_REFUSED_SLICES):
        yield f"refused rank offsets {number}", functools.partial(_refuses_slice, size, start, length, said)


def place_checks() -> Iterator[tuple[str, Check]]:
    """Of every so many places, and of places that are written."""
    for start in (Q, P, 1 + P):
        yield f"every step from {start}", functools.partial(_every_third, start)
    for start, end, step in ((Q, 12, 5), (Q, 11, 3), (1, 12, 3), (S, 12, 3), (Q, 12, 3 * S)):
        yield f"no step from {start} to {end} by {step}", functools.partial(_refuses_step, start, end, step)
    for start, total in ((6 * P + 2 * Q, 12), (2 * P + 4 * Q, 14), (2 * Q + 5, 11), (2 * Q, 6), (2 * P + 12 * S, 30)):
        yield f"placed at {start}", functools.partial(_placed, start, total)
    yield "counted from the end", _refuses_places_from_the_end


_SLICES: Sequence[tuple[Size, Number, Size]] = (
    (12, 6 * P + 2 * Q, 2), (12, 2 * P + 4 * Q, 2), (12, 2 * Q, 2), (24, 6 * P + 2 * Q + 12, 2), (24, 12 * P, 12),
    # Within a block of each rank's own.
    (12, 6 * P + 2, 2), (12, 6 * P + 1, 2), (12, 6 * P + 4, 2), (24, 6 * P + 14, 3), (12, 6 * P + 2 * Q + 1, 1), (9, 3 * Q, 2),
    # Of symbolic size.
    (6 * S, 3 * S * P, 3 * S), (6 * S, 2 * S * Q, 2 * S), (12 * S, 3 * S * P + 6 * S, 3 * S), (12 * S, 6 * P + 2 * Q, 2),
)  # fmt: skip
_REFUSED_SLICES: Sequence[tuple[Size, Number, Size, str]] = (
    (12, 6 * P + 5, 2, "slice offset steps by 6 a rank where the slices are 2 long"),
    (12, P, 2, "slice offset steps by 1 a rank where the slices are 2 long"),
    (12, 6 * P, 0, "slice offset steps by 6 a rank where the slices are 0 long"),
    (24, 4 * P + Q, 1, "slice offset steps by 4 a rank where the slices are 3 long"),
    (24, 3 * S * P + 4 * Q, 2, f"slice offset steps by {3 * S} a rank where the slices are 12 long"),
    (24, 3 * S * P, 2, f"slice offset steps by {3 * S} a rank where the slices are 2 long"),
    (12, 4 * P, S, "slice offset steps by 4 a rank where the slices are s long"),
    (12, 4 * P + S, 2, "slice offset steps by 4 a rank where the slices are 2 long"),
    (12, 6 * P - 12, 6, "places that are counted from the end: -12"),
    (12 * S, 6 * S * P - 12 * S, 6 * S, "places that are counted from the end: -12*s"),
    (12 * S, 6 * P - 10, 2, "places that are counted from the end: -12"),
    (11, 6 * P, 6, "a slice [0:0+12] of a dimension of size 11"),
)  # fmt: skip


def _builder() -> Builder:
    return Builder(TermPool(), MESH, {P: 0, Q: 1})


def _on_all_ranks(b: Builder, size: Size) -> View:
    return insert_dim(insert_dim(b.pool.leaf("x", (size, 2)), 0, MESH[1]), 0, MESH[0])


def _at(number: Number | Size, *place: int) -> int:
    return int(sympy.sympify(number).subs({P: place[0], Q: place[1], S: REAL_SIZE}))


def _is_on_each_rank(
    view: View, wanted: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor], size: Size = 12
) -> None:
    x = torch.randn(_at(size, 0, 0), 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = Evaluator({"x": x}, {S: REAL_SIZE}).view(view)
    for place in itertools.product(*map(range, MESH)):
        torch.testing.assert_close(found[place], wanted(x, place))


def _sliced(size: Size, start: Number, length: Size) -> None:
    b = _builder()
    found = b.narrow(_on_all_ranks(b, size), 0, start, length)
    assert found.shape == (*MESH, length, 2)
    _is_on_each_rank(found, lambda x, at: x.narrow(0, _at(start, *at), _at(length, *at)), size)


def _refuses_slice(size: Size, start: Number, length: Size, said: str) -> None:
    b = _builder()
    with pytest.raises(UnsupportedError) as raised:
        b.narrow(_on_all_ranks(b, size), 0, start, length)
    assert said in str(raised.value)


def _every_third(start: Number) -> None:
    b = _builder()
    found = every_step_from(b, _on_all_ranks(b, 12), 2, start, 12, 3)
    _is_on_each_rank(found, lambda x, at: x[_at(start, *at) :: 3])


def _refuses_step(start: Number, end: Number, step: Number) -> None:
    b = _builder()
    with pytest.raises(UnsupportedError) as raised:
        every_step_from(b, _on_all_ranks(b, 12), 2, start, end, step)
    assert f"a slice with step {step} of symbolic size" in str(raised.value)


def _placed(start: Number, total: int) -> None:
    b = _builder()
    view, dim, base = placed_by_coordinate(b, _on_all_ranks(b, 2), 0, start)

    def wanted(x: torch.Tensor, at: tuple[int, ...]) -> torch.Tensor:
        zeros = torch.zeros(total, 2, dtype=x.dtype)
        zeros[_at(start, *at) : _at(start, *at) + 2] = x
        return zeros

    _is_on_each_rank(b.pad(view, dim, _at(base, 0, 0), total), wanted, 2)


def _refuses_places_from_the_end() -> None:
    b = _builder()
    for start, base in ((2 * P - 4, -4), (2 * P - 4 * S, -4 * S)):
        with pytest.raises(UnsupportedError) as raised:
            placed_by_coordinate(b, _on_all_ranks(b, 2), 0, start)
        assert f"places that are counted from the end: {base}" in str(raised.value)
