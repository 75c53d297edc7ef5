"""Laws of functions on bytes, which wrap around; z3 proves those of maxima and choices; both sides can be built."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
import z3

from tests.lemmas.interpret import variables
from verifycompile.ir.term import TermPool
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.interpretation import NUMBERS, Space, build, ground
from verifycompile.rewrites.lemmas.functions import FUNCTION_LAWS
from verifycompile.rewrites.lemmas.lemma import Lemma, Pattern

every_law = pytest.mark.parametrize("law", FUNCTION_LAWS, ids=lambda law: law.code)


def wraps_around(law: Lemma) -> bool:
    """Whether the law fails on bytes."""

    def value(pattern: Pattern, values: dict[str, torch.Tensor]) -> torch.Tensor:
        if isinstance(pattern, str):
            return values[pattern]
        operator, *arguments = pattern
        if operator in NUMBERS:
            return torch.tensor(int(NUMBERS[str(operator)]), dtype=torch.int8)
        if operator in ("zero", "one"):
            return torch.tensor(int(operator == "one"), dtype=torch.int8)
        if operator == "power":
            return torch.sqrt(value(arguments[1], values))
        operands = [value(argument, values) for argument in arguments]
        functions = {"add": torch.add, "mul": torch.mul, "scale": torch.mul, "times": torch.mul}
        return functions.get(str(operator), getattr(torch, str(operator), None))(*operands)  # type: ignore[misc]  # a law names no other function

    generator = torch.Generator().manual_seed(0)
    names = variables(law.left) | variables(law.right)
    values = {n: torch.randint(-128, 128, (500,), generator=generator, dtype=torch.int8) for n in names - {"p"}}
    sign = -1 if any(kind == "negative_number" for kind, *_ in law.guards) else 1
    values["p"] = torch.tensor(3 * sign, dtype=torch.int8)
    return not torch.equal(
        value(law.left, values).double().nan_to_num(), value(law.right, values).double().nan_to_num()
    )


def as_z3(pattern: Pattern, values: dict[str, Any]) -> Any:
    if isinstance(pattern, str):
        return values[pattern]
    operator, *arguments = pattern
    if operator in NUMBERS:
        return z3.Q(NUMBERS[str(operator)].numerator, NUMBERS[str(operator)].denominator)
    parts = [as_z3(argument, values) for argument in arguments]
    return {
        "zero": lambda: z3.RealVal(0),
        "one": lambda: z3.RealVal(1),
        "add": lambda a, b: a + b,
        "mul": lambda a, b: a * b,
        "scale": lambda p, a: p * a,
        "times": lambda p, q: p * q,
        "not": lambda c: 1 - c,
        "abs": lambda a: z3.If(a < 0, -a, a),
        "maximum": lambda a, b: z3.If(a < b, b, a),
        "minimum": lambda a, b: z3.If(a < b, a, b),
        "where": lambda c, a, b: z3.If(c != 0, a, b),
    }[str(operator)](*parts)


def proved_by_z3(law: Lemma) -> bool:
    """Whether a law of maxima and choices holds for all real numbers."""
    values = {name: z3.Real(name) for name in variables(law.left) | variables(law.right)}
    solver = z3.Solver()
    for kind, name, *_ in law.guards:
        value = values[name]
        met = {
            "indicator": z3.Or(value == 0, value == 1),
            "positive_number": value > 0,
            "negative_number": value < 0,
            "defined": z3.BoolVal(True),
        }
        solver.add(met[kind])
    solver.add(as_z3(law.left, values) != as_z3(law.right, values))
    return solver.check() == z3.unsat


@pytest.mark.parametrize("code", [f"VL{number}" for number in (119, 120, *range(122, 131))])
def test_z3_proves_it_for_all_real_numbers(code: str) -> None:
    (law,) = [law for law in FUNCTION_LAWS if law.code == code]
    assert proved_by_z3(law)


@every_law
def test_both_sides_can_be_built(law: Lemma) -> None:
    b = Builder(TermPool())
    leaves = (*(b.pool.leaf(name, (3, 4)) for name in "ab"), b.pool.leaf("c", (3, 4), indicator=True))
    values: dict[str, Any] = {"a": 0, "b": 1, "c": 2 if "where" in str(law.left) or "not" in str(law.left) else 1}
    values |= {"d": 1, "p": Fraction(-3)}
    for side in (law.left, law.right):
        assert build(b, Space((3, 4), 2, leaves), ground(side, values)).rank == 2
