"""Sums that are positive by construction: only powers of these are merged."""

from verifycompile.ir.sign import is_positive_sum
from verifycompile.ir.term import TermPool
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
