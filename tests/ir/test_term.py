"""Terms and views themselves: what is one term, what a view reads, and what is known of it."""

from __future__ import annotations

import dataclasses

from verifycompile.ir.algebra import iota
from verifycompile.ir.exponential import EXPONENTIAL, LOGARITHM
from verifycompile.ir.scalar import ONE
from verifycompile.ir.term import (
    CONSTANT,
    INDICATOR_LEAF,
    INTEGER_LEAF,
    LEAF,
    IndexFact,
    Operation,
    TermPool,
    View,
    constant_digits,
    facts_of,
    identity_view,
)


def test_each_field_that_bounds_an_operation_does_so_alone() -> None:
    assert not Operation("any").is_finite
    for field in ("finite", "indicator", "whole", "places"):
        assert Operation("bounded", **{field: True}).is_finite


def test_a_view_uses_the_dimensions_of_its_digits() -> None:
    term = TermPool().leaf("x", (4, 6)).term
    view = View(ONE, term, (2, 5, 6), (((0, 1, 2), (CONSTANT, 1, 2)), ((2, 1, 6),)))
    assert [view.uses(dim) for dim in range(3)] == [True, False, True]


def test_a_coefficient_is_that_of_the_view() -> None:
    view = TermPool().leaf("x", (2,))
    assert view.scaled(ONE) is view.unscaled() is view
    twice = view.scaled(ONE * 2)
    assert (twice.coefficient, twice.scaled(ONE * 3).coefficient, twice.unscaled()) == (2, 6, view)
    assert not twice.is_zero
    assert view.scaled(ONE * 0).is_zero


def test_equal_content_is_one_term_and_inputs_are_listed_once() -> None:
    pool = TermPool()
    before, x, y = len(pool), pool.leaf("x", (3, 1)), pool.leaf("y", (3, 1))
    assert pool.leaf("x", (3, 1)) == x != y
    first, other = (pool.intern(op, (), (x,), (3, 1), 2, 0, (), ()) for op in (EXPONENTIAL, LOGARITHM))
    assert pool.intern(EXPONENTIAL, (), (dataclasses.replace(x, shape=(3, 5)),), (3, 1), 2, 0, (), ()) is first
    assert len(pool) == before + 4
    assert pool.terms[before:] == (x.term, y.term, first, other)
    assert pool.sources == [pool.unit, x.term, y.term]
    assert [operand.shape for operand in first.operands] == [(3, 1)]
    assert identity_view(first).axes == (((0, 1, 3),), ())


def test_leaves_are_numbers_masks_or_whole_numbers() -> None:
    pool = TermPool()
    leaves = [pool.leaf("x", (2,), **given) for given in ({}, {"indicator": True}, {"whole": True})]
    assert [leaf.term.operation for leaf in leaves] == [LEAF, INDICATOR_LEAF, INTEGER_LEAF]


def test_what_is_known_of_a_part_is_known_where_no_more_is_read() -> None:
    """Row 1 of three rows of eight, and its upper half: what is said of them is not said of other rows."""
    term = TermPool().leaf("x", (3, 8)).term
    row, half = (0, 1, 1, 3), (1, 4, 1, 2)
    facts = {term: [IndexFact(None, 5, "all"), IndexFact(None, 4, "row", frozenset({row})), IndexFact(None, 3, "half", frozenset({row, half}))]}  # fmt: skip

    def read(*digits: tuple[tuple[int, int, int], ...]) -> View:
        return View(ONE, term, (3, 8), digits)

    of_row, of_half = read(((CONSTANT, 1, 3),), ((1, 1, 8),)), read(((CONSTANT, 1, 3),), ((CONSTANT, 1, 2), (1, 1, 4)))
    assert constant_digits(of_half) == {row, half}
    for view, known in (
        (of_row, ["all", "row"]), (of_half, ["all", "row", "half"]), (identity_view(term), ["all"]),
        (read(((CONSTANT, 0, 3),), ((1, 1, 8),)), ["all"]), (read(((0, 1, 3),), ((CONSTANT, 1, 2), (1, 1, 4))), ["all"]),
        (read(((CONSTANT, 1, 3),), ((CONSTANT, 0, 2), (1, 1, 4))), ["all", "row"]),
        (read(((CONSTANT, 1, 3),), ((1, 1, 4), (CONSTANT, 1, 2))), ["all", "row"]),
    ):  # fmt: skip
        assert [fact.source for fact in facts_of(facts, view)] == known


def test_what_was_built_before_something_is_learned_is_built_again() -> None:
    pool = TermPool()
    counter = iota(pool, 3)
    pool.memo["built"], pool.answers["asked"] = counter, True
    assert not pool.learn()
    assert (len(pool.memo), len(pool.answers)) == (1, 1)
    pool.noted[counter.term] = (IndexFact(None, 3, "a counter"),)
    assert pool.learn()
    assert pool.facts == pool.noted
    assert (len(pool.memo), len(pool.answers)) == (0, 0)
    assert not pool.learn()
    pool.memo["built"] = counter
    pool.noted_squares.add(counter.term)
    assert pool.learn()
    assert (pool.squares, len(pool.memo)) == ({counter.term}, 0)
    assert not pool.learn()
