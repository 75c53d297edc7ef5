"""Sums that are positive by construction: only powers of these are merged."""

import dataclasses
import itertools
from fractions import Fraction

import sympy

from verifycompile.ir.exponential import MAXIMUM
from verifycompile.ir.scalar import ONE, as_scalar
from verifycompile.ir.sign import is_greater_than_zero, is_nonnegative, is_positive_sum, known_equal, known_order
from verifycompile.ir.term import Operation, TermPool
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.catalogue import product_lemma


def setting():
    pool = TermPool()
    pool.contraction_rules.append(product_lemma)
    return Builder(pool), pool.leaf("x", (3, 4)), pool.leaf("y", (3, 4))


def test_positive_sums():
    b, x, y = setting()
    square = b.power(x, 2)
    for positive in (b.add(square, 0.5), b.scale(b.add(square, 1e-5), 3), b.add(b.exp(x), square)):
        assert is_positive_sum(positive)
    for other in (square, b.add(square, b.power(y, 2)), b.add(square, -1), b.add(x, 1), b.sub(1, square)):
        assert not is_positive_sum(other)


def test_products_and_sums_are_greater_than_zero():
    b, x, _ = setting()
    square = b.power(x, 2)
    assert all(map(is_greater_than_zero, (b.exp(x), b.add(square, 1))))
    assert not any(map(is_greater_than_zero, (x, square, b.add(x, 1), b.exp(x).scaled(ONE * -1))))


def test_powers_of_positive_sums_are_merged():
    b, x, _ = setting()
    total = b.add(b.power(x, 2), 1e-5)
    root = b.power(total, -0.5)
    assert b.mul(root, root, root) == b.power(total, -1.5)
    assert b.mul(x, root, b.power(total, 0.5)) == x


def test_powers_of_other_sums_are_not():
    b, x, _ = setting()
    total = b.add(x, 1)
    root = b.power(total, -0.5)
    assert b.mul(root, root) != b.power(total, -1)
    assert b.mul(x, total, b.power(total, -1)) != x


def test_power_of_a_number():
    b, x, _ = setting()
    six = b.full(6, (3, 4))
    assert b.mul(x, b.power(six, -1)) == b.scale(x, b.power(six, -1).coefficient)
    assert b.power(six, -1) == b.divide(b.full(1, (3, 4)), six)


def test_a_number_leaves_a_whole_power_alone():
    b, x, _ = setting()
    negative = b.scale(x, -2)
    for power, factor in ((3, -8), (4, 16), (-1, Fraction(-1, 2)), (-2, Fraction(1, 4))):
        assert b.power(negative, power) == b.scale(b.power(x, power), factor)
    for power in (0.5, -0.5, Fraction(2, 3)):
        assert b.power(negative, power).coefficient == 1


def test_signs_of_values():
    b, x, y = setting()
    mask, even, size = b.pool.leaf("m", (3, 4), indicator=True), b.power(x, 2), sympy.Symbol("s", positive=True)
    root, any_power = b.power(x, Fraction(1, 2)), b.power(x, Fraction(1, 3))
    for value in (
        b.pool.zero((3, 4)), even, b.mul(x, x, y, y), b.mul(even, mask), mask, b.exp(x), b.exp(x).scaled(ONE * 0), root, b.add(even, mask),
        b.power(b.exp(x), 3), b.exp(x).scaled(size), b.concatenate([even, mask], 0), b.power(x, -2), b.pointwise(MAXIMUM, even, b.exp(y)), b.power(b.add(even, mask), Fraction(1, 3)),
    ):  # fmt: skip
        assert is_nonnegative(value), value
    for value in (
        x, b.mul(x, y), b.mul(x, x, x), b.power(x, 3), even.scaled(ONE * -1), b.add(even, x), b.sub(even, mask), any_power, b.power(x, Fraction(2, 3)),
        b.exp(x).scaled(-size), b.exp(x).scaled(sympy.Symbol("t")), b.concatenate([even, x], 0), b.power(x, -3),
    ):  # fmt: skip
        assert not is_nonnegative(value), value


def test_sums_are_positive_by_what_is_in_them():
    b, x, _ = setting()
    one_more = b.add(b.power(x, 2), 1)
    term = one_more.term
    without = dataclasses.replace(term, operands=tuple(v.scaled(ONE * 0) if v.term is b.pool.unit else v for v in term.operands))
    assert is_positive_sum(one_more)
    assert not is_positive_sum(dataclasses.replace(one_more, term=without))
    assert not is_positive_sum(one_more.scaled(ONE * 0))
    assert not is_positive_sum(b.exp(b.exp(x)))  # no sum


def test_comparisons_that_signs_decide():
    """A value that is positive, not negative or neither, beside a number: nothing else is known of it."""
    b, x, _ = setting()
    size, square = sympy.Symbol("s"), b.power(x, 2)
    positive = [b.exp(x), b.exp(x).scaled(ONE * 2), b.add(square, 1), b.add(square, 1).scaled(ONE * 2), b.add(b.exp(x), square)]
    unbounded = b.pool.intern(Operation("unbounded", nonnegative=True), (), (), (3, 4), 2, 0, (), ())
    infinite = dataclasses.replace(x, term=unbounded)
    values = [
        *((value, True, True) for value in positive), (square, False, True), (b.exp(x).scaled(ONE * 0), False, True), (x, False, False),
        (b.exp(x).scaled(ONE * -1), False, False), (b.add(square, 1).scaled(ONE * -1), False, False), (b.exp(x).scaled(size), False, False),
        (infinite, False, False),
    ]  # fmt: skip
    assert is_nonnegative(infinite)
    for (value, above, not_below), number in itertools.product(values, (-1, 0, 1, size)):
        other = b.pool.constant(as_scalar(number), (3, 4))
        low = not_below and number == -1
        none = above and number == 0
        expected = False if low or none else None
        assert known_equal(b.pool, value, other) is known_equal(b.pool, other, value) is expected, (value, number)
        for strict in (True, False):
            never = low or (not_below and number == 0 and (strict or above))
            always = low or (not_below and number == 0 and (not strict or above))
            assert known_order(b.pool, value, other, strict=strict) is (False if never else None), (value, number, strict)
            assert known_order(b.pool, other, value, strict=strict) is (True if always else None), (value, number, strict)
