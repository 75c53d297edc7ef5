"""A solver that says yes to everything: what it says is tried at points, and wrong programs stay unequal."""

from __future__ import annotations

import pytest

from tests.ir.test_one_hot import OUTSIDE, SIZES, WRONG, Lookup, agree
from verifycompile.ir.term import TermPool
from verifycompile.rewrites.registry import UnsupportedError
from verifycompile.rewrites.side_conditions import formula, solver
from verifycompile.rewrites.side_conditions.formula import Formula
from verifycompile.rewrites.side_conditions.smt_lib import written


@pytest.fixture(autouse=True)
def yes_to_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "_answers", {})
    monkeypatch.setattr(solver, "follows", lambda _: True)


ROW, COLUMN, REAL = formula.index(0), formula.index(1), formula.real("x")

FALSE = [
    ROW < 7,
    ROW > 0,
    ROW != 4,
    ROW + COLUMN < 11,
    ROW * 5 + COLUMN < 39,
    formula.implies(ROW <= 3, COLUMN <= 3),
    formula.implies(REAL < 4, REAL <= 3),
    formula.either(REAL < 2, REAL > 2),
    formula.truth(False),
]

TRUE = [
    ROW < 8,
    ROW + COLUMN < 13,
    ROW * 5 + COLUMN < 40,
    formula.implies(REAL < 4, REAL <= 4),
    formula.either(REAL < 2, REAL >= 2),
]


@pytest.mark.parametrize("claim", FALSE, ids=lambda claim: written(claim))
def test_a_false_claim_is_not_believed(claim: Formula) -> None:
    assert not solver.holds(claim, {0: ROW, 1: COLUMN}, (8, 5))


@pytest.mark.parametrize("claim", TRUE, ids=lambda claim: written(claim))
def test_a_true_one_is(claim: Formula) -> None:
    assert solver.holds(claim, {0: ROW, 1: COLUMN}, (8, 5))


@pytest.mark.parametrize("mistake", [*WRONG.values(), *OUTSIDE.values()], ids=[*WRONG, *OUTSIDE])
@pytest.mark.parametrize(("ranks", "rows"), SIZES)
def test_wrong_lookups_over_a_sharded_vocabulary_are_not_proved(mistake: Lookup, ranks: int, rows: int) -> None:
    try:
        parallel, whole = mistake.build(TermPool(), ranks, rows)
    except UnsupportedError:
        return
    assert parallel != whole
    assert not agree(parallel, whole, ranks, rows)


def test_the_right_lookup_is_proved() -> None:
    parallel, whole = Lookup().build(TermPool(), 3, 2)
    assert parallel == whole
