"""The lemmas on masked lookups in a shard of a table: they fire on the right program, and on no wrong one.

Every lookup is built as a vocabulary-parallel embedding writes it, with each of its parts open to a mistake.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
import sympy
import torch
import z3

from tests.ir.evaluate import Evaluator
from tests.ir.validate_terms import validate_pool
from verifycompile.ir import algebra, relabel
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.catalogue import product_lemma
from verifycompile.rewrites.operators import indexing
from verifycompile.rewrites.operators.elementwise import choose
from verifycompile.rewrites.registry import UnsupportedError

RANK = sympy.Symbol("u0", integer=True, nonnegative=True)
SIZES = [(2, 4), (3, 2), (2, 3)]
TOKENS, WIDTH = 5, 2


@dataclasses.dataclass(frozen=True)
class Lookup:
    """Departures from the right program; the default is the right one."""

    below: int = 0
    """Added to the lower bound of the mask."""
    above: int = 0
    """Added to the upper bound of the mask."""
    offset: int = 0
    """Added to what is subtracted from the index."""
    stride: int = 0
    """Added to the rows of a rank in the offset."""
    mask_below: bool = True
    mask_above: bool = True
    mask_index: bool = True
    mask_rows: bool = True
    negated: bool = False

    def build(self, pool: TermPool, ranks: int, rows: int) -> tuple[View, View]:
        """The sum over the ranks, and the lookup in the whole table."""
        pool.contraction_rules.append(product_lemma)
        table, index = pool.leaf("table", (ranks * rows, WIDTH)), pool.leaf("index", (TOKENS,))
        spec = Builder(pool)
        whole = spec.contraction("t v, v d -> t d", _one_hot(spec, index, ranks * rows), table)
        b = Builder(pool, (ranks,), {RANK: 0})
        local = relabel.split_dim(table, 0, ranks, rows)
        tokens = relabel.insert_dim(index, 0, ranks)
        start = RANK * (rows + self.stride) + self.offset
        first, end = RANK * rows + self.below, RANK * rows + rows + self.above
        outside = [b.less(tokens, first)] if self.mask_below else []
        outside += [b.less_equal(end, tokens)] if self.mask_above else []
        mask = outside[0] if len(outside) == 1 else b.either(*outside)
        if self.negated:
            mask = b.negate(mask)
        position = b.sub(tokens, start)
        if self.mask_index:
            position = choose(b, mask, 0, position)
        found = indexing.embedding(b, local, position, -1, False, False)
        if self.mask_rows:
            found = choose(b, b.unsqueeze(mask, 1), 0, found)
        return algebra.sum_over(pool, found, [0]), whole


def _one_hot(b: Builder, index: View, size: int) -> View:
    return b.equal(b.unsqueeze(index, b.rank(index)), b.iota(size))


def agree(left: View, right: View, ranks: int, rows: int) -> bool:
    """Whether both have the same value for every index of the table."""
    table = torch.arange(1.0, 1 + ranks * rows * WIDTH, dtype=torch.float64).reshape(-1, WIDTH) ** 1.5
    for first in range(0, ranks * rows, TOKENS):
        index = (torch.arange(TOKENS) + first) % (ranks * rows)
        leaves: Mapping[str, torch.Tensor] = {"table": table, "index": index}
        evaluator = Evaluator(leaves)
        if not torch.allclose(evaluator.view(left), evaluator.view(right)):
            return False
    return True


@pytest.mark.parametrize(("ranks", "rows"), [*SIZES, (64, 500)])
def test_the_masked_lookup_is_the_lookup(ranks: int, rows: int) -> None:
    pool = TermPool()
    parallel, whole = Lookup().build(pool, ranks, rows)
    assert parallel == whole
    validate_pool(pool)
    assert "masks-join-sum" in {name for name, _ in pool.lemma_trace}


WRONG = {
    "lower bound one too high": Lookup(below=1),
    "upper bound one too low": Lookup(above=-1),
    "rows not masked": Lookup(mask_rows=False),
    "shard of one row less": Lookup(stride=-1, below=0),
}

OUTSIDE = {
    "lower bound one too low": Lookup(below=-1),
    "upper bound one too high": Lookup(above=1),
    "offset one too low": Lookup(offset=-1),
    "offset one too high": Lookup(offset=1),
    "offset of another shard size": Lookup(stride=1),
    "whole shard shifted": Lookup(below=1, above=1),
    "no lower bound": Lookup(mask_below=False),
    "no upper bound": Lookup(mask_above=False),
    "mask negated": Lookup(negated=True),
    "index not masked": Lookup(mask_index=False),
}


@pytest.mark.parametrize("mistake", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize(("ranks", "rows"), SIZES)
def test_a_mistake_is_another_value(mistake: Lookup, ranks: int, rows: int) -> None:
    pool = TermPool()
    try:
        parallel, whole = mistake.build(pool, ranks, rows)
    except UnsupportedError:
        assert mistake.stride
        return
    assert not agree(parallel, whole, ranks, rows)
    assert parallel != whole
    validate_pool(pool)


@pytest.mark.parametrize("mistake", OUTSIDE.values(), ids=OUTSIDE)
@pytest.mark.parametrize(("ranks", "rows"), SIZES)
def test_an_index_that_may_leave_the_shard_is_refused(mistake: Lookup, ranks: int, rows: int) -> None:
    """torch raises an error for it: the one-hot form, which finds nothing, must not hide that."""
    with pytest.raises(UnsupportedError) as refused:
        mistake.build(TermPool(), ranks, rows)
    assert refused.value.message == f"an index that may lie outside of a table of size {rows}"


@pytest.mark.parametrize(("ranks", "rows"), SIZES)
def test_an_index_that_is_given_is_taken_to_be_right(ranks: int, rows: int) -> None:
    pool = TermPool()
    b = Builder(pool, (ranks,))
    table, index = pool.leaf("table", (rows, WIDTH)), pool.leaf("index", (ranks, TOKENS))
    indexing.embedding(b, relabel.insert_dim(table, 0, ranks), index, -1, False, False)


@pytest.mark.parametrize(("ranks", "rows"), SIZES)
def test_the_lemma_is_true(ranks: int, rows: int) -> None:
    """``inside(m) and x - m*n == l`` is ``x == m*n + l`` for all reals x; each guard is needed (z3)."""
    x = z3.Real("x")
    m, position = z3.Ints("m l")
    bounds = [m >= 0, m < ranks, position >= 0, position < rows]
    inside = z3.And(m * rows <= x, x < m * rows + rows)
    shifted = z3.If(inside, x - z3.ToReal(m * rows), 0) == z3.ToReal(position)
    lemma = z3.And(inside, shifted) == (x == z3.ToReal(m * rows + position))
    assert _proved(bounds, lemma)
    without_mask = shifted == (x == z3.ToReal(m * rows + position))
    assert not _proved(bounds, without_mask)
    assert not _proved(bounds[:2], lemma)  # without the bounds of the local index
    off_by_one = z3.And(m * rows <= x, x <= m * rows + rows)
    wrong = z3.And(off_by_one, z3.If(off_by_one, x - z3.ToReal(m * rows), 0) == z3.ToReal(position))
    # A mask that lets one row more through is caught by the local index, which has no such row.
    assert _proved(bounds, wrong == (x == z3.ToReal(m * rows + position)))
    narrow = z3.And(m * rows < x, x < m * rows + rows)
    assert not _proved(
        bounds, z3.And(narrow, x - z3.ToReal(m * rows) == z3.ToReal(position)) == (x == z3.ToReal(m * rows + position))
    )


def _proved(assumptions: list[z3.BoolRef], claim: z3.BoolRef) -> bool:
    solver = z3.Solver()
    solver.add(*assumptions, z3.Not(claim))
    return bool(solver.check() == z3.unsat)
