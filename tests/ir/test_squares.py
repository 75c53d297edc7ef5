"""What is noted as a sum of squares is all of a term, times a positive number."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
import sympy

from verifycompile.ir.algebra import combine, sum_over
from verifycompile.ir.relabel import insert_dim
from verifycompile.ir.squares import note_sum_of_squares
from verifycompile.ir.term import CONSTANT, LEAF, TermPool, View, identity_view
from verifycompile.rewrites.squares import is_sum_of_squares


@pytest.fixture
def whole() -> View:
    return identity_view(TermPool().intern(LEAF, ("x",), (), (4, 6), 2, 0, (), (0, 1)))


def test_all_of_a_term_is_noted_and_every_part_of_it_known(whole: View) -> None:
    pool = TermPool()
    transposed = View(Fraction(1, 2), whole.term, (6, 2, 2), (((1, 1, 2), (2, 1, 2)), ((0, 1, 6),)))
    note_sum_of_squares(pool, transposed)
    assert not is_sum_of_squares(pool, whole)  # what was built before would have another form
    assert pool.learn()
    assert not pool.learn()
    assert is_sum_of_squares(pool, whole)
    assert is_sum_of_squares(pool, View(Fraction(3), whole.term, (6,), (((CONSTANT, 1, 4),), ((0, 1, 6),))))
    assert not is_sum_of_squares(pool, whole.scaled(Fraction(-1)))


def test_neither_a_part_nor_a_negative_multiple_is_noted(whole: View) -> None:
    pool = TermPool()
    others = {
        "a row": View(Fraction(1), whole.term, (6,), (((CONSTANT, 1, 4),), ((0, 1, 6),))),
        "a diagonal": View(Fraction(1), whole.term, (12,), (((0, 3, 4),), ((0, 1, 6),))),
        "one dimension for both": View(Fraction(1), whole.term, (24,), (((0, 6, 4),), ((0, 1, 6),))),
        "some rows": dataclasses.replace(whole, shape=(2, 6), axes=(((0, 1, 2),), ((1, 1, 6),))),
        "negative": whole.scaled(Fraction(-1)),
        "zero": whole.scaled(Fraction(0)),
        "of unknown sign": whole.scaled(sympy.Symbol("s")),
    }
    for view in others.values():
        note_sum_of_squares(pool, view)
        assert not pool.noted_squares, view


def test_what_is_summed_of_squares_is_noted_and_of_a_negative_multiple_is_not(whole: View) -> None:
    for coefficient, noted in ((Fraction(1, 2), 2), (Fraction(-1), 1), (sympy.Symbol("s"), 1)):
        pool = TermPool()
        note_sum_of_squares(pool, whole)
        assert pool.learn()
        total = sum_over(pool, whole.scaled(coefficient), [0])
        assert len(pool.noted_squares) == noted
        assert is_sum_of_squares(pool, total) is False  # until both programs are lowered again


def test_what_is_summed_of_anything_else_is_not_noted(whole: View) -> None:
    """Neither sums of other values, nor of a negative multiple of squares, whatever sign the form of the sum has."""
    pool = TermPool()
    sum_over(pool, whole, [0])
    assert not pool.noted_squares
    lower, upper = (pool.leaf(name, shape) for name, shape in (("a", (4,)), ("b", (4, 6))))
    value = combine(pool, [upper, insert_dim(lower, 1, 6).scaled(Fraction(-3))]).unscaled()
    note_sum_of_squares(pool, value)
    assert pool.learn()
    assert sum_over(pool, value.scaled(Fraction(-1)), [1]).coefficient > 0
    assert len(pool.noted_squares) == 1
