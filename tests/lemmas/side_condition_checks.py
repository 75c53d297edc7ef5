"""What must hold of statements of integer arithmetic, of what is tried and asked, and of views as such statements."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import pytest
import sympy
import torch
import z3

from tests.ir.evaluate import Evaluator
from tests.lemmas.conditions import Check
from verifycompile.ir.exponential import MAXIMUM, WHERE
from verifycompile.ir.indicator import equal, less, less_equal, negate
from verifycompile.ir.term import IndexFact, TermPool, View
from verifycompile.ir.window import range_view
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operations import FLOOR, MINIMUM, TRUNCATED
from verifycompile.rewrites.side_conditions import formula, solver, trials
from verifycompile.rewrites.side_conditions.formula import Formula
from verifycompile.rewrites.side_conditions.index_arithmetic import (
    Translator,
    UntranslatableError,
    equivalent,
    implied,
    is_whole,
)
from verifycompile.rewrites.side_conditions.smt_lib import constant, script, written

ROW, COLUMN, N, X = formula.index(0), formula.index(1), formula.integer("n"), formula.real("x")
HALF = formula.number(Fraction(-1, 2))


# ------------------------------------------------------------------------------------------------ statements


def formula_checks() -> Iterator[tuple[str, Check]]:
    yield "truths are no numbers", _truths_are_no_numbers
    yield "no numbers", _no_numbers
    yield "numbers of a statement", _numbers_of_a_statement


def _truths_are_no_numbers() -> None:
    claim: Any = (ROW < 1) == True  # noqa: E712 - a statement
    assert [part.kind for part in claim.parts] == ["<", "truth"]
    assert formula.evaluate(claim, {("index", 0): 0}) is True


def _no_numbers() -> None:
    for other in ("1", 0.5, None):
        with pytest.raises(TypeError, match="no number"):
            ROW + other  # pyright: ignore[reportUnusedExpression, reportOperatorIssue]


def _numbers_of_a_statement() -> None:
    claim = formula.implies(ROW < 3, formula.choose(formula.truth(True), X * Fraction(1, 2), 4) == N // 5)
    assert formula.numbers(claim) == {3, Fraction(1, 2), 4, 5}


# ------------------------------------------------------------------------------------------------ texts


def text_checks() -> Iterator[tuple[str, Check]]:
    for number, (term, text) in enumerate(_TEXTS):
        yield f"text {number}", functools.partial(_is_written, term, text)
    yield "constants", _constants
    yield "script", _declares


_TEXTS: Sequence[tuple[Formula, str]] = (
    (formula.number(0), "0"), (formula.number(-3), "(- 3)"), (HALF, "(- (/ 1.0 2.0))"),
    (formula.truth(False), "false"), (ROW + N, "(+ i0 n)"), (X - N, "(- x (to_real n))"), (N * HALF, "(* (to_real n) (- (/ 1.0 2.0)))"),
    (ROW < N, "(< i0 n)"), (ROW <= X, "(<= (to_real i0) x)"), (ROW == COLUMN, "(= i0 i1)"), (ROW != COLUMN, "(distinct i0 i1)"),
    ((ROW < 1) == (COLUMN < 2), "(= (< i0 1) (< i1 2))"), ((ROW < X) == (COLUMN < 2), "(= (< (to_real i0) x) (< i1 2))"),
    (ROW + X + N, "(+ (+ (to_real i0) x) (to_real n))"),
    (N // 3, "(div n 3)"), (N % 3, "(mod n 3)"), (X // 3, "(to_int (/ x (to_real 3)))"),
    ((X // 3) + N, "(+ (to_int (/ x (to_real 3))) n)"),
    (X % 3, "(- x (* (to_real 3) (to_real (to_int (/ x (to_real 3))))))"),
    ((X % 3) + N, "(+ (- x (* (to_real 3) (to_real (to_int (/ x (to_real 3)))))) (to_real n))"),
    (formula.choose(ROW < 1, N, 2), "(ite (< i0 1) n 2)"), (formula.choose(ROW < 1, X, 2) + N, "(+ (ite (< i0 1) x (to_real 2)) (to_real n))"),
    (formula.floor(X) + N, "(+ (to_int x) n)"), (formula.floor(N), "n"),
    (formula.both(), "true"), (formula.either(), "false"), (formula.both(ROW < 1), "(< i0 1)"), (formula.either(ROW < 1), "(< i0 1)"),
    (formula.both(ROW < 1, COLUMN < 1), "(and (< i0 1) (< i1 1))"), (formula.either(ROW < 1, COLUMN < 1), "(or (< i0 1) (< i1 1))"),
    (formula.negation(ROW < 1), "(not (< i0 1))"),
)  # fmt: skip


def _is_written(term: Formula, text: str) -> None:
    assert written(term) == text


def _constants() -> None:
    for value, sort, text in (
        (0, "Int", "0"), (-1, "Int", "(- 1)"), (0, "Real", "(/ 0.0 1.0)"), (Fraction(-2, 3), "Real", "(- (/ 2.0 3.0))"),
    ):  # fmt: skip
        assert constant(Fraction(value), sort) == text


def _declares() -> None:
    assert script(X < COLUMN, {1: None, 0: 3}) == (
        "(set-logic ALL) (declare-const i1 Int) (declare-const i0 Int) (declare-const x Real) (assert (<= 0 i1)) "
        "(assert (<= 0 i0)) (assert (< i0 3)) (assert (not (< x (to_real i1)))) (check-sat)"
    )


# ------------------------------------------------------------------------------------------------ points


def trial_checks() -> Iterator[tuple[str, Check]]:
    yield "counterexample", _is_found
    yield "indices", _indices
    yield "numbers", _numbers
    yield "all points", _all_points


def _is_found() -> None:
    assert trials.counterexample(ROW < 4, {0: 4}, 9) is None
    assert trials.counterexample(ROW < 3, {0: 4}, 9) == {("index", 0): 3}


def _tried(kind: str, size: int | None, *constants: Fraction) -> list[Any]:
    points = trials._points([(kind, 0)], {0: size}, constants, 10_000)
    return [next(iter(values.values())) for values in points]


def _indices() -> None:
    assert _tried("index", 16) == list(range(16))
    few = _tried("index", 17, Fraction(9), Fraction(-4))
    assert {0, 1, 8, 9, 10, 15, 16} <= set(few) < set(range(17))
    assert {0, 999, 1000} <= set(_tried("index", None)) < set(range(1001))
    assert _tried("index", 0) == []


def _numbers() -> None:
    whole, real = (_tried(kind, None, Fraction(3), Fraction(1, 2)) for kind in ("integer", "real"))
    assert all(isinstance(value, int) for value in whole)
    assert {2, 3, 4, 8, 9, 10} <= set(whole)
    assert {2, 3, 4, Fraction(1, 2), Fraction(5, 2), Fraction(1, 4), Fraction(3, 4)} <= set(real)
    assert all(type(value) is int for value in real if value == int(value))
    assert set(whole) < set(real)


def _all_points() -> None:
    names = [("index", k) for k in range(3)]
    for last, count in ((4, 1024), (5, 10)):
        points = list(trials._points(names, {0: 16, 1: 16, 2: last}, (), 10))
        assert len({tuple(values.values()) for values in points}) == count


# ------------------------------------------------------------------------------------------------ questions


def solver_checks() -> Iterator[tuple[str, Check]]:
    for name, check in _QUESTIONS.items():
        yield name, functools.partial(_alone, check)


def _alone(check: Callable[[pytest.MonkeyPatch], None]) -> None:
    """Without the answers to earlier questions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, "_answers", {})
        patch.setattr(solver, "_unanswered", [])
        check(patch)


