"""Real expressions of single elements, each stored once: equal numbers are equal expressions up to the laws used here.

Sums and products are kept flat and sorted, numbers are exact, and products of exponentials are exponentials of sums.
Nothing else is known: whether two expressions that are stored apart are equal all the same is for the solver. None of
this is shared with the proof.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from verifycompile.walks import reached

ZERO, ONE = 0, 1
_LARGEST_DENOMINATOR = 1_000_000
_MOST_SUMMANDS = 1_024
_LARGEST_POWER = 4

Rational = Fraction | int
Parts = tuple[tuple[int, Rational], ...]
Content = tuple[object, ...]
"""``("number", q)``, ``("variable", name, position)``, ``("sum", ((id, coefficient), ...))``,
``("product", ((id, exponent), ...))`` or ``("call", name, id, ...)``."""


def rational(value: float) -> Rational:
    """The simple fraction that a literal stands for, where there is one that rounds to it."""
    exact = Fraction(value)
    simple = exact.limit_denominator(_LARGEST_DENOMINATOR)
    return _whole(simple if float(simple) == float(value) else exact)


def _whole(value: Rational) -> Rational:
    """An ``int`` where the number is one: most are, and fractions are slow."""
    return value if type(value) is int or value.denominator != 1 else value.numerator


class Expressions:
    """The expressions of one comparison. An expression is known by its number; operands have smaller numbers.

    ``functions``: by the names in calls, of single numbers.
    """

    def __init__(self) -> None:
        self.contents: list[Content] = []
        self.functions: dict[str, Callable[..., float]] = {}
        self._numbers: dict[Content, int] = {}
        self._expanded: dict[int, int] = {}
        self.number(0)
        self.number(1)
        self.plus_infinity = self._stored(("call", "infinity"))
        self.minus_infinity = self._stored(("call", "minus infinity"))
        self.unknown = self._stored(("call", "no number"))
        self.multiply = functools.lru_cache(maxsize=None)(self._multiply)
        self._scaled = functools.lru_cache(maxsize=None)(self._with_first_coefficient_one)
        self.add = functools.lru_cache(maxsize=None)(self._add)

    def _stored(self, content: Content) -> int:
        return self._known_as(content, content)

    def _stored_parts(self, kind: str, parts: Parts) -> int:
        """A sum or product; to hash a fraction takes longer than to hash two numbers."""
        pairs = (own if type(own) is int else (own.numerator, own.denominator) for _, own in parts)
        return self._known_as((kind, tuple(part for part, _ in parts), tuple(pairs)), (kind, parts))

    def _known_as(self, key: Content, content: Content) -> int:
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self.contents)
            self.contents.append(content)
        return known

    # -- leaves

    def number(self, value: Rational) -> int:
        return self._stored(("number", _whole(value)))

    def literal(self, value: float) -> int:
        """A number as a program has it."""
        if math.isinf(value):
            return self.plus_infinity if value > 0 else self.minus_infinity
        return self.unknown if math.isnan(value) else self.number(rational(value))

    def variable(self, name: str, position: int) -> int:
        return self._stored(("variable", name, position))

    def value_of(self, expression: int) -> Rational | None:
        """The number that an expression is, where it is one."""
        content = self.contents[expression]
        return content[1] if content[0] == "number" else None  # type: ignore[return-value]  # by the first element of `content`

    def _is_infinite(self, expression: int) -> bool:
        return expression in (self.plus_infinity, self.minus_infinity, self.unknown)

    # -- sums

    def _terms(self, expression: int) -> Sequence[tuple[int, Rational]]:
        content = self.contents[expression]
        if content[0] == "sum":
            return content[1]  # type: ignore[return-value]  # by the first element of `content`
        if content[0] == "number":
            return ((ONE, content[1]),) if content[1] != 0 else ()  # type: ignore[return-value]  # by the first element of `content`
        return ((expression, 1),)

    def total(self, expressions: Iterable[int]) -> int:
        """The sum of any number of expressions."""
        return self.combination((expression, 1) for expression in expressions)

    def combination(self, parts: Iterable[tuple[int, Rational]]) -> int:
        """The sum of multiples."""
        collected: dict[int, Rational] = {}
        infinite: set[int] = set()
        for expression, factor in parts:
            if self._is_infinite(expression):
                infinite.add(self.multiply(expression, self.number(factor)))
                continue
            for term, own in self._terms(expression):
                coefficient = own if type(factor) is int and factor == 1 else own * factor
                collected[term] = collected[term] + coefficient if term in collected else coefficient
        if infinite:
            return infinite.pop() if len(infinite) == 1 else self.unknown
        live = tuple(sorted((term, _whole(c)) for term, c in collected.items() if c))
        if not live:
            return ZERO
        if len(live) == 1:
            ((term, coefficient),) = live
            if term == ONE:
                return self.number(coefficient)
            if coefficient == 1:
                return term
        return self._stored_parts("sum", live)

    def _add(self, left: int, right: int) -> int:
        return self.total((left, right))

    def subtract(self, left: int, right: int) -> int:
        return self.combination(((left, 1), (right, -1)))

    def dot(self, left: Sequence[int], right: Sequence[int]) -> int:
        """The sum of products."""
        return self.total(self.multiply(a, b) for a, b in zip(left, right, strict=True))

    # -- products

    def _multiply(self, left: int, right: int) -> int:
        return self.product((left, 1), (right, 1))

    def divide(self, left: int, right: int) -> int:
        return self.product((left, 1), (right, -1))

    def power(self, base: int, exponent: Rational) -> int:
        return self.product((base, exponent))

    def product(self, *factors: tuple[int, Rational]) -> int:
        """The product of powers."""
        infinite = [base for base, _ in factors if self._is_infinite(base)]
        if infinite:
            return self._infinite_product(factors)
        coefficient = 1
        powers: dict[int, Rational] = {}
        exponents: list[tuple[int, Rational]] = []
        pending = list(factors)
        while pending:
            base, exponent = pending.pop()
            scale, inner = self._scaled(base)
            if scale != 1 and _has_power(scale, exponent):
                coefficient *= _root(scale, exponent)
                base = inner
            content = self.contents[base]
            if content[0] == "product":
                pending.extend((part, own * exponent) for part, own in content[1])  # type: ignore[union-attr]  # by the first element of `content`
            elif content[:2] == ("call", "exp"):
                exponents.append((content[2], exponent))  # type: ignore[arg-type]  # by the first element of `content`
            elif base != ONE:
                powers[base] = powers.get(base, 0) + exponent
        if exponents:
            exponential = self.exp(self.combination(exponents))
            if exponential != ONE:
                powers[exponential] = powers.get(exponential, 0) + 1
        return self._of_powers(coefficient, powers)

    def _of_powers(self, coefficient: Rational, powers: Mapping[int, Rational]) -> int:
        live = tuple(sorted((base, _whole(exponent)) for base, exponent in powers.items() if exponent))
        if coefficient == 0 or any(base == ZERO and exponent > 0 for base, exponent in live):
            return ZERO
        if not live:
            return self.number(coefficient)
        term = live[0][0] if len(live) == 1 and live[0][1] == 1 else self._stored_parts("product", live)
        return term if coefficient == 1 else self.combination(((term, coefficient),))

    def _with_first_coefficient_one(self, expression: int) -> tuple[Rational, int]:
        """A number and an expression whose first coefficient is one: their product is the expression."""
        content = self.contents[expression]
        if content[0] == "number":
            value: Rational = content[1]  # type: ignore[assignment]  # by the first element of `content`
            return (value, ONE) if value != 0 else (1, expression)
        if content[0] != "sum":
            return 1, expression
        terms: tuple[tuple[int, Rational], ...] = content[1]  # type: ignore[assignment]  # by the first element of `content`
        first = terms[0][1]
        if len(terms) == 1:
            return terms[0][1], terms[0][0]
        return (first, self.combination(((expression, Fraction(1) / first),))) if first != 1 else (first, expression)

    def _infinite_product(self, factors: Sequence[tuple[int, Rational]]) -> int:
        sign = 1
        for base, exponent in factors:
            value = self.value_of(base)
            if self._is_infinite(base) and exponent == 1 and base != self.unknown:
                sign *= 1 if base == self.plus_infinity else -1
            elif value is not None and value != 0:
                sign *= 1 if value > 0 or exponent.numerator % 2 == 0 else -1
            else:
                return self.unknown
        return self.plus_infinity if sign > 0 else self.minus_infinity

    # -- sums of products

    def expanded(self, expression: int) -> int:
        """The expression with its products of sums written out, where that does not give too many summands."""
        known = self._expanded.get(expression)
        if known is None:
            known = self._expanded[expression] = self._written_out(expression)
        return known

    def _written_out(self, expression: int) -> int:
        content = self.contents[expression]
        if content[0] == "sum":
            return self.combination((self.expanded(term), c) for term, c in self._terms(expression))
        if content[0] != "product":
            return expression
        factors: tuple[tuple[int, Rational], ...] = content[1]  # type: ignore[assignment]  # by the first element of `content`
        summands: list[tuple[int, Rational]] = [(ONE, 1)]
        for base, exponent in factors:
            times = exponent.numerator if exponent.denominator == 1 and 0 < exponent <= _LARGEST_POWER else 0
            parts = self._terms(self.expanded(base)) if times else ((self.power(base, exponent), 1),)
            for _ in range(times or 1):
                if len(summands) * len(parts) > _MOST_SUMMANDS:
                    return expression
                summands = [(self.multiply(s, p), c * d) for s, c in summands for p, d in parts]
        return self.combination(summands)

    # -- functions

    def exp(self, argument: int) -> int:
        if argument == self.minus_infinity:
            return ZERO
        return ONE if argument == ZERO else self.call("exp", argument)

    def log(self, argument: int) -> int:
        content = self.contents[argument]
        if content[:2] == ("call", "exp"):
            return content[2]  # type: ignore[return-value]  # by the first element of `content`
        return ZERO if argument == ONE else self.call("log", argument)

    def largest(self, expressions: Iterable[int]) -> int:
        """The maximum of any number of expressions."""
        found: set[int] = set()
        for expression in expressions:
            content = self.contents[expression]
            found.update(content[2:] if content[:2] == ("call", "max") else (expression,))  # type: ignore[arg-type]  # by the first element of `content`
        found.discard(self.minus_infinity)
        numbers = {e: value for e in found if (value := self.value_of(e)) is not None}
        found -= numbers.keys() - ({max(numbers, key=numbers.__getitem__)} if numbers else set())
        if not found:
            return self.minus_infinity
        return found.pop() if len(found) == 1 else self.call("max", *sorted(found))

    def smallest(self, expressions: Iterable[int]) -> int:
        return self.negative(self.largest(self.negative(expression) for expression in expressions))

    def negative(self, expression: int) -> int:
        return self.multiply(expression, self.number(-1))

    def is_positive(self, expression: int) -> int:
        """One where the expression is greater than zero, else zero."""
        if expression in (self.plus_infinity, self.minus_infinity):
            return ONE if expression == self.plus_infinity else ZERO
        value = self.value_of(expression)
        if value is not None:
            return ONE if value > 0 else ZERO
        return self.call("positive", self._scaled(expression)[1] if self._scaled(expression)[0] > 0 else expression)

    def choose(self, condition: int, then: int, otherwise: int) -> int:
        if then == otherwise:
            return then
        value = self.value_of(condition)
        if value is not None:
            return then if value != 0 else otherwise
        if otherwise == ZERO and not self._is_infinite(then):
            return self.multiply(condition, then)
        if then == ZERO and not self._is_infinite(otherwise):
            return self.multiply(self.subtract(ONE, condition), otherwise)
        return self.call("where", condition, then, otherwise)

    def call(self, name: str, *arguments: int) -> int:
        """A function of which nothing else is known."""
        return self._stored(("call", name, *arguments))

    # -- reading

    def operands(self, expression: int) -> tuple[int, ...]:
        content = self.contents[expression]
        if content[0] in ("sum", "product"):
            return tuple(part for part, _ in content[1])  # type: ignore[union-attr]  # by the first element of `content`
        return content[2:] if content[0] == "call" else ()  # type: ignore[return-value]  # by the first element of `content`

    def below(self, expressions: Iterable[int]) -> list[int]:
        """The expressions and all that they are made of, operands first."""
        return sorted(reached(expressions, self.operands))


def _has_power(scale: Rational, exponent: Rational) -> bool:
    """Whether a power of a number is a number that is known exactly."""
    if exponent.denominator == 1:
        return True
    return scale > 0 and _root(scale, exponent) ** exponent.denominator == Fraction(scale) ** exponent.numerator


def _root(scale: Rational, exponent: Rational) -> Rational:
    """A power of a number where it is a fraction."""
    if exponent == 1:
        return scale
    degree = exponent.denominator
    if degree == 1:
        return Fraction(scale) ** exponent.numerator
    parts = [round(part ** (1 / degree)) for part in (scale.numerator, scale.denominator)]
    return Fraction(parts[0], max(parts[1], 1)) ** exponent.numerator
