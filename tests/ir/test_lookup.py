"""Lemmas on lookups and exponentials: with them and without, an expression has the same values for every index."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from tests.ir.evaluate import Evaluator
from tests.ir.validate_terms import validate_pool
from verifycompile.ir import algebra
from verifycompile.ir.exponential import MAXIMUM
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.catalogue import product_lemma
from verifycompile.rewrites.operations import MINIMUM
from verifycompile.rewrites.operators.elementwise import FUNCTIONS, choose

ROWS, WORDS = 2, 4
VALUES = range(-1, WORDS + 1)
Expression = Callable[[Builder], View]


def logits(b: Builder) -> View:
    return b.pool.leaf("x", (ROWS, WORDS))


def labels(b: Builder, name: str = "t") -> View:
    return b.pool.leaf(name, (ROWS,), whole=True)


def one_hot(b: Builder, index: View, size: int = WORDS) -> View:
    return b.equal(b.unsqueeze(index, 1), b.iota(size))


def picked(b: Builder, table: View, index: View | None = None) -> View:
    return b.sum(b.mul(one_hot(b, labels(b) if index is None else index), table), [1])


def column(b: Builder, view: View) -> View:
    return b.unsqueeze(view, 1)


def kept(b: Builder) -> View:
    return b.negate(b.equal(labels(b), -1))


def largest(b: Builder) -> View:
    return b.pool.leaf("m", (ROWS,))


def under_its_indicator(b: Builder) -> View:
    return b.mul(one_hot(b, labels(b)), column(b, picked(b, logits(b))))


def at_a_counter(b: Builder) -> View:
    table = b.pool.leaf("y", (WORDS, 3))
    return b.contraction("i v, v d -> i d", b.equal(b.unsqueeze(b.iota(WORDS), 1), b.iota(WORDS)), table)


def shifted_counter(b: Builder) -> View:
    table = b.pool.leaf("y", (WORDS, 3))
    return b.contraction("i v, v d -> i d", b.equal(b.unsqueeze(b.iota(2, 1), 1), b.iota(WORDS)), table)


def masked_index(b: Builder) -> View:
    """A lookup of an index that a mask made zero, under that mask."""
    return b.mul(kept(b), picked(b, logits(b), choose(b, kept(b), labels(b), 0)))


def in_shards(local: Callable[[Builder, View], View]) -> Expression:
    """The sum over two shards of the words of a lookup by ``local(builder, index relative to the shard)``."""

    def build(b: Builder) -> View:
        whole = b.reshape(logits(b), [ROWS, 2, WORDS // 2])
        parts: list[View] = []
        for shard in range(2):
            index = b.sub(labels(b), shard * 2)
            inside = b.mul(b.less_equal(0, index), b.less(index, 2))
            found = b.sum(b.mul(one_hot(b, local(b, index), 2), b.select(whole, 1, shard)), [1])
            parts.append(b.mul(inside, found))
        return b.add(*parts)

    return build


def exponents(p: int, q: int) -> Expression:
    return lambda b: b.mul(b.exp(b.scale(logits(b), p)), b.exp(b.scale(logits(b), q)), column(b, largest(b)))


def powers_of_a_sum(b: Builder) -> View:
    total = b.sum(b.exp(logits(b)), [1])
    return b.mul(total, b.power(total, -1), largest(b))


def exponential_of_a_combination(b: Builder) -> View:
    shift = b.exp(largest(b))
    return b.mul(b.exp(b.scale(largest(b), -1)), b.add(b.mul(shift, labels(b)), largest(b)))


def variance(b: Builder) -> View:
    centered = b.sub(logits(b), b.mean(logits(b), [1], keepdim=True))
    return b.sum(b.mul(centered, centered), [1])


EXPRESSIONS: dict[str, tuple[str, Expression]] = {
    "a mask twice": ("mask-once", lambda b: b.mul(kept(b), kept(b), largest(b))),
    "opposite exponents": ("merge-exponentials", exponents(1, -1)),
    "multiples of an exponent": ("merge-exponentials", exponents(1, 2)),
    "lookup of a sum": ("distribute", lambda b: picked(b, b.sub(logits(b), column(b, largest(b))))),
    "lookup under its indicator": ("look-up-inside", under_its_indicator),
    "table at a counter": ("look-up", at_a_counter),
    "position at which it is looked up": ("place-looked-up", lambda b: picked(b, b.unsqueeze(b.iota(WORDS), 0))),
    "index under its mask": ("masks-join-sum", masked_index),
    "powers of a positive sum": ("merge-powers", powers_of_a_sum),
    "exponential and a combination": ("distribute", exponential_of_a_combination),
    "squares about the mean": ("distribute", variance),
    "a mask in what it masks": ("beside-mask", lambda b: b.mul(kept(b), b.exp(b.mul(kept(b), largest(b))))),
    "masked difference": (
        "distribute", lambda b: b.mul(kept(b), b.sub(largest(b), picked(b, logits(b)))),
    ),
}  # fmt: skip

OTHERS: dict[str, Expression] = {
    "powers of a value of any sign": lambda b: b.mul(largest(b), b.power(b.sum(b.mul(logits(b), logits(b)), [1]), -1)),
    "squares about a value of the row": lambda b: b.sum(b.power(b.sub(logits(b), b.scale(logits(b), 2)), 2), [1]),
    "a factor that leaves its sum": lambda b: b.contraction(
        "i v, i v, i -> i", logits(b), one_hot(b, labels(b)), largest(b)
    ),
    "another mask in what is masked": lambda b: b.mul(
        kept(b), b.exp(b.mul(b.negate(b.equal(labels(b), 1)), largest(b)))
    ),
    "a mask of other rows in what is masked": lambda b: b.mul(
        kept(b), b.sum(b.exp(b.mul(column(b, kept(b)), logits(b))), [0, 1])
    ),
    "two masks": lambda b: b.mul(kept(b), b.negate(b.equal(labels(b), 1)), largest(b)),
    "other exponents": lambda b: b.mul(b.exp(logits(b)), b.exp(b.scale(column(b, largest(b)), -1))),
    "lookup under another indicator": lambda b: b.mul(
        one_hot(b, labels(b, "u")), column(b, picked(b, logits(b)))
    ),
    "table at a shifted counter": shifted_counter,
    "another position than that which is looked up": lambda b: picked(b, b.unsqueeze(b.iota(WORDS, 1), 0)),
    "index under another mask": lambda b: b.mul(
        b.negate(b.equal(labels(b), 2)), picked(b, logits(b), choose(b, kept(b), labels(b), 0))
    ),
    "clamped index in shards": in_shards(lambda b, i: b.pointwise(MINIMUM, b.pointwise(MAXIMUM, i, 0), 1)),
    "index modulo the shard": in_shards(
        lambda b, i: b.sub(i, b.scale(b.pointwise(FUNCTIONS["floor"], b.scale(i, 0.5)), 2))
    ),
}  # fmt: skip


def values(expression: Expression, *, lemmas: bool) -> tuple[torch.Tensor, TermPool]:
    """The expression for every value of two labels, and the pool that it is in."""
    pool = TermPool()
    if lemmas:
        pool.contraction_rules.append(product_lemma)
    view = expression(Builder(pool))
    validate_pool(pool)
    generator = torch.Generator().manual_seed(0)
    leaves = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in (("x", (ROWS, WORDS)), ("y", (WORDS, 3)), ("m", (ROWS,)))
    }
    found = [
        Evaluator({**leaves, "t": torch.tensor(chosen), "u": torch.tensor(chosen[::-1])}).view(view)
        for chosen in itertools.product(VALUES, repeat=ROWS)
    ]
    return torch.stack(found), pool


@pytest.mark.parametrize(("lemma", "expression"), EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_a_lemma_fires_and_changes_no_value(lemma: str, expression: Expression) -> None:
    rewritten, pool = values(expression, lemmas=True)
    assert lemma in {name for name, _ in pool.lemma_trace}
    torch.testing.assert_close(rewritten, values(expression, lemmas=False)[0])


@pytest.mark.parametrize("expression", OTHERS.values(), ids=OTHERS)
def test_what_resembles_a_match_keeps_its_values(expression: Expression) -> None:
    torch.testing.assert_close(values(expression, lemmas=True)[0], values(expression, lemmas=False)[0])


def test_a_row_of_a_gather_sums_to_one_and_any_other_does_not() -> None:
    pool = TermPool()
    pool.contraction_rules.append(product_lemma)
    b = Builder(pool)
    row = b.sum(one_hot(b, labels(b)), [1])
    assert b.mul(row, largest(b)) != largest(b)
    b.assume_index(labels(b), WORDS, None, "the indices of a look-up are within [0, 4)")
    pool.learn()
    assert b.mul(row, largest(b)) == largest(b)
    assert list(pool.assumptions) == ["the indices of a look-up are within [0, 4)"]
    smaller = b.sum(one_hot(b, labels(b), WORDS - 1), [1])
    assert b.mul(smaller, largest(b)) != largest(b)


@pytest.mark.parametrize(
    ("of_all", "of_one", "is_same"),
    [
        (lambda b, x: b.exp(x), lambda b, x: b.exp(x), True),
        (lambda b, x: b.power(b.exp(b.scale(x, -1)), 2), lambda b, x: b.exp(b.scale(x, -2)), True),
        (lambda b, x: b.pointwise(FUNCTIONS["tanh"], x), lambda b, x: b.pointwise(FUNCTIONS["sigmoid"], x), False),
        (lambda b, x: b.exp(b.scale(x, -1)), lambda b, x: b.exp(x), False),
    ],
)
def test_a_function_of_all_is_looked_up_where_the_index_is_a_position(
    of_all: Callable[..., View], of_one: Callable[..., View], is_same: bool
) -> None:
    pool = TermPool()
    pool.contraction_rules.append(product_lemma)
    b = Builder(pool)

    def both() -> tuple[View, View]:
        return picked(b, of_all(b, logits(b))), of_one(b, picked(b, logits(b)))

    def gradients() -> tuple[View, View]:
        right, hot = both()[1], one_hot(b, labels(b))
        return b.mul(hot, column(b, right)), b.mul(hot, of_one(b, logits(b)))

    left, right = both()
    assert left != right
    b.assume_index(labels(b), WORDS + 1, None, "a larger table")
    pool.learn()
    left, right = both()
    assert left != right
    b.assume_index(labels(b), WORDS, None, "the table")
    pool.learn()
    left, right = both()
    assert (left == right) is is_same
    assert ("looked-up" in {name for name, _ in pool.lemma_trace}) is True
    left, right = gradients()
    assert left == right
    validate_pool(pool)


def test_counters_with_fixed_digits_are_counters_of_the_others() -> None:
    b = Builder(TermPool())
    starts = b.select(b.reshape(b.iota(12), [3, 4]), 1, 2)
    assert b.add(starts, 0) == b.iota(3, 2, 4)
    assert algebra.combine(b.pool, [starts, b.full(-2, [3])]) == b.iota(3, 0, 4)
