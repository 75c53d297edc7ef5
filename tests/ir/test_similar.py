"""Similar terms: their batched form has the values of the pieces, and what is not similar is left alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.ir.evaluate import Evaluator
from tests.ir.validate_terms import validate_pool
from verifycompile.ir.algebra import combine, sum_over
from verifycompile.ir.exponential import MAXIMUM
from verifycompile.ir.indicator import less_equal
from verifycompile.ir.scalar import ONE
from verifycompile.ir.similarity import similarity_key, term_key
from verifycompile.ir.term import CONSTANT, INTEGER_LEAF, LEAF, Axis, Operation, TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import FUNCTIONS
from verifycompile.rewrites.parts.similar import join_similar, stack_similar, sum_similar

PIECES, ROWS, WIDTH = 4, 3, 2


def test_keys_tell_operands_in_another_order_and_other_digits_apart() -> None:
    pool = TermPool()
    x, y = pool.leaf("x", (4,)), pool.leaf("y", (4,))
    whole = pool.leaf("z", (8,))
    digits = [View(ONE, whole.term, (8,), (((0, 4, 2), (CONSTANT, k, 4)),)) for k in range(2)]
    low = [View(ONE, whole.term, (8,), (((CONSTANT, k, 4), (0, 1, 2)),)) for k in range(2)]
    keys = [
        similarity_key(pool, view)
        for view in (*digits, *low, View(ONE, whole.term, (8,), (((0, 2, 2), (CONSTANT, 0, 4)),)))
    ]
    assert keys[0] == keys[1] != keys[4]
    assert keys[2] == keys[3] != keys[0]

    def key(operation: Operation, *operands: View) -> int:
        return term_key(pool, pool.intern(operation, (), operands, (4,), 1, 0, (), ()))

    ordered, unordered = Operation("ordered"), Operation("unordered", commutative=True)
    for by_piece in (True, False):
        operation = Operation("of a piece", attributes_by_piece=by_piece)
        pieces = {term_key(pool, pool.intern(operation, (k,), (x,), (4,), 1, 0, (), ())) for k in range(2)}
        assert len(pieces) == (1 if by_piece else 2)
    assert key(ordered, x, y) != key(ordered, y, x)
    assert key(unordered, x, y) == key(unordered, y, x) != key(unordered, x, x)


Program = Callable[[Builder, View, View], View]


def product(b: Builder, x: View, w: View) -> View:
    return b.contraction("r k, k n -> r n", x, w)


def clipped(b: Builder, x: View, w: View) -> View:
    return b.pointwise(MAXIMUM, product(b, x, w), 0)


def softmax(b: Builder, x: View, w: View) -> View:
    weights = b.exp(product(b, x, w))
    return b.divide(weights, b.sum(weights, [-1], keepdim=True))


def residual(b: Builder, x: View, w: View) -> View:
    return b.combination((1, clipped(b, x, w)), (-2, x), (1, b.mul(x, x)))


PROGRAMS = (product, clipped, softmax, residual)


def pieces(program: Program) -> tuple[Builder, list[View], View, dict[str, torch.Tensor]]:
    """The program on every piece of ``x``, and on all of it."""
    b = Builder(TermPool())
    x, w = b.pool.leaf("x", (PIECES * ROWS, WIDTH)), b.pool.leaf("w", (WIDTH, WIDTH))
    parts = [program(b, b.narrow(x, 0, ROWS * i, ROWS), w) for i in range(PIECES)]
    values = {
        "x": torch.randn(PIECES * ROWS, WIDTH, dtype=torch.float64),
        "w": torch.randn(WIDTH, WIDTH, dtype=torch.float64),
    }
    return b, parts, program(b, x, w), values


@pytest.mark.parametrize("program", PROGRAMS)
def test_values(program: Program) -> None:
    b, parts, _, values = pieces(program)
    stacked = stack_similar(b.pool, parts)
    assert stacked is not None
    evaluator = Evaluator(values)
    expected = torch.stack([evaluator.view(part) for part in parts])
    torch.testing.assert_close(evaluator.view(stacked), expected)
    validate_pool(b.pool)


@pytest.mark.parametrize("program", PROGRAMS)
def test_pieces_put_together_are_the_whole(program: Program) -> None:
    b, parts, whole, _ = pieces(program)
    assert join_similar(b.pool, parts, 0) == whole
    b.pool.combination_rules.append(sum_similar)
    by_rows = whole.axes
    assert combine(b.pool, [sum_over(b.pool, part, [0]) for part in parts]) == sum_over(b.pool, whole, [0])
    assert by_rows == whole.axes


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_missing_piece_is_not_supplied(program: Program) -> None:
    b, parts, whole, values = pieces(program)
    b.pool.combination_rules.append(sum_similar)
    total = combine(b.pool, [sum_over(b.pool, part, [0]) for part in parts[:3]])
    assert total != sum_over(b.pool, whole, [0])
    evaluator = Evaluator(values)
    expected = sum(evaluator.view(part).sum(0) for part in parts[:3])
    torch.testing.assert_close(evaluator.view(total), expected)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 2, 1, 3), (0, 0, 2, 3), (3, 2, 1, 0)])
def test_order_counts(program: Program, order: tuple[int, ...]) -> None:
    b, parts, _, _ = pieces(program)
    assert stack_similar(b.pool, [parts[i] for i in order]) is None


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (0, 2), (1, 3), (2, 3), (0, 1)])
def test_some_pieces_in_an_order_that_digits_spell(order: tuple[int, ...]) -> None:
    b, parts, _, values = pieces(residual)
    stacked = stack_similar(b.pool, [parts[i] for i in order])
    evaluator = Evaluator(values)
    if stacked is not None:
        torch.testing.assert_close(evaluator.view(stacked), torch.stack([evaluator.view(parts[i]) for i in order]))
    assert (stacked is None) == (order == (0, 2, 1, 3))


def test_pieces_of_two_inputs_go_together() -> None:
    b = Builder(TermPool())
    x, y = b.pool.leaf("x", (2, 3)), b.pool.leaf("y", (2, 3))
    rows = [[b.select(v, 0, i) for i in range(2)] for v in (x, y)]
    straight = [b.mul(rows[0][i], rows[1][i]) for i in range(2)]
    crossed = [b.mul(rows[0][i], rows[1][1 - i]) for i in range(2)]
    assert stack_similar(b.pool, straight) == b.mul(x, y)
    assert stack_similar(b.pool, crossed) is None
    assert stack_similar(b.pool, [rows[0][0], rows[1][1]]) is None
    assert stack_similar(b.pool, [rows[0][0], b.scale(rows[0][1], 2)]) is None


def test_terms_used_twice_are_looked_at_once() -> None:
    """A chain in which every term has the one before twice: as a tree it has 2 to the 200 nodes."""
    b = Builder(TermPool())
    parts: list[View] = []
    for name in ("x", "y"):
        value = b.pool.leaf(name, (ROWS,))
        for _ in range(200):
            value = b.pointwise(MAXIMUM, b.exp(value), value)
        parts.append(value)
    assert sum_similar(b.pool, parts, (ROWS,)) is None
    assert stack_similar(b.pool, parts) is None


def below(b: Builder, step: tuple[int, ...]) -> list[View]:
    """Of each piece where a whole number is at most another one and a number of the piece."""
    left, right = (b.pool.leaf(name, (len(step), ROWS), whole=True) for name in "mn")
    rows = [(b.select(left, 0, r), b.select(right, 0, r)) for r in range(len(step))]
    return [less_equal(b.pool, one, b.add(other, by)) for (one, other), by in zip(rows, step, strict=True)]


def read(b: Builder, shape: tuple[int, ...], *axes: Axis) -> list[View]:
    """One table of six or of two rows, read in several ways."""
    table = b.pool.leaf("t", (math.prod(digit[2] for digit in axes[0]),))
    return [View(ONE, table.term, shape, (axis,)) for axis in axes]


def functions(b: Builder, *names: str) -> list[View]:
    x = b.pool.leaf("x", (len(names), ROWS))
    return [b.pointwise(FUNCTIONS[name], b.select(x, 0, r)) for r, name in enumerate(names)]


def pieces_at(b: Builder, *numbers: int) -> list[View]:
    x = b.pool.leaf("x", (4, ROWS))
    return [b.exp(b.select(x, 0, number)) for number in numbers]


TOGETHER: dict[str, tuple[Callable[[Builder], list[View]], bool]] = {
    "comparisons with numbers that grow evenly": (lambda b: below(b, (0, 2, 4)), True),
    "comparisons with other numbers": (lambda b: below(b, (0, 1, 3)), False),
    "comparisons with the same number at the ends": (lambda b: below(b, (0, 2, 0)), False),
    "one way of reading": (lambda b: read(b, (6, 2), ((0, 1, 6),), ((0, 1, 6),)), True),
    "more digits": (lambda b: read(b, (6, 2), ((0, 1, 6),), ((0, 2, 3), (1, 1, 2))), False),
    "fewer digits": (lambda b: read(b, (6, 2), ((0, 2, 3), (1, 1, 2)), ((0, 1, 6),)), False),
    "a digit of one element more": (lambda b: read(b, (6, 1), ((0, 1, 6),), ((0, 1, 6), (1, 1, 1))), False),
    "another dimension": (lambda b: read(b, (2, 2), ((0, 1, 2),), ((1, 1, 2),)), False),
    "another dimension once": (lambda b: read(b, (2, 2), ((0, 1, 2),), ((0, 1, 2),), ((1, 1, 2),)), False),
    "another digit": (lambda b: read(b, (4,), ((0, 1, 2),), ((0, 2, 2),)), False),
    "another digit once": (lambda b: read(b, (4,), ((0, 1, 2),), ((0, 1, 2),), ((0, 2, 2),)), False),
    "another size": (lambda b: read(b, (6,), ((0, 1, 2), (CONSTANT, 1, 3)), ((0, 1, 3), (CONSTANT, 1, 2))), False),
    "one function": (lambda b: functions(b, "tanh", "tanh", "tanh"), True),
    "another function": (lambda b: functions(b, "tanh", "sigmoid"), False),
    "another function once": (lambda b: functions(b, "tanh", "tanh", "sigmoid"), False),
    "a piece again": (lambda b: pieces_at(b, 0, 1, 0), False),
    "pieces again": (lambda b: pieces_at(b, 0, 1, 0, 1), True),
    "each piece twice": (lambda b: pieces_at(b, 0, 0, 1, 1), True),
    "a part that no digit spells": (lambda b: pieces_at(b, 0, 1, 2), False),
    "the first half": (lambda b: pieces_at(b, 0, 1), True),
    "a piece left out": (lambda b: pieces_at(b, 0, 1, 3), False),
    "other shapes": (lambda b: [b.full(2, (2,)), b.full(2, (3,))], False),
    "other factors": (lambda b: [b.full(2, (2,)), b.full(3, (2,))], False),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_what_goes_together(name: str) -> None:
    make, together = TOGETHER[name]
    b = Builder(TermPool())
    views = make(b)
    stacked = stack_similar(b.pool, views)
    if stacked is not None:
        generator = torch.Generator().manual_seed(0)
        leaves = [term for term in b.pool.sources if term.operation in (LEAF, INTEGER_LEAF)]
        evaluator = Evaluator({
            str(term.attributes[0]): torch.randint(-2, 3, tuple(map(int, term.shape)), generator=generator).double()
            for term in leaves
        })  # fmt: skip
        torch.testing.assert_close(evaluator.view(stacked), torch.stack([evaluator.view(view) for view in views]))
    assert (stacked is not None) is together
