"""What must hold of the closure that disposes of the e-graph's instances, as checks that its mutants must fail."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from tests.lemmas.conditions import Check
from verifycompile.ir.exponential import MAXIMUM
from verifycompile.ir.relabel import insert_dim, permute
from verifycompile.ir.term import View
from verifycompile.refinement.check import new_pool
from verifycompile.refinement.closure import LAWS, Instance, alias_of, instances_prove, is_defined, without_needless
from verifycompile.refinement.egraph import prove_equal
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.interpretation import Expression, Space, ground
from verifycompile.rewrites.lemmas.lemma import Lemma

SHAPE = 3, 4
NAMES, MASKS = ("a", "b", "c", "d"), ("m", "n")
LEAVES = {name: number for number, name in enumerate((*NAMES, *MASKS))}
NOT_DEFINED: Expression = ("log", LEAVES["d"])
NUMBERS = {"positive_number": Fraction(3, 2), "negative_number": Fraction(-3, 2)}


def space() -> tuple[Builder, Space]:
    """A fresh pool with the leaves ``NAMES``, and masks."""
    b = Builder(new_pool())
    leaves = [b.pool.leaf(name, SHAPE) for name in NAMES] + [b.pool.leaf(m, SHAPE, indicator=True) for m in MASKS]
    return b, Space(SHAPE, len(SHAPE), tuple(leaves))


def proved(left: Expression, right: Expression, *instances: Instance) -> tuple[Instance, ...] | None:
    b, over = space()
    return instances_prove(b.pool, over, left, right, instances)


def checks() -> Iterator[tuple[str, Check]]:
    """All of them, by name."""
    for law in LAWS.values():
        values = _values(law)
        yield f"instance of {law.code}", functools.partial(_proves, law, values)
        yield f"other than {law.code}", functools.partial(_proves_nothing_else, law, values)
        for kind, name in law.guards:
            for wrong in _against(str(kind)):
                yield (
                    f"{law.code} without {kind} {name}",
                    functools.partial(_is_none, law, {**values, str(name): wrong}),
                )
        for name in values:
            rest = {other: value for other, value in values.items() if other != name}
            yield f"{law.code} without a value", functools.partial(_is_none, law, rest, whole=values)
    own = (
        _unknown_code, _what_is_not_needed, _is_forgotten, _each_is_known, _several, _infinite, _replaced, _defined,
        _aliases, _again,
    )  # fmt: skip
    for check in own:
        yield check.__name__.removeprefix("_"), check


def _values(law: Lemma) -> dict[str, Expression]:
    """Leaves for the variables of a law, numbers and masks where its guards ask for them."""
    guards = {str(name): str(kind) for kind, name in law.guards}
    found: dict[str, Expression] = {}
    for name in sorted(_variables(law.left)):
        kind = guards.get(name, "defined")
        found[name] = NUMBERS[kind] if kind in NUMBERS else LEAVES["m" if kind == "indicator" else name]
    return found


def _variables(pattern: Any) -> set[str]:
    if isinstance(pattern, str):
        return {pattern}
    return set().union(*(_variables(part) for part in pattern[1:]))


def _against(kind: str) -> Sequence[Expression]:
    if kind in NUMBERS:
        return Fraction(0), -NUMBERS[kind], LEAVES["a"]
    return (LEAVES["d"],) if kind == "indicator" else (NOT_DEFINED,)


def _sides(law: Lemma, values: Mapping[str, Expression]) -> tuple[Expression, Expression]:
    return ground(law.left, values), ground(law.right, values)


def _proves(law: Lemma, values: Mapping[str, Expression]) -> None:
    instance = Instance(law.code, values)
    left, right = _sides(law, values)
    assert proved(left, right, instance) == (instance,)
    assert proved(right, left, instance) == (instance,)
    other = LEAVES["n"]
    assert proved(("mul", other, left), ("mul", other, right), instance) == (instance,)
    assert proved(("exp", left), ("exp", right), instance) == (instance,)
    assert proved(left, right) is None


def _proves_nothing_else(law: Lemma, values: Mapping[str, Expression]) -> None:
    instance = Instance(law.code, values)
    left, right = _sides(law, values)
    wrong = ("add", right, LEAVES["n"]), ("scale", Fraction(2), right), LEAVES["n"], ("zero",)
    assert [side for side in wrong if proved(left, side, instance) is not None] == []
    assert proved(("sin", left), ("cos", right), instance) is None


def _is_none(law: Lemma, values: Mapping[str, Expression], whole: Mapping[str, Expression] | None = None) -> None:
    numbers = [values[str(name)] for kind, name in law.guards if kind in NUMBERS and whole is None]
    # A leaf where a number is expected builds no sides of the law.
    sides = (LEAVES["a"], LEAVES["b"]) if LEAVES["a"] in numbers else _sides(law, whole or values)
    assert proved(*sides, Instance(law.code, values)) is None


def _unknown_code() -> None:
    assert proved(LEAVES["a"], LEAVES["b"], Instance("VL999", {"a": 0})) is None
    assert proved(("tanh", 0), ("sinh", 0), Instance("VL110", {"a": 99})) is None


SINH, COSH = Instance("VL115", {"a": 0}), Instance("VL116", {"a": 0})
SUM: tuple[Expression, Expression] = ("add", ("sinh", 0), ("cosh", 0)), ("exp", 0)


def _what_is_not_needed() -> None:
    b, over = space()
    needless = Instance("VL110", {"a": 0}), Instance("VL118", {"a": 1})
    given = (needless[0], SINH, needless[1], COSH)
    found = instances_prove(b.pool, over, *SUM, given)
    assert found is not None
    assert without_needless(b.pool, over, *SUM, found) == (SINH, COSH)
    assert without_needless(b.pool, over, *SUM, (SINH,)) == (SINH,)
    assert without_needless(b.pool, over, *SUM, (SINH, COSH)) == (SINH, COSH)


def _is_forgotten() -> None:
    b, over = space()
    b.pool.memo["kept"] = b.pool.constant(Fraction(1), SHAPE)
    memo, answers, trace = b.pool.memo, b.pool.answers, list(b.pool.lemma_trace)
    assert instances_prove(b.pool, over, *SUM, (SINH, COSH)) == (SINH, COSH)
    assert b.pool.aliases == {}
    assert b.pool.memo is memo
    assert b.pool.answers is answers
    assert b.pool.lemma_trace == trace


def _each_is_known() -> None:
    assert proved(*SUM, SINH) is None
    assert proved(*SUM, COSH) is None
    assert proved(*SUM, SINH, COSH) == (SINH, COSH)
    assert proved(*SUM, COSH, SINH) == (COSH, SINH)
    assert proved(*SUM, *[Instance("VL118", {"a": 0})] * 64, SINH, COSH) is None


def _several() -> None:
    """Instances in which the ones before replace terms."""
    b, _ = space()
    a, x, y, z = (b.pool.leaf(name, SHAPE) for name in ("e", "x", "y", "z"))
    left = ground(LAWS["VL125"].left, {"a": ("maximum", 0, 1), "b": 2, "c": 3})
    right: Expression = ("maximum", 0, ("maximum", 1, ("maximum", 2, 3)))
    chain = (
        Instance("VL125", {"a": ("maximum", 0, 1), "b": 2, "c": 3}),
        Instance("VL125", {"a": 0, "b": 1, "c": ("maximum", 2, 3)}),
    )
    for order in (chain, chain[::-1]):
        assert proved(left, right, *order) in (chain, chain[::-1])
        assert proved(left, ("maximum", 0, ("maximum", 1, 2)), *order) is None

    def relu(view: View) -> View:
        return b.pointwise(MAXIMUM, view, 0)

    proof = prove_equal(b.pool, b.sub(relu(x), relu(b.scale(x, -1))), x)
    assert proof is not None
    assert prove_equal(b.pool, b.sub(relu(x), relu(b.scale(y, -1))), x) is None
    assert prove_equal(b.pool, b.add(a, relu(z)), b.add(a, relu(y))) is None


def _infinite() -> None:
    """Nothing is replaced by what is infinite."""
    b, over = space()
    over = dataclasses.replace(over, leaves=(b.full(float("-inf"), SHAPE), *over.leaves))
    assert instances_prove(b.pool, over, ("maximum", 0, 0), 0, (Instance("VL126", {"a": 0}),)) is None
    both = Instance("VL126", {"a": 0}), Instance("VL126", {"a": 1})
    assert instances_prove(b.pool, over, ("maximum", 1, 1), 1, both) == both[1:]


def _replaced() -> None:
    """The left side is a sum already, by another instance: the right side is replaced."""
    instances = (
        Instance("VL123", {"a": ("maximum", 0, 1), "b": 2}),
        Instance("VL125", {"a": 0, "b": 1, "c": 2}),
    )
    for order in (instances, instances[::-1]):
        sides = ("maximum", 0, ("maximum", 1, 2)), ground(LAWS["VL123"].right, instances[0].values)
        assert proved(*sides, *order) == order
        assert proved(*(("add", 3, side) for side in sides), *order) == order


def _defined() -> None:
    b, _ = space()
    x, y = (b.pool.leaf(name, SHAPE) for name in ("x", "y"))
    positive = b.add(1, b.exp(x))
    numbers = x, b.exp(x), b.add(x, y), b.mul(x, y), positive, b.divide(y, positive), b.log(positive), b.log(b.exp(x))
    summed = b.log(b.sum(b.exp(x), [1])), b.log(b.mul(b.sum(b.exp(x), [1]), b.sum(b.exp(y), [1])))
    picked = b.pointwise(MAXIMUM, x, y), b.concatenate([x, b.exp(y)], 0), b.pad(b.mul(x, y), 0, 1, 9)
    numbers = *numbers, *summed, *picked
    others = b.log(x), b.divide(y, x), b.number(float("-inf")), b.exp(b.log(x)), b.add(x, b.power(y, -2))
    assert [is_defined(view) for view in numbers] == [True] * len(numbers)
    assert [is_defined(view) for view in others] == [False] * len(others)


def _aliases() -> None:
    b, _ = space()
    x, y, short = b.pool.leaf("x", SHAPE), b.pool.leaf("y", SHAPE), b.pool.leaf("s", SHAPE[1:])
    found = b.add(x, y)
    alias = alias_of(b.scale(b.exp(x), 6), b.scale(found, 2))
    assert alias is not None
    assert alias.coefficient == 3 * b.exp(x).coefficient
    assert alias_of(found, x) is None
    assert alias_of(b.scale(x, 0), found) is None
    assert alias_of(found, b.scale(found, 0)) is None
    wide = b.exp(short)
    over_rows = dataclasses.replace(insert_dim(wide, 0, SHAPE[0]), shape=SHAPE)
    assert alias_of(found, over_rows) is None
    row = b.select(found, 0, 1)
    assert alias_of(b.exp(short), row) is None
    assert alias_of(row, b.exp(short)) is not None
    turned = alias_of(permute(b.exp(x), [1, 0]), permute(found, [1, 0]))
    assert turned == alias_of(b.exp(x), found)


def _again() -> None:
    """What is learnt from an instance is learnt once; the same instance twice says no more."""
    assert proved(*SUM, SINH, SINH, COSH) == (SINH, COSH)
    same = Instance("VL126", {"a": ("maximum", 0, 0)})
    assert proved(("maximum", ("maximum", 0, 0), ("maximum", 0, 0)), 0, same, Instance("VL126", {"a": 0})) is not None
