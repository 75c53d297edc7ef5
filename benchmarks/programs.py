"""Programs of the benchmark: an MLP, and a transformer at small and at real dimensions, all tensor-parallel."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


@dataclasses.dataclass(frozen=True)
class Dimensions:
    """Sizes of a transformer. ``head``: width of one attention head."""

    width: int
    heads: int
    key_heads: int
    head: int
    hidden: int
    vocabulary: int
    batch: int
    sequence: int


def small(degree: int) -> Dimensions:
    """The smallest transformer that ``degree`` ranks can share."""
    heads = max(8, degree)
    return Dimensions(
        width=64,
        heads=heads,
        key_heads=max(4, degree),
        head=8,
        hidden=8 * heads,
        vocabulary=8 * heads,
        batch=2,
        sequence=2 * heads,
    )


EIGHT_BILLION = Dimensions(
    width=4096, heads=32, key_heads=8, head=128, hidden=14336, vocabulary=128256, batch=1, sequence=8192
)
"""The published dimensions of Llama-3-8B."""


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class Attention(nn.Module):
    def __init__(self, d: Dimensions) -> None:
        super().__init__()
        self.head = d.head
        self.query = nn.Linear(d.width, d.heads * d.head, bias=False)
        self.key = nn.Linear(d.width, d.key_heads * d.head, bias=False)
        self.value = nn.Linear(d.width, d.key_heads * d.head, bias=False)
        self.output = nn.Linear(d.heads * d.head, d.width, bias=False)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        batch, sequence, _ = x.shape
        query = self.query(x).view(batch, sequence, -1, self.head).transpose(1, 2)
        key = self.key(x).view(batch, sequence, -1, self.head).transpose(1, 2)
        value = self.value(x).view(batch, sequence, -1, self.head).transpose(1, 2)
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.output(y.transpose(1, 2).reshape(batch, sequence, -1))


class FeedForward(nn.Module):
    def __init__(self, d: Dimensions) -> None:
        super().__init__()
        self.gate = nn.Linear(d.width, d.hidden, bias=False)
        self.up = nn.Linear(d.width, d.hidden, bias=False)
        self.down = nn.Linear(d.hidden, d.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, d: Dimensions) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(d.width)
        self.attention = Attention(d)
        self.feed_forward_norm = nn.RMSNorm(d.width)
        self.feed_forward = FeedForward(d)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Transformer(nn.Module):
    """Decoder with grouped-query attention, rotary positions and a cross-entropy loss."""

    def __init__(self, d: Dimensions, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(d.vocabulary, d.width)
        self.layers = nn.ModuleList(Block(d) for _ in range(layers))
        self.norm = nn.RMSNorm(d.width)
        self.head = nn.Linear(d.width, d.vocabulary, bias=False)
        frequencies = 10000 ** (-torch.arange(0, d.head, 2) / d.head)
        angles = torch.arange(d.sequence)[:, None] * frequencies
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1))


class MLP(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def parallel_transformer(d: Dimensions, layers: int, mesh: DeviceMesh) -> nn.Module:
    """Tensor and sequence parallel by torch's own styles; parameters hold no memory that is ever written."""
    model = Transformer(d, layers)
    sequence = Shard(1)
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=sequence),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=sequence, output_layouts=Replicate()),
        },
    )
    for block in model.layers:
        parallelize_module(
            block,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "feed_forward_norm": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(sequence, None, None), desired_input_layouts=(Replicate(), None, None)
                ),
                "attention.query": ColwiseParallel(),
                "attention.key": ColwiseParallel(),
                "attention.value": ColwiseParallel(),
                "attention.output": RowwiseParallel(output_layouts=sequence),
                "feed_forward": PrepareModuleInput(
                    input_layouts=(sequence,), desired_input_layouts=(Replicate(),)
                ),
                "feed_forward.gate": ColwiseParallel(),
                "feed_forward.up": ColwiseParallel(),
                "feed_forward.down": RowwiseParallel(output_layouts=sequence),
            },
        )
    return model


def parallel_mlp(degree: int, mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(MLP(64, 8 * degree), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
