"""Positions beside a shard, which a rank reads of its neighbours and whose gradients go back to them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from tests.programs.forms import comm
from tests.programs.forms.form import S1, Form, R

WIDTH = 3


class TokenShift(nn.Module):
    """Each position mixed with the one before it; ``style``: how the mixture is written."""

    def __init__(self, style: str, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.style, self.mesh, self.mistake = style, mesh, mistake

    def forward(self, x: Tensor, mix: Tensor) -> Tensor:
        before = F.pad(x, (0, 0, 1, -1))
        if self.mesh is not None:
            mix = mix if self.mistake == "gradient not reduced" else comm.enter(mix, self.mesh.get_group())
            before = torch.cat([self._edge(x, self.mesh), x[:, :-1]], 1)
        if self.style == "difference":
            return x + (before - x) * mix
        if self.style == "gate":
            return torch.sigmoid(x * mix) * before
        return x * mix + before * (1 - mix)

    def _edge(self, x: Tensor, mesh: DeviceMesh) -> Tensor:
        last = comm.gather(x[:, -1:], 1, mesh.get_group(), self.mistake == "own gradient of the edge")
        rank = mesh.get_local_rank() + (self.mistake == "own edge")
        return torch.cat([torch.zeros_like(last[:, :1]), last], 1)[:, rank : rank + 1]


class Convolution(nn.Module):
    """A convolution that reads one position on each side."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.mesh is None:
            return F.conv1d(x.transpose(1, 2), weight, bias, padding=1).transpose(1, 2)
        group, rank = self.mesh.get_group(), self.mesh.get_local_rank()
        weight = weight if self.mistake == "gradient not reduced" else comm.enter(weight, group)
        cut = self.mistake == "own gradient of the edges"
        edges = comm.gather(torch.stack([x[:, 0], x[:, -1]])[None], 0, group, cut)
        ended = torch.cat([torch.zeros_like(edges[:1]), edges, torch.zeros_like(edges[:1])])
        left, right = ended[rank, 1], ended[rank + 2, 0]
        if self.mistake == "sides exchanged":
            left, right = right, left
        wide = torch.cat([left[:, None], x, right[:, None]], 1)
        return F.conv1d(wide.transpose(1, 2), weight, comm.enter(bias, group)).transpose(1, 2)


def token_shift(style: str, ranks: int, length: int) -> Form:
    return Form(
        f"token-shift-{style}-{ranks}",
        {"cp": ranks},
        lambda: TokenShift(style),
        lambda mesh, mistake: TokenShift(style, mesh, mistake),
        lambda: (torch.randn(1, length, WIDTH, requires_grad=True), torch.randn(WIDTH, requires_grad=True)),
        {"in_placements": {"x": (S1,), "mix": (R,)}, "out_placements": {"output.0": (S1,)}},
        ("own edge", "own gradient of the edge", "gradient not reduced"),
    )


FORMS = (
    token_shift("interpolation", 4, 2),
    token_shift("difference", 2, 3),
    token_shift("gate", 2, 2),
    Form(
        "convolution-of-both-sides-2",
        {"cp": 2},
        Convolution,
        Convolution,
        lambda: (
            torch.randn(1, 3, WIDTH, requires_grad=True),
            torch.randn(2, WIDTH, 3, requires_grad=True),
            torch.randn(2, requires_grad=True),
        ),
        {"in_placements": {"x": (S1,), "weight": (R,), "bias": (R,)}, "out_placements": {"output.0": (S1,)}},
        ("sides exchanged", "own gradient of the edges", "gradient not reduced"),
    ),
)
