"""Both sides of a law as terms, built by what builds all terms: ``Builder``, over leaves that meet the law's guards."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch

from tests.ir.evaluate import Evaluator
from verifycompile.ir.algebra import INFINITY, iota
from verifycompile.ir.exponential import MAXIMUM, WHERE
from verifycompile.ir.indicator import is_indicator
from verifycompile.ir.relabel import insert_dim
from verifycompile.ir.scalar import add, multiply
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Call
from verifycompile.rewrites.lemmas.lemma import INDEX, NUMBER, VALUE, Guard, Lemma, Pattern
from verifycompile.rewrites.lemmas.spelling import names
from verifycompile.rewrites.operators.elementwise import choose
from verifycompile.rewrites.operators.limits import limited
from verifycompile.rewrites.operators.reduction import reduce_extreme
from verifycompile.rewrites.operators.statistics import absolute_value

SIZE, FREE = 3, 2
MASKS = ("m", "n")
"""Names of values that are masks in every law: what else is negated is refused."""


class Sides:
    """Both sides of a law in a pool of their own; ``broken``: a guard that the leaves do not meet."""

    def __init__(self, law: Lemma, broken: Guard | None = None) -> None:
        self.law = law
        self.builder = Builder(TermPool())
        masks = all(("indicator", name) in law.guards for name in names(law, VALUE))
        self.builder.call = Call(dtype=torch.bool if masks else torch.float64)
        self.dims = {name: FREE + place for place, name in enumerate(names(law, INDEX))}
        self.shape = (SIZE,) * (FREE + len(self.dims))
        met = [guard for guard in law.guards if guard != broken]
        self.numbers: dict[str, Fraction] = {
            name: self._number(place, {str(guard[0]) for guard in met if name in guard[1:]}, broken)
            for place, name in enumerate(names(law, NUMBER))
        }
        self.values = {name: self._value(name, met, broken) for name in names(law, VALUE)}
        self.left, self.right = self.built(law.left), self.built(law.right)

    @property
    def are_one(self) -> bool:
        """Whether both sides are the same term, read alike."""
        return _key(self.left) == _key(self.right)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Both sides on numbers."""
        leaves = {
            str(term.attributes[0]): _elements(term.operation.name, term.shape, place)
            for place, term in enumerate(self.builder.pool.sources)
            if term.operation.name.endswith("leaf")
        }
        evaluator = Evaluator(leaves)
        return evaluator.view(self.left), evaluator.view(self.right)

    def _number(self, place: int, guards: set[str], broken: Guard | None) -> Fraction:
        if broken == ("positive_number", names(self.law, NUMBER)[place]):
            return Fraction(-1, 2)
        if "outside" in guards:
            return Fraction(SIZE)
        if broken is not None and broken[0] == "outside":
            return Fraction(SIZE - 1)
        if guards & {"above", "not_below"} or (broken is not None and broken[0] in ("above", "not_below")):
            return Fraction(0)
        return Fraction(3) if place == 0 and len(names(self.law, NUMBER)) > 1 else Fraction(1, 2)

    def _value(self, name: str, guards: list[Guard], broken: Guard | None) -> View:
        b, said = self.builder, {str(guard[0]) for guard in guards if guard[1] == name}
        fixed = {self.dims[str(g[2])] for g in guards if g[0] == "independent" and g[1] == name}
        is_mask = (name in MASKS or "indicator" in said) and broken != ("indicator", name)
        shape = tuple(1 if dim in fixed else size for dim, size in enumerate(self.shape))
        leaf = b.pool.leaf(name, shape, indicator=is_mask, whole="whole" in said)
        if said & {"positive", "above"}:
            return b.add(b.exp(leaf), b.exp(b.pool.leaf(f"{name} again", shape)))
        if said & {"nonnegative", "not_below"}:
            return absolute_value(b, leaf)
        if broken == ("finite", name):
            return self._infinite(leaf)
        return leaf

    def _infinite(self, leaf: View) -> View:
        """A value that is infinite somewhere: a multiple of infinity, or the maximum of a row that is masked wholly."""
        infinity = View(Fraction(-1), self._infinity(), leaf.shape, ())
        if self.law.left[0] == "power":
            return self.builder.mul(leaf, infinity)
        masked = self.builder.pointwise(
            WHERE, self.builder.pool.leaf("mask", leaf.shape, indicator=True), infinity, leaf
        )
        return insert_dim(reduce_extreme(self.builder.pool, masked, [1], "max"), 1)

    def _infinity(self) -> Any:
        return self.builder.pool.intern(INFINITY, (), (), (), 0, 0, (), ())

    def built(self, pattern: Pattern) -> Any:
        """The value of a pattern, or its number."""
        if isinstance(pattern, str):
            return self.numbers[pattern] if pattern in self.numbers else self.values[pattern]
        operator, *arguments = pattern
        if operator in _NUMBERS:
            return _NUMBERS[str(operator)]
        if operator in ("zero", "one"):
            return self.builder.pool.constant(Fraction(operator == "one"), self.shape)
        if operator == "minus_infinity":
            return View(Fraction(-1), self._infinity(), self.shape, ())
        if operator == "place":
            return self._place(self.dims[str(arguments[0])])
        if operator in ("sum", "max"):
            return self._reduced(str(operator), self.dims[str(arguments[0])], self.built(arguments[1]))
        return _BUILT[str(operator)](self.builder, *map(self.built, arguments))

    def _place(self, dim: int) -> View:
        counter = iota(self.builder.pool, SIZE)
        return View(counter.coefficient, counter.term, self.shape, (((dim, 1, SIZE),),))

    def _reduced(self, operator: str, dim: int, value: View) -> View:
        value = View(value.coefficient, value.term, self._whole(value, dim), value.axes)
        if operator == "sum":
            return self.builder.sum(value, [dim], keepdim=True)
        return insert_dim(reduce_extreme(self.builder.pool, value, [dim], "max"), dim)

    def _whole(self, value: View, dim: int) -> tuple[Any, ...]:
        return tuple(SIZE if place == dim else size for place, size in enumerate(value.shape))


def _key(view: View) -> tuple[object, ...]:
    return view.term, view.coefficient, view.axes


def _elements(kind: str, shape: Any, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, dtype=torch.float64, generator=generator)
    if kind == "integer_leaf":
        return drawn.round()
    return (drawn > 0).double() if kind == "indicator_leaf" else drawn


_NUMBERS: dict[str, Fraction] = {"minus_one": Fraction(-1), "half": Fraction(1, 2), "two": Fraction(2)}

_BUILT: dict[str, Callable[..., Any]] = {
    "add": lambda b, *parts: b.add(*parts),
    "mul": lambda b, *factors: b.mul(*factors),
    "scale": lambda b, p, a: b.scale(a, p),
    "power": lambda b, p, a: b.power(a, p),
    "maximum": lambda b, a, p: limited(b, MAXIMUM, a, float(p.coefficient)),
    "exp": lambda b, a: b.exp(a),
    "log": lambda b, a: b.log(a),
    "abs": absolute_value,
    "not": lambda b, a: b.negate(a),
    "or": lambda b, a, c: b.either(a, c),
    "where": lambda b, c, *values: choose(b, c, *values) if is_indicator(c) else b.pointwise(WHERE, c, *values),
    "equal": lambda b, left, right: b.equal(left, right),
    "less": lambda b, left, right: b.less(left, right),
    "less_equal": lambda b, left, right: b.less_equal(left, right),
    "number": lambda b, p: b.number(p),
    "plus": lambda b, p, q: add(p, q),
    "times": lambda b, p, q: multiply(p, q),
}
