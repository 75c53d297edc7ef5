from __future__ import annotations

from fractions import Fraction

from verifycompile.ir import relabel
from verifycompile.ir.algebra import combine, contract, sum_over
from verifycompile.ir.printer import describe_term, show, show_number, show_term
from verifycompile.ir.scalar import as_scalar
from verifycompile.ir.term import Operation, TermPool, View
from verifycompile.rewrites.builder import Builder


def product(pool: TermPool) -> View:
    x, w = pool.leaf("x", (4, 6)), pool.leaf("w", (6, 8))
    return contract(pool, [x, w], ["mk", "kn"], ("m", "n"), frozenset("k"))  # type: ignore[list-item]


def test_a_contraction() -> None:
    assert show_term(product(TermPool()).term) == "contract[i j ; k](x[i k], w[k j])"


def test_a_view_reads_its_term_at_its_dimensions() -> None:
    pool = TermPool()
    view = product(pool)
    assert show(view) == "contract[i j ; k](x[i k], w[k j])[d0 d1]"
    assert show(relabel.permute(view, [1, 0]).scaled(as_scalar(0.5)), {view.term: "y"}) == "1/2*y[d1 d0]"


def test_digits() -> None:
    x = TermPool().leaf("x", (8, 6))
    split = relabel.reshape(x, (2, 4, 3, 2))
    assert show(split) == "x[d0+d1 d2+d3]"
    merged = relabel.reshape(x, (48,))
    assert show(merged) == "x[d0/6 d0%6]"
    assert show(relabel.reshape(relabel.permute(split, [0, 2, 1, 3]), (6, 8))) == "x[d0/3+d1/2 d0%3+d1%2]"
    assert show(relabel.select(relabel.reshape(x, (2, 4, 6)), 0, 1)) == "x[1:2+d0 d1]"
    assert show(relabel.reshape(TermPool().leaf("x", (4, 3, 2)), (24,))) == "x[d0/6 d0/2%3 d0%2]"
    assert show(TermPool().leaf("x", (1, 4))) == "x[. d1]"


def test_constants() -> None:
    pool = TermPool()
    assert show(pool.constant(as_scalar(0.5), (2, 3))) == "1/2"
    assert show(pool.zero(())) == "0"
    assert show(pool.constant(as_scalar(1), ())) == "1"


def test_combinations_and_sums() -> None:
    pool = TermPool()
    x, y = pool.leaf("x", (4,)), pool.leaf("y", (4,))
    view = combine(pool, [x, y.scaled(as_scalar(-2))])
    assert show(view) == "combine[i](x[i], -2*y[i])[d0]"
    assert show(sum_over(pool, view, [0])) == "combine[](contract[ ; i](x[i]), -2*contract[ ; i](y[i]))"


def test_depth() -> None:
    pool = TermPool()
    b = Builder(pool)
    view = b.power(b.add(b.mul(pool.leaf("x", (4,)), pool.leaf("y", (4,))), 1), -1)
    assert show_term(view.term, depth=0) == "power[i]<-1>(...)"
    assert show_term(view.term, depth=1) == "power[i]<-1>(combine[i](...)[i])"
    assert show_term(view.term) == "power[i]<-1>(combine[i](contract[i](x[i], y[i])[i], 1)[i])"
    assert describe_term(view.term) == f"#{view.term.id} power[i]<-1>(combine[i](...)[i])"


def test_cores_and_attributes() -> None:
    pool = TermPool()
    b = Builder(pool)
    query, key, value = (pool.leaf(name, (2, 3, 5, 4)) for name in "qkv")
    operation = Operation("attention", linear=frozenset({2}))
    view = b.core(operation, (False, 0.5), "b h q e, b h k e, b h k v -> b h q v", query, key, value, cores="k e")
    assert show_term(view.term) == "attention[i j k l ; m ; n]<False, 0.5>(q[i j k n], k[i j m n], v[i j m l])"


def test_many_indices() -> None:
    pool = TermPool()
    x = pool.leaf("x", (2,) * 27)
    assert show(x).startswith("x[d0 d1 d2")
    assert show_term(combine(pool, [x, pool.leaf("y", (2,) * 27)]).term).startswith("combine[i0 i1 i2")


def test_numbers() -> None:
    assert show_number(Fraction(1, 3)) == "1/3"
    assert show_number(as_scalar(0.123456789012345)) == "0.123457"
