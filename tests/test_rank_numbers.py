"""Numbers that were computed of the rank before the call are those of every rank, or block the proof."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.tensor import Shard

from tests.support import fake_world
from verifycompile import Verdict, verify
from verifycompile.diagnostics.report import Report

WORLD = 2
ROWS = 8
PER_RANK = ROWS // WORLD


def bounds(rank: int, count: int) -> tuple[int, int]:
    return rank * count, (rank + 1) * count


def rows_of(x: torch.Tensor, weight: torch.Tensor, first: int, last: int) -> torch.Tensor:
    group: Any = dist.group.WORLD
    return functional.all_reduce(x[:, first:last] @ weight, "sum", group)


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ROWS, 4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Part(nn.Module):
    """The rows of one rank."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(PER_RANK, 4), requires_grad=False)


class Shifted(Part):
    """``shift`` is not kept, and differs between the calls of this file."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        rank = (dist.get_rank() + shift) % dist.get_world_size()
        self.count = PER_RANK
        self.start = rank * self.count
        self.end = self.start + self.count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rows_of(x, self.weight, self.start, self.end)


class Keeping(Part):
    """Keeps what it computes its numbers of."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.shift = shift
        self.first, self.last = bounds((dist.get_rank() + shift) % WORLD, PER_RANK)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rows_of(x, self.weight, self.first, self.last)


class Passed(Part):
    """Its numbers are passed, and not kept."""

    def __init__(self, rows: int, rank: int, world: int) -> None:
        super().__init__()
        self.span = bounds(rank, rows // world)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rows_of(x, self.weight, self.span[0], self.span[1])


class PassedWrongly(Passed):
    def __init__(self, rows: int) -> None:
        super().__init__(rows, 1 - dist.get_rank(), WORLD)


class PassedRightly(Passed):
    def __init__(self, rows: int) -> None:
        super().__init__(rows, dist.get_rank(), WORLD)


@dataclasses.dataclass
class Settings:
    begin: int
    rows: int = PER_RANK


@dataclasses.dataclass
class OtherSettings:
    begin_of_other: int


class Configured(Part):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rows_of(x, self.weight, self.settings.begin, self.settings.begin + self.settings.rows)


class ConfiguredWrongly(Part):
    def __init__(self, settings: OtherSettings) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        begin = self.settings.begin_of_other
        return rows_of(x, self.weight, begin, begin + PER_RANK)


class Inner(nn.Module):
    def __init__(self, first: int) -> None:
        super().__init__()
        self.position = first

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rows_of(x, weight, self.position, self.position + PER_RANK)


class WithInner(Part):
    """Its number is not an attribute of the object that uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.number = dist.get_rank()
        self.inner = Inner(self.number * PER_RANK)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, self.weight)


class SetOutside(Part):
    offset: int

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rows_of(x, self.weight, self.offset, self.offset + PER_RANK)


def with_offset(model: SetOutside) -> SetOutside:
    model.offset = dist.get_rank() * PER_RANK
    return model


class SetTwice(SetOutside):
    """``turned`` is 0 where nobody sets it."""

    def __init__(self) -> None:
        super().__init__()
        self.turned = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rows_of(x, self.weight, self.turned, self.turned + PER_RANK)


def turn(model: SetTwice) -> SetTwice:
    model.turned = dist.get_rank() * PER_RANK
    return model


class OfAFile(Part):
    """What is read from elsewhere is not known on other ranks."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__()
        self.numbers = numbers
        self.read = self.numbers.pop(dist.get_rank())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rows_of(x, self.weight, self.read, self.read + PER_RANK)


def report_on(make: Callable[[], nn.Module], rank: int) -> Report:
    with fake_world(WORLD, rank):
        placements = {"weight": (Shard(0),)}
        return verify(make(), (torch.randn(3, ROWS),), spec=Whole(), param_placements=placements)


class WithItems(Part):
    """Its numbers lie among other things."""

    def __init__(self, turn: int) -> None:
        super().__init__()
        self.turn = turn
        self.held: dict[str, Any] = {"name": "rows", "begin": (dist.get_rank() + turn) % WORLD * PER_RANK}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rows_of(x, self.weight, self.held["begin"], self.held["begin"] + PER_RANK)


class OfTheClass(Part):
    """A variable of a class is not computed again."""

    class_start = int(os.environ.get("RANK", "0")) * PER_RANK

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rows_of(x, self.weight, self.class_start, self.class_start + PER_RANK)


class OfTheBase(OfTheClass):
    """It is inherited."""


class Cached(Part):
    """Nor is a property that was read before."""

    def __init__(self) -> None:
        super().__init__()
        assert self.cached_start in (0, PER_RANK)

    @functools.cached_property
    def cached_start(self) -> int:
        return dist.get_rank() * PER_RANK

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rows_of(x, self.weight, self.cached_start, self.cached_start + PER_RANK)


RIGHT: dict[str, Callable[[], nn.Module]] = {
    "item": lambda: WithItems(0),
    "kept": lambda: Keeping(0),
    "passed": lambda: PassedRightly(ROWS),
    "field": lambda: Configured(Settings(dist.get_rank() * PER_RANK)),
    "inside": lambda: WithInner(),
    "outside": lambda: with_offset(SetOutside()),
}
WRONG: dict[str, Callable[[], nn.Module]] = {
    "item": lambda: WithItems(1),
    "kept": lambda: Keeping(1),
    "passed": lambda: PassedWrongly(ROWS),
    "field": lambda: ConfiguredWrongly(OtherSettings(begin_of_other=PER_RANK - dist.get_rank() * PER_RANK)),
}
UNKNOWN: dict[str, Callable[[], nn.Module]] = {
    "two shifts": lambda: Shifted(0),
    "the other shift": lambda: Shifted(1),
    "set by nobody": SetTwice,
    "set twice": lambda: turn(SetTwice()),
    "of the class": OfTheClass,
    "of the base": OfTheBase,
    "cached": Cached,
    "side effect": lambda: OfAFile([0, PER_RANK]),
}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT.keys())
def test_numbers_of_all_ranks(make: Callable[[], nn.Module], rank: int) -> None:
    report = report_on(make, rank)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert any("holds on every rank what test_rank_numbers.py:" in text for text in report.assumptions)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG.keys())
