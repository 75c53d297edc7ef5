"""A rank takes its part of a whole weight in the ways that torch has: chunks, pieces of a list, slices of slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard
from torch.fx.experimental.proxy_tensor import make_fx

import verifycompile
from tests.programs.forms import comm
from tests.support import fake_mesh_world
from verifycompile import Verdict
from verifycompile.capture.ranks.tidy import with_joined_slices

RANKS = 4
Take = Callable[[torch.Tensor, int, int], Any]
"""Gate and up projection of a rank, of a weight that holds both."""

TAKEN: dict[str, Take] = {
    "chunks of chunks": lambda weight, rank, size: [half.chunk(RANKS)[rank] for half in weight.chunk(2)],
    "pieces of equal length": lambda weight, rank, size: (weight.split(size)[rank], weight.split(size)[RANKS + rank]),
    "a slice of what follows": lambda weight, rank, size: (
        weight[rank * size :][:size],
        weight[(RANKS + rank) * size :][:size],
    ),
    "rows of a view": lambda weight, rank, size: [
        half.unbind(0)[rank] for half in weight.view(2, RANKS, size, -1).unbind(0)
    ],
}


def spec(x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    gate, up = F.linear(F.layer_norm(x, (4,)) * norm, weight).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, down)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("taken", list(TAKEN))
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_rank_takes_its_part_of_a_fused_weight(taken: str, ahead: int) -> None:
    """One graph for all ranks, gradients included; with the part of the next rank the program is another one."""
    with fake_mesh_world((RANKS,), ("tp",)) as mesh:
        group = mesh.get_group()

        def program(x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
            h = comm.gather(F.layer_norm(x, (4,)) * comm.enter(norm, group), 0, group)
            rank, size = (mesh.get_local_rank() + ahead) % RANKS, weight.shape[0] // (2 * RANKS)
            gate, up = TAKEN[taken](comm.enter(weight, group), rank, size)
            return x + comm.scatter(F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down), 0, group)

        shapes = ((2, 4), (4,), (16, 4), (4, 2))
        report = verifycompile.verify(
            None,
            tuple(torch.randn(*shape, requires_grad=True) for shape in shapes),
            build=lambda: program,
            spec=spec,
            mesh=mesh,
            in_placements={"x": (Shard(0),), "norm": (Replicate(),), "weight": (Replicate(),), "down": (Shard(1),)},
            out_placements={"output.0": (Shard(0),)},
        )
    assert report.verdict is (Verdict.REFUTED if ahead else Verdict.VERIFIED), str(report)


def _made(g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    zeros = torch.zeros(2, 3)
    among = torch.ops.aten.slice_backward(g, [4, 3], 0, 1, 3, 1)
    return (
        torch.cat([zeros, g, torch.zeros(1, 3)]),
        torch.cat([g, torch.zeros(2, 1)], -1),
        torch.stack([zeros, torch.zeros(()).expand(2, 3), g], 1),
        torch.ops.aten.slice_backward(among, [7, 3], 0, -5, -1, 1),
        torch.cat([g, zeros, g]),
        g[1:][:1],
        g[:, -2:][:, 1:9],
        g[1:][:, 1:],
        g[:, ::2][:, 1:],
    )


def test_joined_slices_compute_the_same() -> None:
    g = torch.randn(2, 3)
    graph = make_fx(_made)(g)
    expected = graph(g)
    with_joined_slices(graph)
    assert all(map(torch.equal, graph(g), expected))
    called = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert [called.count(f"aten.{name}") for name in ("cat.default", "stack.default")] == [1, 0]
    assert [called.count(f"aten.{name}") for name in ("slice_backward.default", "select_backward.default")] == [3, 1]
    assert called.count("aten.slice.Tensor") == 6
