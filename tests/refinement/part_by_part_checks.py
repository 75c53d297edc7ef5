"""What must hold of values that are compared part by part, as checks that the mutants of these functions must fail."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from unittest import mock

import pytest
import sympy
import torch

from tests.ir.evaluate import Evaluator
from tests.lemmas.conditions import Check, of_tests
from tests.refinement import test_part_by_part
from verifycompile.ir.relabel import UnalignedError, narrow
from verifycompile.ir.term import View
from verifycompile.refinement import part_by_part
from verifycompile.refinement.check import new_pool
from verifycompile.refinement.part_by_part import _is_defined, _may_vanish, _part, _Places, same_part_by_part
from verifycompile.rewrites.builder import Builder

_SIZE, _BLOCK, _WIDTH = 6, 2, 3
_COUNT = _SIZE // _BLOCK


class Values:
    """Weights ``p`` of keys by queries, values ``v`` of keys, and what a query sees of the keys up to its own."""

    def __init__(self) -> None:
        self.b = b = Builder(new_pool())
        self.p, self.v = b.pool.leaf("p", (_SIZE, _SIZE)), b.pool.leaf("v", (_SIZE, _WIDTH))
        self.mask = b.less_equal(b.unsqueeze(b.iota(_SIZE), 0), b.unsqueeze(b.iota(_SIZE), 1))
        self.seen = b.contraction("i j, i j, j d -> i d", self.mask, self.p, self.v)

    def block(self, queries: int, keys: int, shift: int | None = None) -> View:
        """What the queries of a block see of the keys of another: of its own those up to each, ``shift`` further."""
        b = self.b
        weights = narrow(narrow(self.p, 0, _BLOCK * queries, _BLOCK), 1, _BLOCK * keys, _BLOCK)
        values = narrow(self.v, 0, _BLOCK * keys, _BLOCK)
        if shift is None:
            return b.contraction("i j, j d -> i d", weights, values)
        mask = b.less_equal(b.unsqueeze(b.iota(_BLOCK), 0), b.unsqueeze(b.iota(_BLOCK, shift), 1))
        return b.contraction("i j, i j, j d -> i d", mask, weights, values)

    def ring(self, shift: int = 0, left_out: tuple[int, int] | None = None) -> View:
        """Blocks of queries one after the other, each the sum of what it sees of blocks of keys."""
        parts: list[View] = []
        for queries in range(_COUNT):
            total = self.block(queries, queries, shift if queries == 1 else 0)
            for keys in range(queries):
                total = total if left_out == (queries, keys) else self.b.add(self.block(queries, keys), total)
            parts.append(total)
        return self.b.concatenate(parts, 0)


def narrow_pieces(values: Values, count: int) -> View:
    """The first blocks of queries."""
    return values.b.concatenate([narrow(values.ring(), 0, _BLOCK * k, _BLOCK) for k in range(count)], 0)


FUNCTIONS = (
    "same_part_by_part", "_part", "_same", "view", "_is_defined", "_may_be_undefined", "_may_vanish", "_is_masked",
)  # fmt: skip
"""Those that say which values are compared, and of which nothing is said. The others write values in another form."""


def checks() -> Iterator[tuple[str, Check]]:
    """All of them, by name."""
    yield from of_tests(test_part_by_part)
    rows: tuple[tuple[str, Callable[[Values], View], bool], ...] = (
        ("as it is", lambda v: v.ring(), True),
        ("one key more", lambda v: v.ring(1), False),
        ("one key less", lambda v: v.ring(-1), False),
        ("without a block", lambda v: v.ring(left_out=(2, 1)), False),
        ("no concatenation", lambda v: v.b.pool.leaf("x", (_SIZE, _WIDTH)), False),
        ("fewer rows", lambda v: narrow_pieces(v, 2), False),
        ("more rows", lambda v: v.b.concatenate([v.ring(), v.v], 0), False),
    )
    for name, found, expected in rows:
        yield name, functools.partial(_is_ring, found, expected)
    for check in (
        _of_what_is_defined,
        _of_undefined_values,
        _of_values_written_anew,
        _of_the_account,
        _of_a_part_of_pieces,
        _of_many_views,
    ):
        yield check.__name__.strip("_"), check


def _is_ring(found: Callable[[Values], View], expected: bool) -> None:
    values = Values()
    assert same_part_by_part(values.b.pool, values.seen, found(values)) is expected


def _of_the_account() -> None:
    """What was found equal is written down, with the sums that went by blocks; nothing else is."""
    values = Values()
    assert not same_part_by_part(values.b.pool, values.seen, values.ring(1))
    assert "part-by-part" not in dict(values.b.pool.lemma_trace)
    assert same_part_by_part(values.b.pool, values.seen, values.ring())
    assert {"part-by-part", "sum-by-blocks"} <= dict(values.b.pool.lemma_trace).keys()


def _of_what_is_defined() -> None:
    """Quotients and logarithms of what masks may leave empty are no numbers there; nor is infinity one."""
    values = Values()
    b, p = values.b, values.p
    power, masked = b.exp(p), b.less(p, 0)
    kept, others = b.sum(b.mul(masked, power), [1]), b.sum(b.mul(b.less(0, p), p), [1])
    numbers = (
        *(p, kept, b.power(kept, Fraction(1, 2)), b.log(power)),
        *(b.power(v, -1) for v in (p, b.sum(power, [1]), b.add(1, kept), b.add(b.sum(p, [1]), kept))),
        b.power(b.sum(b.mul(values.mask, power), [1]), -1),
    )
    no_numbers = b.log(kept), *(b.power(v, -1) for v in (kept, b.add(kept, others), b.mul(masked, p), masked))
    for view in numbers:
        assert _is_defined(view), view
        assert _is_defined(b.add(view, 1))
    symbolic = b.power(kept, sympy.Symbol("t", positive=True))
    for view in (*no_numbers, symbolic, b.full(math.inf, (2,))):
        assert not _is_defined(view), view
        assert not _is_defined(b.mul(b.pool.leaf("other", view.shape), view))
    assert _may_vanish(b.pool.zero((2,)))


def _of_undefined_values() -> None:
    """Of keys that no query sees and that need not be numbers nothing is said, in the spec or in what was found."""
    keys = _SIZE + _BLOCK
    for in_spec, in_found in itertools.product((False, True), repeat=2):
        b = Builder(new_pool())
        p, v, last = (
            b.pool.leaf(n, shape)
            for n, shape in (("p", (_SIZE, keys)), ("v", (_SIZE, _WIDTH)), ("x", (_BLOCK, _WIDTH)))
        )
        mask = b.less_equal(b.unsqueeze(b.iota(keys), 0), b.unsqueeze(b.iota(_SIZE), 1))
        kept = b.sum(b.mul(b.less(last, 0), b.exp(last)), [1], True)
        given = (
            b.concatenate([v, b.mul(last, b.power(kept, -1)) if undefined else last], 0)
            for undefined in (in_spec, in_found)
        )
        spec, other = (b.contraction("i j, i j, j d -> i d", mask, p, values) for values in given)
        first = b.contraction(
            "i j, i j, j d -> i d",
            b.less_equal(b.unsqueeze(b.iota(_BLOCK), 0), b.unsqueeze(b.iota(_BLOCK), 1)),
            narrow(narrow(p, 0, 0, _BLOCK), 1, 0, _BLOCK),
            narrow(v, 0, 0, _BLOCK),
        )
        pieces = [first, *(narrow(other, 0, start, _BLOCK) for start in range(_BLOCK, _SIZE, _BLOCK))]
        found = b.concatenate(pieces, 0)
        assert same_part_by_part(b.pool, spec, found) is not (in_spec or in_found)


def _of_a_part_of_pieces() -> None:
    """A part lies within one piece, or there is none."""
    pool = new_pool()
    pieces = [pool.leaf("a", (2, 3)), pool.leaf("b", (4, 3))]
    assert _part(pieces, 0, 2, 4) == narrow(pieces[1], 0, 0, 2)
    assert _part(pieces, 0, 4, 6) == narrow(pieces[1], 0, 2, 2)
    assert _part(pieces, 0, 0, 2) == pieces[0]
    for start, stop in ((1, 3), (0, 4), (0, 3), (4, 8)):
        with pytest.raises(UnalignedError):
            _part(pieces, 0, start, stop)
    size = sympy.Symbol("s", positive=True, integer=True)
    pieces = [pool.leaf("c", (size, 3)), pool.leaf("d", (2, 3))]
    for start, stop in ((0, 1), (size, size + 1)):
        with pytest.raises(UnalignedError):
            _part(pieces, 0, start, stop)


def _of_many_views() -> None:
    """What is too large to write anew is not found."""
    values = Values()
    with mock.patch.object(part_by_part, "_MOST_VIEWS", 2):
        assert not same_part_by_part(values.b.pool, values.seen, values.ring())


def _of_values_written_anew() -> None:
    """A value written anew has its numbers, at each place and as a whole."""
    generator = torch.Generator().manual_seed(0)
    leaves = {
        name: torch.randn(*shape, generator=generator) for name, shape in (("p", (_SIZE,) * 2), ("v", (_SIZE, _WIDTH)))
    }
    for one_by_one, start in itertools.product((True, False), range(0, _SIZE, _BLOCK)):
        values = Values()
        part = narrow(values.seen, 0, start, _BLOCK)
        written = _Places(values.b.pool, one_by_one).view(part)
        evaluator = Evaluator(leaves)
        torch.testing.assert_close(evaluator.view(written), evaluator.view(part))
