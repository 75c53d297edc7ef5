"""A mixture of experts: tokens are sent to the ranks that hold their experts, and back.

    python examples/experts.py          # verified for 4 ranks and 8 experts, in one process
    python examples/experts.py --bug    # refused: what arrives is ordered by sender, and is read as ordered by expert

Each rank routes its own tokens, each to one expert, at most ``CAPACITY`` of them to each expert. So a gradient of the
router is a part of the sum; ``grad_placements`` says that the training loop adds the parts after backward. Without
that line the tool refuses this program, too.
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Shard

import verifycompile
from verifycompile.testing import fake_mesh

RANKS, EXPERTS, CAPACITY, TOKENS, DIM, HIDDEN = 4, 8, 3, 6, 8, 16


def route(x: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``x``: (groups, tokens, features). Whether a token goes to a place of an expert, and the weight of what returns:
    both (groups, tokens, experts * capacity).
    """
    weight, chosen = (x @ gate).softmax(-1).max(-1)
    expert = (chosen.unsqueeze(-1) == torch.arange(EXPERTS)).to(x.dtype)
    place = (expert.cumsum(1) - 1) * expert
    expert = expert * (place < CAPACITY)
    sent = (place.unsqueeze(-1) == torch.arange(CAPACITY)).to(x.dtype) * expert.unsqueeze(-1)
    sent = sent.flatten(2)
    return sent, sent * weight.unsqueeze(-1)


class Experts(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(count, DIM, HIDDEN) * 0.1)
        self.down = nn.Parameter(torch.randn(count, HIDDEN, DIM) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x``: (groups, experts, capacity, features)."""
        groups, experts, capacity, _ = x.shape
        rows = x.transpose(0, 1).reshape(experts, groups * capacity, DIM)
        rows = torch.bmm(F.gelu(torch.bmm(rows, self.up)), self.down)
        return rows.view(experts, groups, capacity, DIM).transpose(0, 1)


class Single(nn.Module):
    """What is meant: all experts on one device; the tokens in as many groups as there are ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Parameter(torch.randn(DIM, EXPERTS)), Experts(EXPERTS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        groups = x.view(RANKS, TOKENS, DIM)
        sent, weights = route(groups, self.gate)
        done = self.experts((sent.transpose(1, 2) @ groups).view(RANKS, EXPERTS, CAPACITY, DIM))
        return (weights @ done.reshape(RANKS, EXPERTS * CAPACITY, DIM)).view(x.shape)


class Parallel(nn.Module):
    """One group of tokens and some of the experts on each rank."""

    def __init__(self, mesh: DeviceMesh, bug: bool) -> None:
        super().__init__()
        self.group, self.bug = mesh.get_group(), bug
        self.gate, self.experts = nn.Parameter(torch.randn(DIM, EXPERTS)), Experts(EXPERTS // RANKS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.unsqueeze(0)
        sent, weights = route(tokens, self.gate)
        rows = (sent.transpose(1, 2) @ tokens).view(EXPERTS * CAPACITY, DIM)
        arrived = all_to_all_single_autograd(rows, None, None, self.group)
        if self.bug:
            by_expert = arrived.view(-1, RANKS, CAPACITY, DIM).transpose(0, 1)
            done = self.experts(by_expert).transpose(0, 1)
        else:
            done = self.experts(arrived.view(RANKS, -1, CAPACITY, DIM))
        back = all_to_all_single_autograd(done.reshape(EXPERTS * CAPACITY, DIM), None, None, self.group)
        return (weights @ back).view(x.shape)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bug", action="store_true", help="read what arrives in another order")
    arguments = parser.parse_args()
    with fake_mesh({"ep": RANKS}) as mesh:
        report = verifycompile.verify(
            args=(torch.randn(TOKENS, DIM),),
            build=lambda: Parallel(mesh, arguments.bug),
            spec=Single(),
            mesh=mesh,
            in_placements={"x": Shard(0)},
            out_placements={"output.0": Shard(0)},
            param_placements={"experts.*": Shard(0)},
            grad_placements={"gate": Partial()},
        )
    print(report)
    return 0 if report else 1


if __name__ == "__main__":
    sys.exit(main())
