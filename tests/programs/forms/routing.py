"""Rows that a router orders, counted and put back where they were, with weights that are cut by columns."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from tests.programs.forms import comm
from tests.programs.forms.form import S0, S1, Form, R

EXPERTS = 4


class PutBack(nn.Module):
    """Rows in the order of their experts; ``style``: how what is computed of them is put back."""

    def __init__(self, style: str, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.style, self.mesh, self.mistake = style, mesh, mistake

    def forward(self, x: torch.Tensor, router: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        order = torch.argsort((x @ router).argmax(-1), stable=True)
        if self.mesh is not None and self.mistake != "gradient not reduced":
            x = comm.enter(x, self.mesh.get_group())
        rows = torch.tanh(x[order] @ w)
        if self.mistake == "left in order":
            return rows
        back = torch.argsort(order) if self.mistake == "put in order again" else order
        if self.style == "copied":
            return torch.empty_like(rows).index_copy(0, back, rows)
        return torch.empty_like(rows).scatter_(0, back[:, None].expand_as(rows), rows)


class Loads(nn.Module):
    """The loss that balances experts: how many tokens of all ranks each of them gets, times its mean probability."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake

    def forward(self, x: torch.Tensor, router: torch.Tensor) -> torch.Tensor:
        probabilities = (x @ router).softmax(-1)
        chosen = probabilities.topk(2, -1)[1].flatten()
        counts, mean = torch.bincount(chosen, minlength=EXPERTS), probabilities.mean(0)
        if self.mesh is not None:
            group = self.mesh.get_group()
            if self.mistake != "own tokens":
                counts = comm.total(counts, group)
            counts = counts / (1 if self.mistake == "counted as those of one rank" else self.mesh.size())
            mean = mean if self.mistake == "own probabilities" else comm.leave(mean / self.mesh.size(), group)
        return EXPERTS * (counts.to(x.dtype) / chosen.numel() * mean).sum()


class Busiest(nn.Module):
    """How far each expert is from the mean number of tokens, of which the size is not given again."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        counts = torch.bincount(scores.argmax(-1), minlength=EXPERTS).to(scores.dtype)
        if self.mistake == "mean first":
            counts = counts - counts.mean()
        if self.mesh is not None and self.mistake not in {"own tokens", "mean first"}:
            counts = comm.total(counts, self.mesh.get_group(), "max" if self.mistake == "of one rank" else "sum")
        return torch.sign(counts.mean() - counts)


class Greatest(nn.Module):
    """Each token goes to the expert with the greatest probability, and every rank goes through its own experts."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake

    def forward(self, x: torch.Tensor, router: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        weight, chosen = (x @ router).softmax(-1).max(-1)
        first, group = 0, None
        if self.mesh is not None:
            first, group = self.mesh.get_local_rank() * len(w), self.mesh.get_group()
            x = comm.enter(x, group)
            weight = weight if self.mistake == "gradient not reduced" else comm.enter(weight, group)
        total = torch.zeros_like(x)
        for number, own in enumerate(w):
            rows = weight[:, None] * (x @ own)
            mask = (chosen == first + number + (self.mistake == "the next expert"))[:, None]
            total = total + (rows + (rows * mask - rows).detach() if self.mistake == "gradient of all rows" else rows * mask)
        return total if group is None else comm.leave(total, group)


class Mapped(nn.Module):
    """Each rank numbers its own experts, and those of other ranks have no number. ``by_table``: in a table of all."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "", by_table: bool = False) -> None:
        super().__init__()
        self.mesh, self.mistake, self.by_table = mesh, mistake, by_table

    def forward(self, x: torch.Tensor, router: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        weight, chosen = (x @ router).softmax(-1).topk(2, -1)
        if self.mesh is not None:
            first = len(w) * self.mesh.get_local_rank() + (self.mistake == "the next experts")
            every = torch.arange(EXPERTS) if self.by_table else chosen
            numbered = torch.where((every >= first) & (every < first + len(w)), every - first, -1)
            chosen = numbered[chosen] if self.by_table else numbered
            if self.mistake == "others taken for the first":
                chosen = chosen.clamp(min=0)
            if self.mistake == "one of two choices":
                weight, chosen = weight[:, :1], chosen[:, :1]
        total = torch.zeros_like(x)
        for number, own in enumerate(w):
            total = total + torch.relu(x @ own) * (weight * (chosen == number)).sum(-1, keepdim=True)
        return total if self.mesh is None else comm.total(total, self.mesh.get_group())


def mapped(ranks: int, by_table: bool = False) -> Form:
    own = EXPERTS // ranks
    return Form(
        f"experts-numbered-{'by-table-' * by_table}{ranks}",
        {"ep": ranks},
        Mapped,
        lambda mesh, mistake: Mapped(mesh, mistake, by_table),
        lambda: (torch.randn(5, 3), torch.randn(3, EXPERTS), torch.randn(own, 3, 3)),
        {"in_placements": {"x": (R,), "router": (R,), "w": (S0,)}, "out_placements": {"output.0": (R,)}},
        ("others taken for the first", "the next experts", "one of two choices"),
    )


def put_back(style: str) -> Form:
    return Form(
        f"put-back-{style}-2",
        {"tp": 2},
        lambda: PutBack(style),
        lambda mesh, mistake: PutBack(style, mesh, mistake),
        lambda: (torch.randn(4, 3, requires_grad=True), torch.randn(3, EXPERTS), torch.randn(3, 2, requires_grad=True)),
        {"in_placements": {"x": (R,), "router": (R,), "w": (S1,)}, "out_placements": {"output.0": (S1,)}},
        ("left in order", "put in order again", "gradient not reduced"),
    )


FORMS = (
    put_back("copied"),
    put_back("scattered"),
    mapped(2),
    mapped(4),
    mapped(2, by_table=True),
    Form(
        "greatest-of-own-experts-2",
        {"ep": 2},
        Greatest,
        Greatest,
        lambda: (torch.randn(4, 3, requires_grad=True), torch.randn(3, EXPERTS), torch.randn(2, 3, 3, requires_grad=True)),
        {"in_placements": {"x": (R,), "router": (R,), "w": (S0,)}, "out_placements": {"output.0": (R,)}},
        ("the next expert", "gradient of all rows", "gradient not reduced"),
    ),
    Form(
        "loads-by-bincount-2",
        {"dp": 2},
        Loads,
        Loads,
        lambda: (torch.randn(4, 3, requires_grad=True), torch.randn(3, EXPERTS)),
        {"in_placements": {"x": (S0,), "router": (R,)}, "out_placements": {"output.0": (R,)}},
        ("own tokens", "own probabilities", "counted as those of one rank"),
    ),
    Form(
        "busiest-by-bincount-2",
        {"dp": 2},
        Busiest,
        Busiest,
        lambda: (torch.randn(4, EXPERTS),),
        {"in_placements": {"scores": (S0,)}, "out_placements": {"output.0": (R,)}},
        ("own tokens", "mean first", "of one rank"),
    ),
)
