"""Whether two expressions are equal: the same one, or proved equal by z3, stage by stage; or different at a point.

A stage ends at every function: what stands in it is asked first, and what is found equal is one unknown from then on.
So no question holds more than one stage of the program (TrainVerify, section 5.2).
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from verifycompile import bounds
from verifycompile.symbolic.expressions import Expressions

_MOST_STEPS = 20_000_000
"""Of z3's own count for one question, which is the same on every machine: about two seconds."""
_TIMEOUT_MILLISECONDS = 20_000
"""Only where the steps of a question are slow ones."""
_POINTS = 3
_RELATIVE_TOLERANCE = 1e-7
_LARGEST_EXPONENT = 8


class Answer(enum.Enum):
    """How it is known that two elements are equal, or that they are not."""

    SAME = "the same expression"
    PROVED = "proved by z3"
    DIFFERENT = "different"
    OPEN = "undecided"


class Decider:
    """Answers for the expressions of one pool. What is proved equal stays so."""

    def __init__(self, pool: Expressions) -> None:
        self.pool = pool
        self.questions = 0
        self._representatives: dict[int, int] = {}
        self._answers: dict[tuple[int, int], Answer] = {}
        self._values: list[dict[int, float]] = [{} for _ in range(_POINTS)]

    def compare(self, left: int, right: int) -> Answer:
        """How two expressions stand to each other."""
        if left == right:
            return Answer.SAME
        key = (min(left, right), max(left, right))
        found = self._answers.get(key)
        if found is None:
            found = self._answers[key] = self._decided(left, right)
        return found

    def _decided(self, left: int, right: int) -> Answer:
        bounds.check()
        if not self._agree(left, right):
            return Answer.DIFFERENT
        self._prove_operands(left, right)
        return Answer.PROVED if self._asked(left, right) else Answer.OPEN

    # -- numbers

    def values(self, expression: int) -> list[float]:
        """An expression at all points."""
        for point, known in enumerate(self._values):
            for part in self.pool.below([expression]) if expression not in known else ():
                if part not in known:
                    known[part] = _evaluated(self.pool, part, known, point)
        return [known[expression] for known in self._values]

    def _agree(self, left: int, right: int) -> bool:
        """Whether two expressions have the same values at all points, as far as they have values there."""
        return all(
            math.isnan(a) or math.isnan(b) or math.isclose(a, b, rel_tol=_RELATIVE_TOLERANCE, abs_tol=1e-9)
            for a, b in zip(self.values(left), self.values(right), strict=True)
        )

    # -- stages

    def _prove_operands(self, left: int, right: int) -> None:
        """Prove equal what stands in functions of both sides, innermost first, and take it for one from then on."""
        known = set(self.pool.below([left])) & set(self.pool.below([right]))
        earlier: dict[str, list[int]] = {}
        for part in self.pool.below([left, right]):
            content = self.pool.contents[part]
            if content[0] != "call" or len(content) == 2:
                continue
            others = earlier.setdefault(str(content[1]), [])
            for other in others:
                if part in known and other in known:
                    continue
                if self._root(part) != self._root(other) and self._agree(part, other):
                    self._unite(part, other)
            others.append(part)

    def _unite(self, first: int, second: int) -> None:
        a, b = self.pool.operands(first), self.pool.operands(second)
        if len(a) == len(b) and all(x == y or self._asked(x, y) for x, y in zip(a, b, strict=True)):
            self._representatives[max(first, second)] = self._root(min(first, second))

    def _root(self, expression: int) -> int:
        while expression in self._representatives:
            expression = self._representatives[expression]
        return expression

    def _asked(self, left: int, right: int) -> bool:
        import z3

        bounds.check()
        if self._root(left) == self._root(right):
            return True
        if self.pool.expanded(left) == self.pool.expanded(right):
            return True
        self.questions += 1
        formulas = _Formulas(self.pool, self._root)
        solver = z3.Solver()
        solver.set("rlimit", _MOST_STEPS)
        solver.set("timeout", _TIMEOUT_MILLISECONDS)
        try:
            difference = z3.simplify(formulas.of(left) - formulas.of(right), som=True)
            solver.add(*formulas.facts, difference != 0)
            return solver.check() == z3.unsat
        except z3.Z3Exception:
            return False


class _Formulas:
    """Expressions as z3 has them: a function is an unknown number, a root a number with a power."""

    def __init__(self, pool: Expressions, root: Callable[[int], int]) -> None:
        self.facts: list[Any] = []
        self._pool, self._root = pool, root
        self._known: dict[int, Any] = {}

    def of(self, expression: int) -> Any:
        for part in self._pool.below([self._root(expression)]):
            if part not in self._known:
                self._known[part] = self._formula(part)
        return self._known[self._root(expression)]

    def _formula(self, part: int) -> Any:
        import z3

        content: Any = self._pool.contents[part]
        kind = content[0]
        if kind == "number":
            return z3.Q(content[1].numerator, content[1].denominator)
        if kind == "sum":
            return z3.Sum([self._part(p) * z3.Q(c.numerator, c.denominator) for p, c in content[1]])
        if kind == "product":
            return z3.Product([self._power(base, exponent) for base, exponent in content[1]])
        return z3.Real(f"e{self._root(part)}")

    def _part(self, expression: int) -> Any:
        root = self._root(expression)
        if root not in self._known:
            return self.of(root)
        return self._known[root]

    def _power(self, base: int, exponent: Fraction) -> Any:
        import z3

        inner = self._part(base)
        if exponent.denominator == 1 and 0 < exponent <= _LARGEST_EXPONENT:
            return z3.Product([inner] * exponent.numerator)
        root = z3.Real(f"e{self._root(base)}^{abs(exponent)}{'-' if exponent < 0 else ''}")
        if exponent == -1:
            self.facts.append(root * inner == 1)
        elif exponent == Fraction(1, 2):
            self.facts.append(root * root == inner)
        return root


def _evaluated(pool: Expressions, part: int, known: Mapping[int, float], point: int) -> float:
    content: Any = pool.contents[part]
    kind = content[0]
    if kind == "number":
        return float(content[1])
    if kind == "variable":
        return random.Random(f"{content[1]} {content[2]} {point}").gauss(0.0, 1.0)  # noqa: S311 - no secret
    try:
        if kind == "sum":
            return math.fsum(known[term] * float(coefficient) for term, coefficient in content[1])
        if kind == "product":
            value = math.prod(known[base] ** float(exponent) for base, exponent in content[1])
            return math.nan if isinstance(value, complex) else value
        arguments = [known[argument] for argument in content[2:]]
        return math.nan if any(map(math.isnan, arguments)) else _function(pool, content[1])(*arguments)
    except (ValueError, OverflowError, ZeroDivisionError):
        return math.nan


def _function(pool: Expressions, name: str) -> Callable[..., float]:
    return _FUNCTIONS[name] if name in _FUNCTIONS else pool.functions[name]


_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "exp": math.exp,
    "log": math.log,
    "max": max,
    "positive": lambda value: value > 0,
    "different": lambda left, right: left != right,
    "where": lambda condition, then, otherwise: then if condition else otherwise,
    "infinity": lambda: math.inf,
    "minus infinity": lambda: -math.inf,
    "no number": lambda: math.nan,
}
