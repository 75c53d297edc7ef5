"""Pairs of programs that are equal by laws of functions alone, each with a wrong twin.

Both sides are what people write: a formula of a paper, an operator of torch, the form that is numerically stable. Each
has two matrices as parameters, through which a gradient flows where ``backward`` says so.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch.nn import functional as F

Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Pair:
    """``backward``: whether the gradients are compared as well."""

    name: str
    spec: Function
    implementation: Function
    wrong: Function
    backward: bool = True




def _gain(rewards: torch.Tensor) -> torch.Tensor:
    """Rewards about their mean, in units of their deviation, of which no law says that it is a number."""
    return (rewards - rewards.mean()) / (rewards.std() + 1e-4)


_GELU = 2 * math.sqrt(2 / math.pi)

PAIRS = (
    Pair(
        "tanh gate by a sigmoid",
        lambda x, y, a, b: torch.tanh(x @ a) * (y @ b),
        lambda x, y, a, b: (2 * torch.sigmoid(2 * (x @ a)) - 1) * (y @ b),
        lambda x, y, a, b: (2 * torch.sigmoid(x @ a) - 1) * (y @ b),
    ),
    Pair(
        "silu written by hand",
        lambda x, y, a, b: F.silu(x @ a) @ b,
        lambda x, y, a, b: ((h := x @ a) / (1 + torch.exp(-h))) @ b,
        lambda x, y, a, b: ((h := x @ a) / (1 + torch.exp(h))) @ b,
    ),
    Pair(
        "highway gate by the sigmoid of the negated gate",
        lambda x, y, a, b: torch.sigmoid(h := x @ a) * x + (1 - torch.sigmoid(h)) * (y @ b),
        lambda x, y, a, b: torch.sigmoid(h := x @ a) * x + torch.sigmoid(-h) * (y @ b),
        lambda x, y, a, b: torch.sigmoid(h := x @ a) * x + torch.sigmoid(h) * (y @ b),
    ),
    Pair(
        "binary cross entropy with logits",
        lambda x, y, a, b: -(y * F.logsigmoid(h := x @ a) + (1 - y) * F.logsigmoid(-h)).sum() + b.sum(),
        lambda x, y, a, b: (torch.log1p(torch.exp(h := x @ a)) - y * h).sum() + b.sum(),
        lambda x, y, a, b: (torch.log1p(torch.exp(h := x @ a)) + y * h).sum() + b.sum(),
        backward=False,
    ),
    Pair(
        "clipped objective by a maximum",
        lambda x, y, a, b: -torch.min((r := (x @ a).exp()) * (g := _gain(y)), r.clamp(0.8, 1.2) * g) + b.sum(),
        lambda x, y, a, b: torch.max(-(r := (x @ a).exp()) * (g := _gain(y)), -r.clamp(0.8, 1.2) * g) + b.sum(),
        lambda x, y, a, b: torch.min(-(r := (x @ a).exp()) * (g := _gain(y)), -r.clamp(0.8, 1.2) * g) + b.sum(),
    ),
    Pair(
        "softplus of the negated value",
        lambda x, y, a, b: torch.log1p(torch.exp(x @ a)) @ b,
        lambda x, y, a, b: ((h := x @ a) + torch.log1p(torch.exp(-h))) @ b,
        lambda x, y, a, b: torch.log1p(torch.exp(-(x @ a))) @ b,
        backward=False,
    ),
    Pair(
        "complementary error function",
        lambda x, y, a, b: ((x @ a) * torch.special.erfc(y)) @ b,
        lambda x, y, a, b: ((h := x @ a) - h * torch.erf(y)) @ b,
        lambda x, y, a, b: ((h := x @ a) + h * torch.erf(y)) @ b,
    ),
    Pair(
        "fast gelu",
        lambda x, y, a, b: F.gelu(x @ a, approximate="tanh") @ b,
        lambda x, y, a, b: ((h := x @ a) * torch.sigmoid(_GELU * (h + 0.044715 * h**3))) @ b,
        lambda x, y, a, b: ((h := x @ a) * torch.sigmoid(_GELU / 2 * (h + 0.044715 * h**3))) @ b,
        backward=False,
    ),
    Pair(
        "root of a square",
        lambda x, y, a, b: (x @ a).abs() @ b,
        lambda x, y, a, b: ((h := x @ a) * h).sqrt() @ b,
        lambda x, y, a, b: ((x @ a) * (x @ b)).sqrt() @ b,
        backward=False,
    ),
    Pair(
        "hyperbolic tangent by exponentials",
        lambda x, y, a, b: torch.tanh(x @ a) @ b,
        lambda x, y, a, b: ((torch.exp(2 * (h := x @ a)) - 1) / (torch.exp(2 * h) + 1)) @ b,
        lambda x, y, a, b: ((torch.exp(h := x @ a) - 1) / (torch.exp(h) + 1)) @ b,
    ),
)

BY_CASES = (
    Pair(
        "exponential linear unit by a choice",
        lambda x, y, a, b: (F.elu(x @ a) + 1) @ b,
        lambda x, y, a, b: torch.where((h := x @ a) > 0, h + 1, h.exp()) @ b,
        lambda x, y, a, b: torch.where((h := x @ a) > 0, h + 1, h.exp() - 1) @ b,
    ),
    Pair(
        "leaky relu as a maximum",
        lambda x, y, a, b: F.leaky_relu(x @ a, 0.1) @ b,
        lambda x, y, a, b: torch.maximum((h := x @ a), 0.1 * h) @ b,
        lambda x, y, a, b: torch.minimum((h := x @ a), 0.1 * h) @ b,
        backward=False,
    ),
    Pair(
        "residual added before a maximum",
        lambda x, y, a, b: torch.maximum(x @ a, x @ b) + y,
        lambda x, y, a, b: torch.maximum(x @ a + y, x @ b + y),
        lambda x, y, a, b: torch.maximum(x @ a + y, x @ b),
        backward=False,
    ),
    Pair(
        "update of masked rows",
        lambda x, y, a, b: torch.where(y > 0, x @ a + x @ b, x @ b),
        lambda x, y, a, b: x @ b + (y > 0) * (x @ a),
        lambda x, y, a, b: x @ b + (y >= 0) * (x @ a),
        backward=False,
    ),
    Pair(
        "choices within a choice",
        lambda x, y, a, b: torch.where(y > 0, x @ a, x @ b),
        lambda x, y, a, b: torch.where(y > 0, torch.where(y > 0, x @ a, x), x @ b),
        lambda x, y, a, b: torch.where(y > 0, torch.where(y > 0, x, x @ a), x @ b),
    ),
    Pair(
        "absolute value by two rectifiers",
        lambda x, y, a, b: (x @ a).abs() @ b,
        lambda x, y, a, b: (torch.relu(h := x @ a) + torch.relu(-h)) @ b,
        lambda x, y, a, b: (torch.relu(h := x @ a) - torch.relu(-h)) @ b,
        backward=False,
    ),
    Pair(
        "identity by two rectifiers",
        lambda x, y, a, b: (x @ a) @ b + y,
        lambda x, y, a, b: (torch.relu(h := x @ a) - torch.relu(-h)) @ b + y,
        lambda x, y, a, b: (torch.relu(h := x @ a) + torch.relu(-h)) @ b + y,
        backward=False,
    ),
    Pair(
        "maximum of three in another order",
        lambda x, y, a, b: torch.maximum(torch.maximum(x @ a, x @ b), y),
        lambda x, y, a, b: torch.maximum(x @ a, torch.maximum(y, x @ b)),
        lambda x, y, a, b: torch.maximum(x @ a, torch.minimum(y, x @ b)),
        backward=False,
    ),
)
"""Equal in every case between which both choose: no law is needed (``refinement/cases.py``)."""
