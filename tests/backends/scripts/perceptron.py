"""A user's script that never imports verifycompile: a tensor-parallel perceptron, compiled block by block.

perceptron.py BACKEND (train|infer) (right|wrong)
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

assert not any(name.startswith("verifycompile.two_programs") for name in sys.modules)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.relu(self.up(x)))
        return x + nn.functional.layer_norm(y, (8,))


def custom(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]):
    print("custom backend called")
    return gm.forward


backend, purpose, correctness = sys.argv[1:]
dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
layout = Replicate() if correctness == "right" else Partial()
blocks = [
    parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=layout)})
    for block in (Block(), Block())
]
model = nn.Sequential(*(torch.compile(block, backend=custom if backend == "custom" else backend) for block in blocks))
with torch.inference_mode() if purpose == "infer" else torch.enable_grad():
    result = model(torch.ones(4, 8))
    if purpose == "train":
        result.sum().backward()
print("plain", torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(1)).item())
print("ran", tuple(result.shape), torch._dynamo.utils.counters["stats"]["unique_graphs"])
