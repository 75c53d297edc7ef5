"""Splits and concatenations: pieces assembled in every way are what torch assembles."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from tests.ir.evaluate import Evaluator
from tests.lowering.graphs import GraphBuilder, blockers
from verifycompile.ir.term import TermPool
from verifycompile.lowering.recorded import whole_split

aten = torch.ops.aten
X = torch.randn(4, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def check(g: GraphBuilder, *nodes: torch.fx.Node) -> TermPool:
    """Compare every node with what it recorded."""
    pool = TermPool()
    lowering = g.lower(*nodes, pool=pool)
    assert blockers(lowering) == []
    leaves = {n.name: n.meta["val"] for n in g.graph.find_nodes(op="placeholder")}
    for node in nodes:
        view = lowering.view(node)
        assert view is not None
        torch.testing.assert_close(Evaluator(leaves).view(view), node.meta["val"])
    return pool


SPLITS = [
    (aten.split.Tensor, 2),
    (aten.split.Tensor, 1),
    (aten.split.Tensor, 4),
    (aten.split_with_sizes.default, None),
    (aten.chunk.default, 2),
]


@pytest.mark.parametrize(("target", "size"), SPLITS, ids=str)
@pytest.mark.parametrize(("dim", "along"), list(itertools.product((0, 1, -1), (0, 1, 2, -2))))
def test_all_pieces_along_any_dimension(target: object, size: int | None, dim: int, along: int) -> None:
    g = GraphBuilder()
    x = g.input("x", X)
    total = X.shape[dim]
    argument = [1, total - 2, 1] if size is None else size
    split = g.call(target, x, argument, dim)  # type: ignore[arg-type]
    pieces = [g.item(split, k) for k in range(len(split.meta["val"]))]
    same = len({p.meta["val"].shape for p in pieces}) == 1
    if not same and dim % 3 != along % 3:
        return
    joined = g.call(aten.cat.default, pieces, along)
    assert (whole_split(joined) is split) == (len(pieces) > 1)
    check(g, joined, *pieces)


@pytest.mark.parametrize("seed", range(25))
def test_some_pieces_in_any_order(seed: int) -> None:
    draw = random.Random(seed)
    g = GraphBuilder()
    splits = [g.call(aten.split.Tensor, g.input(name, X + k), 2, 1) for k, name in enumerate("xy")]
    pieces = [g.item(draw.choice(splits), draw.choice([0, 1, 2])) for _ in range(draw.choice([2, 3, 4]))]
    joined = g.call(aten.cat.default, pieces, draw.choice([0, 1, 2]))
    check(g, joined)


def test_the_pieces_of_a_split_in_order_are_the_whole() -> None:
    g = GraphBuilder()
    x = g.input("x", X)
    split = g.call(aten.split.Tensor, x, 2, 1)
    pieces = [g.item(split, k) for k in range(3)]
    whole = g.call(aten.cat.default, pieces, 1)
    swapped = g.call(aten.cat.default, [pieces[1], pieces[0], pieces[2]], 1)
    assert whole_split(swapped) is None
    lowering = g.lower(whole, swapped, x)
    assert lowering.view(whole) == lowering.view(x)
    assert lowering.view(swapped) != lowering.view(x)


def test_pieces_are_counted_from_the_end() -> None:
    g = GraphBuilder()
    split = g.call(aten.split.Tensor, g.input("x", X), 2, 1)
    check(g, g.item(split, -1), g.item(split, -3))


def test_pieces_of_a_stack_and_unbind() -> None:
    g = GraphBuilder()
    x = g.input("x", X)
    rows = g.call(aten.unbind.int, x, 1)
    items = [g.item(rows, k) for k in range(6)]
    check(g, g.call(aten.stack.default, items, 1), g.call(aten.stack.default, items[::-1], 2), *items)


def test_pieces_used_as_tensors() -> None:
    g = GraphBuilder()
    split = g.call(aten.split.Tensor, g.input("x", X), 3, 1)
    low, high = g.item(split, 0), g.item(split, 1)
    check(g, g.call(aten.mul.Tensor, low, high), g.call(aten.cat.default, [high, low], 1))
