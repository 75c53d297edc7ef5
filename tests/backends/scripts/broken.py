"""A user's script whose tensor-parallel perceptron torch compiles in two graphs: broken.py (right|wrong)"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.relu(self.up(x)))
        torch._dynamo.graph_break()
        return torch.relu(y)


dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
layout = Replicate() if sys.argv[1] == "right" else Partial()
plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=layout)}
model = torch.compile(parallelize_module(Block(), mesh, plan), backend="aot_eager")
print("ran", tuple(model(torch.ones(4, 8)).shape))
