"""Running sums over sharded positions: each rank's own, and what the ranks before it have."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from tests.programs.forms import comm
from tests.programs.forms.form import S0, Form

EXPERTS = 4


class Running(nn.Module):
    """``style``: how what comes before is taken of the totals of all ranks."""

    def __init__(self, style: str, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.style, self.mesh, self.mistake = style, mesh, mistake

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x)
        if self.mesh is None:
            return x.flip(0).cumsum(0).flip(0) if self.style == "reversed" else x.cumsum(0)
        before: Any = getattr(self, self.style)(x, self.mesh.get_local_rank(), self.mesh.get_group())
        if self.mistake == "own alone":
            before = 0 * before
        if self.mistake == "own total too":
            before = before + x.sum(0)
        own = x.flip(0).cumsum(0).flip(0) if self.style == "reversed" else x.cumsum(0)
        return own + before

    def masked(self, x: torch.Tensor, rank: int, group: Any) -> torch.Tensor:
        totals = comm.gather(x.cumsum(0)[-1:], 0, group)
        earlier = torch.arange(totals.shape[0]) < (rank + 1 if self.mistake == "later too" else rank)
        return (totals * earlier[:, None]).sum(0)

    def exclusive(self, x: torch.Tensor, rank: int, group: Any) -> torch.Tensor:
        totals = comm.gather(x.sum(0, keepdim=True), 0, group)
        return (totals.cumsum(0) - (0 if self.mistake == "later too" else totals))[rank]

    def reversed(self, x: torch.Tensor, rank: int, group: Any) -> torch.Tensor:
        totals = comm.gather(x.sum(0, keepdim=True), 0, group)
        later = torch.arange(totals.shape[0]) > rank
        if self.mistake == "later too":
            later = ~later
        return torch.einsum("rd,r->d", totals, later.to(x.dtype))


class Places(nn.Module):
    """The place of each token among those of its expert, before the tokens are cut at a capacity."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake

    def forward(self, experts: torch.Tensor) -> torch.Tensor:
        chosen = F.one_hot(experts, EXPERTS)
        places = chosen.cumsum(0) - 1
        if self.mesh is not None and self.mistake != "own alone":
            counts = comm.gather(chosen.sum(0, keepdim=True), 0, self.mesh.get_group())
            ends = counts.cumsum(1 if self.mistake == "over experts" else 0)
            places = places + (ends if self.mistake == "later too" else ends - counts)[self.mesh.get_local_rank()]
        return (places * chosen).sum(-1)


def running(style: str, ranks: int) -> Form:
    return Form(
        f"running-{style}-{ranks}",
        {"cp": ranks},
        lambda: Running(style),
        lambda mesh, mistake: Running(style, mesh, mistake),
        lambda: (torch.randn(3, 2, requires_grad=style != "masked"),),
        {"in_placements": {"x": (S0,)}, "out_placements": {"output.0": (S0,)}},
        ("own alone", "own total too", "later too"),
    )


FORMS = (
    running("masked", 4),
    running("exclusive", 3),
    running("reversed", 4),
    Form(
        "places-of-tokens-4",
        {"ep": 4},
        Places,
        Places,
        lambda: (torch.tensor([0, 2, 1, 2, 3, 0]),),
        {"in_placements": {"experts": (S0,)}, "out_placements": {"output.0": (S0,)}},
        ("own alone", "over experts", "later too"),
    ),
)
