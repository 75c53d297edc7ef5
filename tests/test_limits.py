"""The options ``time_limit`` and ``memory_limit``: whatever takes too long or too much, the report says what it was."""

from __future__ import annotations

import os
import signal
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
from torch import nn
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support import fake_mesh_world
from verifycompile import Report, UsageError, Verdict, bounds, refutation, two_programs, verify, verify_graphs
from verifycompile.options import Options
from verifycompile.within_limits import limits_of

TOLERANCE = bounds.GRACE + 4.0


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8, bias=False)
        self.down = nn.Linear(8, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def of_mlp(*, wrong: bool = False, **options: Any) -> Report:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = parallelize_module(Mlp(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if wrong:
            down: nn.Module = model.get_submodule("down")
            down._forward_hooks.clear()
            down.register_forward_hook(lambda _module, _inputs, output: output.to_local())
        return verify(model, (torch.randn(3, 4),), **options)


def paths(depth: int) -> int:
    """Never ends, and asks nobody whether it may."""
    return 1 if depth == 0 else paths(depth - 1) + paths(depth - 1)


def endless(*_: object, **__: object) -> Any:
    return paths(400)


def greedy(*_: object, **__: object) -> Any:
    held: list[bytes] = []
    while True:
        held.append(bytes(bytearray(b"x") * (1 << 20)))


def test_within_the_limits_nothing_changes() -> None:
    report = of_mlp()
    assert report.verdict is Verdict.VERIFIED
    stages = [(stage.name, stage.finished) for stage in report.stats.attempts if stage.depth == 1]
    assert stages == [("the proof", True), ("the second look", True)]
    assert sum(stage.seconds for stage in report.stats.attempts) <= report.stats.verification_seconds


def test_an_endless_proof_is_unproved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_programs, "check_refinement", endless)
    started = time.perf_counter()
    report = of_mlp(time_limit=1.0)
    assert report.stats.verification_seconds < 1.0 + TOLERANCE
    assert time.perf_counter() - started < 1.0 + TOLERANCE + report.stats.capture_seconds + 5
    assert report.verdict is Verdict.UNPROVED
    (finding,) = report.findings
    assert finding.code == "VC205"
    assert finding.message.startswith("the proof was ended after ")
    assert finding.message.endswith(" s by the time limit of 1 s")
    tried, limits = finding.notes[-2:]
    assert tried.startswith("tried: the proof (")
    assert "s, cut short); the search for an input (" in tried
    assert limits.startswith("the limits are 1 s and ")
    assert limits.endswith(" GiB; the options `time_limit` and `memory_limit` set them")


def test_a_wrong_program_is_refuted_where_the_proof_is_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_programs, "check_refinement", endless)
    report = of_mlp(wrong=True, time_limit=6.0)
    assert report.verdict is Verdict.REFUTED
    (finding,) = report.findings
    assert finding.code == "VC107"
    assert finding.message == "`output.0` differs from the spec's"
    assert finding.counterexample is not None
    assert any("(VC205: the proof was ended after " in note for note in finding.notes)


def test_an_endless_search_for_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refutation, "find_difference", endless)
    report = of_mlp(wrong=True, time_limit=2.0)
    assert report.stats.verification_seconds < 2.0 + TOLERANCE
    assert report.verdict is Verdict.UNPROVED
    assert any(
        note.startswith("the search for an input was ended after ") and note.endswith(" by the time limit of 2 s")
        for note in report.findings[0].notes
    )


def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_programs, "check_refinement", greedy)
    report = of_mlp(memory_limit=256 << 20)
    assert report.verdict is Verdict.UNPROVED
    assert report.findings[0].code == "VC205"
    assert report.findings[0].message.endswith(" by the memory limit of 256 MiB")


def test_an_endless_search_for_a_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verifycompile.refinement.check.diagnose", endless)
    report = of_mlp(wrong=True, time_limit=12.0)
    assert report.stats.verification_seconds < 12.0 + TOLERANCE
    assert report.verdict is Verdict.REFUTED
    assert report.findings[0].output == "output.0"
    assert any(note.startswith("the search for a cause was ended after ") for note in report.findings[0].notes)


def test_an_endless_search_for_a_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refutation, "find_causes", endless)
    report = of_mlp(wrong=True, time_limit=5.0)
    assert report.stats.verification_seconds < 5.0 + TOLERANCE
    (finding,) = report.findings
    assert (report.verdict, finding.code, finding.hint) == (Verdict.REFUTED, "VC101", None)
    told = finding.notes[-1]
    assert told.startswith("the search for a repair was ended after ")
    assert told.endswith(" by the time limit of 5 s")
    assert finding.counterexample is not None
    assert not finding.counterexample.no_script


def graph_of(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    return make_fx(function)(*inputs)


@pytest.mark.parametrize("ranks", [1, 2])
def test_graphs_captured_elsewhere(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    monkeypatch.setattr(two_programs, "check_refinement", endless)
    spec = graph_of(torch.exp, torch.randn(4, 2))
    own = [graph_of(lambda x: x.exp() * 1.0, torch.randn(2, 2)), graph_of(lambda x: x.exp() + 0.0, torch.randn(2, 2))][
        :ranks
    ]
    names = [node.name for node in own[0].graph.find_nodes(op="placeholder")]
    placed = {name: (Shard(0),) for name in names}
    report = verify_graphs(spec, own if ranks > 1 else own[0], placed, mesh={"dp": 2}, time_limit=0.5)
    assert report.verdict is Verdict.UNPROVED
    assert report.findings[0].code == "VC205"


def test_defaults_follow_capture() -> None:
    short, long = limits_of(Options(), 1.0), limits_of(Options(), 100.0)
    assert (short.seconds, long.seconds) == (120.0, 1000.0)
    assert short.memory >= 4 << 30
    given = limits_of(Options(time_limit=3.0, memory_limit=1 << 20), 100.0)
    assert (given.seconds, given.memory) == (3.0, 1 << 20)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "60", True])
def test_time_limits_that_are_none(value: object) -> None:
    with pytest.raises(UsageError, match=r"option `time_limit` must be a number of seconds greater than zero\.$"):
        Options.from_mapping({"time_limit": value})


@pytest.mark.parametrize("value", [0, -1, 1.5, "4G", True])
def test_memory_limits_that_are_none(value: object) -> None:
    with pytest.raises(UsageError, match=r"option `memory_limit` must be a number of bytes greater than zero\.$"):
        Options.from_mapping({"memory_limit": value})


@pytest.mark.parametrize(
    ("module", "stage"),
    [(two_programs, "check_refinement"), (refutation, "find_difference"), (refutation, "find_causes")],
)
def test_interrupting_leaves_nothing_behind(
    module: types.ModuleType, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Ctrl-C in the proof, in the search for an input and in that for a cause."""

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return found(*args, **kwargs)

    found = getattr(module, stage)
    assert of_mlp().verdict is Verdict.VERIFIED  # torch starts a thread of its own then
    known = threading.active_count()
    with monkeypatch.context() as patched:
        patched.setattr(module, stage, interrupted)
        with pytest.raises(KeyboardInterrupt):
            of_mlp(wrong=True)
    assert bounds.current() is None
    assert threading.active_count() == known
    assert torch.is_grad_enabled()
    assert str(of_mlp(wrong=True).findings[0].hint).endswith("(checked)")
