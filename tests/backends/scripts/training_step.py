"""One training step on two gloo processes, against the same step on one device.

    training_step.py INNER

Exits with 0 where every rank's loss and every gradient equal those of the single-device model.
"""

import os
import pathlib
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

WORLD_SIZE = 2


class Model(nn.Module):
    """Vocabulary-parallel embedding, sequence-parallel norm, column- and row-parallel layers, loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 32)
        self.down = nn.Linear(32, 8)
        self.head = nn.Linear(8, 16, bias=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


PLAN = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


def model_and_data() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return Model(), torch.randint(16, (3, 4)), torch.randint(16, (3, 4))


def whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def rank_main(rank: int, store: str, inner: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD_SIZE)
    mesh = init_device_mesh("cpu", (WORLD_SIZE,), mesh_dim_names=("tp",))

    single, tokens, labels = model_and_data()
    single_loss = single(tokens, labels)
    single_loss.backward()

    parallel = parallelize_module(model_and_data()[0], mesh, PLAN)
    loss = torch.compile(parallel, backend="verify", fullgraph=True, options={"inner": inner})(tokens, labels)
    loss.backward()

    torch.testing.assert_close(loss, single_loss)
    expected = dict(single.named_parameters())
    names = [name for name, _ in parallel.named_parameters()]
    assert names == list(expected)
    for name, parameter in parallel.named_parameters():
        torch.testing.assert_close(
            whole(parameter.grad), expected[name].grad, msg=lambda text, name=name: f"{name}: {text}"
        )
    if rank == 0:
        print(f"equal: loss and {len(names)} gradients")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (str(pathlib.Path(folder) / "store"), sys.argv[1]), nprocs=WORLD_SIZE)