def _is_asked(patch: pytest.MonkeyPatch) -> None:
    assert solver.holds(ROW < 4, {0: ROW}, (4,))
    assert solver.holds(ROW < 4, {0: ROW}, (4,)) is True
    assert solver.holds(ROW < 4, {0: ROW}, (5,)) is False
    assert solver.holds(ROW < 4, {0: ROW}, (S,)) is False
    patch.setattr(solver, "follows", lambda _: False)
    assert solver.holds(ROW < 4, {0: ROW}, (4,))
    assert not solver.holds(ROW < 3, {0: ROW}, (3,))


def _is_tried_and_asked(patch: pytest.MonkeyPatch) -> None:
    with patch.context() as other:
        other.setattr(solver, "counterexample", lambda *_: None)
        assert not solver.holds(ROW < 4, {0: ROW}, (5,))
    patch.setattr(solver, "follows", lambda _: True)
    assert not solver.holds(ROW < 4, {0: ROW}, (6,))
    assert solver.holds(ROW < 6, {0: ROW}, (6,))


def _is_asked_again(patch: pytest.MonkeyPatch) -> None:
    """What the solver gave up is, what it answered is not."""
    answers: list[bool] = []

    def follows(text: str) -> bool:
        answers.append(len(answers) > 0)
        if not answers[-1]:
            solver._unanswered.append(text)
        return answers[-1]

    patch.setattr(solver, "follows", follows)
    assert not solver.holds(ROW < 4, {0: ROW}, (4,))
    assert solver.take_unanswered()
    assert [solver.holds(ROW < 4, {0: ROW}, (4,)) for _ in range(2)] == [True, True]
    assert answers == [False, True]


