"""Each rule of the IR, broken once."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import pytest
import sympy

from tests.ir.validate_terms import validate_pool, validate_term
from verifycompile.ir.algebra import CONTRACT, combine, contract
from verifycompile.ir.scalar import ONE
from verifycompile.ir.term import CONSTANT, LEAF, Operation, Term, TermPool, View
from verifycompile.ir.validate import InvalidTermError, validate

POINT = Operation("point")


def x_of(pool: TermPool) -> View:
    return pool.leaf("x", (8, 6))


VIEWS: dict[str, tuple[dict[str, Any], str]] = {
    "too few axes": ({"axes": (((0, 1, 8),),)}, "x[d0]: 1 axes are indexed where the term has 2"),
    "axis not covered": (
        {"axes": (((0, 1, 4),), ((1, 1, 6),))},
        "x[d0%4 d1]: the digits d0%4 do not cover axis 0 of size 8",
    ),
    "axis covered twice": (
        {"axes": (((0, 1, 8), (1, 1, 6)), ((1, 1, 6),))},
        "x[d0+d1 d1]: the digits d0%8+d1%6 do not cover axis 0 of size 8",
    ),
    "not merged": (
        {"axes": (((0, 4, 2), (0, 1, 4)), ((1, 1, 6),))},
        "x[d0/4+d0%4 d1]: axis 0 is not in canonical form: d0/4%2+d0%4",
    ),
    "digit of size 1": (
        {"axes": (((0, 1, 8), (1, 1, 1)), ((1, 1, 6),))},
        "x[d0+d1%1 d1]: axis 0 is not in canonical form: d0%8+d1%1",
    ),
    "no such dimension": (
        {"axes": (((2, 1, 8),), ((1, 1, 6),))},
        "x[d2%8 d1]: axis 0 reads dimension 2 of 2",
    ),
    "outside of the dimension": (
        {"axes": (((0, 4, 8),), ((1, 1, 6),))},
        "x[d0/4%8 d1]: the digit d0/4%8 does not divide dimension 0 of size 8",
    ),
    "constant outside of its digit": (
        {"axes": (((CONSTANT, 8, 8),), ((1, 1, 6),))},
        "x[8:8 d1]: the constant 8 is outside of axis 0, 8:8",
    ),
    "negative size": ({"shape": (8, -6)}, "x[d0 d1%6]: the size -6 is negative"),
    "integer written as an expression": (
        {"shape": (8, sympy.Integer(6))},
        "x[d0 d1]: the size 6 is an integer written as an expression",
    ),
}


@pytest.mark.parametrize(("change", "message"), VIEWS.values(), ids=VIEWS)
def test_views(change: dict[str, Any], message: str) -> None:
    view = x_of(TermPool())
    validate(view)
    with pytest.raises(InvalidTermError) as error:
        validate(dataclasses.replace(view, **change))
    assert str(error.value) == message


s = sympy.Symbol("s", positive=True, integer=True)


def test_what_is_known_of_symbolic_and_empty_sizes_alone_is_asked() -> None:
    pool = TermPool()
    x = pool.leaf("x", (2 * s + 2, 4, 0))
    validate(x)
    validate(View(ONE, x.term, (2, s + 1, 4, 0), (((0, 1, 2), (1, 1, s + 1)), ((2, 1, 4),), ((3, 1, 0),))))
    validate(View(ONE, x.term, (4, 0), (((CONSTANT, 0, 2 * s + 2),), ((0, 1, 4),), ((1, 1, 0),))))
    validate(View(ONE, x.term, (2 * s + 2, 0), (((0, 1, 2 * s + 2),), ((CONSTANT, s, 4),), ((1, 1, 0),))))
    validate(View(ONE, x.term, (4, 0), (((CONSTANT, 5, 2 * s + 2),), ((0, 1, 4),), ((1, 1, 0),))))
    validate(pool.zero((3,)))


def term(
    pool: TermPool, operation: Operation, *operands: View, sizes: tuple[int, ...] = (8, 6), **changes: Any
) -> Term:
    fields: dict[str, Any] = {"free": 2, "summed": 0, "cores": (), "fresh": ()}
    fields.update(changes)
    views = tuple(dataclasses.replace(v, shape=sizes) for v in operands)
    return Term(99, operation, (), views, sizes, fields["free"], fields["summed"], fields["cores"], fields["fresh"])


def test_terms() -> None:
    pool = TermPool()
    x = x_of(pool)
    square = pool.leaf("y", (8, 8))
    diagonal = View(ONE, square.term, (8, 6), (((0, 1, 8),), ((0, 1, 8),)))
    halved = View(ONE, square.term, (8, 6), (((0, 4, 2), (CONSTANT, 0, 4)), ((0, 1, 8),)))
    name = "#99 point[i j](x[i j])"
    for bad, message in (
        (
            term(pool, POINT, x, cores=((1,),)),
            "#99 point[i j ; j](x[i j]): free, summed and core indices are not all of the 2 indices",
        ),
        (
            term(pool, POINT, x, free=1),
            "#99 point[i](x[i j]): free, summed and core indices are not all of the 2 indices",
        ),
        (term(pool, POINT, x, fresh=(1,)), f"{name}: an operand reads the fresh index 1"),
        (term(pool, POINT, x, fresh=(2,)), f"{name}: a fresh index that is not free"),
        (term(pool, POINT, diagonal), "#99 point[i j](y[i i]): no operand reads index 1"),
        (term(pool, POINT, diagonal, free=1, summed=1), "#99 point[i ; j](y[i i]): no operand reads index 1"),
        (term(pool, POINT, halved), "#99 point[i j](y[i/4+0:4 i]): operand 0 reads index 0 in part: d0/4%2+0:4"),
        (
            term(pool, CONTRACT, x.scaled(Fraction(2)), x),
            "#99 contract[i j](2*x[i j], x[i j]): operand 0 is linear and has the coefficient 2",
        ),
        (
            term(pool, CONTRACT, x, pool.leaf("z", (8,)), free=1, summed=1),
            (
                "#99 contract[i ; j](x[i j], z[i]): "
                "a sum over index 1, which one factor alone reads, is left outside of it"
            ),
        ),
        (
            dataclasses.replace(term(pool, POINT, x), operands=(dataclasses.replace(x, shape=(8,)),)),
            "#99 point[i j](x[i j]): operand 0 is no view over the indices of its term",
        ),
        (term(pool, LEAF, sizes=(8, -1)), None),
    ):
        with pytest.raises(InvalidTermError) as error:
            validate_term(bad if message else dataclasses.replace(bad, attributes=("x",)))
        assert str(error.value) == (message or "#99 x: the size -1 is negative")
    validate_term(term(pool, POINT, x))


def test_a_single_operand_may_be_summed() -> None:
    pool = TermPool()
    validate_term(term(pool, CONTRACT, x_of(pool), free=1, summed=1))


def test_pools() -> None:
    pool = TermPool()
    x, w = x_of(pool), pool.leaf("w", (6, 4))
    result = contract(pool, [x, w], ["mk", "kn"], ("m", "n"), frozenset("k"))  # type: ignore[list-item]
    combine(pool, [result, result.scaled(Fraction(2))])
    validate_pool(pool)
    copy = dataclasses.replace(result.term, id=77)
    pool._terms["again"] = copy
    with pytest.raises(InvalidTermError) as error:
        validate_pool(pool)
    assert str(error.value) == f"#77 contract[i j ; k](x[i k], w[k j]) exists twice, as #{result.term.id} and #77"
    del pool._terms["again"]
    pool._terms["early"] = dataclasses.replace(result.term, id=0, attributes=("other",))
    with pytest.raises(InvalidTermError) as error:
        validate_pool(pool)
    assert str(error.value) == f"#0 contract[i j ; k]<other>(x[i k], w[k j]) is older than its operand #{x.term.id}"
