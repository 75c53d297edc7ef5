"""Ten wrong programs, each with its spec. The lines of this file are in the messages that tests assert."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.messages.communication import all_reduce, copy_to, reduce_from


class Linear(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, inner)), nn.Parameter(torch.randn(3))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class RowParallelLinear(Linear):
    def __init__(self, inner, mesh):
        super().__init__(inner // mesh.size())
        self.group = mesh.get_group()

    def forward(self, x):
        return reduce_from(F.linear(x, self.weight, self.bias), self.group)


def attention(q, k, v):
    mask = torch.arange(k.shape[0])[None] <= torch.arange(q.shape[0])[:, None]
    return (q @ k.t()).masked_fill(~mask, -1e4).softmax(-1) @ v


def attention_of_shard(q, k, v):
    position = torch.arange(q.shape[0])
    mask = torch.arange(k.shape[0])[None] <= position[:, None]
    return (q @ k.t()).masked_fill(~mask, -1e4).softmax(-1) @ v


def embedding(tokens, table):
    return F.embedding(tokens, table)


def embedding_of_shard(mesh):
    group = mesh.get_group()

    def lookup(tokens, table):
        rows = table.shape[0]
        mine = (tokens >= 0) & (tokens < rows)
        own = F.embedding(tokens.clamp(0, rows - 1), table) * mine[:, None]
        return reduce_from(own, group)

    return lookup


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate_up = nn.Parameter(torch.randn(4, 2 * width))

    def forward(self, x):
        gate, up = (x @ self.gate_up).chunk(2, -1)
        return F.silu(gate) * up


def loss_of_labels(logits, labels):
    return F.cross_entropy(logits, labels)


def loss_of_own_labels(mesh):
    group = mesh.get_group()

    def loss(logits, labels):
        own = F.cross_entropy(logits, labels)
        return all_reduce(own, group, "avg")

    return loss


def masked_mean(losses, mask):
    return (losses * mask).sum() / mask.sum()


def mean_of_means(mesh):
    group = mesh.get_group()

    def loss(losses, mask):
        total, count = (losses * mask).sum(), mask.sum()
        return all_reduce(total / count, group) / mesh.size()

    return loss


def norm(x, gain):
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * gain


def norm_of_shard(x, gain):
    mean = x.pow(2).mean(-1, keepdim=True)
    return x * (mean + 1e-6).rsqrt() * gain


class NormedHeads(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.gain = nn.Parameter(torch.randn(3))
        self.wq = nn.Parameter(torch.randn(4, heads, 3))

    def forward(self, x):
        return F.rms_norm(torch.einsum("ti,ihd->thd", x, self.wq), (3,), self.gain, 1e-6)


def scaled_loss(x, w):
    return (x @ w).square().mean()


def loss_divided_twice(mesh):
    group = mesh.get_group()

    def loss(x, w):
        own = (x @ copy_to(w, group)).square().mean()
        return all_reduce(own / mesh.size(), group, "avg")

    return loss


def two_axes(x, w):
    return torch.tanh(x @ w)


def wrong_group(mesh):
    group = mesh.get_group("dp")

    def layer(x, w):
        return torch.tanh(all_reduce(x @ w, group))

    return layer


