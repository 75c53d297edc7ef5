"""What must hold of slices of sums under comparisons, and of zeros around them, as checks that mutants must fail."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import sympy
import torch

from tests.ir.evaluate import Evaluator
from tests.lemmas.conditions import Check
from verifycompile.ir.indicator import equal, less_equal
from verifycompile.ir.relabel import narrow, reshape
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import FUNCTIONS
from verifycompile.rewrites.parts.bounded_sums import narrowed_sum, padded_sum

ROWS, WORDS = 6, 5
SIZES = {"x": (WORDS, 2), "t": (ROWS,), "u": (WORDS,), "wide": (ROWS, WORDS)}
_VALUES = {
    name: torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))
    for name, shape in SIZES.items()
} | {"n": torch.tensor([1.0, 0.0, 4.0, 2.0, 2.0]), "m": torch.tensor([1.0, 3.0, 0.0, 4.0, 4.0, 2.0])}
S = sympy.Symbol("s", integer=True, positive=True)
_Made = Callable[[Builder], View]


def checks() -> Iterator[tuple[str, Check]]:
    """All of them, by name."""
    for number, (made, dim) in enumerate(_moved()):
        for start, length in ((0, 3), (2, 3), (5, 1), (1, 5)):
            yield f"narrowed {number} {start} {length}", functools.partial(_is_narrowed, made, dim, start, length)
    for number, (made, before, after, applies) in enumerate(_padded()):
        yield f"padded {number}", functools.partial(_is_padded, made, before, after, applies)
    for number, made in enumerate(_others()):
        yield f"others {number}", functools.partial(_stays, made)
    yield "symbolic", _is_of_known_size


def _table(b: Builder) -> View:
    """``[row, word, column]``"""
    return b.expand(b.unsqueeze(b.pool.leaf("x", SIZES["x"]), 0), (ROWS, WORDS, 2))


def _rows(b: Builder, size: int = ROWS, step: int = 1, start: int = 0) -> View:
    return b.expand(b.unsqueeze(b.add(b.scale(b.iota(size), step), start), 1), (size, WORDS))


def _words(b: Builder, step: int = 1, start: int = 0, rows: int = ROWS) -> View:
    return b.expand(b.unsqueeze(b.add(b.scale(b.iota(WORDS), step), start), 0), (rows, WORDS))


def _index(b: Builder) -> View:
    """A number for each word."""
    return b.expand(b.unsqueeze(b.pool.leaf("n", (WORDS,), whole=True), 0), (ROWS, WORDS))


def _real_index(b: Builder) -> View:
    """One that is not whole by construction."""
    return b.expand(b.unsqueeze(b.pool.leaf("n", (WORDS,)), 0), (ROWS, WORDS))


def _last_rows(b: Builder) -> View:
    """The numbers of twelve rows, from the seventh on."""
    return b.expand(b.unsqueeze(narrow(b.iota(2 * ROWS), 0, ROWS, ROWS), 1), (ROWS, WORDS))


def _summed(b: Builder, *masks: View) -> View:
    """The sum over words of the table where all masks hold."""
    text = ", ".join(["r w"] * len(masks))
    return b.contraction(f"{text}, r w d -> r d", *masks, _table(b))


def _moved() -> Iterator[tuple[_Made, int]]:
    """Sums that are moved, with the dimension along which they are."""
    yield lambda b: _summed(b, less_equal(b.pool, _words(b), _rows(b))), 0
    yield lambda b: b.scale(_summed(b, less_equal(b.pool, _words(b), _rows(b))), 3), 0
    yield lambda b: _summed(b, less_equal(b.pool, _rows(b, start=-2), _words(b))), 0
    yield lambda b: _summed(b, less_equal(b.pool, _words(b), _rows(b, step=2, start=-1))), 0
    yield lambda b: _summed(b, equal(b.pool, _index(b), _rows(b))), 0
    yield lambda b: _summed(b, equal(b.pool, _rows(b), _index(b))), 0
    yield lambda b: _summed(b, less_equal(b.pool, _index(b), _rows(b))), 0
    yield lambda b: _summed(b, less_equal(b.pool, b.add(_index(b), _words(b)), _rows(b))), 0
    yield lambda b: _summed(b, equal(b.pool, _index(b), _rows(b)), less_equal(b.pool, _words(b), _rows(b))), 0
    yield lambda b: _summed(b, less_equal(b.pool, _words(b), _index(b)), less_equal(b.pool, _words(b), _rows(b))), 0
    yield lambda b: _summed(b, less_equal(b.pool, b.add(_index(b), _rows(b)), _words(b, step=2))), 0
    yield lambda b: _summed(b, equal(b.pool, _real_index(b), _rows(b))), 0
    yield lambda b: _summed(b, equal(b.pool, _index(b), _last_rows(b))), 0
    yield lambda b: b.transpose(_summed(b, less_equal(b.pool, _words(b), _rows(b))), 0, 1), 1
    yield _in_groups, 0
    yield _of_one_row, 0


def _in_groups(b: Builder) -> View:
    """Rows that stand in two dimensions: the place is spelled by a digit of each."""
    masks = less_equal(b.pool, _words(b, rows=2 * ROWS), _rows(b, 2 * ROWS))
    total = b.contraction("r w, w d -> r d", masks, b.pool.leaf("x", SIZES["x"]))
    return b.transpose(reshape(total, (2, ROWS, 2)), 0, 1)


def _of_one_row(b: Builder) -> View:
    """What does not depend on the row beside what does."""
    table = b.expand(b.unsqueeze(b.pool.leaf("u", (WORDS,)), 0), (ROWS, WORDS))
    return b.contraction(
        "r w, r w, r w -> r", less_equal(b.pool, _words(b), _rows(b)), table, less_equal(b.pool, _words(b), _index(b))
    )


def _value(view: View) -> torch.Tensor:
    return Evaluator(_VALUES).view(view)


def _is_narrowed(made: _Made, dim: int, start: int, length: int) -> None:
    b = Builder(TermPool())
    whole = made(b)
    count = len(b.pool.lemma_trace)
    found = narrowed_sum(b.pool, whole, dim, start, length)
    assert found is not None
    assert found.shape[dim] == length
    assert ("slice-of-operands", repr(whole.term)) in b.pool.lemma_trace[count:]
    torch.testing.assert_close(_value(found), _value(whole).narrow(dim, start, length))


def _padded() -> Iterator[tuple[_Made, int, int, bool]]:
    """Sums with so many zeros before and after them, and whether comparisons hold nowhere at these places."""
    running: _Made = lambda b: _summed(b, less_equal(b.pool, _words(b), _rows(b)))  # noqa: E731 - a name for one sum
    rest: _Made = lambda b: _summed(b, less_equal(b.pool, _rows(b), _words(b)))  # noqa: E731 - a name for one sum
    yield from ((running, before, after, after == 0) for before, after in ((3, 0), (1, 0), (0, 2), (1, 2)))
    yield from ((rest, before, after, before == 0) for before, after in ((3, 0), (1, 0), (0, 2), (1, 2)))
    looked_up: _Made = lambda b: _summed(b, equal(b.pool, _words(b), _rows(b)))  # noqa: E731 - a name for one sum
    yield from ((looked_up, before, after, True) for before, after in ((3, 0), (0, 2), (1, 2), (0, 0)))
    turned: _Made = lambda b: _summed(b, equal(b.pool, _rows(b), _words(b)))  # noqa: E731 - a name for one sum
    yield turned, 2, 2, True
    yield lambda b: _summed(b, equal(b.pool, _index(b), _rows(b))), 0, 2, False
    yield lambda b: _summed(b, equal(b.pool, _index(b), _rows(b)), less_equal(b.pool, _words(b), _rows(b))), 2, 0, True
    yield lambda b: _summed(b, equal(b.pool, _index(b), _rows(b)), less_equal(b.pool, _words(b), _rows(b))), 0, 2, False
    both: _Made = lambda b: _summed(b, equal(b.pool, _words(b), _rows(b)), less_equal(b.pool, _words(b), _index(b)))  # noqa: E731
    yield both, 2, 1, True
    # What is the same at all places is not zero around them.
    yield lambda b: _summed(b, less_equal(b.pool, _words(b), _index(b))), 1, 0, False
    yield lambda b: _summed(b, less_equal(b.pool, _words(b), _index(b))), 0, 1, False


def _is_padded(made: _Made, before: int, after: int, applies: bool) -> None:
    b = Builder(TermPool())
    whole = made(b)
    total = before + ROWS + after
    found = padded_sum(b.pool, whole, 0, before, total)
    assert (found is not None) is applies
    if found is not None:
        assert found.shape[0] == total
        wanted = torch.nn.functional.pad(_value(whole), (0, 0, before, after))
        torch.testing.assert_close(_value(found), wanted)


def _others() -> Iterator[_Made]:
    """What stays as it is."""
    yield lambda b: b.pool.leaf("t", (ROWS,))
    yield lambda b: b.contraction("r w, w d -> r d", b.pool.leaf("wide", (ROWS, WORDS)), b.pool.leaf("x", (WORDS, 2)))
    yield lambda b: b.contraction(
        "r w, r w, w d -> r d",
        less_equal(b.pool, _words(b), _rows(b)),
        b.pool.leaf("wide", (ROWS, WORDS)),
        b.pool.leaf("x", (WORDS, 2)),
    )
    yield lambda b: b.add(less_equal(b.pool, _words(b), _rows(b)), less_equal(b.pool, _rows(b), _words(b)))
    # Of places that are counted otherwise than by a whole dimension, or are no numbers of places.
    yield lambda b: _summed(b, less_equal(b.pool, _words(b), _halves(b)))
    yield lambda b: _summed(b, equal(b.pool, _words(b), _halves(b)))
    yield lambda b: _summed(b, less_equal(b.pool, _words(b), b.add(_halves(b), _rows(b))))
    yield lambda b: _summed(b, less_equal(b.pool, _words(b), _of_each_row(b)))
    yield lambda b: _summed(b, less_equal(b.pool, _of_each_row(b), _words(b)))
    yield lambda b: _summed(b, less_equal(b.pool, b.add(_of_each_row(b), _rows(b)), _words(b)))
    yield lambda b: _summed(b, less_equal(b.pool, _words(b), _in_thirds(b)))
    yield lambda b: _summed(b, equal(b.pool, _of_each_row(b), b.add(_words(b), _rows(b))))
    yield lambda b: b.pointwise(FUNCTIONS["tanh"], _summed(b, less_equal(b.pool, _words(b), _rows(b))))


def _halves(b: Builder) -> View:
    """The number of the row's half."""
    return b.expand(b.unsqueeze(b.reshape(b.expand(b.unsqueeze(b.iota(2), 1), (2, 3)), (ROWS,)), 1), (ROWS, WORDS))


