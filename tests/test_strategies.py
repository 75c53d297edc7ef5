"""Strategies are tried in order while nothing is known, and the report says why each was and what came of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed.tensor import Shard
from torch.fx.experimental.proxy_tensor import make_fx

from verifycompile import Report, Verdict, verify_graphs
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
        "all ranks' programs as one of a single device", "the ranks run different programs", "refuted: VC108"
    )
