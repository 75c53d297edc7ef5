"""The measured programs: single-device models and the tensor-parallel plans that torch's users write for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

Plan = dict[str, ParallelStyle]


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of a transformer. ``heads`` and ``kv_heads`` must be divisible by the degree, ``sequence`` too."""

    dim: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    sequence: int
    batch: int = 1

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


WIDE = Config(dim=4096, heads=1024, kv_heads=1024, hidden=8192, vocabulary=8192, sequence=1024)
"""Divisible by every degree up to 1024, so that the same program is measured at each."""

LLAMA_3_8B = Config(dim=4096, heads=32, kv_heads=8, hidden=14336, vocabulary=128256, sequence=8192)


class Perceptron(nn.Module):
    """One residual two-layer perceptron."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.wq = nn.Linear(config.dim, config.heads * self.head_dim, bias=False)
        self.wk = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(config.heads * self.head_dim, config.dim, bias=False)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        batch, sequence, _ = x.shape
        q, k, v = (w(x).view(batch, sequence, -1, self.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = rotated(q, cosine, sine), rotated(k, cosine, sine)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(attended.transpose(1, 2).reshape(batch, sequence, -1))


def rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of ``x`` [batch, head, sequence, head_dim]."""
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class FeedForward(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.dim, config.hidden, bias=False)
        self.w2 = nn.Linear(config.hidden, config.dim, bias=False)
        self.w3 = nn.Linear(config.dim, config.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.ffn = FeedForward(config)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        return x + self.ffn(self.ffn_norm(x))


class Transformer(nn.Module):
    """RMSNorm, rotary embedding, grouped-query attention, SwiGLU; ``forward`` returns the cross entropy.

    ``growth``: by how much a layer's feed-forward network is wider than that of the layer before.
    """

    def __init__(self, config: Config, layers: int, growth: int = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.dim)
        wider = (dataclasses.replace(config, hidden=config.hidden + growth * layer) for layer in range(layers))
        self.layers = nn.ModuleList(map(Block, wider))
        self.norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.head = nn.Linear(config.dim, config.vocabulary, bias=False)
        self.register_buffer("cosine", torch.empty(config.sequence, config.head_dim))
        self.register_buffer("sine", torch.empty(config.sequence, config.head_dim))

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def transformer_plan() -> Plan:
    """Tensor parallelism inside of the blocks, sequence parallelism between them."""
    return {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        "layers.*.attention_norm": SequenceParallel(),
        "layers.*.attention": PrepareModuleInput(
            input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        "layers.*.attention.wq": ColwiseParallel(),
        "layers.*.attention.wk": ColwiseParallel(),
        "layers.*.attention.wv": ColwiseParallel(),
        "layers.*.attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "layers.*.ffn_norm": SequenceParallel(),
        "layers.*.ffn": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "layers.*.ffn.w1": ColwiseParallel(),
        "layers.*.ffn.w3": ColwiseParallel(),
        "layers.*.ffn.w2": RowwiseParallel(output_layouts=Shard(1)),
    }


@dataclasses.dataclass(frozen=True)
class Program:
    """``build(layers)`` gives the single-device model on the current default device, ``inputs`` what a rank passes."""

    name: str
    build: Callable[[int], nn.Module]
    plan: Callable[[], Plan]
    inputs: Callable[[], tuple[torch.Tensor, ...]]

    def parallel(self, layers: int, mesh: DeviceMesh) -> nn.Module:
        """The parallelized model. Its memory is allocated and never touched, so that real sizes fit anywhere."""
        with torch.device("meta"):
            model = self.build(layers)
        return parallelize_module(model, mesh, self.plan()).to_empty(device="cpu")


def _transformer(name: str, config: Config, growth: int = 0) -> Program:
    def inputs() -> tuple[torch.Tensor, ...]:
        shape = (config.batch, config.sequence)
        return torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)

    return Program(name, lambda layers: Transformer(config, layers, growth), transformer_plan, inputs)


def _perceptrons() -> Program:
    return Program(
        "mlp",
        lambda layers: nn.Sequential(*(Perceptron(1024, 4096) for _ in range(layers))),
        lambda: {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()},
        lambda: (torch.zeros(8, 1024),),
    )


PROGRAMS = {
    program.name: program
    for program in (
        _perceptrons(),
        _transformer("transformer", WIDE),
        _transformer("llama-3-8b", LLAMA_3_8B),
        _transformer("of-different-widths", LLAMA_3_8B, growth=64),
    )
}