def _in_thirds(b: Builder) -> View:
    """The place of the row in its half."""
    return b.expand(b.unsqueeze(b.reshape(b.expand(b.iota(3), (2, 3)), (ROWS,)), 1), (ROWS, WORDS))


def _of_each_row(b: Builder) -> View:
    """A number that is read for each row."""
    return b.expand(b.unsqueeze(b.pool.leaf("m", (ROWS,), whole=True), 1), (ROWS, WORDS))


def _stays(made: _Made) -> None:
    b = Builder(TermPool())
    view = made(b)
    count = len(b.pool.lemma_trace)
    assert narrowed_sum(b.pool, view, 0, 1, 3) is None
    assert padded_sum(b.pool, view, 0, 1, ROWS + 1) is None
    assert len(b.pool.lemma_trace) == count


def _is_of_known_size() -> None:
    """Places are moved from a known place on, of a known size; how many of them there are may be symbolic."""
    b = Builder(TermPool())
    running = _summed(b, less_equal(b.pool, _words(b), _rows(b)))
    assert narrowed_sum(b.pool, running, 0, S, 3) is None
    some = narrowed_sum(b.pool, running, 0, 1, S)
    assert some is not None
    torch.testing.assert_close(Evaluator(_VALUES, {S: 3}).view(some), _value(running).narrow(0, 1, 3))
    looked_up = _summed(b, equal(b.pool, _words(b), _rows(b)))
    assert padded_sum(b.pool, looked_up, 0, S, 9) is None
    assert padded_sum(b.pool, looked_up, 0, 1, S) is None
    rows = b.expand(b.unsqueeze(b.iota(S), 1), (S, WORDS))
    words = b.expand(b.unsqueeze(b.iota(WORDS), 0), (S, WORDS))
    wide = b.contraction("r w, w d -> r d", less_equal(b.pool, words, rows), b.pool.leaf("x", SIZES["x"]))
    assert padded_sum(b.pool, wide, 0, 1, 9) is None
