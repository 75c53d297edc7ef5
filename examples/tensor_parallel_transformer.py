"""A tensor- and sequence-parallel transformer, proved equal to its single-device form, then trained on two processes.

    python examples/tensor_parallel_transformer.py          # verified, runs; losses equal those of one device
    python examples/tensor_parallel_transformer.py --bug    # refused: a gradient that is never reduced

Everything runs on the CPU of one machine. ``--inner inductor`` compiles with Inductor, which needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import verifycompile

DEGREE = 2
STEPS = 3
VOCABULARY, DIM, HEADS, LAYERS, SEQUENCE, BATCH = 64, 32, 4, 2, 16, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, _ = x.shape
        q, k, v = (w(x).view(batch, sequence, -1, DIM // HEADS).transpose(1, 2) for w in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.transpose(1, 2).reshape(batch, sequence, -1))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(DIM, 4 * DIM, bias=False)
        self.down = nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(DIM, eps=1e-5), Attention()
        self.ffn_norm, self.ffn = nn.RMSNorm(DIM, eps=1e-5), FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DIM)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(DIM, eps=1e-5)
        self.head = nn.Linear(DIM, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def parallelize(model: Transformer, mesh: DeviceMesh, bug: bool) -> nn.Module:
    """Torch's own plan: activations sharded over the sequence between blocks, over heads and columns inside of them."""
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        "layers.*.attention_norm": SequenceParallel(),
        "layers.*.attention": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "layers.*.attention.q": ColwiseParallel(),
        "layers.*.attention.k": ColwiseParallel(),
        "layers.*.attention.v": ColwiseParallel(),
        "layers.*.attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "layers.*.ffn_norm": SequenceParallel(),
        "layers.*.ffn": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "layers.*.ffn.gate": ColwiseParallel(),
        "layers.*.ffn.up": ColwiseParallel(),
        "layers.*.ffn.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    if bug:
        # Forgotten for one norm. The forward pass stays right; but each rank sees a part of the sequence, so its
        # gradient of this weight is a part of the sum, and nothing adds the parts up. Plain torch trains on, wrong.
        del plan["layers.*.ffn_norm"]
    return parallelize_module(model, mesh, plan)


def train(model: nn.Module, step) -> list[float]:
    """Losses of ``STEPS`` steps of plain gradient descent, the same data on every rank."""
    generator = torch.Generator().manual_seed(1)
    losses: list[float] = []
    for _ in range(STEPS):
        tokens, labels = torch.randint(VOCABULARY, (2, BATCH, SEQUENCE), generator=generator)
        loss = step(tokens, labels)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.5)
                parameter.grad = None
        losses.append(loss.item())
    return losses


def transformer() -> Transformer:
    torch.manual_seed(0)
    return Transformer()


def rank_main(rank: int, store: str, arguments: argparse.Namespace) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=DEGREE)
    mesh = init_device_mesh("cpu", (DEGREE,), mesh_dim_names=("tp",))
    model = parallelize(transformer(), mesh, arguments.bug)
    compiled = torch.compile(model, backend="verify", options={"spec": transformer(), "inner": arguments.inner})
    try:
        losses = train(model, compiled)
    except verifycompile.RefinementError as error:
        if rank == 0:
            print(error, file=sys.stderr)
        sys.exit(1)
    if rank == 0:
        print(f"verified, then trained on {DEGREE} processes: losses {', '.join(f'{loss:.6f}' for loss in losses)}")
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bug", action="store_true", help="forget SequenceParallel() for one of the norms")
    parser.add_argument("--inner", default="aot_eager", help="backend that compiles what was verified")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # These processes end without shutting their interpreter down, in which a thread of gloo that is still there can
        # abort them (https://github.com/pytorch/pytorch/issues/190489).
        given = (f"{folder}/store", arguments)
        workers = mp.start_processes(rank_main, given, nprocs=DEGREE, join=False, start_method="forkserver")
        for process in workers.processes:
            process.join()
    if any(process.exitcode for process in workers.processes):
        return 1
    model = transformer()
    print(f"one device, without torch.compile:     losses {', '.join(f'{loss:.6f}' for loss in train(model, model))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
