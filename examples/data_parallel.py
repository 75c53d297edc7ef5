"""DistributedDataParallel and fully_shard: what the wrapper does to a gradient must fit the loss.

    python examples/data_parallel.py                  # verified under DDP, then trained on two processes
    python examples/data_parallel.py --wrapper fsdp   # the same under fully_shard
    python examples/data_parallel.py --bug            # refused: a sum over all samples under a wrapper that averages

The wrappers' collectives run outside of the compiled graph. The tool reads from the wrapper what it will do to each
gradient, proves the rest against it, and lists it among the assumptions.
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import verifycompile
from verifycompile.testing import run_on_ranks

RANKS, SAMPLES, DIM, STEPS = 2, 8, 16, 3


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.down(F.relu(self.up(x))), y)


class SummedRegression(Regression):
    """The bug: the wrapper takes the mean of the ranks' gradients, and of a sum that is too small."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.down(F.relu(self.up(x))), y, reduction="sum")


def train(model: nn.Module, step, rank: int, ranks: int) -> list[str]:
    """Losses of plain gradient descent; each rank takes its own samples of the same batches."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(STEPS):
        x, y = (batch.chunk(ranks)[rank] for batch in torch.randn(2, SAMPLES, DIM, generator=generator))
        loss = step(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        if dist.is_initialized():
            dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(f"{mean.item():.5f}")
    return losses


def model_of(bug: bool) -> nn.Module:
    torch.manual_seed(0)
    return SummedRegression() if bug else Regression()


def on_rank(rank: int, wrapper: str, bug: bool) -> tuple[str, list[str]]:
    """The refusal, or the losses of a model that was verified."""
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
    model = model_of(bug)
    wrapped = DistributedDataParallel(model, device_mesh=mesh) if wrapper == "ddp" else fully_shard(model, mesh=mesh)
    compiled = torch.compile(wrapped, backend="verify", options={"spec": model_of(bug), "inner": "aot_eager"})
    try:
        return "", train(wrapped, compiled, rank, RANKS)
    except verifycompile.RefinementError as error:
        return str(error), []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bug", action="store_true", help="take the sum of the errors where the mean is meant")
    parser.add_argument("--wrapper", choices=("ddp", "fsdp"), default="ddp")
    arguments = parser.parse_args()
    (refusal, losses), _ = run_on_ranks(on_rank, RANKS, arguments.wrapper, arguments.bug)
    if refusal:
        print(refusal)
        return 1
    model = model_of(bug=False)
    print(f"verified, then trained on {RANKS} processes: losses {', '.join(losses)}")
    print(f"one device, without torch.compile:     losses {', '.join(train(model, model, 0, 1))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
