"""Products, sums and linear combinations: their values, and that equal computations are one term."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence

import pytest
import torch

from tests.ir.evaluate import Evaluator
from tests.ir.test_relabel import step
from tests.ir.validate_terms import validate_pool
from tests.ir.views import Leaves, leaf
from verifycompile.ir import relabel
from verifycompile.ir.algebra import COMBINE, CONTRACT, combine, contract, has_infinity, iota, multiply_views, sum_over
from verifycompile.ir.build import ShapeError
from verifycompile.ir.exponential import MAXIMUM
from verifycompile.ir.relabel import UnalignedError
from verifycompile.ir.scalar import NonFiniteScalarError, as_scalar
from verifycompile.ir.term import TermPool, View
from verifycompile.ir.validate import validate
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.catalogue import COMBINATION_LEMMAS, product_lemma
from verifycompile.rewrites.operations import COMPLEX
from verifycompile.rewrites.operators.complex_numbers import POLAR
from verifycompile.rewrites.operators.reduction import reduce_extreme

# ------------------------------------------------------------------------------------------------ values

Pair = tuple[View, torch.Tensor]
Rule = Callable[[random.Random, Builder, list[Pair]], Pair]


def _binary(rule: Callable[[random.Random, Builder, Pair, Pair], Pair]) -> Rule:
    def run(draw: random.Random, b: Builder, pairs: list[Pair]) -> Pair:
        left = draw.choice(pairs)
        right = draw.choice([p for p in pairs if p[1].shape == left[1].shape])
        return rule(draw, b, left, right)

    return run


def _layout(draw: random.Random, b: Builder, pairs: list[Pair]) -> Pair:
    return step(draw, *draw.choice(pairs))


def _combination(draw: random.Random, b: Builder, left: Pair, right: Pair) -> Pair:
    p, q = draw.choice([1, -1, 2, 0.5]), draw.choice([1, -1, -2])
    return b.combination((p, left[0]), (q, right[0])), p * left[1] + q * right[1]


def _sum(draw: random.Random, b: Builder, pairs: list[Pair]) -> Pair:
    view, value = draw.choice(pairs)
    dims = draw.sample(range(view.rank), draw.randint(0, view.rank))
    return sum_over(b.pool, view, dims), value.sum(dims) if dims else value


def _extreme(draw: random.Random, b: Builder, pairs: list[Pair]) -> Pair:
    view, value = draw.choice(pairs)
    dims = draw.sample(range(view.rank), draw.randint(0, view.rank))
    return reduce_extreme(b.pool, view, dims, "max"), value.amax(dims) if dims else value


def _einsum(draw: random.Random, b: Builder, pairs: list[Pair]) -> Pair:
    left, right = draw.choice(pairs), draw.choice(pairs)
    letters = "abcdefgh"
    first = letters[: left[0].rank]
    sizes = dict(zip(first, left[1].shape, strict=True))
    second = ""
    for size in right[1].shape:
        same = [x for x in first if sizes[x] == size and x not in second]
        fresh = next(x for x in letters if x not in sizes)
        letter = draw.choice([*same, fresh])
        sizes[letter] = size
        second += letter
    names = sorted(set(first + second))
    output = draw.sample(names, draw.randint(0, len(names)))
    text = f"{' '.join(first)}, {' '.join(second)} -> {' '.join(output)}"
    return b.contraction(text, left[0], right[0]), torch.einsum(text.replace(" ", ""), left[1], right[1])


def _exponential(draw: random.Random, b: Builder, pairs: list[Pair]) -> Pair:
    view, value = draw.choice(pairs)
    return b.exp(b.scale(view, 0.125)), torch.exp(value * 0.125)


def _power(draw: random.Random, b: Builder, pairs: list[Pair]) -> Pair:
    view, value = draw.choice(pairs)
    return b.power(b.add(b.mul(view, view), 1), -0.5), (value * value + 1) ** -0.5


def _pad(draw: random.Random, b: Builder, pairs: list[Pair]) -> Pair:
    view, value = draw.choice([p for p in pairs if p[0].rank] or pairs)
    if not view.rank:
        return view, value
    dim, before, after = draw.randrange(view.rank), draw.randint(0, 2), draw.randint(0, 2)
    padding = [0] * (2 * (view.rank - 1 - dim)) + [before, after]
    return b.pad(view, dim, before, value.shape[dim] + before + after), torch.nn.functional.pad(value, padding)


def _narrow(draw: random.Random, b: Builder, pairs: list[Pair]) -> Pair:
    view, value = draw.choice([p for p in pairs if p[0].rank] or pairs)
    if not view.rank:
        return view, value
    dim = draw.randrange(view.rank)
    length = draw.randint(1, value.shape[dim])
    start = draw.randint(0, value.shape[dim] - length)
    return b.narrow(view, dim, start, length), value.narrow(dim, start, length)


def _concatenate(draw: random.Random, b: Builder, left: Pair, right: Pair) -> Pair:
    if not left[0].rank:
        return left
    dim = draw.randrange(left[0].rank)
    return b.concatenate([left[0], right[0]], dim), torch.cat([left[1], right[1]], dim)


def _counter(draw: random.Random, b: Builder, pairs: list[Pair]) -> Pair:
    view, value = draw.choice([p for p in pairs if p[0].rank] or pairs)
    if not view.rank:
        return view, value
    counter, place = b.iota(value.shape[-1], draw.randint(-1, 2), draw.choice([1, 2])), view.shape[-1]
    row = Evaluator({}).view(counter)
    return b.mul(b.less_equal(counter, 1), view), (row <= 1) * value if place else value


RULES: list[Rule] = [
    _layout,
    _layout,
    _layout,
    _sum,
    _sum,
    _einsum,
    _einsum,
    _extreme,
    _exponential,
    _power,
    _pad,
    _narrow,
    _counter,
    _binary(_combination),
    _binary(_combination),
    _binary(lambda draw, b, left, right: (b.mul(left[0], right[0]), left[1] * right[1])),
    _binary(lambda draw, b, left, right: (b.pointwise(MAXIMUM, left[0], right[0]), torch.maximum(left[1], right[1]))),
    _binary(_concatenate),
]


def check_random_program(
    pool: TermPool,
    draw: random.Random,
    shapes: Sequence[tuple[int, ...]],
    steps: int,
    rules: Callable[[], Sequence[Rule]],
) -> None:
    """Apply rules, one of ``rules()`` at each step, to leaves of ``shapes``; every value must be torch's."""
    leaves, builder = Leaves(), Builder(pool)
    pairs: list[Pair] = []
    for shape in shapes:
        view = leaf(pool, leaves, *shape)
        pairs.append((view, leaves[f"x{len(pairs)}"]))
    for _ in range(steps):
        chosen = rules()
        try:
            view, value = draw.choice(chosen)(draw, builder, pairs)
        except UnalignedError:
            continue
        if not 0 < value.numel() <= 64 or value.dim() > 4 or value.abs().max() > 1e4:
            continue
        assert view.shape == tuple(value.shape)
        validate(view)
        torch.testing.assert_close(Evaluator(leaves).view(view), value, rtol=1e-8, atol=1e-8)
        pairs.append((view, value))
    validate_pool(pool)


