"""Attention blocks: ways to write positions, shared keys, soft caps and latent keys, heads over tensor parallelism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint

from tests.programs.forms import comm
from tests.programs.forms.form import S0, S1, Form, R

BATCH, LENGTH, WIDTH, HEADS, SIZE = 2, 4, 16, 8, 4
Positions = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def frequencies() -> torch.Tensor:
    return 1.0 / (10000.0 ** (torch.arange(0, SIZE, 2).float() / SIZE))


def interleaved(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Pairs of neighbours are rotated; ``stack`` and ``flatten`` put them back."""
    angles = positions[:, None].float() * frequencies()
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def halves(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    angles = torch.outer(positions.float(), frequencies())
    angles = torch.cat((angles, angles), dim=-1)
    rotated = torch.cat((-x[..., SIZE // 2 :], x[..., : SIZE // 2]), dim=-1)
    return x * angles.cos() + rotated * angles.sin()


def complex_pairs(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    angles = torch.outer(positions.float(), frequencies())
    turned = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2)


def partial_rotation(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Only the first half of every head is rotated."""
    angles = positions.float()[:, None] * frequencies()[:1]
    a, b, rest = x[..., 0:1], x[..., 1:2], x[..., 2:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin(), rest), -1)


class Attention(nn.Module):
    """``keys``: number of key and value heads in all; a rank holds its own, or all where there are fewer than ranks."""

    def __init__(
        self,
        positions: Positions,
        keys: int,
        variant: str = "",
        mesh: DeviceMesh | None = None,
        mistake: str = "",
    ) -> None:
        super().__init__()
        ranks = 1 if mesh is None else mesh["tp"].size()
        self.mesh, self.mistake, self.positions, self.variant = mesh, mistake, positions, variant
        self.heads = HEADS // ranks
        self.shared = keys < ranks
        self.keys = keys if self.shared else keys // ranks
        self.group_size = HEADS // keys
        self.query = nn.Linear(WIDTH, self.heads * SIZE, bias=False)
        self.key = nn.Linear(WIDTH, self.keys * SIZE, bias=False)
        self.value = nn.Linear(WIDTH, self.keys * SIZE, bias=False)
        self.out = nn.Linear(self.heads * SIZE, WIDTH, bias=False)
        self.norm = nn.Parameter(torch.rand(SIZE)) if "norm" in variant else None

    def tp(self) -> Any:
        return None if self.mesh is None else self.mesh.get_group("tp")

    def first_head(self) -> int:
        if self.mesh is None or self.mistake == "heads of the first rank":
            return 0
        return self.mesh.get_local_rank("tp") * self.heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "checkpoint" in self.variant:
            return checkpoint(self.block, x, use_reentrant=False)  # pyright: ignore[reportReturnType]
        return self.block(x)

    def replicated(self, parameter: torch.Tensor) -> torch.Tensor:
        """A parameter that every rank has whole and uses for its own heads."""
        if self.mesh is None or self.mistake == "shared gradient not reduced":
            return parameter
        return comm.enter(parameter, self.tp())

    def block(self, x: torch.Tensor) -> torch.Tensor:
        inside = x if self.mesh is None or self.mistake == "input's gradient not reduced" else comm.enter(x, self.tp())
        batch, length = x.shape[:2]
        key_weight, value_weight = self.key.weight, self.value.weight
        if self.shared:
            key_weight, value_weight = self.replicated(key_weight), self.replicated(value_weight)
        q = self.query(inside).view(batch, length, self.heads, SIZE).transpose(1, 2)
        k = F.linear(inside, key_weight).view(batch, length, self.keys, SIZE).transpose(1, 2)
        v = F.linear(inside, value_weight).view(batch, length, self.keys, SIZE).transpose(1, 2)
        if self.norm is not None:
            weight = self.replicated(self.norm)
            q, k = F.rms_norm(q, (SIZE,), weight, 1e-6), F.rms_norm(k, (SIZE,), weight, 1e-6)
        where = torch.arange(length)
        q, k = self.positions(q, where), self.positions(k, where)
        k, v = self.spread(k), self.spread(v)
        scores = torch.matmul(q, k.transpose(-1, -2)) / SIZE**0.5
        if "cap" in self.variant:
            scores = 5.0 * torch.tanh(scores / 5.0)
        if "alibi" in self.variant:
            numbers = torch.arange(self.heads) + self.first_head()
            slopes = torch.exp2(-(numbers + 1).float() * 8.0 / HEADS)
            scores = scores + slopes[:, None, None] * (where[None, :] - where[:, None]).float()
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        if "dropout" in self.variant:
            weights = F.dropout(weights, p=0.0, training=True)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, -1)
        result = self.out(mixed)
        return result if self.mesh is None or self.mistake == "not reduced" else comm.leave(result, self.tp())

    def spread(self, k: torch.Tensor) -> torch.Tensor:
        """One key head for each of this rank's query heads."""
        if "expand" in self.variant and not self.shared:
            batch, keys, length, size = k.shape
            return k[:, :, None].expand(batch, keys, self.group_size, length, size).reshape(batch, -1, length, size)
        if self.shared and self.keys == 1:
            return k.expand(-1, self.heads, -1, -1)
        if self.shared:
            first = self.first_head() // self.group_size
            own = k[:, first : first + max(1, self.heads // self.group_size)]
            return own.repeat_interleave(min(self.heads, self.group_size), dim=1)
        if "index" in self.variant:
            return k[:, torch.arange(self.heads) // self.group_size]
        return k.repeat_interleave(self.group_size, dim=1)


def attention(name: str, ranks: int, positions: Positions, keys: int, variant: str, *mistakes: str) -> Form:
    shared = keys < ranks
    whole, rows = (R,), (S0,)
    return Form(
        f"attention-{name}-{ranks}",
        {"tp": ranks},
        lambda: Attention(positions, keys, variant),
        lambda mesh, mistake: Attention(positions, keys, variant, mesh, mistake),
        lambda: (torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True),),
        {
            "in_placements": {"x": (R,)},
            "param_placements": {
                "query.weight": rows,
                "key.weight": whole if shared else rows,
                "value.weight": whole if shared else rows,
                "out.weight": (S1,),
                **({"norm": whole} if "norm" in variant else {}),
            },
            "out_placements": {"output.0": (R,)},
        },
        ("not reduced", "input's gradient not reduced", *mistakes),
    )


class Latent(nn.Module):
    """Latent attention: keys and values come up from a small shared state, positions from a key that all heads share."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        ranks = 1 if mesh is None else mesh["tp"].size()
        self.mesh, self.mistake, self.heads = mesh, mistake, HEADS // ranks
        self.query = nn.Linear(WIDTH, self.heads * 2 * SIZE, bias=False)
        self.down = nn.Linear(WIDTH, 6 + SIZE, bias=False)
        self.latent_norm = nn.Parameter(torch.rand(6))
        self.up = nn.Linear(6, self.heads * 2 * SIZE, bias=False)
        self.out = nn.Linear(self.heads * SIZE, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        group = None if self.mesh is None else self.mesh.get_group("tp")

        def inside(value: torch.Tensor, name: str) -> torch.Tensor:
            return (
                value if group is None or self.mistake == f"{name}'s gradient not reduced" else comm.enter(value, group)
            )

        batch, length = x.shape[:2]
        q = self.query(inside(x, "input")).view(batch, length, self.heads, 2 * SIZE).transpose(1, 2)
        latent, shared_key = self.down(x).split([6, SIZE], dim=-1)
        latent = F.rms_norm(latent, (6,), self.latent_norm, 1e-6)
        up = self.up(inside(latent, "latent")).view(batch, length, self.heads, 2 * SIZE).transpose(1, 2)
        k, v = up.chunk(2, dim=-1)
        q_plain, q_turned = q.split(SIZE, dim=-1)
        where = torch.arange(length)
        turned = halves(inside(shared_key, "shared key")[:, None], where)
        q = torch.cat([q_plain, halves(q_turned, where)], -1)
        k = torch.cat([k, turned.expand(-1, self.heads, -1, -1)], -1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result = self.out(mixed.transpose(1, 2).flatten(2))
        return result if group is None or self.mistake == "not reduced" else comm.leave(result, group)


def latent(ranks: int) -> Form:
    return Form(
        f"latent-{ranks}",
        {"tp": ranks},
        Latent,
        Latent,
        lambda: (torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True),),
        {
            "in_placements": {"x": (R,)},
            "param_placements": {"query.weight": (S0,), "up.weight": (S0,), "out.weight": (S1,)},
            "out_placements": {"output.0": (R,)},
        },
        (
            "shared key's gradient not reduced",
            "latent's gradient not reduced",
            "input's gradient not reduced",
            "not reduced",
        ),
    )


class Parallel(nn.Module):
    """Attention and MLP side by side on one norm, reduced together; sequence parallel outside."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        ranks = 1 if mesh is None else mesh["tp"].size()
        self.mesh, self.mistake, self.heads = mesh, mistake, HEADS // ranks
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, self.heads * 3 * SIZE)
        self.out = nn.Linear(self.heads * SIZE, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH // ranks)
        self.down = nn.Linear(4 * WIDTH // ranks, WIDTH, bias=False)
        self.bias = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        group = None if self.mesh is None else self.mesh.get_group("tp")

        def replicated(parameter: torch.Tensor, name: str) -> torch.Tensor:
            return parameter if group is None or self.mistake == f"{name} not reduced" else comm.enter(parameter, group)

        normed = F.layer_norm(x, (WIDTH,), replicated(self.norm.weight, "norm"), replicated(self.norm.bias, "norm"))
        if group is not None:
            normed = comm.gather(normed, 1, group, cut=self.mistake == "gradient cut")
        batch, length = normed.shape[:2]
        q, k, v = self.qkv(normed).view(batch, length, self.heads, 3, SIZE).permute(3, 0, 2, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        total = self.out(mixed) + self.down(F.gelu(self.up(normed), approximate="tanh"))
        if group is not None:
            total = comm.scatter(total, 1, group)
        return x + total + replicated(self.bias, "bias")


def side_by_side(ranks: int) -> Form:
    return Form(
        f"parallel-block-{ranks}",
        {"tp": ranks},
        Parallel,
        Parallel,
        lambda: (torch.randn(BATCH, 2, WIDTH, requires_grad=True),),
        {
            "in_placements": {"x": (S1,)},
            "param_placements": {
                "qkv.*": (S0,), "up.*": (S0,), "out.weight": (S1,), "down.weight": (S1,),
            },
            "out_placements": {"output.0": (S1,)},
        },
        ("norm not reduced", "gradient cut", "bias not reduced"),
    )  # fmt: skip


class Tied(nn.Module):
    """A padded vocabulary, its table used for lookup and head, over ``tp``; padded columns are left out of the loss."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.words, self.padded = 14, 16
        self.mesh, self.mistake = mesh, mistake
        self.table = nn.Parameter(torch.randn(self.padded // (1 if mesh is None else mesh["tp"].size()), WIDTH))

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self.mesh is None:
            logits = torch.tanh(F.embedding(ids, self.table)) @ self.table.t()
            logits = logits.masked_fill(torch.arange(self.padded) >= self.words, float("-inf"))
            return -logits.log_softmax(-1).gather(-1, labels[:, None]).sum()
        group, rows = self.mesh.get_group("tp"), self.table.shape[0]
        first = self.mesh.get_local_rank("tp") * rows
        outside = (ids < first) | (ids >= first + rows)
        found = self.table[torch.where(outside, 0, ids - first)].masked_fill(outside[:, None], 0)
        hidden = torch.tanh(comm.leave(found, group))
        hidden = hidden if self.mistake == "hidden not reduced" else comm.enter(hidden, group)
        head = self.table.detach() if self.mistake == "head detached" else self.table
        logits = hidden @ head.t()
        columns = torch.arange(rows) + first
        limit = self.padded if self.mistake == "padding kept" else self.words
        logits = logits.masked_fill(columns >= limit, float("-inf"))
        shift = comm.total(logits.detach().amax(-1, keepdim=True), group, "max")
        divisor = comm.leave((logits - shift).exp().sum(-1), group)
        target = torch.where(labels[:, None] == columns, logits - shift, 0.0).sum(-1)
        return (divisor.log() - comm.leave(target, group)).sum()


def tied(ranks: int) -> Form:
    return Form(
        f"tied-padded-{ranks}",
        {"tp": ranks},
        Tied,
        Tied,
        lambda: (torch.tensor([0, 5, 13, 7]), torch.tensor([5, 13, 7, 1])),
        {
            "in_placements": {"ids": (R,), "labels": (R,)},
            "param_placements": {"table": (S0,)},
            "out_placements": {"output.0": (R,)},
        },
        ("hidden not reduced", "head detached", "padding kept"),
    )


SHARED = "shared gradient not reduced"
FORMS: tuple[Form, ...] = (
    attention("interleaved-norm", 2, interleaved, 8, "norm", SHARED),
    attention("halves-gqa-expand", 2, halves, 4, "expand checkpoint norm", SHARED),
    attention("complex-gqa-repeat-cap", 4, complex_pairs, 4, "cap norm", SHARED),
    attention("halves-gqa-replicated", 4, halves, 2, "dropout", SHARED, "heads of the first rank"),
    latent(2),
    side_by_side(2),
    tied(2),
)
