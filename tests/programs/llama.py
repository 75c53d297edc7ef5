"""Llama: RMSNorm, rotary embedding, grouped-query attention, SwiGLU, cross entropy in the model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from tests.programs.case import Case, Plan, tensor_parallel, tensor_parallel_mesh

HEAD_DIM = 4
SEQUENCE = 16
VOCABULARY = 32


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rotary(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """``x`` [batch, head, sequence, head_dim] rotated; ``table`` holds cosines and sines, or complex phases."""
    if not table.is_complex():
        cosine, sine = table.unbind(0)
        return x * cosine + rotate_half(x) * sine
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * table).flatten(-2)


def rotary_table(complex_form: bool) -> torch.Tensor:
    frequencies = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = torch.arange(SEQUENCE)[:, None] * frequencies
    if complex_form:
        return torch.polar(torch.ones_like(angles), angles)
    angles = torch.cat((angles, angles), -1)
    return torch.stack((angles.cos(), angles.sin()))


class Attention(nn.Module):
    def __init__(self, heads: int, kv_heads: int) -> None:
        super().__init__()
        dim = heads * HEAD_DIM
        self.wq = nn.Linear(dim, heads * HEAD_DIM, bias=False)
        self.wk = nn.Linear(dim, kv_heads * HEAD_DIM, bias=False)
        self.wv = nn.Linear(dim, kv_heads * HEAD_DIM, bias=False)
        self.wo = nn.Linear(heads * HEAD_DIM, dim, bias=False)

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        batch, sequence, _ = x.shape
        q, k, v = (w(x).view(batch, sequence, -1, HEAD_DIM).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = rotary(q, table), rotary(k, table)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(attended.transpose(1, 2).reshape(batch, sequence, -1))


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, heads: int, kv_heads: int) -> None:
        super().__init__()
        dim = heads * HEAD_DIM
        self.attention_norm = nn.RMSNorm(dim, eps=1e-5)
        self.attention = Attention(heads, kv_heads)
        self.ffn_norm = nn.RMSNorm(dim, eps=1e-5)
        self.feed_forward = FeedForward(dim, 2 * dim)

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), table)
        return x + self.feed_forward(self.ffn_norm(x))


class LlamaBlock(nn.Module):
    """One block and its rotary table: activations in, activations out."""

    def __init__(self, heads: int, kv_heads: int, complex_rotary: bool = False) -> None:
        super().__init__()
        self.block = Block(heads, kv_heads)
        self.register_buffer("table", rotary_table(complex_rotary), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x, self.table)


class Llama(nn.Module):
    """Tokens and labels in, mean cross entropy out."""

    def __init__(self, layers: int, heads: int, kv_heads: int, complex_rotary: bool = False) -> None:
        super().__init__()
        dim = heads * HEAD_DIM
        self.embedding = nn.Embedding(VOCABULARY, dim)
        self.layers = nn.ModuleList(Block(heads, kv_heads) for _ in range(layers))
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.output = nn.Linear(dim, VOCABULARY, bias=False)
        self.register_buffer("table", rotary_table(complex_rotary), persistent=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.table)
        logits = self.output(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1))


def block_plan(prefix: str) -> dict[str, object]:
    gathered = PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None))
    gathered_one = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    return {
        f"{prefix}.attention_norm": SequenceParallel(),
        f"{prefix}.attention": gathered,
        f"{prefix}.attention.wq": ColwiseParallel(),
        f"{prefix}.attention.wk": ColwiseParallel(),
        f"{prefix}.attention.wv": ColwiseParallel(),
        f"{prefix}.attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        f"{prefix}.ffn_norm": SequenceParallel(),
        f"{prefix}.feed_forward": gathered_one,
        f"{prefix}.feed_forward.w1": ColwiseParallel(),
        f"{prefix}.feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        f"{prefix}.feed_forward.w3": ColwiseParallel(),
    }


def block_only_plan() -> Plan:
    """Activations enter and leave as DTensors' local shards of the sequence."""
    return block_plan("block")


def llama_plan() -> Plan:
    return {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        **block_plan("layers.*"),
    }


def heads(degree: int) -> tuple[int, int]:
    """Numbers of query and of key-value heads: two queries a key, at least one key a rank."""
    return 2 * max(degree, 2), max(degree, 2)


def token_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCABULARY, (2, SEQUENCE), generator=generator)
    return tokens, torch.randint(0, VOCABULARY, (2, SEQUENCE), generator=generator)


def case(degree: int, *, layers: int = 1, data_parallel: int = 1, complex_rotary: bool = False) -> Case:
    mesh = tensor_parallel_mesh(degree, data_parallel)
    kind = "llama-complex" if complex_rotary else "llama"
    return Case(
        f"{kind}-{layers}layers-{'x'.join(str(size) for _, size in mesh)}",
        mesh,
        lambda: Llama(layers, *heads(degree), complex_rotary=complex_rotary),
        tensor_parallel(llama_plan()),
        token_inputs,
    )


def block_case(degree: int, *, data_parallel: int = 1) -> Case:
    """A block between sequence shards: each rank passes its part of the sequence, gets its part of the result."""
    mesh = tensor_parallel_mesh(degree, data_parallel)
    query_heads, kv_heads = heads(degree)

    def inputs() -> tuple[torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        return (torch.randn(2, SEQUENCE, query_heads * HEAD_DIM, generator=generator),)

    return Case(
        f"llama-block-{'x'.join(str(size) for _, size in mesh)}",
        mesh,
        lambda: LlamaBlock(query_heads, kv_heads),
        tensor_parallel(block_only_plan()),
        inputs,
        sharded=(1,),
    )
