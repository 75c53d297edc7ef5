"""Fewer key-value heads than ranks: projections are gathered whole, every rank takes its heads, and in backward the
ranks' gradients are put in their places, beside those of the shared heads, and added.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support import fake_world
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.frontends.graphs import verify_graphs

HEADS, SIZE, RANKS, ROWS = 8, 2, 2, 3
OWN = HEADS // RANKS
WIDTH = (HEADS + 2) * SIZE


def whole(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.cat([query, key.sum(0), value.sum(0)], 1)


def placed(query: Tensor, key: Tensor, value: Tensor, rank: int) -> Tensor:
    """A rank's part of the gradient of the projections, zero where other ranks' heads are."""
    own = query.view(ROWS, OWN, SIZE)
    heads = torch.ops.aten.slice_backward(own, [ROWS, HEADS, SIZE], 1, rank * OWN, (rank + 1) * OWN, 1)
    return torch.cat([heads.view(ROWS, HEADS * SIZE), key.sum(0), value.sum(0)], 1)


def _world() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def scattered(gradient: Tensor) -> Tensor:
    rows = torch.cat(gradient.split(WIDTH // RANKS, 1), 0)
    return functional.reduce_scatter_single(rows, "sum", 0, _world())


def added(gradient: Tensor) -> Tensor:
    return functional.all_reduce(gradient, "sum", _world())


def report_on(put_together: Callable[[Tensor], Tensor], place: Callable[[int], int], sharded: bool) -> Report:
    def graph_of(rank: int) -> torch.fx.GraphModule:
        def step(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return put_together(placed(query, key, value, place(rank)))

        part = (torch.randn(ROWS, OWN * SIZE), torch.randn(OWN, ROWS, SIZE), torch.randn(OWN, ROWS, SIZE))
        return make_fx(step, tracing_mode="fake")(*part)

    spec = make_fx(whole)(torch.randn(ROWS, HEADS * SIZE), *(torch.randn(HEADS, ROWS, SIZE) for _ in range(2)))
    with fake_world(RANKS):
        graphs = [graph_of(rank) for rank in range(RANKS)]
        inputs = {0: (Shard(1),), 1: (Shard(0),), 2: (Shard(0),)}
        return verify_graphs(spec, graphs, inputs, {"output.0": (Shard(1) if sharded else Replicate(),)})


@pytest.mark.parametrize(("put_together", "sharded"), [(added, False), (scattered, True)])
def test_verifies(put_together: Callable[[Tensor], Tensor], sharded: bool) -> None:
    report = report_on(put_together, lambda rank: rank, sharded)
    assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.parametrize(
    ("put_together", "place"),
    [
        (added, lambda rank: (rank + 1) % RANKS),
        (added, lambda _: 0),
        (lambda gradient: gradient, lambda rank: rank),
        (lambda gradient: added(added(gradient)), lambda rank: rank),
        (lambda gradient: added(gradient.roll(SIZE, 1)), lambda rank: rank),
    ],
    ids=["places of others", "one place", "not added", "added twice", "moved by a head"],
)
def test_mutants_are_refuted(put_together: Callable[[Tensor], Tensor], place: Callable[[int], int]) -> None:
    report = report_on(put_together, place, False)
    assert report.verdict is Verdict.REFUTED, str(report)


GROUPS, WORLD = 2, 4
SHARED = HEADS // GROUPS


def whole_groups(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    parts = (query.view(ROWS, GROUPS, SHARED * SIZE), *(_of_groups(heads) for heads in (key, value)))
    return torch.cat(parts, 2).view(ROWS, -1)


def _of_groups(heads: Tensor) -> Tensor:
    return heads.view(GROUPS, SHARED, ROWS, SIZE).sum(1).transpose(0, 1)


def group_report(group: Callable[[int], int], place: Callable[[int], int]) -> Report:
    """Two ranks a group: a rank's places are digits of its number, no multiples of it."""
    own, size = HEADS // WORLD, (SHARED + 2) * SIZE

    def graph_of(rank: int) -> torch.fx.GraphModule:
        def step(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            put, first, start = torch.ops.aten.slice_backward, place(rank) * own, group(rank) * size
            heads = put(query.view(ROWS, own, SIZE), [ROWS, SHARED, SIZE], 1, first, first + own, 1)
            part = torch.cat([heads.view(ROWS, SHARED * SIZE), key.sum(0), value.sum(0)], 1)
            return added(put(part, [ROWS, GROUPS * size], 1, start, start + size, 1))

        part = (torch.randn(ROWS, own * SIZE), torch.randn(own, ROWS, SIZE), torch.randn(own, ROWS, SIZE))
        return make_fx(step, tracing_mode="fake")(*part)

    inputs = (torch.randn(ROWS, HEADS * SIZE), *(torch.randn(HEADS, ROWS, SIZE) for _ in range(2)))
    with fake_world(WORLD):
        graphs = [graph_of(rank) for rank in range(WORLD)]
        layouts = {0: (Shard(1),), 1: (Shard(0),), 2: (Shard(0),)}
        return verify_graphs(make_fx(whole_groups)(*inputs), graphs, layouts, {"output.0": (Replicate(),)})


def test_groups_of_ranks() -> None:
    report = group_report(lambda rank: rank // 2, lambda rank: rank % 2)
    assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.parametrize(
    ("group", "place"),
    [
        (lambda rank: rank % 2, lambda rank: rank // 2),
        (lambda rank: rank // 2, lambda rank: 1 - rank % 2),
        (lambda rank: 1 - rank // 2, lambda rank: rank % 2),
    ],
    ids=["digits exchanged", "places of the neighbour", "the other group"],
)
def test_wrong_groups_are_refuted(group: Callable[[int], int], place: Callable[[int], int]) -> None:
    report = group_report(group, place)
    assert report.verdict is Verdict.REFUTED, str(report)
