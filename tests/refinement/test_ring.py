"""The ring prover: values that are the same sum of products are equal, however factors were taken together; others not."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.evaluate import Evaluator
from verifycompile.ir.pieces import STACK
from verifycompile.ir.term import TermPool
from verifycompile.refinement import ring
from verifycompile.refinement.check import new_pool
from verifycompile.refinement.fingerprint import fingerprint
from verifycompile.refinement.ring import equal_in_ring
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operations import PAD

SHAPES = {"x": (3, 4), "y": (3, 4), "z": (3, 4), "w": (4, 2), "v": (4, 2)}


@pytest.fixture
def b():
    return Builder(TermPool())


@pytest.fixture
def leaves(b):
    return {name: b.pool.leaf(name, shape) for name, shape in SHAPES.items()}


def matmul(b, left, right):
    return b.contraction("m k, k n -> m n", left, right)


def equal_numbers(left, right):
    generator = torch.Generator().manual_seed(0)
    values = {name: torch.randn(shape, dtype=torch.float64, generator=generator) for name, shape in SHAPES.items()}
    return torch.allclose(Evaluator(values).view(left), Evaluator(values).view(right))


def test_sums_inside_of_sums(b, leaves):
    x, y, z, w, v = leaves.values()
    left = matmul(b, b.mul(x, b.add(y, b.mul(z, b.add(x, y)))), b.sub(w, v))
    inner = b.add(b.mul(x, y), b.mul(x, z, x), b.mul(x, y, z))
    right = b.sub(matmul(b, inner, w), matmul(b, inner, v))
    assert left != right
    assert equal_numbers(left, right)
    assert equal_in_ring(b.pool, left, right)


def test_one_function_of_equal_values_is_equal(b, leaves):
    x, y, z, w, v = leaves.values()
    left = matmul(b, b.mul(x, b.add(y, z)), b.sub(w, v))
    right = b.sub(matmul(b, b.add(b.mul(x, y), b.mul(x, z)), w), matmul(b, b.mul(b.add(y, z), x), v))
    assert left != right
    assert equal_in_ring(b.pool, b.power(left, 0.5), b.power(right, 0.5))
    assert not equal_in_ring(b.pool, b.power(left, 0.5), b.power(right, 1.5))
    assert not equal_in_ring(b.pool, b.power(left, 0.5), b.power(b.scale(right, 2), 0.5))
    assert not equal_in_ring(b.pool, b.power(left, 0.5), b.power(matmul(b, x, w), 0.5))


def test_what_cancels_is_nothing(b, leaves):
    x, y, z, w, _ = leaves.values()
    left = b.sub(matmul(b, b.add(x, y), w), matmul(b, b.sub(y, z), w))
    assert equal_in_ring(b.pool, left, matmul(b, b.add(x, z), w))


def test_bound_dimensions_stay_apart(b, leaves):
    x, y = leaves["x"], leaves["y"]
    rows = b.contraction("m k -> m", b.mul(x, b.add(x, y)))
    squared = b.mul(rows, rows)
    same = b.contraction("m k -> m", b.mul(x, b.add(x, y), x, b.add(x, y)))
    assert not equal_in_ring(b.pool, squared, same)
    assert not equal_numbers(squared, same)
    expanded = b.add(b.contraction("m k, m k -> m", x, x), b.contraction("m k, m k -> m", x, y))
    assert equal_in_ring(b.pool, squared, b.mul(expanded, expanded))


@pytest.mark.parametrize("factor", [0, 1, 3, -2])
def test_another_factor(b, leaves, factor):
    x, y, _, w, _ = leaves.values()
    left = matmul(b, b.add(x, b.scale(y, 2)), w)
    right = b.combination((1, matmul(b, x, w)), (factor, matmul(b, y, w)))
    assert not equal_in_ring(b.pool, left, right)


def test_other_shapes_and_too_many_products(b, leaves):
    assert not equal_in_ring(b.pool, leaves["x"], leaves["w"])
    sums = [(b.pool.leaf(f"a{k}", (3, 4)), b.pool.leaf(f"b{k}", (3, 4))) for k in range(10)]  # 2 ** 10 products

    def pair(k):
        (first, second), (third, fourth) = sums[k], sums[k + 1]
        return b.add(b.mul(first, third), b.mul(first, fourth), b.mul(second, third), b.mul(second, fourth))

    product = b.mul(*(b.add(*both) for both in sums))
    assert not equal_in_ring(b.pool, product, b.mul(*(pair(k) for k in range(0, 10, 2))))
    assert equal_in_ring(b.pool, b.mul(*(b.add(*both) for both in sums[:2])), pair(0))


def test_terms_below_both_values_are_taken_as_they_are(b, leaves):
    x, _, z, w, v = leaves.values()
    deep = b.contraction("m k, k n -> m n", x, b.pool.leaf("s", (4, 4)))
    for number in range(10):  # 2 ** 10 products, expanded
        deep = matmul(b, deep, b.add(b.pool.leaf(f"s{number}", (4, 4)), b.pool.leaf(f"t{number}", (4, 4))))
    left = matmul(b, b.add(z, deep), b.sub(w, v))
    right = b.combination((1, matmul(b, deep, w)), (-1, matmul(b, deep, v)), (1, matmul(b, z, w)))
    assert not equal_in_ring(b.pool, left, right)
    assert equal_in_ring(b.pool, left, b.sub(right, matmul(b, z, v)))


def test_a_chain_of_products_is_no_recursion(b):
    left = right = b.pool.leaf("x", (4, 4))
    for number in range(1500):
        weight = b.pool.leaf(f"w{number}", (4, 4))
        left, right = matmul(b, left, weight), matmul(b, right, weight)
    first, second = b.pool.leaf("a", (4, 4)), b.pool.leaf("b", (4, 4))
    assert not equal_in_ring(b.pool, matmul(b, left, b.add(first, second)), matmul(b, left, first))


def test_a_question_is_asked_once_until_an_equality_is_learnt(b, leaves, monkeypatch):
    x, y, _, w, _ = leaves.values()
    left, right = matmul(b, b.add(x, y), w), b.add(matmul(b, x, w), b.scale(matmul(b, y, w), 2))
    asked = []
    monkeypatch.setattr(ring, "_may_be_equal", lambda *views: bool(asked.append(views)))
    assert not equal_in_ring(b.pool, left, right)
    assert not equal_in_ring(b.pool, left, right)
    assert len(asked) == 1
    b.pool.replace(b.mul(x, y).term, b.mul(y, y))
    assert not equal_in_ring(b.pool, left, right)
    assert len(asked) == 2


def test_what_differs_in_numbers_is_not_expanded(b, leaves, monkeypatch):
    x, y, _, w, _ = leaves.values()
    monkeypatch.setattr(ring, "_is_equal", lambda *_: pytest.fail("expanded"))
    assert not equal_in_ring(b.pool, matmul(b, b.add(x, y), w), matmul(b, b.add(x, b.scale(y, 2)), w))
    assert not equal_in_ring(b.pool, matmul(b, x, w), matmul(b, y, w))  # no sum within a product


FACTORS = st.lists(st.sampled_from("xyz"), min_size=1, max_size=2)
SUMS = st.lists(st.tuples(st.integers(-3, 3), FACTORS), min_size=1, max_size=3)


@settings(deadline=None)
@given(
    st.lists(SUMS, min_size=2, max_size=3), st.booleans(), st.sampled_from([Fraction(1, 2), Fraction(2), Fraction(-3)])
)
def test_products_of_sums_are_their_expansion_and_have_its_number(sums, with_exponentials, other):
    b = Builder(TermPool())
    leaves = {name: b.pool.leaf(name, (3, 4)) for name in "xyz"}
    values = {name: b.exp(leaf) for name, leaf in leaves.items()} if with_exponentials else leaves

    def expanded(chosen):
        summands = [(c, [values[name] for name in names]) for c, names in chosen]
        return b.combination(*((c, b.mul(*factors)) for c, factors in summands))

    product = b.mul(*(expanded(chosen) for chosen in sums))
    terms = [
        (math.prod(c for c, _ in choice), [values[name] for _, names in choice for name in names])
        for choice in itertools.product(*sums)
    ]
    total = b.combination(*((c, b.mul(*factors)) for c, factors in terms))
    assert fingerprint(product) is not None
    assert fingerprint(product) == fingerprint(total)
    assert equal_in_ring(b.pool, product, total)
    assert product.is_zero or fingerprint(product) != fingerprint(b.scale(total, other))
    assert product.is_zero or not equal_in_ring(b.pool, product, b.scale(total, other))


def test_roots_and_quotients_have_numbers(b, leaves):
    x, y, *_ = leaves.values()
    total = b.sum(b.add(b.exp(x), b.exp(y)), [1], True)
    assert fingerprint(b.mul(b.divide(b.exp(x), total), total)) == fingerprint(b.exp(x))
    root = b.power(b.exp(x), Fraction(1, 2))
    assert fingerprint(b.mul(root, root)) == fingerprint(b.exp(x)) != fingerprint(b.exp(y))


def test_shares_of_one_sum_have_one_form_within_sums():
    b = Builder(new_pool())  # in which products of exponentials are one exponential
    x, y = (b.pool.leaf(name, (3, 4)) for name in "xy")
    total = b.add(1, b.exp(x))
    share = b.mul(b.exp(x), b.power(total, -1))
    slope = b.mul(y, share, b.sub(1, share))
    along = lambda value: b.contraction("m k -> m", value)  # noqa: E731 - a name for one sum
    assert equal_in_ring(b.pool, along(slope), along(b.mul(y, b.exp(x), b.power(total, -2))))
    assert not equal_in_ring(b.pool, along(slope), along(b.mul(y, b.exp(x), b.power(total, -1))))
    assert not equal_in_ring(b.pool, along(slope), along(b.mul(y, b.power(total, -2))))


@pytest.mark.parametrize("factor", ["a mask", "read from a table", "another sum", "none"])
def test_a_share_of_a_multiple_of_what_is_shared_is_another(factor: str) -> None:
    b = Builder(new_pool())
    x, y = (b.pool.leaf(name, (3, 4)) for name in "xy")
    value = b.exp(x)
    if factor == "a mask":
        value = b.mul(value, b.pool.leaf("m", (3, 4), indicator=True))
    elif factor == "read from a table":
        read = b.narrow(b.along(PAD, (2, 2), b.exp(y), 1, 9), 1, 1, 4)
        value = b.mul(value, read, read)
    elif factor == "another sum":
        value = b.mul(value, b.add(1, b.exp(y)))
    total = b.add(1, value)
    left, right = b.mul(y, b.exp(x), b.power(total, -1)), b.mul(y, b.sub(1, b.power(total, -1)))
    sums = [b.contraction("m k -> m", side) for side in (left, right)]
    assert [equal_in_ring(b.pool, left, right), equal_in_ring(b.pool, *sums)] == [factor == "none"] * 2


def test_what_may_be_zero_is_not_divided_out_within_sums():
    b = Builder(new_pool())
    x, y = (b.pool.leaf(name, (3, 4)) for name in "xy")
    total = b.sub(b.exp(x), 1)
    left, right = b.mul(y, b.exp(x), b.power(total, -1)), b.mul(y, b.add(1, b.power(total, -1)))
    assert not equal_in_ring(b.pool, *(b.contraction("m k -> m", value) for value in (left, right)))


PLACES = {
    "a digit": (4, 8, 1), "the first digit": (0, 12, 1), "within": (1, 7, 1), "every second": (1, 8, 2),
    "from the first on": (0, 6, 1),
}  # fmt: skip


@pytest.mark.parametrize(("start", "total", "step"), PLACES.values(), ids=PLACES)
def test_what_is_padded_is_a_part_times_one_at_its_place(b, leaves, start, total, step):
    x, y, z, *_ = leaves.values()
    pad = lambda view: b.along(PAD, (start, step), view, 1, total)  # noqa: E731 - as it reads
    other = b.pool.leaf("o", (3, 5))
    padded = b.contraction("m k, m n -> k n", pad(b.mul(x, b.add(y, z))), other)
    apart = b.contraction("m k, m n -> k n", b.add(pad(b.mul(x, y)), pad(b.mul(x, z))), other)
    assert padded != apart
    assert equal_in_ring(b.pool, padded, apart)
    inside = b.contraction("m k, m n -> k n", b.mul(x, b.add(y, z)), other)
    assert equal_in_ring(b.pool, padded, b.along(PAD, (start, step), inside, 0, total))
    if start + 4 * step < total:
        moved = b.along(PAD, (start + 1, step), inside, 0, total)
        assert not equal_in_ring(b.pool, padded, moved)
    assert not equal_in_ring(b.pool, padded, b.along(PAD, (start, step), b.scale(inside, 2), 0, total))


def test_what_is_stacked_is_each_piece_times_one_at_its_place(b, leaves):
    x, y, z, *_ = leaves.values()
    of_sums = b.concatenate([b.mul(x, b.add(y, z)), b.mul(b.add(x, y), z)], 1)
    products = b.combination(
        (1, b.pad(b.add(b.mul(x, y), b.mul(x, z)), 1, 0, 8)), (1, b.pad(b.add(b.mul(x, z), b.mul(y, z)), 1, 4, 8))
    )
    assert of_sums.term.operation is STACK
    assert of_sums != products
    assert equal_in_ring(b.pool, of_sums, products)
    exchanged = b.concatenate([b.mul(b.add(x, y), z), b.mul(x, b.add(y, z))], 1)
    assert not equal_in_ring(b.pool, exchanged, products)


def test_a_sum_with_an_infinity_is_no_polynomial():
    """Else infinity, taken from itself, would be zero."""
    b = Builder(new_pool())
    y, z = (b.pool.leaf(name, (3, 4)) for name in "yz")
    mask, infinite = b.pool.leaf("m", (3, 4), indicator=True), b.full(-math.inf, (3, 4))
    product, expanded = b.mul(mask, b.add(y, z)), b.add(b.mul(mask, y), b.mul(mask, z))
    assert equal_in_ring(b.pool, product, expanded)
    for left, right in itertools.product((product, b.add(product, infinite)), (expanded, b.add(expanded, infinite))):
        assert equal_in_ring(b.pool, left, right) is (left is product and right is expanded)


@pytest.mark.parametrize("power", [Fraction(-1), Fraction(-2), Fraction(-3)])
@pytest.mark.parametrize("shared", [None, Fraction(-1, 2), Fraction(1, 3)])
def test_positive_denominators_are_cleared(power, shared):
    """1 / s + 1 / t is (s + t) / (s t), also where both are divided by roots of something else."""
    b = Builder(new_pool())
    mask = b.pool.leaf("m", (3, 4), indicator=True)  # no number tells values apart that have it as a factor
    first, second, other = (b.add(n + 1, b.exp(b.pool.leaf(name, (3, 4)))) for n, name in enumerate("xxy"))
    over = b.power(other, shared) if shared is not None else b.full(1, (3, 4))
    one, two = b.power(first, power), b.power(second, power)
    lifted = b.power(first, -power), b.power(second, -power)
    apart = b.mul(mask, over, b.add(one, two))
    together = b.mul(mask, over, one, two, b.add(*lifted))
    assert equal_in_ring(b.pool, apart, together)
    assert not equal_in_ring(b.pool, apart, b.mul(mask, over, one, two, b.add(lifted[0], lifted[0])))
    assert not equal_in_ring(b.pool, apart, b.mul(mask, over, one, one, b.add(*lifted)))