def test_numbers_of_another_rank(make: Callable[[], nn.Module], rank: int) -> None:
    report = report_on(make, rank)
    assert report.verdict is Verdict.REFUTED, str(report)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("make", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_numbers_that_are_not_known_elsewhere(make: Callable[[], nn.Module], rank: int) -> None:
    report = report_on(make, rank)
    assert report.verdict is Verdict.UNPROVED, str(report)
    assert {finding.code for finding in report.findings} == {"VC203"}


def test_the_message_names_the_line() -> None:
    (finding,) = report_on(UNKNOWN["side effect"], 0).findings
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "numbers.pop" in text)
    assert finding.message == (
        f"`self.read` in `__init__` (test_rank_numbers.py:{line}) is a constant of the graph that was captured on this "
        "rank; other ranks run other graphs."
    )


def test_variables_around_a_function() -> None:
    def parts(shift: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        count = ROWS // WORLD
        first = (dist.get_rank() + shift) % WORLD * count

        def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return rows_of(x, weight, first, first + count)

        return function

    def whole(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight

    def verdict(function: Any) -> Verdict:
        args = (torch.randn(3, ROWS), torch.randn(PER_RANK, 4))
        return verify(function, args, spec=whole, in_placements={"weight": (Shard(0),)}).verdict

    with fake_world(WORLD):
        function = parts(0)

        def around(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return function(x, weight)

        assert verdict(around) is Verdict.VERIFIED
        assert verdict(function) is Verdict.VERIFIED
        turned = (dist.get_rank() + 1) % WORLD

        def wrong(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return rows_of(x, weight, turned * PER_RANK, (turned + 1) * PER_RANK)

        assert verdict(wrong) is Verdict.REFUTED


def test_nothing_changes() -> None:
    with fake_world(WORLD, 1):
        model = Keeping(0)
        verify(model, (torch.randn(3, ROWS),), spec=Whole(), param_placements={"weight": (Shard(0),)})
        assert (model.first, model.last) == (PER_RANK, ROWS)
