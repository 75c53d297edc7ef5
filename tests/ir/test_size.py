from __future__ import annotations

import itertools

import pytest
import sympy

from verifycompile.ir.size import divisibility_chain, exact_quotient, normalize_size, product, quotient

s, t = sympy.symbols("s t", positive=True, integer=True)


def test_an_integer_expression_becomes_an_int() -> None:
    assert type(normalize_size(sympy.Integer(6))) is int
    assert normalize_size(s * 2) == 2 * s
    assert type(product([2 / s, s])) is int


def test_product() -> None:
    assert product([]) == 1
    assert product([2, 3, 1, 4]) == 24
    assert product([2, s, 3]) == 6 * s


@pytest.mark.parametrize(("a", "b"), list(itertools.product(range(13), range(13))))
def test_quotient_of_integers(a: int, b: int) -> None:
    assert exact_quotient(a, b) == (a // b if b and a % b == 0 else None)


def test_a_quotient_that_must_be_exact() -> None:
    assert (quotient(6, 3), quotient(6 * s, 2)) == (2, 3 * s)
    with pytest.raises(AssertionError, match=r"\(6, 4\)"):
        quotient(6, 4)


def test_quotient_of_expressions_holds_for_every_value() -> None:
    assert exact_quotient(6 * s, 3) == 2 * s
    assert exact_quotient(6 * s * t, 2 * t) == 3 * s
    assert exact_quotient(6 * s, s) == 6
    assert exact_quotient(4 * s + 2, 2) == 2 * s + 1
    assert exact_quotient(s * (s + 1), 2) is None  # always even, but no polynomial with whole coefficients
    assert exact_quotient(s * (s + 2), 2) is None
    assert exact_quotient(3 * s, 2) is None
    assert exact_quotient(s, t) is None
    assert exact_quotient(6, s) is None


def test_chain_of_integers() -> None:
    assert divisibility_chain({1, 12, 4, 2}) == [1, 2, 4, 12]
    assert divisibility_chain({1, 4, 6, 12}) is None
    assert divisibility_chain({0, 1}) is None


def test_chain_of_expressions() -> None:
    assert divisibility_chain({1, 4 * s, s, 2 * s}) == [1, s, 2 * s, 4 * s]
    assert divisibility_chain({1, 2, 4 * s}) == [1, 2, 4 * s]
    assert divisibility_chain({1, 2, s}) is None
