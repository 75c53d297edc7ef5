"""A job for a launcher, in which one rank has another number, or another flag: `one_rank_wrong.py RANK [FLAG]`."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))) * self.scale


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
model = parallelize_module(Block(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
if dist.get_rank() == int(sys.argv[1]):
    if len(sys.argv) > 2:
        os.environ["VERIFYCOMPILE"] = sys.argv[2]
    else:
        model.scale = 2.0
torch.compile(model, backend="aot_eager")(torch.ones(4, 8))
dist.destroy_process_group()
