"""Slices, paddings and concatenations that undo each other: simplified nodes have the values of what they stand for."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.fx

from verifycompile.capture.segments import Simplifier

aten = torch.ops.aten


class Recorded:
    """A graph whose nodes are made with values and simplified; ``expected``: node -> the value that was asked for."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.simplify = Simplifier(self.call)
        self.count = 0

    def tensor(self, *shape: int) -> torch.fx.Node:
        node = self.graph.placeholder(f"x{self.count}")
        self.count += 1
        node.meta["val"] = torch.randn(*shape)
        return node

    def made(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        values = torch.fx.node.map_arg((args, kwargs), lambda operand: operand.meta["val"])
        node.meta["val"] = target(*values[0], **values[1])
        return node

    def call(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        return self.simplify(self.made(target, *args, **kwargs))


def test_shards_gathered_with_padding_are_the_whole() -> None:
    graph = Recorded()
    x = graph.tensor(10, 2)
    shards = [graph.call(aten.slice.Tensor, x, 0, 3 * rank, min(3 * rank + 3, 10)) for rank in range(4)]
    padded = graph.call(aten.constant_pad_nd.default, shards[3], [0, 0, 0, 2], 0.0)
    gathered = graph.call(aten.cat.default, [*shards[:3], padded])
    assert graph.call(aten.slice.Tensor, gathered, 0, 0, 10) is x
    assert graph.call(aten.slice.Tensor, gathered, 0, 3, 6) is not x


def test_sums_of_padded_pieces_are_pieces_of_sums() -> None:
    graph = Recorded()
    first, second = graph.tensor(5), graph.tensor(5)
    padded = [graph.call(aten.constant_pad_nd.default, x, [0, 3], 0.0) for x in (first, second)]
    total = graph.call(aten.add.Tensor, *padded)
    whole = graph.call(aten.slice.Tensor, total, 0, 0, 5)
    assert whole.target is aten.add.Tensor
    assert whole.args == (first, second)


def test_a_slice_in_another_dtype_is_not_the_whole() -> None:
    graph = Recorded()
    x = graph.tensor(4)
    other = graph.call(aten._to_copy.default, x, dtype=torch.float64)
    joined = graph.call(aten.cat.default, [graph.call(aten.slice.Tensor, x, 0, 0, 2), other])
    assert joined.target is aten.cat.default
    assert joined.meta["val"].dtype is torch.float64


@pytest.mark.parametrize("seed", range(60))
def test_random_steps_keep_their_values(seed: int) -> None:
    choice = random.Random(seed)
    torch.manual_seed(seed)
    graph = Recorded()
    dim = choice.randrange(2)
    nodes = [graph.tensor(6, 6) for _ in range(2)]
    for _ in range(30):
        node = choice.choice(nodes)
        size = node.meta["val"].shape[dim]
        alike = [other for other in nodes if other.meta["val"].shape == node.meta["val"].shape]
        joined = [
            node,
            choice.choice([n for n in nodes if n.meta["val"].shape[1 - dim] == node.meta["val"].shape[1 - dim]]),
        ]
        start = choice.randint(0, size - 1)
        stop = choice.randint(start + 1, size)
        amounts = [0, choice.randint(0, 3)] if dim == 1 else [0, 0, choice.randint(0, 2), choice.randint(0, 3)]
        steps: list[tuple[Any, ...]] = [
            (aten.slice.Tensor, node, dim, start, stop),
            (aten.slice.Tensor, node, dim - 2, start - size, stop),
            (aten.slice.Tensor, node, dim, start, size + 5),
            (aten.cat.default, joined, dim),
            (aten.constant_pad_nd.default, node, amounts, float(choice.randint(0, 1))),
            (aten.add.Tensor, node, choice.choice(alike)),
            (aten.mul.Tensor, node, choice.choice(alike)),
            (aten.sub.Tensor, choice.choice([node, choice.choice(alike)]), 2.0),
            (aten.div.Tensor, node, 4.0),
            (aten.slice_scatter.default, node, graph.tensor(*_cut(node, dim, stop - start)), dim, start, stop),
            (aten.clone.default, node),
            (aten.neg.default, node),
            (aten.full_like.default, node, 3.0),
            (aten.zeros_like.default, node),
        ]
        step = choice.choice(steps)
        asked = graph.made(*step)
        expected = asked.meta["val"].clone()
        found = graph.simplify(asked)
        assert found.meta["val"].dtype == expected.dtype
        torch.testing.assert_close(found.meta["val"], expected, rtol=0, atol=1e-6)
        if found.meta["val"].shape[dim] <= 24:
            nodes.append(found)


def _cut(node: torch.fx.Node, dim: int, length: int) -> list[int]:
    shape = list(node.meta["val"].shape)
    shape[dim] = length
    return shape
