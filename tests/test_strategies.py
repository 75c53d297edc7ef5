"""Strategies are tried in order while nothing is known, and the report says why each was and what came of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from tests.support import fake_mesh_world
from verifycompile import Report, Verdict, verify, verify_graphs
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.report import Tried
from verifycompile.diagnostics.severity import Severity
from verifycompile.strategies import Strategy, answer

UNPROVED = Report(Verdict.UNPROVED, findings=(Finding("VC107", Severity.ERROR, "no relation"),))


def strategy(name: str, found: Report | str | None, *, only_if_unproved: bool = True) -> Strategy[None]:
    def reason(_: None, known: Report | None) -> str:
        return "" if only_if_unproved and known is not None and known.verdict is not Verdict.UNPROVED else "it may help"

    return Strategy(name, reason, lambda *_: found)


def names(report: Report) -> list[tuple[str, str]]:
    return [(tried.strategy, tried.outcome) for tried in report.strategies]


def test_what_proves_ends_the_search() -> None:
    proved = dataclasses.replace(UNPROVED, verdict=Verdict.VERIFIED, findings=())
    report = answer([strategy("first", UNPROVED), strategy("second", proved), strategy("third", UNPROVED)], None)
    assert report.verdict is Verdict.VERIFIED
    assert names(report) == [("first", "unproved: VC107"), ("second", "verified")]


def test_what_proves_nothing_changes_nothing() -> None:
    other = Report(Verdict.UNPROVED, findings=(Finding("VC202", Severity.ERROR, "something else"),))
    report = answer([strategy("first", UNPROVED), strategy("second", other), strategy("third", None)], None)
    assert [finding.code for finding in report.findings] == ["VC107"]
    assert names(report)[1:] == [("second", "unproved: VC202"), ("third", "it proves nothing more")]


def test_a_reason_is_a_note() -> None:
    report = answer([strategy("first", UNPROVED), strategy("second", "the memory was not enough")], None)
    assert report.findings[0].notes == ("the memory was not enough",)
    assert names(report)[1:] == [("second", "the memory was not enough")]


def _traced(function: Callable[[Tensor], Tensor], rows: int) -> torch.fx.GraphModule:
    return make_fx(function)(torch.randn(rows, 3))


def test_one_program_for_all_ranks() -> None:
    report = verify_graphs(_traced(torch.relu, 4), [_traced(torch.relu, 2)] * 2, {0: (Shard(0),)})
    assert report.strategies == (
        Tried("one program for all ranks", "every rank runs it", "verified"),
        Tried("the programs as they were captured", "it costs least", "verified"),
    )


def test_ranks_that_run_different_programs() -> None:
    ranks = [_traced(torch.relu, 2), _traced(lambda x: torch.relu(x) * 1.5, 2)]
    report = verify_graphs(_traced(torch.relu, 4), ranks, {0: (Shard(0),)})
    assert report.verdict is Verdict.REFUTED
    assert report.strategies[0] == Tried(
        "all ranks' programs as one of a single device", "the ranks run different programs", "refuted: VC103"
    )


class JoinedAndCut(nn.Module):
    """Fused weights that are joined and cut, a buffer that holds whole numbers, and a dropout."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.up, self.dropout = nn.Linear(8, 8, bias=False), nn.Dropout(p)
        self.register_buffer("order", torch.tensor([1, 0, 2, 3]))

    def forward(self, x: Tensor) -> Tensor:
        first, second = torch.cat([self.up(x), x], -1)[self.order].split(8, -1)
        return F.gelu(first) * self.dropout(second)


@pytest.mark.parametrize(
    ("p", "verdict", "tried"),
    [(0.0, "verified", ["verified"] * 2), (0.1, "unproved", ["unproved: VC216"] * 2)],
)
def test_random_numbers_are_drawn_in_any_form_of_the_programs(p: float, verdict: str, tried: list[str]) -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = parallelize_module(JoinedAndCut(p), mesh, {"up": ColwiseParallel(output_layouts=Replicate())})
        report = verify(model, (torch.randn(4, 8),), spec=JoinedAndCut(p))
    assert (report.verdict.value, [tried.outcome for tried in report.strategies]) == (verdict, tried)
