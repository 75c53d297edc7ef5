"""A program that gets its rank by way of a stored function, the environment or an attribute, built for each rank."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.tensor import Replicate

from tests.support import fake_world
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.frontends.model import verify
from verifycompile.torch_interface.ranks.observed_readers import wrap_devices

WORLD = 2


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Sliced(Whole):
    """Each rank takes the part of both operands that ``number`` says is its own; the products are summed."""

    def __init__(self, number: Callable[[Any], int], shift: int = 0) -> None:
        super().__init__()
        self.stored = dist.get_rank
        self.partial = functools.partial(dist.get_rank, None)
        self.rank = dist.get_rank()
        self.number, self.shift = number, shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start = 4 * self.number(self)
        other = 4 * ((self.number(self) + self.shift) % WORLD)
        product = x[:, start : start + 4] @ self.weight[other : other + 4]
        group: Any = dist.group.WORLD
        return functional.all_reduce(product, "sum", group)


SOURCES: dict[str, Callable[[Any], int]] = {
    "stored": lambda model: model.stored(),
    "partial": lambda model: model.partial(),
    "by name": lambda _: getattr(dist, "get_rank")(),  # noqa: B009 - what is tested
    "environment": lambda _: int(os.environ["RANK"]),
    "getenv": lambda _: int(os.getenv("RANK", "0")),
    "local": lambda _: int(os.environ["LOCAL_RANK"]),
    "attribute": lambda model: model.rank,
}


def report_on(number: Callable[[Any], int], rank: int, shift: int = 0) -> Report:
    with fake_world(WORLD, rank):
        options: Any = {"spec": Whole(), "param_placements": {"weight": (Replicate(),)}}
        return verify(None, (torch.randn(2, 8),), build=lambda: Sliced(number, shift), **options)


@pytest.mark.parametrize("number", SOURCES.values(), ids=SOURCES.keys())
@pytest.mark.parametrize("rank", [0, 1])
def test_verifies(number: Callable[[Any], int], rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(variable, str(rank))
    report = report_on(number, rank)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert os.environ["RANK"] == str(rank)


@pytest.mark.parametrize("number", SOURCES.values(), ids=SOURCES.keys())
def test_the_part_of_another_rank_is_refuted(number: Callable[[Any], int], monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(variable, "0")
    report = report_on(number, 0, shift=1)
    assert report.verdict is Verdict.REFUTED, str(report)


class ReadingTheEnvironment(Whole):
    """``name``: a variable whose values on other ranks are not known."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 + int(os.environ.get(self.name, "0")))


@pytest.mark.parametrize(("name", "value"), [("NODE_RANK", "0"), ("RANK", None), ("RANK", "0")])
def test_a_variable_without_known_values_on_other_ranks(
    name: str, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_world(WORLD):
        pass
    monkeypatch.delenv(name, raising=False)
    if value is not None:
        monkeypatch.setenv(name, value)
    with fake_world(WORLD):
        options: Any = {"spec": Whole(), "param_placements": {"weight": (Replicate(),)}}
        report = verify(ReadingTheEnvironment(name), (torch.randn(2, 8),), **options)
    assert report.verdict is Verdict.UNPROVED, str(report)
    assert report.findings[0].code == "VC207"
    assert f"`os.environ['{name}']` in `forward` (test_rank_sources.py:" in report.findings[0].message


class ReadingTheDevice(Whole):
    """Of which jobs set the number to the process's on its machine. ``before``: asked by the constructor."""

    def __init__(self, number: Callable[[], int], before: bool) -> None:
        super().__init__()
        self.number, self.before = number, before
        self.device = number() if before else 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 + (self.device if self.before else self.number()))


GPU = torch.device("cuda", 0)
DEVICES: list[tuple[Callable[[], int], str, bool]] = [
    (lambda: torch.cuda.current_device(), "current_device", True),
    (lambda: torch.cuda.current_device(), "current_device", False),
    (lambda: GPU.index, "device.index", False),
    (lambda: int(GPU.type == "cpu"), "", False),
]


@pytest.mark.parametrize(("number", "reader", "before"), DEVICES)
def test_the_number_of_the_device(
    number: Callable[[], int], reader: str, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_accelerator_getDeviceIndex", lambda: 0)
    wrap_devices()
    with fake_world(WORLD):
        options: Any = {"spec": Whole(), "param_placements": {"weight": (Replicate(),)}}
        report = verify(ReadingTheDevice(number, before), (torch.randn(2, 8),), **options)
    assert report.verdict is (Verdict.UNPROVED if reader else Verdict.VERIFIED), str(report)
    where = "<lambda>" if before else "forward"
    for finding in report.findings[:1]:
        assert finding.code == "VC207"
        assert f"`{reader}` in `{where}` (test_rank_sources.py:" in finding.message


class Factored(Sliced):
    """A weight is a product of two where its rank is not 0."""

    def __init__(self, name: str) -> None:
        super().__init__(lambda _: dist.get_rank())
        self.name = name
        setattr(self, name, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 if getattr(self, self.name) == 0 else 2)


@pytest.mark.parametrize("name", ["q_lora_rank", "dt_rank", "tp_rank"])
def test_a_name_says_nothing(name: str) -> None:
    with fake_world(WORLD):
        options: Any = {"spec": Whole(), "param_placements": {"weight": (Replicate(),)}}
        report = verify(None, (torch.randn(2, 8),), build=lambda: Factored(name), **options)
    assert report.verdict is Verdict.VERIFIED, str(report)
