"""The same function in two spellings: trust ratios, masks, strides, softmax in residual layers, clamps."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from tests.programs.forms import comm
from tests.programs.forms.form import S0, Form, P, R

Function = Callable[..., torch.Tensor]


def ratio_of_norms(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    update = g / (g.abs() + 1)
    return p - 0.1 * (p.norm() / update.norm()) * update


def root_of_ratio(mesh: DeviceMesh, mistake: str) -> Function:
    def step(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        update = g / (g.abs() + 1)
        of_p, of_update = p.pow(2).sum(), update.pow(2).sum()
        if mistake != "own norms":
            of_p = comm.total(of_p, mesh)
            of_update = of_update if mistake == "own update" else comm.total(of_update, mesh)
        ratio = of_p / of_update
        return p - 0.1 * (ratio if mistake == "no root" else ratio.sqrt()) * update

    return step


def exclusive(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.where((x > 0) ^ (y < 1), torch.where((x > 0) <= (y < 2), x * y, x), 0.0)


def by_operators(_: DeviceMesh, mistake: str) -> Function:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, b = x > 0, (y < 1) if mistake != "another bound" else (y < 0)
        alone = torch.maximum(a & ~b, b & ~a) if mistake != "both too" else a | b
        c = ~a | (y < 2) if mistake != "turned round" else a | ~(y < 2)
        return torch.where(alone, torch.where(c, x * y, x), 0.0)

    return function


def every_second(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x[:, 1::2])


def by_strides(_: DeviceMesh, mistake: str) -> Function:
    def function(x: torch.Tensor) -> torch.Tensor:
        width, start = x.shape[1], 0 if mistake == "first columns" else 1
        if mistake == "neighbours":
            return torch.tanh(x.as_strided((x.shape[0], width // 2), (width, 1), start))
        turned = mistake == "rows in columns"
        strides = (2, width) if turned else (width, 2)
        size = (width // 2, x.shape[0]) if turned else (x.shape[0], width // 2)
        return torch.tanh(x.as_strided(size, strides, start).reshape(x.shape[0], width // 2))

    return function


def preferred(r: torch.Tensor) -> torch.Tensor:
    return -F.logsigmoid(r[0::2] - r[1::2]).sum()


def by_pairs(mesh: DeviceMesh, mistake: str) -> Function:
    def function(r: torch.Tensor) -> torch.Tensor:
        pairs = r.view(2, -1).t() if mistake == "halves" else r.view(-1, 2)
        better, worse = pairs.flip(1).unbind(1) if mistake == "turned round" else pairs.unbind(1)
        total = F.softplus(worse - better).sum()
        return total if mistake == "own pairs" else comm.leave(total, mesh.get_group())

    return function


def of_true_vocabulary(h: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return (h @ w[:7].t()).log_softmax(-1).gather(-1, t[:, None])[:, 0]


def gathered_and_cut(mesh: DeviceMesh, mistake: str) -> Function:
    """Logits of a padded vocabulary: those of the padding are cut off once all parts are there."""

    def function(h: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        padded = comm.gather(h @ w.t(), 1, mesh.get_group())
        logits = padded[:, 1:] if mistake == "first cut" else padded if mistake == "not cut" else padded[:, :7]
        return logits[torch.arange(3), t] - (padded if mistake == "sum not cut" else logits).logsumexp(-1)

    return function


class Residual(nn.Module):
    """Layers that add a share of their softmax: each gradient has the weights of all layers before."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake
        self.weights = nn.ParameterList([nn.Parameter(torch.rand(4)) for _ in range(5)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, weight in enumerate(self.weights):
            dim = 0 if self.mistake == "another dimension" and number == 3 else -1
            share = x.softmax(dim) * (0.25 if self.mistake == "another factor" and number == 3 else 0.5)
            x = share * weight if self.mistake == "no residual" and number == 3 else x + share * weight
        return x.sum() if self.mesh is None else comm.leave(x.sum(), self.mesh.get_group())


def one_or_other(x: torch.Tensor, a: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(a | (y > 0), 0).exp()


def chosen_mask(_: DeviceMesh, mistake: str) -> Function:
    def program(x: torch.Tensor, a: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        positive = y > 0 if mistake != "zero too" else y >= 0
        either = torch.where(a, a, positive) if mistake != "both" else torch.where(a, positive, a)
        kept = ~either if mistake != "turned round" else either
        return (x * kept).exp()

    return program


class Gate(nn.Module):
    """A gated layer in one spelling or the other, so that gradients are sums of quotients over samples."""

    def __init__(self, mistake: str | None = None) -> None:
        super().__init__()
        self.mistake = mistake
        self.w = nn.Parameter(torch.rand(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = x @ self.w
        if self.mistake is None:
            return gate * torch.sigmoid(gate)
        power = torch.exp(gate if self.mistake == "turned round" else -gate)
        share = 1 / ((2 if self.mistake == "another number" else 1) + power)
        return share if self.mistake == "share alone" else gate * share


class Clipped(nn.Module):
    """A Huber loss of a hard-swish: by the functions of torch, or by masks and clamps as papers write them."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str | None = None) -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake
        self.w = nn.Parameter(torch.rand(3, 4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = x @ self.w
        if self.mesh is None:
            return F.smooth_l1_loss(F.hardswish(hidden), y)
        hidden = hidden * F.relu6(hidden + 3) / (3 if self.mistake == "another slope" else 6)
        error = (hidden - y).abs()
        small = error > 1 if self.mistake == "turned round" else error < 1
        each = torch.where(small, 0.5 * error * error, error if self.mistake == "a step" else error - 0.5)
        return comm.leave(each.sum(), self.mesh.get_group()) / 16


class Preferred(nn.Module):
    """A loss of pairs, of which the first is preferred: by the logarithm of the sigmoid, or by that of a sigmoid."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str | None = None) -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake
        self.w = nn.Parameter(torch.rand(3, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = x @ self.w
        if self.mesh is None:
            return -F.logsigmoid(0.1 * (scores[:, 0] - scores[:, 1])).sum()
        margin = scores[:, 1] - scores[:, 0] if self.mistake == "turned round" else scores[:, 0] - scores[:, 1]
        share = torch.sigmoid(margin if self.mistake == "another temperature" else 0.1 * margin)
        return comm.leave(-(share if self.mistake == "no logarithm" else share.log()).sum(), self.mesh.get_group())


FORMS = (
    Form(
        "preference-by-logarithm-of-sigmoid-2",
        {"dp": 2},
        Preferred,
        Preferred,
        lambda: (torch.randn(2, 3, requires_grad=True),),
        {"in_placements": {"x": (S0,)}, "out_placements": {"output.0": (R,)}, "grad_placements": {"w": (P,)}},
        ("turned round", "another temperature", "no logarithm"),
    ),
    Form(
        "huber-of-hardswish-by-masks-2",
        {"dp": 2},
        Clipped,
        Clipped,
        lambda: (torch.randn(2, 3, requires_grad=True), torch.randn(2, 4)),
        {
            "in_placements": {"x": (S0,), "y": (S0,)},
            "out_placements": {"output.0": (R,)},
            "grad_placements": {"w": (P,)},
        },
        ("another slope", "turned round", "a step"),
    ),
    Form(
        "gates-by-exponentials-2",
        {"dp": 2},
        Gate,
        lambda _, mistake: Gate(mistake),
        lambda: (torch.randn(2, 3, requires_grad=True),),
        {"in_placements": {"x": (S0,)}, "out_placements": {"output.0": (S0,)}, "grad_placements": {"w": (P,)}},
        ("turned round", "another number", "share alone"),
    ),
    Form(
        "mask-chosen-by-itself-2",
        {"dp": 2},
        lambda: one_or_other,
        chosen_mask,
        lambda: (torch.randn(2, 3), torch.randn(2, 3) > 0, torch.randn(2, 3)),
        {"in_placements": {"x": (S0,), "a": (S0,), "y": (S0,)}, "out_placements": {"output.0": (S0,)}},
        ("both", "zero too", "turned round"),
    ),
    Form(
        "ratio-of-norms-2",
        {"fsdp": 2},
        lambda: ratio_of_norms,
        root_of_ratio,
        lambda: (torch.randn(2, 4), torch.randn(2, 4)),
        {"in_placements": {"p": (S0,), "g": (S0,)}, "out_placements": {"output.0": (S0,)}},
        ("own norms", "own update", "no root"),
    ),
    Form(
        "masks-by-operators-2",
        {"dp": 2},
        lambda: exclusive,
        by_operators,
        lambda: (torch.randn(4, 6), torch.randn(4, 6)),
        {"in_placements": {"x": (S0,), "y": (S0,)}, "out_placements": {"output.0": (S0,)}},
        ("both too", "another bound", "turned round"),
    ),
    Form(
        "columns-by-strides-2",
        {"dp": 2},
        lambda: every_second,
        by_strides,
        lambda: (torch.randn(4, 6),),
        {"in_placements": {"x": (S0,)}, "out_placements": {"output.0": (S0,)}},
        ("first columns", "neighbours", "rows in columns"),
    ),
    Form(
        "preferences-of-neighbours-2",
        {"dp": 2},
        lambda: preferred,
        by_pairs,
        lambda: (torch.randn(4, requires_grad=True),),
        {"in_placements": {"r": (S0,)}, "out_placements": {"output.0": (R,)}},
        ("halves", "turned round", "own pairs"),
    ),
    Form(
        "gathered-and-cut-vocabulary-2",
        {"tp": 2},
        lambda: of_true_vocabulary,
        gathered_and_cut,
        lambda: (torch.randn(3, 4), torch.randn(4, 4), torch.randint(7, (3,))),
        {"in_placements": {"h": (R,), "w": (S0,), "t": (R,)}, "out_placements": {"output.0": (R,)}},
        ("not cut", "first cut", "sum not cut"),
    ),
    Form(
        "residual-softmax-2",
        {"dp": 2},
        Residual,
        Residual,
        lambda: (torch.randn(3, 4),),
        {"in_placements": {"x": (S0,)}, "out_placements": {"output.0": (R,)}, "grad_placements": {"weights.*": (P,)}},
        ("another dimension", "another factor", "no residual"),
    ),
)
