"""Proofs of lemmas by z3, for all sizes.

A value is a function of the indices that it may depend on; further dimensions are fixed. A sum under the comparison of
its index with a number is the summand at the number, if that is a position (shown below by induction, once for all);
any other sum is proved by induction over the size of its index. A sum over another index is unknown but linear: what
does not depend on its index is taken out of it, and sums of summands are sums of sums.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import z3

from verifycompile.rewrites.lemmas.lemma import INDEX, NUMBER, VALUE, Lemma, Pattern
from verifycompile.rewrites.lemmas.read import flattened
from verifycompile.rewrites.lemmas.spelling import names

EXP = z3.Function("exp", z3.RealSort(), z3.RealSort())
_MILLISECONDS = 10_000
RADICES = (1, 2, 3, 5)
"""Of digits: products of unknown whole numbers are beyond z3."""


class NotProvedError(Exception):
    """A lemma of a form that nothing here proves."""


def proved_for_all_sizes(lemma: Lemma) -> bool:
    """Whether z3 proves the equation from the guards, for indices of every size."""
    try:
        return _is_proved(lemma)
    except NotProvedError:
        return False


def _is_proved(lemma: Lemma) -> bool:
    left, right = lemma.left, lemma.right
    while (index := _common_sum(left, right)) is not None:  # equal summands have equal sums, and sums add up
        left, right = _without_sum(left, index), _without_sum(right, index)
    lemma = dataclasses.replace(lemma, left=left, right=right)
    index = _inducted(lemma, left) or _inducted(lemma, right)
    if index is not None and (_reads_outside(lemma, left, index) or _reads_outside(lemma, right, index)):
        return False  # the element outside of the sum would be taken for the new one
    radices = [name for name in names(lemma, NUMBER) if any(g[0] == "digit" and g[2] == name for g in lemma.guards)]
    if radices:
        choices = itertools.product(RADICES, repeat=len(radices))
        return all(_follows(lemma, None, "", (), dict(zip(radices, chosen, strict=True))) for chosen in choices)
    if index is None:
        return _follows(lemma, None, "", ())
    return _follows(lemma, index, "none", ()) and _follows(lemma, index, "one more", ("before",))


def _common_sum(left: Pattern, right: Pattern) -> str | None:
    """The index over which all summands of both sides are sums."""
    found = {
        part[1] if not isinstance(part, str) and part[0] == "sum" else None
        for part in (*flattened(left), *flattened(right))
    }
    (index,) = found if len(found) == 1 else (None,)
    return None if index is None else str(index)


def _without_sum(pattern: Pattern, index: str) -> Pattern:
    if not isinstance(pattern, str) and pattern[0] == "add":
        return ("add", *(_without_sum(part, index) for part in pattern[1:]))
    assert pattern[:2] == ("sum", index)
    return pattern[2]


def one_hot_sums_are_look_ups() -> bool:
    """By induction over n: the sum over v < n of ``(k == v) f(v)`` is f(k), if k is one of these positions, else 0."""
    n, k = z3.Ints("n k")
    f = z3.Function("f", z3.IntSort(), z3.RealSort())

    def total(count: Any) -> Any:
        return z3.If(z3.And(k >= 0, k < count), f(k), z3.RealVal(0))

    step = total(n + 1) == total(n) + z3.If(k == n, f(n), z3.RealVal(0))
    return _is_valid(total(z3.IntVal(0)) == 0, []) and _is_valid(step, [n >= 0])


def _is_valid(claim: Any, given: Sequence[Any]) -> bool:
    solver = z3.Solver()
    solver.set("timeout", _MILLISECONDS)
    solver.add(*given, z3.Not(claim))
    return solver.check() == z3.unsat


def _reads_outside(lemma: Lemma, pattern: Pattern, index: str) -> bool:
    """Whether a value that depends on the index stands outside of its sum."""
    if isinstance(pattern, str):
        is_fixed = ("independent", pattern, index) in lemma.guards
        return pattern in names(lemma, VALUE) and not is_fixed
    if pattern[0] in ("sum", "each") and pattern[1] == index:
        return False
    return any(_reads_outside(lemma, part, index) for part in pattern[1:])


def _follows(
    lemma: Lemma, index: str | None, size: str, assumed: Sequence[str], radices: dict[str, int] | None = None
) -> bool:
    given: list[Any] = []
    for case in assumed:
        before = Sides(lemma, index, case)
        given.append(before.evaluate(lemma.left) == before.evaluate(lemma.right))
        given.extend(before.axioms())
    now = Sides(lemma, index, size)
    now.numbers.update({name: z3.IntVal(radix) for name, radix in (radices or {}).items()})
    claim = now.evaluate(lemma.left) == now.evaluate(lemma.right)
    return _is_valid(claim, [*given, *now.axioms()])


def _inducted(lemma: Lemma, pattern: Pattern) -> str | None:
    """The index of the first sum that is no look-up, an inner one before an outer one."""
    if isinstance(pattern, str):
        return None
    for part in pattern[1:]:
        found = _inducted(lemma, part)
        if found is not None:
            return found
    return str(pattern[1]) if pattern[0] in ("sum", "each") and _compared(pattern) is None else None


def _compared(pattern: Pattern) -> tuple[Pattern, Pattern, list[Pattern]] | None:
    """``(x, f(i), others)`` where the body of a sum over i has the factor ``x == f(i)``."""
    place = ("place", pattern[1])
    factors = _factors(pattern[2])
    for number, factor in enumerate(factors):
        if not isinstance(factor, str) and factor[0] == "equal" and _holds(factor[2], place):
            return factor[1], factor[2], [*factors[:number], *factors[number + 1 :]]
    return None


def _factors(pattern: Pattern) -> list[Pattern]:
    if isinstance(pattern, str) or pattern[0] != "mul":
        return [pattern]
    return [factor for part in pattern[1:] for factor in _factors(part)]


def _holds(pattern: Pattern, wanted: Pattern) -> bool:
    return pattern == wanted or (not isinstance(pattern, str) and any(_holds(part, wanted) for part in pattern[1:]))


def _is_end(pattern: Pattern, name: str) -> bool:
    """Whether a number is an end of a range."""
    if isinstance(pattern, str):
        return False
    return (pattern[0] == "range" and name in pattern[2:]) or any(_is_end(part, name) for part in pattern[1:])


class Sides:
    """Both sides at one element of all indices. ``size``: of ``inducted``: none, before (n), or one more (n + 1)."""

    def __init__(self, lemma: Lemma, inducted: str | None, size: str) -> None:
        self.lemma, self.inducted, self.size = lemma, inducted, size
        self.indices = {name: z3.Int(name) for name in names(lemma, INDEX)}
        self.sizes = {name: z3.Int(f"size of {name}") for name in self.indices}
        self.numbers = {name: z3.Int(name) if self._is_whole(name) else z3.Real(name) for name in names(lemma, NUMBER)}
        self.exponents: list[Any] = []
        self.positive = {str(g[1]) for g in lemma.guards if g[0] == "positive"}

    def _is_whole(self, name: str) -> bool:
        kinds = ("digit", "within_or", "ordered", "reads")
        sides = (self.lemma.left, self.lemma.right)
        return any(name in g[1:] and g[0] in kinds for g in self.lemma.guards) or any(_is_end(s, name) for s in sides)

    def axioms(self) -> list[Any]:
        """The guards at this element, and the laws of the exponential for what occurs."""
        found: list[Any] = [size > 0 for size in self.sizes.values()]
        found.extend(z3.And(i >= 0, i < self.sizes[name]) for name, i in self.indices.items() if name != self.inducted)
        for kind, *arguments in self.lemma.guards:
            if str(kind) in _GUARDS:
                found.append(_GUARDS[str(kind)](self, *arguments))
        for one, other in itertools.combinations_with_replacement(self.exponents, 2):
            found.append(EXP(one) * EXP(other) == EXP(one + other))
        return [*found, EXP(z3.RealVal(0)) == 1, *(EXP(one) > 0 for one in self.exponents)]

    def value(self, name: str) -> Any:
        if name in self.positive:
            return self._exponential(z3.Real(f"logarithm of {name}"))
        fixed = {g[2] for g in self.lemma.guards if g[0] == "independent" and g[1] == name}
        arguments = [index for index in self.indices if index not in fixed]
        if not arguments:
            return z3.Real(name)
        function = z3.Function(name, *(z3.IntSort() for _ in arguments), z3.RealSort())
        return function(*(self.indices[index] for index in arguments))

    def evaluate(self, pattern: Pattern) -> Any:
        if isinstance(pattern, str):
            return self.numbers[pattern] if pattern in self.numbers else self.value(pattern)
        operator, *arguments = pattern
        if operator in ("sum", "each"):
            return self._sum(pattern)
        if operator == "range":
            return self._range(pattern)
        if operator == "place":
            return z3.ToReal(self.indices[str(arguments[0])])
        if operator == "at":
            return self._at(arguments[0], str(arguments[1]), z3.ToInt(self.evaluate(arguments[2])))
        if operator == "exp":
            return self._exponential(self.evaluate(arguments[0]))
        if operator == "power" and arguments[0] == ("minus_one",):
            return 1 / self.evaluate(arguments[1])
        if operator == "power":
            if arguments[1] not in self.positive:
                raise NotProvedError("a power of what may be no positive number")
            return self._exponential(self.evaluate(arguments[0]) * z3.Real(f"logarithm of {arguments[1]}"))
        return _OPERATORS[str(operator)](*(self.evaluate(argument) for argument in arguments))

    def _range(self, pattern: Pattern) -> Any:
        place, first, after = (self.indices[str(pattern[1])], *(self.numbers[str(end)] for end in pattern[2:]))
        return _one_where(z3.And(first <= place, place < after))

    def reads(self, name: str, window: str, first: str, after: str, line: str, *ends: str) -> Any:
        inside = self._range(("range", window, first, after)) == 1
        one, other = (self._range(("range", line, *ends[k : k + 2])) for k in (0, 2))
        return z3.Implies(z3.And(inside, one != other), self.value(name) == 0)

    def _exponential(self, exponent: Any) -> Any:
        self.exponents.append(exponent)
        return EXP(exponent)

    def _at(self, pattern: Pattern, index: str, position: Any) -> Any:
        before = self.indices[index]
        self.indices[index] = position
        try:
            return self.evaluate(pattern)
        finally:
            self.indices[index] = before

    def _sum(self, pattern: Pattern) -> Any:
        index, body = str(pattern[1]), pattern[2]
        found = _compared(pattern)
        if found is not None:
            return self._look_up(index, *found)
        if index != self.inducted:
            return self._linear(index, body)
        if self.size == "none":
            return z3.RealVal(0)
        before = self._unknown(f"sum of {body}", index)
        return before if self.size == "before" else before + self.evaluate(body)

    def _unknown(self, name: str, index: str) -> Any:
        """A sum, which may depend on the other indices."""
        others = [i for i in self.indices if i != index]
        if not others:
            return z3.Real(name)
        return z3.Function(name, *(z3.IntSort() for _ in others), z3.RealSort())(*(self.indices[i] for i in others))

    def _look_up(self, index: str, wanted: Pattern, counted: Pattern, rest: list[Pattern]) -> Any:
        """The summand at the one position at which the comparison holds; ``counted`` grows evenly with it."""
        if _reads_outside(self.lemma, wanted, index) or _reads_outside(self.lemma, counted, index):
            raise NotProvedError("no look-up: what is compared depends on the index")
        number = self.evaluate(wanted)
        first, second = (self._at(counted, index, z3.IntVal(k)) for k in (0, 1))
        position = (number - first) / (second - first)
        factors = [self._at(factor, index, z3.ToInt(position)) for factor in rest]
        there = z3.And(z3.IsInt(position), position >= 0, position < self.sizes[index])
        return z3.If(there, z3.Product(*factors) if factors else z3.RealVal(1), z3.RealVal(0))

    def _linear(self, index: str, body: Pattern) -> Any:
        """A sum of which no more is known than that it is linear."""
        total: Any = z3.RealVal(0)
        for monomial in self._monomials(body):
            outside = [text for text, depends in monomial if index not in depends]
            inside = sorted(str(text) for text, depends in monomial if index in depends)
            total = total + z3.Product(z3.RealVal(1), *outside, z3.Real(f"sum over {index} of {inside}"))
        return total

    def _monomials(self, pattern: Pattern) -> list[list[tuple[Any, set[str]]]]:
        """A product of values and sums as a sum of products, each factor with the indices that it depends on."""
        if isinstance(pattern, str):
            fixed = {str(g[2]) for g in self.lemma.guards if g[0] == "independent" and g[1] == pattern}
            return [[(self.value(pattern), set(self.indices) - fixed)]]
        if pattern[0] == "mul":
            parts = [self._monomials(part) for part in pattern[1:]]
            return [[factor for part in chosen for factor in part] for chosen in itertools.product(*parts)]
        if pattern[:2] != ("sum", self.inducted):
            raise NotProvedError("a sum of what is no product")
        if self.size == "none":
            return []
        before = (self._unknown(f"sum of {pattern[2]}", str(pattern[1])), set(self.indices) - {str(pattern[1])})
        return [[before]] if self.size == "before" else [[before], *self._monomials(pattern[2])]

    def whole(self, name: str) -> Any:
        return z3.IsInt(self.value(name))

    def digit(self, name: str, radix: str) -> Any:
        return z3.And(self.whole(name), self.value(name) >= 0, self.value(name) < self.numbers[radix])

    def within(self, name: str, index: str) -> Any:
        return z3.And(self.whole(name), self.value(name) >= 0, self.value(name) < self.sizes[index])

    def within_or(self, name: str, index: str, exception: str) -> Any:
        number = self.numbers[exception]
        outside = z3.Not(z3.And(number >= 0, number < self.sizes[index]))
        return z3.And(outside, z3.Or(self.value(name) == number, self.within(name, index)))

    def indicator(self, name: str) -> Any:
        return z3.Or(self.value(name) == 0, self.value(name) == 1)

    def implies(self, given: Pattern, wanted: Pattern) -> Any:
        return z3.Implies(self.evaluate(given) == 1, self.evaluate(wanted) == 1)

    def beside(self, mask: Pattern, name: str, other: str) -> Any:
        """At every element: the summand that is looked up is another one than that which the indices say."""
        claim = z3.Implies(self.evaluate(mask) == 1, self.value(name) == self.value(other))
        return z3.ForAll(list(self.indices.values()), claim) if self.indices else claim

    def equivalent(self, given: Pattern, wanted: Pattern) -> Any:
        return (self.evaluate(given) == 1) == (self.evaluate(wanted) == 1)


def _one_where(condition: Any) -> Any:
    return z3.If(condition, z3.RealVal(1), z3.RealVal(0))


_OPERATORS: dict[str, Any] = {
    "one": lambda: z3.RealVal(1),
    "minus_one": lambda: z3.RealVal(-1),
    "number": lambda p: p,
    "add": lambda *parts: z3.Sum(*parts),
    "plus": lambda p, q: p + q,
    "mul": lambda *parts: z3.Product(*parts),
    "times": lambda p, q: p * q,
    "scale": lambda p, a: p * a,
    "not": lambda a: 1 - a,
    "equal": lambda a, b: _one_where(a == b),
    "less": lambda a, b: _one_where(a < b),
    "less_equal": lambda a, b: _one_where(a <= b),
    "spell": lambda p, a, b: p * a + b,
}
_GUARDS: dict[str, Any] = {
    "whole": Sides.whole,
    "digit": Sides.digit,
    "within": Sides.within,
    "within_or": Sides.within_or,
    "indicator": Sides.indicator,
    "implies": Sides.implies,
    "equivalent": Sides.equivalent,
    "beside": Sides.beside,
    "known": lambda sides, name: sides.value(name) == 1,
    "reads": Sides.reads,
    "ordered": lambda sides, low, high: sides.numbers[low] <= sides.numbers[high],
}
