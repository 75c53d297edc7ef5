"""Formulas mean the same to a solver, as text, and to ``evaluate``."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest
import z3

from verifycompile.rewrites.side_conditions import formula, solver
from verifycompile.rewrites.side_conditions.formula import Formula, evaluate, variables
from verifycompile.rewrites.side_conditions.smt_lib import constant, script, written

ATOMS = [formula.index(0), formula.index(1), formula.integer("n"), formula.real("x")]


def random_number(draw: random.Random, depth: int) -> Formula:
    kind = draw.randrange(8) if depth else 0
    if kind <= 1:
        return draw.choice([*ATOMS, formula.number(Fraction(draw.randint(-4, 4), draw.randint(1, 3)))])
    left, right = (random_number(draw, depth - 1) for _ in range(2))
    if kind == 2:
        return formula.choose(random_truth(draw, depth - 1), left, right)
    if kind == 3:
        return formula.floor(left)
    if kind == 4:
        whole = draw.choice([a for a in ATOMS if a.kind in ("index", "integer")])
        return whole // 3 if draw.random() < 0.5 else whole % 3
    return [left + right, left - right, left * Fraction(draw.randint(-2, 2), draw.randint(1, 2))][kind - 5]


def random_truth(draw: random.Random, depth: int) -> Formula:
    kind = draw.randrange(8) if depth else 0
    if kind <= 4:
        left, right = (random_number(draw, depth - 1 if depth else 0) for _ in range(2))
        return [left < right, left <= right, left == right, left != right, left > right][kind]
    inner = [random_truth(draw, depth - 1) for _ in range(2)]
    if kind == 5:
        return formula.negation(inner[0])
    return formula.both(*inner) if kind == 6 else formula.either(*inner)


def z3_value(term: Formula, values: dict[tuple[str, Any], Fraction]) -> bool:
    """By the text alone, with the values of all variables asserted beside it."""
    solver = z3.Solver()
    lines = ["(set-logic ALL)"]
    for (kind, name), value in values.items():
        text, sort = f"i{name}" if kind == "index" else name, "Real" if kind == "real" else "Int"
        lines += [f"(declare-const {text} {sort})", f"(assert (= {text} {constant(value, sort)}))"]
    solver.from_string("\n".join([*lines, f"(assert {written(term)})", "(check-sat)"]))
    answer = solver.check()
    assert answer != z3.unknown
    return answer == z3.sat


@pytest.mark.parametrize("seed", range(60))
def test_the_same_to_z3_and_on_numbers(seed: int) -> None:
    draw = random.Random(seed)
    claim = random_truth(draw, 3)
    for _ in range(5):
        values = {
            (atom.kind, atom.parts[0]): Fraction(draw.randint(0, 7), 2 if atom.kind == "real" else 1) for atom in ATOMS
        }
        assert evaluate(claim, values) == z3_value(claim, values)
    assert set(variables(claim)) <= {(atom.kind, atom.parts[0]) for atom in ATOMS}


def test_the_text_of_a_question() -> None:
    i, n, x = formula.index(0), formula.integer("n"), formula.real("x")
    claim = formula.implies(x + n < i // 2, (x < 1) == formula.truth(True))
    assert script(claim, {0: 4, 1: None}) == (
        "(set-logic ALL) (declare-const i0 Int) (declare-const i1 Int) (declare-const x Real) (declare-const n Int) "
        "(assert (<= 0 i0)) (assert (<= 0 i1)) (assert (< i0 4)) "
        "(assert (not (or (not (< (+ x (to_real n)) (to_real (div i0 2)))) (= (< x (to_real 1)) true)))) (check-sat)"
    )


def test_a_statement_has_no_truth() -> None:
    with pytest.raises(TypeError, match="a statement has no truth before its variables have values"):
        bool(formula.index(0) == formula.index(0))


def test_answers_from_a_list() -> None:
    i = formula.index(0)
    with solver.listening() as asked:
        assert solver.holds(i < 9, {0: i}, (9,))
        assert not solver.holds(i < 8, {0: i}, (9,))
    assert len(asked) == 1
    with solver.answering(asked):
        assert solver.holds(i < 9, {0: i}, (9,))
        assert not solver.holds(i <= 8, {0: i}, (9,))
    assert solver.holds(i <= 8, {0: i}, (9,))