@pytest.mark.parametrize("seed", range(120))
def test_random_programs_have_the_values_of_torch(seed: int) -> None:
    pool = TermPool()
    pool.contraction_rules.append(product_lemma)
    pool.combination_rules.extend(COMBINATION_LEMMAS)
    check_random_program(pool, random.Random(seed), ((4, 3), (3, 4), (2, 6), (4,)), 14, lambda: RULES)


# ------------------------------------------------------------------------------------------------ normal forms


def shard(view: View, dim: int, ranks: int) -> View:
    """``dim`` split in (rank, local); the rank becomes the leading dimension."""
    split = relabel.split_dim(view, dim, ranks, int(view.shape[dim]) // ranks)
    return relabel.permute(split, [dim, *(d for d in range(split.rank) if d != dim)])


def same(left: View, right: View) -> bool:
    return left == right and left.term is right.term


@pytest.mark.parametrize("seed", range(30))
def test_operands_in_any_layout_give_one_term(seed: int) -> None:
    """Permuting, splitting and exchanging operands beforehand, and undoing it afterwards, changes nothing."""
    draw = random.Random(seed)
    pool = TermPool()
    x, w = leaf(pool, {}, 4, 6), leaf(pool, {"x0": torch.zeros(())}, 6, 8)
    plain = contract(pool, [x, w], [("m", "k"), ("k", "n")], ("m", "n"), frozenset("k"))
    labels: dict[str, list[str]] = {"m": ["m"], "k": ["k"], "n": ["n"]}
    sizes = {"m": 4, "k": 6, "n": 8}
    for name in draw.sample("mkn", draw.randint(0, 3)):
        labels[name] = [f"{name}1", f"{name}0"]
        sizes[f"{name}1"], sizes[f"{name}0"] = 2, sizes[name] // 2
    factors: list[View] = []
    inputs: list[tuple[str, ...]] = []
    for view, names in ((x, "mk"), (w, "kn")):
        parts = [p for n in names for p in labels[n]]
        order = draw.sample(range(len(parts)), len(parts))
        wide = relabel.reshape(view, tuple(sizes[p] for p in parts))
        factors.append(relabel.permute(wide, order))
        inputs.append(tuple(parts[i] for i in order))
    if draw.random() < 0.5:
        factors.reverse()
        inputs.reverse()
    output = (*labels["m"], *labels["n"])
    result = contract(pool, factors, inputs, output, frozenset(labels["k"]))
    assert same(relabel.reshape(result, (4, 8)), plain)


def test_a_sharded_contraction_is_partial_and_its_sum_is_the_whole() -> None:
    pool = TermPool()
    x, w = leaf(pool, {}, 4, 6), leaf(pool, {"x0": torch.zeros(())}, 6, 8)
    whole = contract(pool, [x, w], ["mk", "kn"], ("m", "n"), frozenset("k"))  # type: ignore[list-item]
    partial = contract(pool, [shard(x, 1, 2), shard(w, 0, 2)], ["rmk", "rkn"], ("r", "m", "n"), frozenset("k"))  # type: ignore[list-item]
    assert partial.uses(0)
    assert partial.term is not whole.term
    assert same(sum_over(pool, partial, [0]), whole)
    # Half of the sum is not the whole of it, and the sum of the sum counts the ranks.
    assert not same(relabel.select(partial, 0, 0), whole)
    again = sum_over(pool, relabel.insert_dim(whole, 0, 2), [0])
    assert same(again, whole.scaled(as_scalar(2)))


def test_a_contraction_with_mismatched_shards_is_another_one() -> None:
    pool = TermPool()
    x, w = leaf(pool, {}, 4, 6), leaf(pool, {"x0": torch.zeros(())}, 6, 8)
    whole = contract(pool, [x, w], ["mk", "kn"], ("m", "n"), frozenset("k"))  # type: ignore[list-item]
    blocked = shard(x, 1, 2)
    swapped = relabel.permute(relabel.reshape(w, (3, 2, 8)), [1, 0, 2])  # strided instead of blocked
    partial = contract(pool, [blocked, swapped], ["rmk", "rkn"], ("r", "m", "n"), frozenset("k"))  # type: ignore[list-item]
    assert not same(sum_over(pool, partial, [0]), whole)


def test_sums_in_any_order_and_grouping() -> None:
    pool = TermPool()
    x = leaf(pool, {}, 4, 6, 5)
    whole = sum_over(pool, x, [0, 1, 2])
    assert same(sum_over(pool, sum_over(pool, x, [1]), [0, 1]), whole)
    assert same(sum_over(pool, sum_over(pool, sum_over(pool, x, [2]), [0]), [0]), whole)
    assert same(sum_over(pool, relabel.reshape(x, (24, 5)), [1, 0]), whole)
    assert same(sum_over(pool, sum_over(pool, shard(x, 1, 3), [1, 2, 3]), [0]), whole)


def test_sums_of_unused_dimensions_are_factors() -> None:
    pool = TermPool()
    x = leaf(pool, {}, 4)
    assert same(sum_over(pool, relabel.insert_dim(x, 0, 3), [0]), x.scaled(as_scalar(3)))
    ones = pool.constant(as_scalar(2), (3, 4))
    assert same(sum_over(pool, ones, [0, 1]), pool.constant(as_scalar(24), ()))


def test_products_flatten_and_constants_leave() -> None:
    pool = TermPool()
    a, b, c = (leaf(pool, {str(k): torch.zeros(()) for k in range(i)}, 3) for i in range(3))
    nested = multiply_views(pool, multiply_views(pool, a, b.scaled(as_scalar(2))), c)
    flat = multiply_views(pool, c, a.scaled(as_scalar(-1)), b).scaled(as_scalar(-2))
    assert same(nested, flat)
    assert len(nested.term.operands) == 3
    assert multiply_views(pool, a, pool.zero((3,))).is_zero
    assert same(multiply_views(pool, a, pool.constant(as_scalar(3), (3,))), a.scaled(as_scalar(3)))


def test_combinations_flatten_collect_and_cancel() -> None:
    pool = TermPool()
    a, b, c = (leaf(pool, {str(k): torch.zeros(()) for k in range(i)}, 3) for i in range(3))
    two, minus = as_scalar(2), as_scalar(-1)
    nested = combine(pool, [combine(pool, [a, b.scaled(two)]).scaled(two), c])
    assert same(nested, combine(pool, [c, b.scaled(as_scalar(4)), a.scaled(two)]))
    assert same(combine(pool, [a, a]), a.scaled(two))
    assert combine(pool, [a, a.scaled(minus)]).is_zero
    assert same(combine(pool, [combine(pool, [a, b]), b.scaled(minus)]), a)
    # One term whatever the common factor is.
    assert combine(pool, [a, b]).term is combine(pool, [a.scaled(two), b.scaled(two)]).term
    assert combine(pool, [a, b]).term is not combine(pool, [a, b.scaled(two)]).term
    assert not same(combine(pool, [a, b]), combine(pool, [a, b.scaled(minus)]))


def test_a_sum_over_a_part_is_the_part_of_the_sum() -> None:
    """Whatever the arithmetic term is: a slice of a partial value, once its parts are added, is that of the whole."""
    pool = TermPool()
    leaves = {str(k): torch.zeros(()) for k in range(3)}
    x, y = leaf(pool, {}, 4, 6, 8), leaf(pool, leaves, 4, 6, 8)
    scale = relabel.insert_dim(leaf(pool, {**leaves, "x0": torch.zeros(())}, 6, 8), 0, 4)
    product = multiply_views(pool, x, y)
    for whole in (product, combine(pool, [product, x]), multiply_views(pool, scale, combine(pool, [product, y]))):
        part = relabel.narrow(shard(whole, 0, 2), 3, 4, 4)
        expected = relabel.narrow(sum_over(pool, whole, [0]), 1, 4, 4)
        assert same(sum_over(pool, sum_over(pool, part, [1]), [0]), expected)
        assert same(sum_over(pool, sum_over(pool, part, [0]), [0]), expected)
        other = relabel.narrow(sum_over(pool, whole, [0]), 1, 0, 4)
        assert not same(sum_over(pool, part, [0, 1]), other)


def test_partial_sums_pass_linear_operations() -> None:
    """reduce(linear(partial)) is linear(reduce(partial)); a non-linear operation keeps the sum inside."""
    pool = TermPool()
    b = Builder(pool)
    x, w = leaf(pool, {}, 4, 6), leaf(pool, {"x0": torch.zeros(())}, 6, 8)
    whole = contract(pool, [x, w], ["mk", "kn"], ("m", "n"), frozenset("k"))  # type: ignore[list-item]
    partial = contract(pool, [shard(x, 1, 2), shard(w, 0, 2)], ["rmk", "rkn"], ("r", "m", "n"), frozenset("k"))  # type: ignore[list-item]
    for linear in (
        lambda v, d: b.pad(v, d, 1, 7),
        lambda v, d: b.narrow(v, d, 1, 2),
        lambda v, d: b.mul(v, 3),
        lambda v, d: b.concatenate([v, v], d),
    ):
        after = sum_over(pool, linear(partial, 1), [0])
        assert same(after, linear(whole, 0)), linear
    assert not same(sum_over(pool, b.exp(partial), [0]), b.exp(whole))
    assert not same(sum_over(pool, b.mul(partial, partial), [0]), b.mul(whole, whole))
    # A replicated summand is counted by every rank.
    bias = leaf(pool, {"x0": torch.zeros(()), "x1": torch.zeros(())}, 4, 8)
    reduced = sum_over(pool, combine(pool, [partial, relabel.insert_dim(bias, 0, 2)]), [0])
    assert same(reduced, combine(pool, [whole, bias.scaled(as_scalar(2))]))
    assert not same(reduced, combine(pool, [whole, bias]))


def test_sums_of_linear_operations_over_any_dimensions_have_their_values() -> None:
    """Summed are dimensions that one operand has, that all have, that none has, and those that the operation makes."""
    leaves: Leaves = {}
    b = Builder(TermPool())
    x, y, row = leaf(b.pool, leaves, 2, 3, 4), leaf(b.pool, leaves, 2, 3, 4), leaf(b.pool, leaves, 4)
    column = b.reshape(leaf(b.pool, leaves, 3), [3, 1])
    wide = relabel.insert_dim(relabel.insert_dim(row, 0, 3), 0, 2)
    evaluator, moved = Evaluator(leaves), set[bool]()
    for view in (
        b.pad(x, 1, 1, 7), b.concatenate([x, y, x], 1), b.concatenate([x, wide], 0), b.concatenate([x, y], 2),
        b.pointwise(POLAR, x, y), b.pointwise(POLAR, x, column), b.pointwise(POLAR, column, x), b.pointwise(POLAR, row, column),
        b.pointwise(COMPLEX, x, y), b.pointwise(COMPLEX, row, column), b.pad(b.concatenate([x, wide], 2), 0, 1, 4),
        b.narrow(b.pad(b.mul(x, y), 2, 2, 9), 2, 3, 3), b.exp(x), b.mul(x, x, wide),
    ):  # fmt: skip
        value = evaluator.view(view).broadcast_to([int(size) for size in view.shape])
        for count in range(1, view.rank + 1):
            for dims in itertools.combinations(range(view.rank), count):
                found = sum_over(b.pool, view, dims)
                torch.testing.assert_close(evaluator.view(found), value.sum(dims))
                moved.add(found.term.operation is CONTRACT)
    assert moved == {True, False}


def test_a_sum_without_summands_is_zero_and_zero_times_infinity_is_refused() -> None:
    b = Builder(TermPool())
    empty, infinite = b.pool.leaf("x", (3, 0)), b.full(-math.inf, (3, 2))
    for found in (sum_over(b.pool, empty, [1]), b.contraction("m k, m k -> m", empty, b.pool.leaf("y", (3, 0)))):
        assert found == b.pool.zero((3,))
    assert has_infinity(infinite)
    with pytest.raises(NonFiniteScalarError, match="zero times infinity"):
        multiply_views(b.pool, b.pool.zero((3, 2)), b.pool.leaf("w", (3, 2)), infinite)
    assert multiply_views(b.pool, b.pool.zero((3, 2)), b.pool.leaf("w", (3, 2))).is_zero
    nothing = combine(
        b.pool, [b.pool.leaf("w", (3, 2)), infinite.scaled(as_scalar(0))]
    )  # no number: infinity may be in it
    assert has_infinity(nothing)


def test_counters_of_shards_join() -> None:
    pool = TermPool()
    rank = relabel.insert_dim(iota(pool, 4), 1)
    local = relabel.insert_dim(iota(pool, 3), 0)
    joined = combine(pool, [rank.scaled(as_scalar(3)), local])
    assert joined.term is iota(pool, 12).term
    assert joined.axes == (((0, 1, 4), (1, 1, 3)),)
    wrong = combine(pool, [rank.scaled(as_scalar(2)), local])
    assert wrong.term.operation is COMBINE


def test_counters_join_beside_other_summands_and_slices_of_counters_are_counters() -> None:
    leaves: Leaves = {}
    pool = TermPool()
    x = leaf(pool, leaves, 4, 3)
    rank, local = relabel.insert_dim(iota(pool, 4), 1), relabel.insert_dim(iota(pool, 3), 0)
    joined = combine(pool, [rank.scaled(as_scalar(3)), x, local, pool.constant(as_scalar(5), (4, 3))])
    expected = leaves["x0"] + torch.arange(12.0).reshape(4, 3) + 5
    torch.testing.assert_close(Evaluator(leaves).view(joined), expected)
    assert iota(pool, 12).term in [view.term for view in joined.term.operands]
    last = relabel.insert_dim(relabel.select(relabel.reshape(iota(pool, 12), (4, 3)), 0, 2), 0)
    assert (
        combine(pool, [last, rank.scaled(as_scalar(3)), pool.constant(as_scalar(-6), (4, 3))]).term
        is iota(pool, 12).term
    )
    row = relabel.insert_dim(relabel.select(x, 0, 1), 0)
    for other, value in ((x, leaves["x0"]), (row, leaves["x0"][1])):
        view = combine(pool, [last, other, pool.constant(as_scalar(-1), (4, 3))])
        torch.testing.assert_close(Evaluator(leaves).view(view), torch.arange(5.0, 8.0) + value + torch.zeros(4, 3))


def test_sums_of_chosen_rows_and_of_diagonals_have_their_values() -> None:
    """What is chosen stays chosen, and a diagonal through what an operation makes is summed behind it."""
    leaves: Leaves = {}
    b = Builder(TermPool())
    x, y, w, z = (
        leaf(b.pool, leaves, 2, 3, 4),
        leaf(b.pool, leaves, 2, 3, 4),
        leaf(b.pool, leaves, 3, 2),
        leaf(b.pool, leaves, 4, 7),
    )
    evaluator = Evaluator(leaves)
    whole = contract(b.pool, [x, z], ["rij", "jn"], ("r", "i", "n"), frozenset("j"))  # type: ignore[list-item]
    row = relabel.select(whole, 0, 1)
    total = contract(b.pool, [row, w], ["in", "ik"], ("k", "i"), frozenset("n"))  # type: ignore[list-item]
    torch.testing.assert_close(evaluator.view(total), torch.einsum("in,ik->ki", evaluator.view(row), leaves["x2"]))
    assert same(sum_over(b.pool, row, [1]), relabel.select(sum_over(b.pool, whole, [2]), 0, 1))
    columns = relabel.permute(relabel.insert_dim(relabel.select(b.mul(x, y), 2, 1), 1, 4), (2, 0, 1))
    joined = b.concatenate([columns, relabel.permute(x, (1, 0, 2))], 0)
    torch.testing.assert_close(evaluator.view(sum_over(b.pool, joined, [2])), evaluator.view(joined).sum(2))
    padded = b.pad(z, 0, 2, 7)
    diagonal = View(padded.coefficient, padded.term, (7,), tuple(((0, 1, 7),) for _ in padded.axes))
    torch.testing.assert_close(evaluator.view(sum_over(b.pool, diagonal, [0])), evaluator.view(padded).trace())


def test_factors_must_agree_on_sizes() -> None:
    pool = TermPool()
    x, w = leaf(pool, {}, 4, 6), leaf(pool, {"x0": torch.zeros(())}, 5, 8)
    with pytest.raises(ShapeError, match="index 'k' has sizes 6 and 5"):
        contract(pool, [x, w], ["mk", "kn"], ("m", "n"), frozenset("k"))  # type: ignore[list-item]
    with pytest.raises(ShapeError, match="sizes 4 and 5 do not broadcast"):
        combine(pool, [leaf(pool, {}, 4), leaf(pool, {}, 5)])
    with pytest.raises(ShapeError, match="a repeated index within one factor"):
        contract(pool, [leaf(pool, {}, 4, 4)], ["mm"], ("m",), frozenset())  # type: ignore[list-item]


def test_terms_of_the_same_operands_in_different_roles_differ() -> None:
    pool = TermPool()
    x, y = leaf(pool, {}, 4, 4), leaf(pool, {"x0": torch.zeros(())}, 4, 4)
    products = [
        contract(pool, [a, b], [i, j], ("m", "n"), frozenset("k"))  # type: ignore[list-item]
        for a, b in ((x, y), (y, x))
        for i in ("mk", "km")
        for j in ("kn", "nk")
    ]
    for k, left in enumerate(products):
        assert all(not same(left, right) for right in products[k + 1 :])
    assert all(p.term.operation is CONTRACT for p in products)


# ------------------------------------------------------------------------------------------------ what was proved equal


def test_what_a_term_was_proved_equal_to_may_read_digits_of_its_indices() -> None:
    pool = TermPool()
    x, z, y = pool.leaf("x", (6,)), pool.leaf("z", (6,)), pool.leaf("y", (2, 3))
    interleaved = View(y.coefficient, y.term, (6,), (((0, 1, 2),), ((0, 2, 3),)))  # y[j % 2, j // 2]
    pool.replace(multiply_views(pool, x, z).term, interleaved)
    again = multiply_views(pool, relabel.reshape(x, (3, 2)), relabel.reshape(z, (3, 2)))
    assert (again.term, again.shape, again.axes) == (y.term, (3, 2), (((1, 1, 2),), ((0, 1, 3),)))
    with pytest.raises(UnalignedError):
        multiply_views(pool, relabel.reshape(x, (2, 3)), relabel.reshape(z, (2, 3)))


def test_two_factors_along_each_of_three_equal_dimensions_have_one_order() -> None:
    """As the look-ups and weights of an interpolation of a volume have."""
    b = Builder(TermPool())
    f, g, t = b.pool.leaf("f", (3,)), b.pool.leaf("g", (3,)), b.pool.leaf("t", (3, 3, 3))
    orders = itertools.product(itertools.permutations("ijk"), repeat=2)
    found = {b.contraction(f"{', '.join((*p, *q, 'i j k'))} -> ", f, f, f, g, g, g, t) for p, q in orders}
    assert len(found) == 1
