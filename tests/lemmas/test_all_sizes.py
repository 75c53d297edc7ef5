"""The equations hold for indices of every size: element by element, or by induction over the size of a sum's index.

In the step, a sum over n elements is an unknown number; over n + 1 elements it is that number plus the body at the new
element. A sum over the other index is an additive function of its body, which VL06 shows it to be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import z3

from tests.lemmas.interpret import AXES, independent_axes, value_names
from verifycompile.rewrites.lemmas.lemma import Lemma, Pattern
from verifycompile.rewrites.lemmas.ring import LINEAR_ALGEBRA

INDUCTION_INDEX = "i"
TOTAL = z3.Function("total", z3.RealSort(), z3.RealSort())


@dataclasses.dataclass(frozen=True)
class Step:
    """Values at the new element, and the unknown sums over the elements before it. ``size``: 0, n or n + 1."""

    values: Mapping[str, Any]
    size: str

    def evaluate(self, pattern: Pattern) -> Any:
        if isinstance(pattern, str):
            return self.values[pattern]
        operator, *arguments = pattern
        if operator == "one":
            return z3.RealVal(1)
        if operator == "sum":
            index, body = arguments
            return self._sum(body) if index == INDUCTION_INDEX else TOTAL(self.evaluate(body))
        left, right = (self.evaluate(argument) for argument in arguments)
        return left + right if operator in ("add", "plus") else left * right

    def _sum(self, body: Pattern) -> Any:
        if self.size == "0":
            return z3.RealVal(0)
        before = z3.Real(f"sum of {body}")
        return before if self.size == "n" else before + self.evaluate(body)


def has_sum(pattern: Pattern) -> bool:
    return not isinstance(pattern, str) and (pattern[0] == "sum" or any(has_sum(part) for part in pattern[1:]))


def varies(lemma: Lemma, name: str) -> bool:
    return AXES[INDUCTION_INDEX] not in independent_axes(lemma, name)


def is_read_outside(lemma: Lemma, pattern: Pattern) -> bool:
    """Whether a value that depends on the index of the induction stands outside of its sum."""
    if isinstance(pattern, str):
        return pattern in value_names(lemma) and varies(lemma, pattern)
    if pattern[0] == "sum" and pattern[1] == INDUCTION_INDEX:
        return False
    return any(is_read_outside(lemma, part) for part in pattern[1:])


def additivity() -> list[Any]:
    x, y = z3.Reals("x y")
    return [TOTAL(0) == 0, z3.ForAll([x, y], TOTAL(x + y) == TOTAL(x) + TOTAL(y))]


def counterexample(lemma: Lemma, claimed: str, *assumed: str) -> z3.CheckSatResult:
    names = [*value_names(lemma), "p", "q"]
    values = {name: z3.Real(name) for name in names}
    solver = z3.Solver()
    solver.set("timeout", 10_000)
    solver.add(*additivity())
    for size in assumed:
        step = Step(values, size)
        solver.add(step.evaluate(lemma.left) == step.evaluate(lemma.right))
    step = Step(values, claimed)
    solver.add(step.evaluate(lemma.left) != step.evaluate(lemma.right))
    return solver.check()


def proved_for_all_sizes(lemma: Lemma) -> bool:
    sides = (lemma.left, lemma.right)
    if not any(has_sum(side) for side in sides):
        return counterexample(lemma, "0") == z3.unsat
    if any(is_read_outside(lemma, side) for side in sides):
        return False
    return counterexample(lemma, "0") == z3.unsat and counterexample(lemma, "n + 1", "n") == z3.unsat


@pytest.mark.parametrize("lemma", LINEAR_ALGEBRA, ids=lambda lemma: lemma.code)
def test_holds_for_all_sizes(lemma: Lemma) -> None:
    assert proved_for_all_sizes(lemma)


@pytest.mark.parametrize("lemma", [x for x in LINEAR_ALGEBRA if x.guards], ids=lambda lemma: lemma.code)
def test_needs_its_guards(lemma: Lemma) -> None:
    assert not proved_for_all_sizes(dataclasses.replace(lemma, guards=()))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (("sum", "i", ("mul", "a", "b")), ("mul", ("sum", "i", "a"), ("sum", "i", "b"))),
        (("sum", "i", ("scale", "p", "a")), ("scale", ("times", "p", "p"), ("sum", "i", "a"))),
        (("sum", "i", ("sum", "j", "a")), ("scale", "p", ("sum", "j", ("sum", "i", "a")))),
        (("add", "a", "b"), "a"),
    ],
)
def test_wrong_equations_are_not_proved(left: Pattern, right: Pattern) -> None:
    assert not proved_for_all_sizes(Lemma("VLXX", "wrong", "", left, right))
