"""What must hold of terms that are stacked, beside ``tests/ir/test_similar.py``, as checks that mutants must fail."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import sympy
import torch

from tests.ir.evaluate import Evaluator
from tests.lemmas.conditions import Check
from verifycompile.ir import relabel
from verifycompile.ir.indicator import less_equal
from verifycompile.ir.relabel import insert_dim, select
from verifycompile.ir.scalar import ONE
from verifycompile.ir.term import CONSTANT, TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import FUNCTIONS
from verifycompile.rewrites.parts.similar import _constant_digits, _divisors, join_similar, stack_similar, sum_similar

SIZE = sympy.Symbol("s", integer=True, positive=True)
SHAPES = {"x": (4, 3), "y": (4, 3), "row": (1, 3)}
_VALUES = {
    name: torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(name)))
    for name, shape in SHAPES.items()
}
_OfPiece = Callable[[Builder, int], View]


def checks() -> Iterator[tuple[str, Check]]:
    """All of them, by name."""
    for number, made in enumerate(_similar()):
        yield f"stacked {number}", functools.partial(_is_stacked, made)
    for number, views in enumerate(_not_similar()):
        yield f"not stacked {number}", functools.partial(_is_not_stacked, views)
    yield "digits", _spell_constants
    yield "sums", _are_summed


def _leaf(b: Builder, name: str) -> View:
    return b.pool.leaf(name, SHAPES[name])


def _tanh(b: Builder, view: View) -> View:
    return b.pointwise(FUNCTIONS["tanh"], view)


def _piece(b: Builder, number: int, name: str = "x") -> View:
    return _tanh(b, select(_leaf(b, name), 0, number))


def _similar() -> Iterator[_OfPiece]:
    """What is computed of each of two pieces."""
    yield _piece
    yield lambda b, p: b.mul(_piece(b, p), _piece(b, 0, "y"))
    yield lambda b, p: b.exp(b.mul(_piece(b, p), _piece(b, 0, "y")))
    yield lambda b, p: b.scale(_piece(b, p), 3)
    yield lambda b, p: b.combination((2, _piece(b, p)), (3, _piece(b, p, "y")))
    yield lambda b, p: b.contraction("k, k ->", _piece(b, p), _piece(b, p, "y"))
    yield lambda b, p: _tanh(b, b.mul(select(_leaf(b, "x"), 0, p), select(_leaf(b, "row"), 0, 0)))
    yield lambda b, p: _tanh(b, b.mul(relabel.narrow(_leaf(b, "x"), 0, p, 1), _leaf(b, "row")))
    # Operands that change places: each pair is ordered by the pieces that it reads, unless the operation is ordered.
    yield lambda b, p: b.mul(*(_piece(b, k) for k in ((2, 0), (1, 3))[p]))
    yield lambda b, p: b.less(select(_leaf(b, "x"), 0, p + 2), select(_leaf(b, "x"), 0, p))
    yield lambda b, p: b.less(*(select(_leaf(b, "x"), 0, k) for k in ((2, 0), (3, 1))[p]))
    yield lambda b, p: less_equal(b.pool, b.add(b.iota(3), p), b.iota(3, 1, 2))


def _is_stacked(made: _OfPiece) -> None:
    b = Builder(TermPool())
    views = [made(b, piece) for piece in range(2)]
    found = stack_similar(b.pool, views)
    assert found is not None
    of_values = Evaluator(_VALUES)
    torch.testing.assert_close(of_values.view(found), torch.stack([of_values.view(view) for view in views]))


def _not_similar() -> Iterator[Callable[[Builder], Sequence[View]]]:
    yield lambda b: [_piece(b, 0), b.exp(select(_leaf(b, "x"), 0, 1))]
    yield lambda b: [_piece(b, 0), _piece(b, 1, "y")]
    yield lambda b: [_leaf(b, "x"), _leaf(b, "y")]
    yield lambda b: [_piece(b, 0), b.scale(_piece(b, 1), 2)]
    yield lambda b: [_piece(b, 0), _piece(b, 1), _piece(b, 3)]
    yield lambda b: [_piece(b, 0), _piece(b, 1), _piece(b, 0)]
    yield lambda b: [less_equal(b.pool, b.add(b.iota(3), p), b.iota(3, 0, 2)) for p in (-2, 0, 1)]
    yield lambda b: [insert_dim(_piece(b, 0), 0, 2), insert_dim(_piece(b, 1), 1, 2)]
    symbolic: Callable[[Builder], View] = lambda b: b.pool.leaf("z", (2 * SIZE,))  # noqa: E731 - a name for one view
    yield lambda b: [insert_dim(select(symbolic(b), 0, place), 0) for place in (0, 1)]
    yield lambda b: [select(_leaf(b, "x"), 0, place) for place in (SIZE, 1)]


def _is_not_stacked(made: Callable[[Builder], Sequence[View]]) -> None:
    b = Builder(TermPool())
    assert stack_similar(b.pool, made(b)) is None
    assert join_similar(b.pool, made(b), 0) is None


def _spell_constants() -> None:
    assert _divisors(12) == [1, 2, 3, 4, 6, 12]
    assert _constant_digits([1, 1], 4) == [(CONSTANT, 1, 4)]
    assert _constant_digits([SIZE, SIZE], 2 * SIZE) == [(CONSTANT, SIZE, 2 * SIZE)]
    assert _constant_digits([0, 1], 2 * SIZE) is None
    assert _constant_digits([SIZE, 1], 4) is None
    for values, size in (([0, 1, 0], 2), ([0, 1, 1], 2), ([1, 0], 2), ([0, 2, 1], 3)):
        assert _constant_digits(values, size) is None
    for values, size in (([0, 1], 2), ([2, 3], 4), ([1, 3], 4), ([0, 0, 1, 1], 2), ([6, 8, 10], 12), ([0, 1, 0, 1], 2)):
        digits = _constant_digits(values, size)
        assert digits is not None
        leaf = torch.arange(size).double()
        axis = tuple(digit for digit in digits if digit[2] != 1)
        view = View(ONE, TermPool().leaf("x", (size,)).term, (len(values),), (axis,))
        assert Evaluator({"x": leaf}).view(view).tolist() == values
    assert _constant_digits(range(4096), 4096) is not None
    assert _constant_digits(range(4097), 4097) is None


def _are_summed() -> None:
    b = Builder(TermPool())
    first, second, other = _piece(b, 2), _piece(b, 3), b.exp(select(_leaf(b, "x"), 0, 0))
    assert sum_similar(b.pool, [first, other], (3,)) is None
    assert sum_similar(b.pool, [first, b.scale(second, 2)], (3,)) is None
    for summands in ([first, second], [first, other, second], [second, first]):
        found = sum_similar(b.pool, summands, (3,))
        assert found is not None
        assert len(found) == len(summands) - 1
        of_values = Evaluator(_VALUES)
        torch.testing.assert_close(*(sum(map(of_values.view, views)) for views in (found, summands)))
    # The first number read in each is symbolic: nothing is ordered by it.
    wide = b.pool.leaf("z", (2 * SIZE,))
    assert sum_similar(b.pool, [_tanh(b, select(wide, 0, place)) for place in (SIZE, 1)], ()) is None
