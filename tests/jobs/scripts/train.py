"""A training job as users write them: `train.py KIND`. Rank 0 prints a loss a step."""

import contextlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.silu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def tensor_parallel(model: Model) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    for block in model.blocks:
        plan = {
            "norm": SequenceParallel(use_local_output=False),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        }
        parallelize_module(block, mesh, plan)
    whole = PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate())
    parallelize_module(model, mesh, {"head": whole})
    for name in ("weight", "bias"):  # a layer whose parameters are whole on every rank
        value = getattr(model.head, name)
        setattr(model.head, name, nn.Parameter(torch.distributed.tensor.distribute_tensor(value, mesh, [Replicate()])))
    parallelize_module(model, mesh, PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)))
    return model


@torch.no_grad()
def evaluate(model: nn.Module, compiled: nn.Module) -> None:
    model.eval()
    compiled(torch.randn(4, 6, 8))
    model.train()


def main(kind: str) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: nn.Module = Model()
    if kind == "tensor parallel":
        model = tensor_parallel(model)
    elif kind in ("fully sharded", "mixed precision"):
        dtype = torch.bfloat16 if kind == "mixed precision" else None
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
            block.compile(backend="aot_eager")
        model = fully_shard(model, mp_policy=policy)
    else:
        model = DistributedDataParallel(model)
    compiled = model if kind in ("fully sharded", "mixed precision") else torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    update = torch.compile(optimizer.step, backend="aot_eager")
    rank = 0 if kind == "tensor parallel" else dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    if kind == "data parallel" and dist.get_rank() == 0:
        evaluate(model, compiled)
    for _ in range(2):
        for micro in range(2):
            x, y = torch.randn(4, 6, 8, generator=generator), torch.randn(4, 6, 4, generator=generator)
            waits = kind == "data parallel" and micro == 0
            with model.no_sync() if waits else contextlib.nullcontext():
                loss = F.mse_loss(compiled(x).float(), y) / 2
                loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"loss {loss.item():.3f}")
    if kind != "data parallel":
        evaluate(model, compiled)
    dist.destroy_process_group()


main(sys.argv[1])
