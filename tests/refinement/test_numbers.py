"""Two expressions are told apart by numbers at places: a matrix is not its transpose, and sums are taken as they run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from verifycompile.ir import relabel
from verifycompile.ir.term import TermPool, View
from verifycompile.refinement.encoding import encode
from verifycompile.refinement.numbers import differ
from verifycompile.rewrites.builder import Builder

Side = Callable[[Builder, View], View]

ROWS, COLUMNS = "m n -> m", "m n -> n"


def tell_apart(left: Side, right: Side, size: int) -> bool:
    b = Builder(TermPool())
    x = b.pool.leaf("x", (size, size))
    encoded = encode(left(b, x), right(b, x))
    assert encoded is not None
    return differ(*encoded)


def turned(x: View) -> View:
    return relabel.permute(x, (1, 0))


@pytest.mark.parametrize("size", [2, 100])
def test_a_matrix_and_its_transpose(size: int) -> None:
    assert tell_apart(lambda b, x: b.exp(x), lambda b, x: b.exp(turned(x)), size)
    assert not tell_apart(lambda b, x: turned(b.exp(turned(x))), lambda b, x: b.exp(x), size)


def test_sums_of_rows_and_of_columns() -> None:
    def total(x: View, b: Builder, which: str) -> View:
        return b.contraction(which, b.exp(x))

    assert tell_apart(lambda b, x: total(x, b, ROWS), lambda b, x: total(x, b, COLUMNS), 4)
    assert not tell_apart(lambda b, x: total(x, b, ROWS), lambda b, x: total(turned(x), b, COLUMNS), 4)


@pytest.mark.parametrize(("factor", "differs"), [(2, False), (3, True)])
@pytest.mark.parametrize("size", [4, 100])
def test_a_sum_over_few_or_many_places(size: int, factor: int, differs: bool) -> None:
    """``(x + x) summed`` and ``factor`` times the sum."""

    def left(b: Builder, x: View) -> View:
        return b.contraction(ROWS, b.log(b.mul(b.exp(x), b.exp(x))))

    def right(b: Builder, x: View) -> View:
        return b.scale(b.contraction(ROWS, x), factor)

    assert tell_apart(left, right, size) is differs
