"""Statistics over a sharded dimension with hand-written collectives: moments, norms, softmax, merged attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Replicate, Shard

from tests.soundness.plain import all_reduce, reduce_out, verify_functions
from verifycompile import Verdict

WIDTH, RANKS = 8, 2
ROWS, COLUMNS, WHOLE = (Shard(0),), (Shard(1),), (Replicate(),)


class _Summed(torch.autograd.Function):
    """A sum over the ranks whose result every rank uses on its own part: the gradient is summed as well."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, m: Any) -> torch.Tensor:
        context.mesh = m
        return all_reduce(value, m)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return all_reduce(gradient.contiguous(), context.mesh), None


def summed(m: Any, value: torch.Tensor) -> torch.Tensor:
    return _Summed.apply(value, m)


def total(m: Any, x: torch.Tensor) -> torch.Tensor:
    return summed(m, x.sum(-1, keepdim=True))


def squares(m: Any, x: torch.Tensor) -> torch.Tensor:
    """The variance as mean of squares less squared mean."""
    return reduce_out((x * x).sum(-1), m) / WIDTH - (reduce_out(x.sum(-1), m) / WIDTH) ** 2


def merged(m: Any, x: torch.Tensor, local: int = WIDTH // RANKS) -> torch.Tensor:
    """The variance from every rank's mean and variance."""
    mean, variance = x.mean(-1), x.var(-1, unbiased=False)
    whole = all_reduce(mean, m) / RANKS
    return all_reduce(local * (variance + (mean - whole) ** 2), m) / WIDTH


def softmax(m: Any, x: torch.Tensor, shift: bool = True) -> torch.Tensor:
    largest = x.detach().amax(-1, keepdim=True)
    power = (x - (all_reduce(largest, m, operation="max") if shift else largest)).exp()
    return power / total(m, power)


def root_mean_square(m: Any, x: torch.Tensor, reduce: Callable[..., torch.Tensor] = total) -> torch.Tensor:
    return x * torch.rsqrt(reduce(m, x.pow(2)) / WIDTH + 1e-5)


def layer_norm(m: Any, x: torch.Tensor) -> torch.Tensor:
    mean = all_reduce(x.sum(-1, keepdim=True), m) / WIDTH
    second = all_reduce((x * x).sum(-1, keepdim=True), m) / WIDTH
    return (x - mean) * torch.rsqrt(second - mean * mean + 1e-5)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.T).softmax(-1) @ v


def by_logarithms(m: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, weigh: bool = True) -> torch.Tensor:
    """Attention to every rank's keys, merged by the logarithms of their sums."""
    scores = q @ k.T
    largest = scores.amax(-1, keepdim=True)
    power = (scores - largest).exp()
    divisor = power.sum(-1, keepdim=True)
    logarithm = divisor.log() + largest
    weight = (logarithm - all_reduce(logarithm, m, operation="max")).exp() if weigh else torch.ones_like(logarithm)
    return all_reduce(power @ v / divisor * weight, m) / all_reduce(weight, m)


def by_maxima(m: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rescale: bool = True) -> torch.Tensor:
    scores = q @ k.T
    largest = scores.amax(-1, keepdim=True)
    power = (scores - largest).exp()
    change = (largest - all_reduce(largest, m, operation="max")).exp()
    change = change if rescale else torch.ones_like(change)
    return all_reduce(power @ v * change, m) / all_reduce(power.sum(-1, keepdim=True) * change, m)


def online(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rescale: bool = True) -> torch.Tensor:
    """Attention to one block of keys after the other, with a running maximum and sum."""
    scores = q @ k[:2].T
    largest = scores.amax(-1, keepdim=True)
    power = (scores - largest).exp()
    divisor, result = power.sum(-1, keepdim=True), power @ v[:2]
    scores = q @ k[2:].T
    new = torch.maximum(largest, scores.amax(-1, keepdim=True))
    change, power = (largest - new).exp() if rescale else 1.0, (scores - new).exp()
    return (result * change + power @ v[2:]) / (divisor * change + power.sum(-1, keepdim=True))


