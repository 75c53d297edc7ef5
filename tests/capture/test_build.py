"""A model that is built for each rank: what differs by rank is what the ranks hold, however they came to it."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
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
    """Takes its number from elsewhere."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__()
        self.numbers = numbers
        self.read = self.numbers.pop(dist.get_rank())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rows_of(x, self.weight, self.read, self.read + PER_RANK)


class WithItems(Part):
    """Its numbers lie among other things."""

    def __init__(self, turn: int) -> None:
        super().__init__()
        self.turn = turn
        self.held: dict[str, Any] = {"name": "rows", "begin": (dist.get_rank() + turn) % WORLD * PER_RANK}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rows_of(x, self.weight, self.held["begin"], self.held["begin"] + PER_RANK)


class OfTheClass(Part):
    """A variable of a class that was set when the class was made is the same on all ranks of one process."""

    class_start = int(os.environ.get("RANK", "0")) * PER_RANK

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rows_of(x, self.weight, self.class_start, self.class_start + PER_RANK)


class OfTheBase(OfTheClass):
    """It is inherited."""


class Cached(Part):
    """A property that was read in the constructor."""

    def __init__(self) -> None:
        super().__init__()
        assert self.cached_start in (0, PER_RANK)

    @functools.cached_property
    def cached_start(self) -> int:
        return dist.get_rank() * PER_RANK

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rows_of(x, self.weight, self.cached_start, self.cached_start + PER_RANK)



OFFSET = 0
CONFIGURATION: dict[str, Any] = {"starts": []}


class OfGlobals(Part):
    """Its numbers are variables of the module, which its constructor sets."""

    def __init__(self, turn: int) -> None:
        super().__init__()
        global OFFSET  # noqa: PLW0603 - what is tested
        OFFSET = (dist.get_rank() + turn) % WORLD * PER_RANK
        CONFIGURATION["end"] = OFFSET + PER_RANK

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rows_of(x, self.weight, OFFSET, CONFIGURATION["end"])


class Appending(Part):
    def __init__(self, turn: int) -> None:
        super().__init__()
        CONFIGURATION["starts"].append((dist.get_rank() + turn) % WORLD * PER_RANK)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start = CONFIGURATION["starts"][-1]
        return rows_of(x, self.weight, start, start + PER_RANK)


class OfClass(Part):
    """Computed names, on the class."""

    first_row: int

    def __init__(self, turn: int) -> None:
        super().__init__()
        setattr(type(self), "first" + "_row", (dist.get_rank() + turn) % WORLD * PER_RANK)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rows_of(x, self.weight, self.first_row, self.first_row + PER_RANK)


class WithFunction(Part):
    """Numbers in a partial function, in default arguments and in a closure."""

    def __init__(self, part: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        group: Any = dist.group.WORLD
        return functional.all_reduce(self.part(x) @ self.weight, "sum", group)


def narrowed(x: torch.Tensor, start: int) -> torch.Tensor:
    return x.narrow(1, start, PER_RANK)


def with_default(turn: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def part(x: torch.Tensor, start: int = (dist.get_rank() + turn) % WORLD * PER_RANK) -> torch.Tensor:
        return narrowed(x, start)

    return part


def with_closure(turn: int) -> Callable[[torch.Tensor], torch.Tensor]:
    start = (dist.get_rank() + turn) % WORLD * PER_RANK
    return lambda x: narrowed(x, start)


class Hooked(nn.Module):
    """A hook around it takes the rank's columns: its closure holds where they begin."""

    def __init__(self, turn: int) -> None:
        super().__init__()
        self.inner = HookedPart()
        start = (dist.get_rank() + turn) % WORLD * PER_RANK
        self.inner.register_forward_pre_hook(lambda _, args: (narrowed(args[0], start),))
        self.weight = self.inner.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class HookedPart(Part):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        group: Any = dist.group.WORLD
        return functional.all_reduce(x @ self.weight, "sum", group)


def shifted(turn: int) -> int:
    return (dist.get_rank() + turn) % WORLD * PER_RANK


RIGHT: dict[str, Callable[[], nn.Module]] = {
    "item": lambda: WithItems(0),
    "kept": lambda: Keeping(0),
    "passed": lambda: PassedRightly(ROWS),
    "field": lambda: Configured(Settings(dist.get_rank() * PER_RANK)),
    "inside": lambda: WithInner(),
    "outside": lambda: with_offset(SetOutside()),
    "not kept": lambda: Shifted(0),
    "set twice": lambda: turn(SetTwice()),
    "cached": Cached,
    "side effect": lambda: OfAFile([0, PER_RANK]),
    "globals": lambda: OfGlobals(0),
    "append": lambda: Appending(0),
    "class": lambda: OfClass(0),
    "partial": lambda: WithFunction(functools.partial(narrowed, start=shifted(0))),
    "default": lambda: WithFunction(with_default(0)),
    "closure": lambda: WithFunction(with_closure(0)),
    "hook": lambda: Hooked(0),
}
WRONG: dict[str, Callable[[], nn.Module]] = {
    "item": lambda: WithItems(1),
    "kept": lambda: Keeping(1),
    "passed": lambda: PassedWrongly(ROWS),
    "field": lambda: ConfiguredWrongly(OtherSettings(begin_of_other=PER_RANK - dist.get_rank() * PER_RANK)),
    "not kept": lambda: Shifted(1),
    "set by nobody": SetTwice,
    "globals": lambda: OfGlobals(1),
    "append": lambda: Appending(1),
    "class": lambda: OfClass(1),
    "partial": lambda: WithFunction(functools.partial(narrowed, start=shifted(1))),
    "default": lambda: WithFunction(with_default(1)),
    "closure": lambda: WithFunction(with_closure(1)),
    "hook": lambda: Hooked(1),
}


def report_on(make: Callable[[], nn.Module], rank: int, *, build: bool = True, given: bool = False) -> Report:
    with fake_world(WORLD, rank):
        options: dict[str, Any] = {"spec": Whole(), "param_placements": {"*weight": (Shard(0),)}}
        model = make() if given or not build else None
        return verify(model, (torch.randn(3, ROWS),), **options, **({"build": make} if build else {}))


@pytest.mark.sampled(every=2, of=("make",))
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT.keys())
def test_built_for_each_rank(make: Callable[[], nn.Module], rank: int) -> None:
    for given in (False, True):
        report = report_on(make, rank, given=given)
        assert report.verdict is Verdict.VERIFIED, str(report)
        assert not any("stands for" in text or "every rank" in text for text in report.assumptions)


@pytest.mark.sampled(every=2, of=("make",))
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG.keys())
def test_numbers_of_another_rank(make: Callable[[], nn.Module], rank: int) -> None:
    report = report_on(make, rank)
    assert report.verdict is Verdict.REFUTED, str(report)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("make", [*RIGHT.values(), *(item for item in WRONG.values() if item is not SetTwice)])
def test_one_model_for_all_ranks(make: Callable[[], nn.Module]) -> None:
    report = report_on(make, 0, build=False)
    assert report.verdict is Verdict.UNPROVED, str(report)
    assert report.findings[0].code == "VC207"
    assert "Pass the option `build`" in report.findings[0].message
    assert "test_build.py:" in report.findings[0].message
    assert "(suspected)" not in str(report), "an error beside a program that may be right"
    assert not any(finding.hint for finding in report.findings)