def _is_given_up(patch: pytest.MonkeyPatch) -> None:
    """The second solver is asked where the first one has no answer, and what both leave open is not proved."""
    true, false = (solver.Question(claim, ((0, 4),)).text for claim in (ROW < 4, ROW < 3))
    assert solver.follows(true)
    assert not solver.follows(false)
    assert not solver.follows("(assert")
    asked: list[str] = []

    class Silent:
        def set(self, *_: object) -> None: ...
        def from_string(self, text: str) -> None:
            asked.append(text)

        def check(self) -> Any:
            return z3.unknown

    patch.setattr(z3, "SimpleSolver", Silent)
    assert solver.follows(true)
    assert not solver.follows(false)
    assert asked == [true, false]
    assert solver.take_unanswered() == []
    patch.setattr(z3, "Solver", Silent)
    assert not solver.follows(true)
    assert solver.take_unanswered() == [true]


def _is_listed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(solver, "follows", lambda _: False)
    text = solver.Question(ROW < 4, ((0, 4),)).text
    before = solver.number_proved()
    with solver.answering([text]), solver.listening() as heard:
        assert solver.holds(ROW < 4, {0: ROW}, (4,))
        assert not solver.holds(ROW < 5, {0: ROW}, (4,))
    assert list(heard) == [text]
    assert solver.number_proved() == before + 1
    assert not solver.holds(ROW < 4, {0: ROW}, (4,))


_QUESTIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "asked": _is_asked,
    "tried and asked": _is_tried_and_asked,
    "asked again": _is_asked_again,
    "given up": _is_given_up,
    "listed": _is_listed,
}


# ------------------------------------------------------------------------------------------------ views

ROWS, COLUMNS, S = 3, 6, sympy.Symbol("s", integer=True, positive=True)
VALUES = {
    "k": torch.tensor([2.0, -1.0, 4.0]), "r": torch.tensor([0.5, -1.5, 2.0]), "m": torch.tensor([1.0, 0.0, 1.0]),
    "table": torch.arange(18.0).reshape(3, 6), "c": torch.tensor(3.0), "wide": torch.tensor([0.0, 3.0, -2.0, 1.0, 5.0, 2.0]),
}  # fmt: skip


class Views:
    def __init__(self) -> None:
        self.b = Builder(TermPool())
        self.rows, self.columns = self.over(self.b.iota(ROWS), 1), self.over(self.b.iota(COLUMNS), 0)
        self.whole = self.over(self.b.pool.leaf("k", (ROWS,), whole=True), 1)
        self.real = self.over(self.b.pool.leaf("r", (ROWS,)), 1)
        self.mask = self.over(self.b.pool.leaf("m", (ROWS,), indicator=True), 1)
        self.wide = self.over(self.b.pool.leaf("wide", (COLUMNS,), whole=True), 0)
        self.number = self.b.expand(self.b.pool.leaf("c", (), whole=True), (ROWS, COLUMNS))
        self.table = self.b.pool.leaf("table", (ROWS, COLUMNS))
        self.below = less_equal(self.b.pool, self.columns, self.rows)

    def over(self, view: View, dim: int) -> View:
        return self.b.expand(self.b.unsqueeze(view, dim), (ROWS, COLUMNS))


