"""A user's script that keeps the degree in its settings before it makes a model with a flag."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore


class Block(nn.Module):
    def __init__(self, doubled: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.doubled = doubled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.relu(self.up(x)))
        return y * 2 if self.doubled else y


dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
settings = {"ranks": dist.get_world_size(), "doubled": True}
mesh = init_device_mesh("cpu", (settings["ranks"],), mesh_dim_names=("tp",))
model = parallelize_module(Block(doubled=bool(settings["doubled"])), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
print("ran", tuple(torch.compile(model, backend="aot_eager")(torch.ones(4, 8)).shape))
