"""Values that choose between polynomials: equal ones are found so, ties included; others and unknown ones are not."""

from __future__ import annotations

import pytest

from verifycompile.certificate.equalities import Equality
from verifycompile.ir.exponential import MAXIMUM
from verifycompile.ir.indicator import less, less_equal
from verifycompile.ir.term import TermPool
from verifycompile.refinement.attempt import ClaimError
from verifycompile.refinement.cases import equal_by_cases
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operations import MINIMUM
from verifycompile.rewrites.operators.elementwise import FUNCTIONS, choose


class Functions:
    def __init__(self) -> None:
        self.b = b = Builder(TermPool())
        self.x, self.y = (b.pool.leaf(name, (3, 4)) for name in "xy")
        self.relu = b.pointwise(MAXIMUM, self.x, 0)
        self.size = b.pointwise(FUNCTIONS["abs"], self.x)

    def below(self, left, right):
        return less(self.b.pool, *self.b.aligned(left, right))

    def at_most(self, left, right):
        return less_equal(self.b.pool, *self.b.aligned(left, right))

    def huber(self, line):
        b = self.b
        return choose(b, self.below(self.size, 1), b.scale(b.power(self.x, 2), 0.5), b.sub(self.size, line))

    def clamped(self):
        b = self.b
        part = b.pointwise(MINIMUM, self.size, 1)
        return b.combination((0.5, b.power(part, 2)), (1, self.size), (-1, part))


PAIRS = {
    "rectifier by its mask": lambda f: (f.b.mul(f.relu, f.at_most(0, f.x)), f.relu),
    "square of a rectifier": lambda f: (f.b.mul(f.x, f.relu), f.b.power(f.relu, 2)),
    "huber": lambda f: (f.huber(0.5), f.clamped()),
    "sign": lambda f: (f.b.mul(f.x, f.b.pointwise(FUNCTIONS["sign"], f.x)), f.size),
    "product of a sum": lambda f: (f.b.sum(f.b.mul(f.x, f.relu), [1]), f.b.sum(f.b.power(f.relu, 2), [1])),
    "positive scale": lambda f: (
        f.b.pointwise(MAXIMUM, f.b.mul(f.b.exp(f.y), f.x), 0),
        f.b.mul(f.b.exp(f.y), f.relu),
    ),
}
WRONG = {
    "mask of another value": lambda f: (f.b.mul(f.relu, f.at_most(0, f.y)), f.relu),
    "ties": lambda f: (f.at_most(0, f.x), f.below(0, f.x)),
    "another line": lambda f: (f.huber(0.25), f.clamped()),
    "scale of either sign": lambda f: (f.b.pointwise(MAXIMUM, f.b.mul(f.y, f.x), 0), f.b.mul(f.y, f.relu)),
    "sums over other dimensions": lambda f: (
        f.b.sum(f.b.mul(f.x, f.relu), [0, 1]),
        f.b.mul(f.b.sum(f.b.power(f.relu, 2), [0, 1]), f.b.full(2, [])),
    ),
    "no number": lambda f: (
        choose(f.b, f.below(0, f.y), f.b.power(f.x, -1), f.relu),
        f.b.add(f.b.mul(f.below(0, f.y), f.b.sub(f.b.power(f.x, -1), f.relu)), f.relu),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_equal_in_every_case(name: str) -> None:
    left, right = PAIRS[name](Functions())
    assert left != right
    assert equal_by_cases(left, right)


@pytest.mark.parametrize("name", WRONG)
def test_not_equal(name: str) -> None:
    left, right = WRONG[name](Functions())
    assert left != right
    assert not equal_by_cases(left, right)


def test_whole_numbers_wrap_around() -> None:
    b = Builder(TermPool())
    count = b.pool.leaf("n", (3,), whole=True)
    assert not equal_by_cases(b.pointwise(MAXIMUM, count, 0), b.scale(b.pointwise(MINIMUM, b.scale(count, -1), 0), -1))


def test_of_complex_numbers_nothing_is_taken() -> None:
    """A checker that is told so takes no equality by cases, whatever a certificate says."""
    b = Builder(TermPool())
    x = b.pool.leaf("x", (3,))
    size = b.pointwise(FUNCTIONS["abs"], x)
    square, other = b.mul(size, size), b.mul(x, x)
    claimed = Equality("square", "other", None, ("equal-by-cases",))
    assert equal_by_cases(other, square)
    with pytest.raises(ClaimError, match="`other` is not shown to be `square`"):
        claimed.take(b.pool, other, square, None, real=False)
    claimed.take(b.pool, other, square, None, real=True)
