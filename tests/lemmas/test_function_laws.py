"""The laws of functions hold on numbers that meet their guards; each guard is needed; z3 proves those of maxima."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import z3

from tests.lemmas.interpret import variables
from verifycompile.ir.term import TermPool
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.interpretation import NUMBERS, POINTWISE, Space, build, ground
from verifycompile.rewrites.lemmas.functions import FUNCTION_LAWS
from verifycompile.rewrites.lemmas.lemma import Lemma, Pattern

TRIALS = 20
every_law = pytest.mark.parametrize("law", FUNCTION_LAWS, ids=lambda law: law.code)

FUNCTIONS: dict[str, Any] = {
    "zero": lambda: np.zeros(()),
    "one": lambda: np.ones(()),
    "add": np.add,
    "mul": np.multiply,
    "scale": np.multiply,
    "times": np.multiply,
    "power": lambda p, a: np.power(a, p),
    "exp": np.exp,
    "log": np.log,
    "not": lambda c: (c == 0).astype(float),
    "where": lambda c, a, b: np.where(c != 0, a, b),
    "log_sigmoid": lambda a: torch.nn.functional.logsigmoid(torch.tensor(a)).numpy(),
    **{
        name: lambda *values, name=name: getattr(torch, name)(*(torch.as_tensor(v) for v in values)).numpy()
        for name in POINTWISE.keys() - {"where", "log_sigmoid"}
    },
}


def evaluate(pattern: Pattern, values: dict[str, Any]) -> Any:
    if isinstance(pattern, str):
        return values[pattern]
    operator, *arguments = pattern
    if operator in NUMBERS:
        return float(NUMBERS[str(operator)])
    return FUNCTIONS[str(operator)](*(np.asarray(evaluate(a, values), dtype=float) for a in arguments))


def drawn(law: Lemma, seed: int) -> dict[str, Any]:
    """Values that meet the guards; what none of them says anything about may be infinite, or 2."""
    generator = np.random.default_rng(seed)
    guards = {(kind, name) for kind, name, *_ in law.guards}
    values: dict[str, Any] = {}
    for name in sorted(variables(law.left) | variables(law.right)):
        value = generator.normal(size=12)
        if name == "p":
            number = abs(value[0]) + 0.1
            signed = {"positive_number": number, "negative_number": -number}
            values[name] = next((signed[k] for k, n in guards if n == name and k in signed), value[0])
        elif name == "c":
            values[name] = (value > 0).astype(float) * (1 if ("indicator", name) in guards else 2)
        else:
            values[name] = value
    return values


def holds(law: Lemma, values: dict[str, Any]) -> bool:
    with np.errstate(all="ignore"):
        left, right = evaluate(law.left, values), evaluate(law.right, values)
    both = np.isnan(left) & np.isnan(right)
    return bool(np.all(both | np.isclose(left, right, rtol=1e-9, atol=1e-9)))


@every_law
def test_holds_on_numbers(law: Lemma) -> None:
    assert all(holds(law, drawn(law, seed)) for seed in range(TRIALS))


NEEDED = [
    (law, guard)
    for law in FUNCTION_LAWS
    for guard in law.guards
    if guard[0] in ("indicator", "positive_number", "negative_number")
]


@pytest.mark.parametrize(
    ("law", "dropped"), NEEDED, ids=lambda value: value.code if isinstance(value, Lemma) else value[0]
)
def test_is_false_without_any_one_of_its_guards(law: Lemma, dropped: tuple[str, str, str]) -> None:
    bare = dataclasses.replace(law, guards=tuple(guard for guard in law.guards if guard != dropped))
    assert not all(holds(bare, drawn(bare, seed)) for seed in range(TRIALS))


@pytest.mark.parametrize(
    ("code", "name"), [(law.code, guard[1]) for law in FUNCTION_LAWS for guard in law.guards if guard[0] == "defined"]
)
def test_values_that_are_no_numbers_or_wrap_around_break_the_law(code: str, name: str) -> None:
    """``defined`` keeps infinities away, and integers, which wrap around where the law computes what no side did."""
    (law,) = [law for law in FUNCTION_LAWS if law.code == code]
    infinite = [
        not holds(law, {**drawn(law, seed), name: np.full(12, value)})
        for value in (math.inf, -math.inf)
        for seed in range(TRIALS)
    ]
    assert any(infinite) or wraps_around(law)


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


@pytest.mark.parametrize("code", [f"VL{number}" for number in (119, 120, *range(122, 131))])
def test_z3_proves_it_for_all_real_numbers(code: str) -> None:
    (law,) = [law for law in FUNCTION_LAWS if law.code == code]
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
    assert solver.check() == z3.unsat


@every_law
def test_both_sides_can_be_built(law: Lemma) -> None:
    b = Builder(TermPool())
    leaves = (*(b.pool.leaf(name, (3, 4)) for name in "ab"), b.pool.leaf("c", (3, 4), indicator=True))
    values: dict[str, Any] = {"a": 0, "b": 1, "c": 2 if "where" in str(law.left) or "not" in str(law.left) else 1}
    values |= {"d": 1, "p": Fraction(-3)}
    for side in (law.left, law.right):
        assert build(b, Space((3, 4), 2, leaves), ground(side, values)).rank == 2