@dataclasses.dataclass(frozen=True)
class Statistic:
    """``right``: whether it must verify. ``layouts``: of the inputs; ``out``: of the output."""

    name: str
    right: bool
    spec: Callable[..., torch.Tensor]
    program: Callable[..., torch.Tensor]
    out: tuple[Any, ...] = WHOLE
    gradient: bool = True
    layouts: tuple[Any, ...] = (COLUMNS,)

    def inputs(self) -> tuple[torch.Tensor, ...]:
        if len(self.layouts) == 3:
            return tuple(torch.randn(4, 3) for _ in self.layouts)
        return (torch.randn(3, WIDTH // RANKS, requires_grad=self.gradient),)


def biased(x: torch.Tensor) -> torch.Tensor:
    return x.var(-1, unbiased=False)


def logarithm(x: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(x, -1)


def normalized(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (WIDTH,), eps=1e-5)


KEYS = (WHOLE, ROWS, ROWS)
STATISTICS = (
    Statistic("variance by squares", True, biased, squares),
    Statistic("variance of parts", True, biased, merged, gradient=False),
    Statistic("variance of parts, wrong count", False, biased, lambda m, x: merged(m, x, WIDTH), gradient=False),
    Statistic("mean of variances", False, biased, lambda m, x: reduce_out(biased(x), m) / RANKS),
    Statistic("unbiased by squares", False, lambda x: x.var(-1), squares),
    Statistic("norm of norms", False, lambda x: x.norm(dim=-1), lambda m, x: reduce_out(x.norm(dim=-1), m)),
    Statistic("log-sum-exp of log-sum-exps", True, logarithm, lambda m, x: reduce_out(logarithm(x).exp(), m).log()),
    Statistic("sum of log-sum-exps", False, logarithm, lambda m, x: reduce_out(logarithm(x), m)),
    Statistic("softmax", True, lambda x: x.softmax(-1), softmax, COLUMNS),
    Statistic("softmax, local maximum", False, lambda x: x.softmax(-1), lambda m, x: softmax(m, x, False), COLUMNS),
    Statistic("softmax of a part", False, lambda x: x.softmax(-1), lambda _, x: x.softmax(-1), COLUMNS),
    Statistic("rms norm", True, normalized, root_mean_square, COLUMNS),
    Statistic("rms norm, gradient of the sum kept", False, normalized,
              lambda m, x: root_mean_square(m, x, lambda n, y: reduce_out(y.sum(-1, keepdim=True), n)), COLUMNS),
    Statistic("rms norm of a part", False, normalized, lambda _, x: F.rms_norm(x, (WIDTH // RANKS,), eps=1e-5), COLUMNS),
    Statistic("layer norm by squares", True, lambda x: F.layer_norm(x, (WIDTH,)), layer_norm, COLUMNS, gradient=False),
    Statistic("layer norm of a part", False, lambda x: F.layer_norm(x, (WIDTH,)),
              lambda _, x: F.layer_norm(x, (WIDTH // RANKS,)), COLUMNS, gradient=False),
    Statistic("attention merged by logarithms", True, attention, by_logarithms, layouts=KEYS),
    Statistic("attention merged without weights", False, attention,
              lambda m, q, k, v: by_logarithms(m, q, k, v, weigh=False), layouts=KEYS),
    Statistic("attention merged by maxima", True, attention, by_maxima, layouts=KEYS),
    Statistic("attention merged without rescaling", False, attention,
              lambda m, q, k, v: by_maxima(m, q, k, v, rescale=False), layouts=KEYS),
    Statistic("online softmax", True, attention, lambda _, q, k, v: online(q, k, v), layouts=(WHOLE,) * 3),
    Statistic("online softmax without rescaling", False, attention,
              lambda _, q, k, v: online(q, k, v, rescale=False), layouts=(WHOLE,) * 3),
)  # fmt: skip


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in STATISTICS])
def test_statistic(case: Statistic) -> None:
    options = {"in_placements": dict(zip("abc", case.layouts, strict=False)), "out_placements": {"output.0": case.out}}
    report = verify_functions(case.spec, case.program, case.inputs(), (RANKS,), **options)
    assert (report.verdict is Verdict.VERIFIED) is case.right, str(report)


PLACED = {
    "mean": lambda x: x.mean(-1),
    "unbiased variance": lambda x: x.var(-1),
    "standard deviation": lambda x: x.std(-1),
    "norm": lambda x: torch.linalg.vector_norm(x, 2, -1),
    "largest magnitude": lambda x: torch.linalg.vector_norm(x, float("inf"), -1),
    "largest": lambda x: x.amax(-1),
    "log-sum-exp": logarithm,
    "softmax": lambda x: x.softmax(-1),
    "layer norm": lambda x: F.layer_norm(x, (WIDTH,)),
}  # fmt: skip


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("function", PLACED.values(), ids=PLACED)
def test_placed_statistic(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def program(m: Any, x: torch.Tensor) -> torch.Tensor:
        return function(DTensor.from_local(x, m, COLUMNS, run_check=False)).full_tensor()

    x = torch.randn(3, WIDTH // RANKS, requires_grad=True)
    report = verify_functions(function, program, (x,), (RANKS,), in_placements={"a": COLUMNS})
    assert report.verdict is Verdict.VERIFIED, str(report)
