"""What was read before in the same program changes no verdict: each pair is asked about alone and beside others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.attacks.graphs import differ, report_on
from verifycompile import Verdict

aten = torch.ops.aten
Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

BESIDE: dict[str, Function] = {
    "sigmoid": lambda x, y: torch.sigmoid(x - y),
    "sigmoid of logarithms": lambda x, y: torch.sigmoid(x.exp().sum(-1).log() - y.exp().sum(-1).log()),
    "softmax": lambda x, y: F.softmax(x, -1) + F.softmax(y, -1),
    "logarithm of a softmax": lambda x, y: F.log_softmax(x + y, -1),
    "weights": lambda x, y: x.exp() / (x.exp() + y.exp()),
    "log-sum-exp": lambda x, y: torch.logsumexp(x, -1) - torch.logsumexp(y, -1),
    "norm": lambda x, y: F.layer_norm(x, (4,)) * F.rms_norm(y, (4,)),
    "embedding": lambda x, y: F.embedding(torch.tensor([0, 1]), x),
    "maximum": lambda x, y: x - x.amax(-1, keepdim=True) + y.amax(),
    "tanh": lambda x, y: torch.tanh(x) * torch.tanh(-y),
    "mask": lambda x, y: torch.tril(x) + torch.where(y > 0, x, 0.0),
    "products": lambda x, y: (x @ y) @ (x + y),
}

PAIRS: dict[str, tuple[Function, Function]] = {
    "sigmoid backward": (
        lambda x, y: aten.sigmoid_backward(x, torch.sigmoid(y)),
        lambda x, y: x * torch.sigmoid(y) * (1 - torch.sigmoid(y)),
    ),
    "softmax": (lambda x, y: F.softmax(x, -1) * y, lambda x, y: x.exp() / x.exp().sum(-1, keepdim=True) * y),
    "softmax backward": (
        lambda x, y: aten._softmax_backward_data(x, F.softmax(y, -1), -1, torch.float64),
        lambda x, y: F.softmax(y, -1) * (x - (x * F.softmax(y, -1)).sum(-1, keepdim=True)),
    ),
    "log softmax": (lambda x, y: F.log_softmax(x, -1) + y, lambda x, y: F.softmax(x, -1).log() + y),
    "tanh backward": (
        lambda x, y: aten.tanh_backward(x, torch.tanh(y)),
        lambda x, y: x * (1 - torch.tanh(y) * torch.tanh(y)),
    ),
    "silu": (lambda x, y: F.silu(x) * y, lambda x, y: x * torch.sigmoid(x) * y),
    "distributed": (lambda x, y: x @ (y + x), lambda x, y: x @ y + x @ x),
    "maximum": (lambda x, y: F.softmax(x - x.amax(-1, keepdim=True), -1) + y, lambda x, y: F.softmax(x, -1) + y),
}

WRONG: dict[str, tuple[Function, Function]] = {
    "sigmoid backward without a factor": (
        lambda x, y: aten.sigmoid_backward(x, torch.sigmoid(y)), lambda x, y: x * torch.sigmoid(y),
    ),
    "sigmoid backward of the argument": (
        lambda x, y: aten.sigmoid_backward(x, torch.sigmoid(y)), lambda x, y: aten.sigmoid_backward(x, y),
    ),
    "sigmoid of the other": (lambda x, y: torch.sigmoid(x - y), lambda x, y: torch.sigmoid(y - x)),
    "weights of the other": (lambda x, y: x.exp() / (x.exp() + y.exp()), lambda x, y: y.exp() / (x.exp() + y.exp())),
    "softmax along another dimension": (lambda x, y: F.softmax(x, -1) * y, lambda x, y: F.softmax(x, 0) * y),
    "tanh backward of the argument": (
        lambda x, y: aten.tanh_backward(x, torch.tanh(y)), lambda x, y: aten.tanh_backward(x, y),
    ),
    "no maximum": (lambda x, y: (x - x.amax(-1, keepdim=True)).exp() + y, lambda x, y: x.exp() + y),
    "logarithm of one": (lambda x, y: torch.logsumexp(x, -1) + y.sum(-1), lambda x, y: x.logsumexp(-1) + y.logsumexp(-1)),
    "silu of the other": (lambda x, y: F.silu(x) * y, lambda x, y: x * torch.sigmoid(y) * y),
    "order of a product": (lambda x, y: x @ y, lambda x, y: y @ x),
}  # fmt: skip


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 4, dtype=torch.float64, generator=generator) for _ in range(2)]


def beside(pair: Function, *, first: bool) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A program with all other values, read before or after the pair's."""

    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if first:
            return *(other(x, y) for other in BESIDE.values()), pair(x, y)
        return pair(x, y), *(other(x, y) for other in BESIDE.values())

    return both


def with_zeros(pair: Function) -> Function:
    """What is read besides is returned by nothing."""
    return lambda x, y: sum((0 * other(x, y).sum() for other in BESIDE.values()), pair(x, y))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", PAIRS)
def test_right_pairs_stay_right_beside_others(name: str) -> None:
    spec, implementation = PAIRS[name]
    assert report_on(spec, implementation, inputs()).verdict is Verdict.VERIFIED
    for first in (True, False):
        report = report_on(beside(spec, first=first), beside(implementation, first=first), inputs())
        assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_pairs_stay_wrong_beside_others(name: str) -> None:
    spec, implementation = WRONG[name]
    assert differ(spec, implementation, inputs())
    assert report_on(spec, implementation, inputs()).verdict is not Verdict.VERIFIED
    for first in (True, False):
        report = report_on(beside(spec, first=first), beside(implementation, first=first), inputs())
        assert report.verdict is not Verdict.VERIFIED, str(report)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", PAIRS)
def test_one_side_alone_has_more_to_read(name: str) -> None:
    spec, implementation = PAIRS[name]
    assert report_on(spec, with_zeros(implementation), inputs()).verdict is not Verdict.REFUTED
    assert report_on(with_zeros(spec), implementation, inputs()).verdict is not Verdict.REFUTED
