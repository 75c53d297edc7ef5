"""Numbers at two places of each index: equal for values that are the same sum, also where one number is zero."""

from __future__ import annotations

import pytest

from verifycompile.ir.term import TermPool, View
from verifycompile.refinement.fingerprint import likely_fingerprint
from verifycompile.refinement.two_places import sums_at_two_places
from verifycompile.rewrites.builder import Builder


@pytest.fixture
def b() -> Builder:
    return Builder(TermPool())


def number(view: View) -> int:
    (found,) = sums_at_two_places(view, ())
    return found


def centred(b: Builder, view: View) -> View:
    return b.sub(view, b.mean(view, [1], keepdim=True))


def test_what_is_centred_is_told_apart(b: Builder) -> None:
    x, y = b.pool.leaf("x", (3, 6)), b.pool.leaf("y", (3, 6))
    assert likely_fingerprint(centred(b, x)) == likely_fingerprint(centred(b, y)) == 0
    assert len({number(centred(b, v)) for v in (x, y, b.add(x, y), b.mul(x, y))}) == 4


def test_sums_of_products_have_one_number_however_they_are_taken_together(b: Builder) -> None:
    x, y, z = (b.pool.leaf(name, (3, 6)) for name in "xyz")
    one = b.mul(centred(b, x), b.add(y, z))
    other = b.sub(b.add(b.mul(x, y), b.mul(x, z)), b.mul(b.mean(x, [1], keepdim=True), b.add(z, y)))
    assert one != other
    assert number(one) == number(other)
    assert number(b.sum(one, [1])) == number(b.sum(other, [1]))


def test_neither_the_order_of_dimensions_nor_their_digits_matter(b: Builder) -> None:
    value = centred(b, b.pool.leaf("x", (4, 6)))
    assert number(value) == number(b.permute(value, [1, 0])) == number(b.reshape(value, [4, 2, 3]))


def test_a_sum_over_dimensions_is_among_the_numbers(b: Builder) -> None:
    value = b.mul(centred(b, b.pool.leaf("x", (4, 6))), b.pool.leaf("y", (4, 6)))
    numbers = list(sums_at_two_places(b.reshape(value, [2, 2, 6]), [0, 1]))
    assert len(numbers) == 4
    assert numbers[0] == number(value)
    assert numbers[-1] == number(b.sum(value, [0]))


def test_a_power_has_one_number_however_it_is_multiplied(b: Builder) -> None:
    x = b.pool.leaf("x", (3, 6))
    deviation = b.power(b.add(b.mean(b.power(centred(b, x), 2), [1], keepdim=True), 1), -0.5)
    assert number(b.mul(centred(b, x), deviation, deviation)) == number(b.mul(centred(b, x), b.power(deviation, 2)))


def test_zero_has_no_number(b: Builder) -> None:
    assert not list(sums_at_two_places(b.pool.zero((3, 6)), ()))
