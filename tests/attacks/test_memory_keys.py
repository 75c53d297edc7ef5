"""Where a value lies in memory is part of what it is: strides, offsets and overlaps, also in layers that repeat."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.attacks.graphs import differ, report_on
from verifycompile import Verdict

Function = Callable[[torch.Tensor], torch.Tensor]
SIZE = 4


def layers(step: Function, count: int) -> Function:
    def run(x: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            x = step(x)
        return x

    return run


def mixed(x: torch.Tensor) -> torch.Tensor:
    """Not the transpose of what it is for the transpose: two wrong layers do not make a right one."""
    return torch.tanh(x @ x.cumsum(0)) + 0.1 * x


# Each pair differs only in the memory of what `as_strided`, `view` or a flattening reads.
STEPS: dict[str, tuple[Function, Function]] = {
    "as_strided of a transpose": (
        lambda x: torch.tanh(mixed(x).contiguous().as_strided((SIZE, SIZE), (SIZE, 1))),
        lambda x: torch.tanh(mixed(x).t().contiguous().t().as_strided((SIZE, SIZE), (SIZE, 1))),
    ),
    "as_strided by columns": (
        lambda x: torch.tanh(mixed(x).contiguous().as_strided((SIZE, SIZE), (SIZE, 1))),
        lambda x: torch.tanh(mixed(x).contiguous().as_strided((SIZE, SIZE), (1, SIZE))),
    ),
    "as_strided with an overlap": (
        lambda x: torch.tanh(mixed(x).contiguous().as_strided((SIZE, SIZE), (SIZE, 1))),
        lambda x: torch.tanh(mixed(x).contiguous().as_strided((SIZE, SIZE), (2, 1))),
    ),
    "as_strided from an offset": (
        lambda x: torch.tanh(torch.cat([mixed(x), x]).contiguous().as_strided((SIZE, SIZE), (SIZE, 1), 0)),
        lambda x: torch.tanh(torch.cat([mixed(x), x]).contiguous().as_strided((SIZE, SIZE), (SIZE, 1), 4)),
    ),
    "as_strided of a slice of a transpose": (
        lambda x: torch.tanh(torch.cat([mixed(x), x], 1)[:, :SIZE].contiguous().as_strided((SIZE, SIZE), (SIZE, 1))),
        lambda x: torch.tanh(torch.cat([mixed(x), x], 1)[:, :SIZE].as_strided((SIZE, SIZE), (SIZE, 1))),
    ),
    "as_strided of what was made by a permutation": (
        lambda x: torch.tanh(mixed(x).reshape(2, 2, SIZE).permute(0, 1, 2).contiguous().as_strided((SIZE, SIZE), (SIZE, 1))),
        lambda x: torch.tanh(mixed(x).reshape(2, 2, SIZE).permute(1, 0, 2).contiguous().as_strided((SIZE, SIZE), (SIZE, 1))),
    ),
    "as_strided of an addition of transposes": (
        lambda x: torch.tanh((mixed(x) + x).as_strided((SIZE, SIZE), (SIZE, 1))),
        lambda x: torch.tanh((mixed(x).t() + x.t()).contiguous().t().as_strided((SIZE, SIZE), (SIZE, 1))),
    ),
    "as_strided_scatter": (
        lambda x: torch.as_strided_scatter(mixed(x).contiguous(), x[0].contiguous(), (SIZE,), (1,), 0),
        lambda x: torch.as_strided_scatter(mixed(x).contiguous(), x[0].contiguous(), (SIZE,), (1,), SIZE),
    ),
    "as_strided of empty_like by preserved strides": (
        lambda x: torch.tanh(mixed(x).clone().as_strided((SIZE, SIZE), (SIZE, 1))),
        lambda x: torch.tanh(mixed(x).t().clone(memory_format=torch.contiguous_format).t().as_strided((SIZE, SIZE), (SIZE, 1))),
    ),
}  # fmt: skip


def sample() -> torch.Tensor:
    return torch.randn(SIZE, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.sampled(every=3, of=("name",))
@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("name", STEPS)
def test_another_memory_is_another_value(name: str, count: int) -> None:
    spec, implementation = (layers(step, count) for step in STEPS[name])
    assert differ(spec, implementation, [sample()])
    report = report_on(spec, implementation, [sample()])
    assert report.verdict is not Verdict.VERIFIED, str(report)


@pytest.mark.sampled(every=2, of=("name",))
@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("name", [name for name in STEPS if name != "as_strided_scatter"])
def test_the_same_memory_is_the_same_value(name: str, count: int) -> None:
    step = layers(STEPS[name][0], count)
    report = report_on(step, step, [sample()])
    assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.sampled(every=2, of=("name",))
@pytest.mark.parametrize("wrong_layer", [0, 6])
@pytest.mark.parametrize("name", STEPS)
def test_one_layer_of_eight(name: str, wrong_layer: int) -> None:
    """The first layers are proved, and must not stand for the one that differs."""
    right, wrong = STEPS[name]

    def implementation(x: torch.Tensor) -> torch.Tensor:
        for layer in range(8):
            x = (wrong if layer == wrong_layer else right)(x)
        return x

    spec = layers(right, 8)
    assert differ(spec, implementation, [sample()])
    assert report_on(spec, implementation, [sample()]).verdict is not Verdict.VERIFIED