def view_checks() -> Iterator[tuple[str, Check]]:
    for number, (made, opaque) in enumerate(_NUMBERS):
        yield f"number {number}", functools.partial(_is_same, made, Translator.integer, opaque)
    for number, (made, opaque) in enumerate(_TRUTHS):
        yield f"truth {number}", functools.partial(_is_same, made, Translator.truth, opaque)
    for number, made in enumerate((*_NO_TRUTHS, *(made for made, _ in _NUMBERS[:4]))):
        yield f"no truth {number}", functools.partial(_is_refused, made, Translator.truth)
    for number, made in enumerate(_NO_NUMBERS):
        yield f"no number {number}", functools.partial(_is_refused, made, Translator.integer)
    yield "facts", _says_what_is_given
    yield "variables", _is_one_variable
    yield "implied", _is_implied
    yield "whole", _is_whole_by_construction


_Made = Callable[[Views], View]
_NUMBERS: Sequence[tuple[_Made, int]] = (
    (lambda v: v.rows, 0),
    (lambda v: v.b.add(v.b.scale(v.columns, -2), v.rows, 5), 0),
    (lambda v: v.whole, 1),
    (lambda v: v.b.scale(v.real, Fraction(1, 2)), 1),
    (lambda v: v.number, 1),
    (lambda v: v.b.add(v.b.scale(v.whole, 3), v.wide, v.real), 3),
    (lambda v: v.b.mul(v.below, v.whole), 1),
    (lambda v: v.b.mul(v.below, v.b.scale(less(v.b.pool, v.whole, v.wide), 2)), 2),
    (lambda v: v.b.pointwise(MAXIMUM, v.rows, v.b.scale(v.columns, 2)), 0),
    (lambda v: v.b.pointwise(MINIMUM, v.whole, v.columns), 1),
    (lambda v: v.b.pointwise(WHERE, v.below, v.b.scale(v.columns, 2), v.rows), 0),
    (lambda v: v.b.pointwise(FLOOR, v.real), 1),
    (lambda v: v.b.pointwise(FLOOR, v.b.scale(v.rows, Fraction(1, 2))), 0),
    (lambda v: v.b.pointwise(TRUNCATED, v.real), 1),
    (lambda v: v.b.pointwise(TRUNCATED, v.b.scale(v.rows, Fraction(-1, 2))), 0),
    (lambda v: v.over(v.b.select(v.b.reshape(v.b.iota(2 * ROWS), (2, ROWS)), 0, 1), 1), 0),
    (lambda v: v.b.reshape(v.over(v.b.iota(ROWS), 1), (ROWS, 2, 3)), 0),
    (lambda v: v.b.reshape(v.columns, (ROWS, 2, 3)), 0),
    (lambda v: v.b.reshape(v.b.transpose(v.b.reshape(v.columns, (ROWS, 2, 3)), 1, 2), (ROWS, COLUMNS)), 0),
    (lambda v: v.over(v.b.contraction("r c, c -> r", v.table, v.b.pool.leaf("wide", (COLUMNS,), whole=True)), 1), 1),
)
_TRUTHS: Sequence[tuple[_Made, int]] = (
    (lambda v: v.below, 0),
    (lambda v: range_view(v.b.pool, 1, (ROWS, COLUMNS), (2, 5)), 0),
    (lambda v: range_view(v.b.pool, 0, (ROWS, COLUMNS), (1, 2)), 0),
    (lambda v: equal(v.b.pool, v.whole, v.columns), 1),
    (lambda v: less(v.b.pool, v.real, v.columns), 1),
    (lambda v: less_equal(v.b.pool, v.real, v.columns), 1),
    (lambda v: less_equal(v.b.pool, v.real, v.b.add(v.real, v.wide)), 2),
    (lambda v: less(v.b.pool, v.whole, v.wide), 2),
    (lambda v: less_equal(v.b.pool, v.b.add(v.whole, v.wide), v.b.add(v.columns, 1)), 2),
    (lambda v: negate(v.b.pool, equal(v.b.pool, v.real, v.columns)), 1),
    (lambda v: v.b.mul(equal(v.b.pool, v.real, v.columns), less(v.b.pool, v.whole, v.wide)), 3),
)
"""With the number of views that are variables."""
_NO_TRUTHS: Sequence[_Made] = (
    lambda v: v.b.scale(v.below, 2),
    lambda v: v.mask,
    lambda v: v.b.mul(v.below, v.whole),
)
_NO_NUMBERS: Sequence[_Made] = (
    lambda v: v.mask,
    lambda v: v.b.mul(v.whole, v.wide),
    lambda v: v.b.mul(v.below, v.whole, v.wide),
    lambda v: v.b.scale(v.whole, S),
    lambda v: v.b.iota(S),
    lambda v: v.b.reshape(v.b.expand(v.b.unsqueeze(v.b.iota(ROWS), 1), (ROWS, S)), (ROWS * S,)),
)


