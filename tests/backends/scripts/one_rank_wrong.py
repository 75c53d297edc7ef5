"""A user's job on two gloo processes of which one has another number: `one_rank_wrong.py right|wrong`.

Prints what each rank ends with.
"""

import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.forked import start_ranks


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))) * self.scale


def work(rank: int, folder: str, correctness: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model = parallelize_module(Block(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if correctness == "wrong" and rank == 1:
        model.scale = 2.0
    try:
        ended = str(tuple(torch.compile(model, backend="aot_eager")(torch.ones(4, 8)).shape))
    except RuntimeError as error:
        ended = str(error)
    dist.barrier()
    with open(f"{folder}/{rank}", "w") as file:  # noqa: PTH123 - what one rank prints may cut into what another does
        file.write(ended)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        start_ranks(work, (folder, sys.argv[1]), 2)
        for rank in range(2):
            print(f"rank {rank}: {open(f'{folder}/{rank}').read()}")  # noqa: PTH123, SIM115
