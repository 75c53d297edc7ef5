"""What must hold of matrices of sliding windows and of counters on parts, as checks that their mutants must fail."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from fractions import Fraction

import sympy
import torch

from tests.ir.evaluate import Evaluator
from tests.ir.test_sliding import dense
from tests.lemmas.conditions import Check
from verifycompile.ir import relabel
from verifycompile.ir.algebra import CONTRACT
from verifycompile.ir.build import Signature, apply
from verifycompile.ir.exponential import MAXIMUM
from verifycompile.ir.indicator import equal, less_equal
from verifycompile.ir.term import TermPool, View, identity_view
from verifycompile.ir.window import range_view
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operations import PAD, SLIDING_WINDOW
from verifycompile.rewrites.operators.constant_matrix import window
from verifycompile.rewrites.operators.elementwise import FUNCTIONS
from verifycompile.rewrites.parts.sliding import (
    masked_dim,
    read_only,
    read_together,
    span_of,
    stretched,
    without_implied_range,
)
from verifycompile.rewrites.parts.sliding_matrix import LINE, REACH, WINDOWS, Matrix, axis_along, matrix_of
from verifycompile.rewrites.parts.stretched_counters import is_of_counters, joined_counters, stretched_counters

SIZE = sympy.Symbol("s", integer=True, positive=True)
Span = tuple[int, int]
"""First and last position."""


def matrix_checks() -> Iterator[tuple[str, Check]]:
    """Of the numbers of matrices."""
    for seed in range(60):
        yield f"hits {seed}", functools.partial(_hits_no_more, seed)
    yield "what is read of a matrix", _is_read


def checks() -> Iterator[tuple[str, Check]]:
    """Of sums of what windows read."""
    for seed in range(24):
        yield f"stretched {seed}", functools.partial(_is_stretched, seed)
        yield f"ranges {seed}", functools.partial(_implies_ranges, seed)
    for seed in range(120):
        yield f"read only {seed}", functools.partial(_reads_only, seed)
        yield f"read together {seed}", functools.partial(_reads_together, seed)
    yield "masks", _masks_one_dimension
    yield "another dimension", _reads_another_dimension
    yield "no matrix", _is_no_matrix
    yield "more than one sum", _sums_more


def _matrix(b: Builder, of: Matrix) -> View:
    return window(b, of.stride, of.padding, of.dilation, of.windows, of.reach, of.line)


def _drawn(draw: random.Random) -> Matrix:
    """One with more than one window, place in it and position."""
    return Matrix(draw.randint(1, 2), draw.randint(-1, 3), draw.randint(1, 2), *(draw.randint(2, n) for n in (5, 4, 8)))


def _value(view: View, leaves: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
    return Evaluator(leaves or {}).view(view)


# -- the numbers


def _hits_no_more(seed: int) -> None:
    """The range that a matrix hits is all of it where windows lie next to each other, and holds all in any case."""
    draw = random.Random(seed)
    matrix = _drawn(draw)
    value = dense(matrix).any(1)
    for axis, other, part in ((WINDOWS, LINE, value), (LINE, WINDOWS, value.t())):
        first = draw.randrange(part.shape[1])
        last = draw.randint(first, part.shape[1] - 1)
        for span in (None, (first, last)):
            held = part if span is None else part[:, first : last + 1]
            used = held.any(1).nonzero().flatten().tolist()
            low, high = matrix.hits(axis, span)
            assert all(low <= position <= high for position in used)
            assert low >= 0
            assert high < part.shape[0]
            if matrix.stride == matrix.dilation == 1 and used:
                assert (low, high) == (used[0], used[-1])
            assert other != axis


def _is_read() -> None:
    b = Builder(TermPool())
    of = Matrix(2, 1, 1, 4, 3, 6)
    view = _matrix(b, of)
    assert matrix_of(view) == of
    assert matrix_of(view.scaled(Fraction(2))) is None
    assert matrix_of(b.pool.leaf("x", (4, 3, 6))) is None
    assert [axis_along(view, dim) for dim in range(3)] == [WINDOWS, REACH, LINE]
    assert [axis_along(b.transpose(view, 0, 2), dim) for dim in range(3)] == [LINE, REACH, WINDOWS]
    assert matrix_of(b.along(PAD, (1, 1), b.pool.leaf("x", (4, 3, 6)), 0, 8)) is None
    symbolic = b.pool.intern(SLIDING_WINDOW, (1, 0, 1), (), (SIZE, 2, 4), 3, 0, (), (0, 1, 2))
    assert matrix_of(identity_view(symbolic)) is None
    half = relabel.narrow(view, 2, 3, 3)
    assert axis_along(half, 2) is None
    assert axis_along(relabel.insert_dim(view, 0, 4), 0) is None
    square = _matrix(b, Matrix(1, 0, 1, 4, 2, 4))
    assert axis_along(relabel.substitute(square, {0: [(0, 1, 4)], 1: [(1, 1, 2)], 2: [(0, 1, 4)]}, (4, 2)), 0) is None
    mixed = relabel.substitute(
        _matrix(b, Matrix(1, 0, 1, 4, 2, 2)), {0: [(0, 1, 2), (1, 1, 2)], 1: [(2, 1, 2)], 2: [(1, 1, 2)]}, (2, 2, 2)
    )
    assert axis_along(mixed, 1) is None
    split = relabel.split_dim(view, 2, 2, 3)
    assert axis_along(split, 2) is axis_along(split, 3) is None


# -- matrices


def _is_stretched(seed: int) -> None:
    draw = random.Random(seed)
    of = _drawn(draw)
    b = Builder(TermPool())
    view = _matrix(b, of)
    for dim, size in enumerate((of.windows, of.reach, of.line)):
        start = draw.randrange(size)
        for length in (1, draw.randint(1, size - start)):
            found = stretched(b.pool, view, dim, start, length)
            assert found is not None
            assert ("sliding-windows-of-a-part", "") in b.pool.lemma_trace
            torch.testing.assert_close(_value(found), dense(of).double().narrow(dim, start, length))
            assert found.axes[dim] == (((dim, 1, length),) if length > 1 else ())


def _is_no_matrix() -> None:
    b = Builder(TermPool())
    view = _matrix(b, Matrix(1, 1, 1, 4, 2, 4))
    for other in (b.pool.leaf("x", (4, 2, 4)), view.scaled(Fraction(2)), relabel.insert_dim(view, 0, 3)):
        assert stretched(b.pool, other, 0, 0, 2) is None
    assert b.pool.lemma_trace == []


# -- masks on ranges


def _masks_one_dimension() -> None:
    b = Builder(TermPool())
    mask = range_view(b.pool, 1, (3, 6), (2, 5))
    assert masked_dim(mask) == 1
    assert span_of(mask) == (2, 4)
    assert masked_dim(mask.scaled(Fraction(2))) == -1
    assert masked_dim(b.pool.leaf("x", (3, 6))) == -1
    assert masked_dim(relabel.select(relabel.select(mask, 1, 3), 0, 0)) == -1
    assert masked_dim(relabel.narrow(mask, 1, 3, 3)) == -1
    assert masked_dim(relabel.split_dim(mask, 1, 2, 3)) == -1
    assert masked_dim(View(mask.coefficient, mask.term, (12,), (((0, 1, 6),),))) == -1


def _implies_ranges(seed: int) -> None:
    """Masks on both axes: what is left is the same product, and a mask that says nothing new goes."""
    draw = random.Random(seed)
    of = _drawn(draw)
    b = Builder(TermPool())
    shape = (of.windows, of.reach, of.line)
    matrix = _matrix(b, of)
    for spans in itertools.product(*(_spans(draw, size) for size in (of.windows, of.line))):
        masks = [range_view(b.pool, dim, shape, (s[0], s[1] + 1)) for dim, s in zip((0, 2), spans, strict=True) if s]
        factors = [matrix, *masks]
        found = without_implied_range(factors, range(3))
        hits = _ends(of, LINE, spans[0]), _ends(of, WINDOWS, spans[1])
        implied = [s is not None and s[0] <= h[0] and h[1] <= s[1] for s, h in zip(reversed(spans), hits, strict=True)]
        assert (found is not None) is any(implied)
        if found is not None:
            assert len(found) == len(factors) - 1
            before, after = (functools.reduce(torch.mul, map(_value, views)) for views in (factors, found))
            torch.testing.assert_close(before, after)
        assert without_implied_range(factors, range(0)) is None
        assert without_implied_range(masks, range(3)) is None
        assert without_implied_range([matrix.scaled(Fraction(2)), *masks], range(3)) is None


def _ends(of: Matrix, axis: int, span: Span | None) -> Span:
    return of.hits(axis, span)


def _spans(draw: random.Random, size: int) -> list[Span | None]:
    first = draw.randrange(size)
    return [None, (0, size - 1), (first, draw.randint(first, size - 1))]


# -- sums over windows, and over positions


class _Sum:
    """A sum over the line (or over the windows) of a matrix and a table, a range of it where there is a span."""

    def __init__(self, b: Builder, of: Matrix, axis: int, span: Span | None, name: str = "x") -> None:
        self.of, self.axis, self.other = of, axis, LINE if axis == WINDOWS else WINDOWS
        size = (of.windows, of.reach, of.line)[self.other]
        self.span = span or (0, size - 1)
        self.masked = span is not None
        factors = [_matrix(b, of), b.pool.leaf(name, (size,))]
        bound, left = ("x", "o k") if axis == WINDOWS else ("o", "x k")
        if span is not None:
            factors.append(range_view(b.pool, 0, (size,), (span[0], span[1] + 1)))
        texts = ", ".join(["o k x", bound, bound][: len(factors)])
        self.view = b.scale(b.contraction(f"{texts} -> {left}", *factors), 3)
        self.size = (of.windows, of.reach, of.line)[axis]

    def part(self, draw: random.Random) -> tuple[int, int]:
        start = draw.randrange(self.size)
        return start, draw.randint(1, self.size - start)

    def read(self, start: int, length: int) -> Span:
        low, high = self.of.hits(self.other, (start, start + length - 1))
        return max(low, self.span[0]), min(high, self.span[1])


def _leaves(of: Matrix, axis: int) -> dict[str, torch.Tensor]:
    size = of.line if axis == WINDOWS else of.windows
    generator = torch.Generator().manual_seed(size)
    return {name: torch.randn(size, dtype=torch.float64, generator=generator) for name in ("x", "y")}


def _reads_only(seed: int) -> None:
    draw = random.Random(seed)
    of, axis = _drawn(draw), draw.choice((WINDOWS, LINE))
    b = Builder(TermPool())
    size = of.line if axis == WINDOWS else of.windows
    span = draw.choice(_spans(draw, size)[::2])
    total = _Sum(b, of, axis, span)
    start, length = total.part(draw)
    found = read_only(b.pool, total.view, 0, start, length)
    read, reach = total.read(start, length), of.hits(total.other, (start, start + length - 1))
    shorter = total.masked and (read[0] > read[1] or read == reach or read != total.span)
    assert (found is not None) is shorter
    if found is None:
        return
    leaves = _leaves(of, axis)
    assert found.shape == total.view.shape
    torch.testing.assert_close(*(_value(v, leaves).narrow(0, start, length) for v in (found, total.view)))
    if read[0] > read[1]:
        assert found.is_zero
    elif read == reach:
        assert found == _Sum(b, of, axis, None).view
    else:
        assert found == _Sum(b, of, axis, read).view


def _reads_together(seed: int) -> None:
    draw = random.Random(seed)
    of, axis = _drawn(draw), draw.choice((WINDOWS, LINE))
    b = Builder(TermPool())
    size = of.line if axis == WINDOWS else of.windows
    names = [draw.choice("xxxy") for _ in range(2)]
    sums = [_Sum(b, of, axis, draw.choice(_spans(draw, size)), name) for name in names]
    parts = [total.part(draw) for total in sums]
    found = read_together(b.pool, *((total.view, *part) for total, part in zip(sums, parts, strict=True)), 0)
    reads = [total.read(*part) for total, part in zip(sums, parts, strict=True)]
    reaches = [
        of.hits(total.other, (first, first + length - 1)) for total, (first, length) in zip(sums, parts, strict=True)
    ]
    span = min(read[0] for read in reads), max(read[1] for read in reads)
    clipped = [(max(span[0], low), min(span[1], high)) for low, high in reaches]
    assert (found is not None) is (clipped == reads and names[0] == names[1])
    if found is not None:
        leaves = _leaves(of, axis)
        for total, part in zip(sums, parts, strict=True):
            torch.testing.assert_close(*(_value(v, leaves).narrow(0, *part) for v in (found, total.view)))


def _reads_another_dimension() -> None:
    """A sum is read through a matrix only along what one axis of the matrix is, and where the other one is summed."""
    b = Builder(TermPool())
    of = Matrix(1, 1, 1, 4, 3, 4)
    table, mask = b.pool.leaf("x", (4, 5)), range_view(b.pool, 0, (4,), (2, 4))
    matrix = _matrix(b, of)
    total = b.contraction("o k x, x d, x -> o k d", matrix, table, mask)
    assert read_only(b.pool, total, 0, 0, 1) is not None
    assert read_only(b.pool, total, 1, 0, 1) is None
    assert read_only(b.pool, total, 2, 0, 1) is None
    on_windows = b.contraction("o k x, x d, o d, o -> k d", matrix, table, table, mask)
    for view in (b.contraction("o k x, x d, x, o d -> k d", matrix, table, mask, table), on_windows):
        assert read_only(b.pool, view, 0, 0, 1) is None
    rows = b.contraction("o k x, x d, x -> o k x d", matrix, table, mask)
    assert read_only(b.pool, rows, 0, 0, 1) is None
    numbers = b.contraction("o k x, x d, x -> o k d", b.pool.leaf("numbers", (4, 3, 4)), table, mask)
    assert read_only(b.pool, numbers, 0, 0, 1) is None
    elsewhere = _sum_as_it_is(b, "o k x, x d, o", "o k d", matrix, table, mask)
    assert read_only(b.pool, elsewhere, 0, 0, 1) is None
    wide = b.expand(mask, (4, 3, 4))
    assert read_only(b.pool, b.mul(matrix, wide), 0, 0, 1) is None
    labels = (0, 1, 2)
    larger = apply(b.pool, MAXIMUM, (), (matrix, wide), Signature((labels, labels), (0, 1), frozenset({2})))
    assert read_only(b.pool, larger, 0, 0, 1) is None
    assert read_only(b.pool, mask, 0, 0, 1) is None


def _sum_as_it_is(b: Builder, text: str, left: str, *factors: View) -> View:
    """A sum of products that no other sum is taken out of."""
    inputs = tuple(tuple(part.split()) for part in text.split(", "))
    summed = {label for part in inputs for label in part} - set(left.split())
    return apply(b.pool, CONTRACT, (), factors, Signature(inputs, tuple(left.split()), frozenset(summed)))


def _sums_more() -> None:
    """A sum over another dimension as well, which comes first."""
    b = Builder(TermPool())
    shapes = {"a": (4, 3), "bb": (4, 4), "ccc": (4, 4)}
    generator = torch.Generator().manual_seed(0)
    leaves = {name: torch.randn(shape, dtype=torch.float64, generator=generator) for name, shape in shapes.items()}
    first, second, third = (b.pool.leaf(name, shape) for name, shape in shapes.items())
    matrix, mask = _matrix(b, Matrix(1, 1, 1, 4, 3, 4)), range_view(b.pool, 0, (4,), (1, 3))
    total = _sum_as_it_is(b, "d k, x d, o k x, o d, x", "o k", first, second, matrix, third, mask)
    found = read_only(b.pool, total, 0, 0, 1)
    assert found is not None
    torch.testing.assert_close(*(_value(v, leaves).narrow(0, 0, 1) for v in (found, total)))


# -- counters


def counter_checks() -> Iterator[tuple[str, Check]]:
    """Of values that are read through counters."""
    for number, made in enumerate(_of_counters()):
        yield f"counted {number}", functools.partial(_goes_on, made)
    for number, other in enumerate(_of_others()):
        yield f"not counted {number}", functools.partial(_does_not_go_on, other)
    yield "pieces that go on", _are_joined
    yield "what is the same everywhere", _is_resized


_OfRows = Callable[[Builder, View], View]
"""A value of two columns by a counter of its rows, which is a view of as many rows and columns."""
COLUMNS = 2


def _counter(b: Builder, size: int, start: int = 0) -> View:
    return b.expand(b.unsqueeze(b.iota(size, start), 1), (size, COLUMNS))


def _of_counters() -> Iterator[_OfRows]:
    x: _OfRows = lambda b, n: b.expand(b.unsqueeze(b.pool.leaf("x", (COLUMNS,)), 0), n.shape)  # noqa: E731 - a name for one view
    yield lambda b, n: n
    yield lambda b, n: b.scale(n, 3)
    yield lambda b, n: b.add(b.scale(n, 2), x(b, n))
    yield lambda b, n: b.pointwise(FUNCTIONS["cos"], b.mul(n, x(b, n)))
    yield lambda b, n: b.scale(b.pointwise(FUNCTIONS["sin"], n), 5)
    yield lambda b, n: b.exp(b.scale(n, -1))
    yield lambda b, n: b.mul(b.exp(b.scale(n, -1)), x(b, n))
    yield lambda b, n: less_equal(b.pool, n, b.full(3, n.shape))
    yield lambda b, n: b.negate(equal(b.pool, n, b.full(3, n.shape)))
    yield lambda b, n: equal(b.pool, n, b.pool.leaf("t", (1, COLUMNS), whole=True))
    yield lambda b, n: _nested(b, n, 7)


def _of_others() -> Iterator[_OfRows]:
    yield lambda b, n: b.pool.leaf("z", (6, COLUMNS))
    yield lambda b, n: b.add(b.pool.leaf("z", (6, COLUMNS)), n)
    yield lambda b, n: b.log(b.add(n, 1))
    yield lambda b, n: b.expand(b.reshape(b.expand(b.unsqueeze(b.iota(3), 1), (3, 2)), (6, 1)), (6, COLUMNS))
    yield lambda b, n: b.expand(b.reshape(b.expand(b.iota(3), (2, 3)), (6, 1)), (6, COLUMNS))
    yield lambda b, n: b.sum(b.pointwise(FUNCTIONS["cos"], b.mul(n, b.pool.leaf("y", (1, COLUMNS)))), [1], keepdim=True)
    yield lambda b, n: _nested(b, n, 9)
    yield lambda b, n: b.full(2, (6, COLUMNS))


def _nested(b: Builder, view: View, depth: int) -> View:
    for _ in range(depth):
        view = b.pointwise(FUNCTIONS["sin"], view)
    return view


def _goes_on(made: _OfRows) -> None:
    b = Builder(TermPool())
    view = made(b, _counter(b, 6))
    assert is_of_counters(view, 0)
    leaves = {"x": torch.tensor([0.5, -2.0]), "t": torch.tensor([[2.0, 9.0]])}
    for start, length in ((-2, 4), (0, 9), (3, 1), (2, 3)):
        found = stretched_counters(b.pool, view, 0, start, length)
        wanted = made(b, _counter(b, length, start))
        assert found == wanted
        torch.testing.assert_close(_value(found, leaves), _value(wanted, leaves))
    joined = joined_counters(b.pool, view, made(b, _counter(b, 3, 6)), 0, (6, 3))
    assert joined == made(b, _counter(b, 9))
    assert ("counters-go-on", "") in b.pool.lemma_trace


def _does_not_go_on(made: _OfRows) -> None:
    b = Builder(TermPool())
    view = made(b, _counter(b, 6))
    assert not is_of_counters(view, 0)
    assert joined_counters(b.pool, view, view, 0, (6, 6)) is None


def _are_joined() -> None:
    b = Builder(TermPool())
    first = _counter(b, 6)
    for start in (0, 5, 7):
        assert joined_counters(b.pool, first, _counter(b, 3, start), 0, (6, 3)) is None
    assert joined_counters(b.pool, first, _counter(b, 3, 6), 0, (SIZE, 3)) is None
    assert joined_counters(b.pool, first, _counter(b, 3, 6), 0, (6, SIZE)) is None
    assert b.pool.lemma_trace == []


def _is_resized() -> None:
    b = Builder(TermPool())
    assert stretched_counters(b.pool, b.full(2, (6, COLUMNS)), 0, 1, 3) == b.full(2, (3, COLUMNS))