def _is_same(made: _Made, read: Callable[[Translator, View], Formula], count: int) -> None:
    """At all positions, and for the values that opaque views have there."""
    view, translator, values = made(Views()), Translator(), Evaluator(VALUES)
    found = read(translator, view)
    wanted = values.view(view)
    opaque = {key: values.view(held) for key, held in translator.opaque.items()}
    assert len(opaque) == count, written(found)
    for place in itertools.product(*map(range, wanted.shape)):
        known: dict[Any, Any] = {("index", dim): place[dim] for dim in translator.indices}
        known |= {key: Fraction(float(held[place])) for key, held in opaque.items()}
        assert abs(float(formula.evaluate(found, known)) - float(wanted[place])) < 1e-9


def _is_refused(made: _Made, read: Callable[[Translator, View], Formula]) -> None:
    with pytest.raises(UntranslatableError):
        read(Translator(), made(Views()))


def _says_what_is_given() -> None:
    v = Views()
    facts = {v.whole.term: [IndexFact(None, 4, "one"), IndexFact(-1, 5, "other")], v.wide.term: []}
    translator = Translator(facts)
    variable = translator.integer(v.whole)
    translator.integer(v.wide)
    assert translator.sources == ("one", "other")
    key = (variable.kind, variable.parts[0])
    for value, holds in (
        (-2, [False, False]),
        (-1, [False, True]),
        (0, [True, True]),
        (4, [False, True]),
        (5, [False, False]),
    ):
        assert [formula.evaluate(said, {key: value}) for said in translator.given.values()] == holds


def _is_one_variable() -> None:
    """Of equal views; whole ones are whole numbers."""
    v = Views()
    translator = Translator()
    first = translator.integer(v.whole)
    assert translator.integer(v.b.scale(v.whole, 2)).parts[0] is first
    assert (first.kind, translator.integer(v.real).kind) == ("integer", "real")
    assert translator.integer(v.wide).parts != first.parts
    assert len(translator.opaque) == 3


def _is_implied() -> None:
    v = Views()
    pool, shape = v.b.pool, (ROWS, COLUMNS)
    below, equals, less_than = v.below, equal(pool, v.columns, v.rows), less(pool, v.columns, v.rows)
    assert implied([equals], [below], shape)
    assert not implied([below], [equals], shape)
    assert implied([below, negate(pool, less_than)], [equals], shape)
    assert equivalent([below, negate(pool, less_than)], [equals], shape)
    assert not equivalent([equals], [below], shape)
    assert not implied([v.mask], [v.mask], shape)
    assert not equivalent([v.mask], [v.mask], shape)
    assert implied([below], [], shape)
    assert not implied([], [below], shape)
    within = less_equal(pool, v.b.full(0, shape), v.whole)
    pool.facts = {v.whole.term: (IndexFact(None, 3, "a test"),)}
    assert not implied([], [within], shape)
    assert not implied([], [less_equal(pool, v.b.full(1, shape), v.whole)], shape, pool)
    assert not pool.assumptions  # nothing is proved, so that nothing rests on what is known
    assert implied([], [within], shape, pool)
    assert equivalent([], [within], shape, pool)
    assert list(pool.assumptions) == ["a test"]


def _is_whole_by_construction() -> None:
    v = Views()
    b = v.b
    k, r, four = b.pool.leaf("k", (ROWS,), whole=True), b.pool.leaf("r", (ROWS,)), b.pool.leaf("four", (4,), whole=True)
    for view, whole in (
        (v.whole, True), (v.rows, True), (v.below, True), (v.mask, True), (v.real, False), (b.add(v.real, v.whole), False),
        (b.concatenate([k, four], 0), True), (b.concatenate([b.scale(k, -1), four], 0), True),
        (b.concatenate([b.scale(k, Fraction(1, 2)), four], 0), False), (b.concatenate([r, four], 0), False),
        (b.concatenate([four, r], 0), False),
    ):  # fmt: skip
        assert is_whole(view.term) is whole
