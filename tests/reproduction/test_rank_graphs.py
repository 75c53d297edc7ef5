"""Counterexamples of ranks that run different graphs: the rank that holds the element is named, and a script shows it."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard
from torch.fx.experimental.proxy_tensor import make_fx

import verifycompile
from verifycompile.diagnostics.verdict import Verdict

functional = torch.ops._c10d_functional
Rows = Callable[[torch.Tensor], torch.Tensor]


def traced(function: Callable[..., torch.Tensor], rows: int) -> torch.fx.GraphModule:
    return make_fx(function, tracing_mode="fake", record_stack_traces=True)(torch.zeros(rows, 2))


def reported(ranks: list[Rows], placement: torch.distributed.tensor.Placement) -> verifycompile.Report:
    spec = traced(lambda x: x.exp() + 1, 6)
    return verifycompile.verify_graphs(
        spec,
        [traced(rank, 3) for rank in ranks],
        {"x_1": (Shard(0),)},
        {"output.0": (placement,)},
        groups={"g": (0, 1)},
    )


def gathered(value: torch.Tensor) -> torch.Tensor:
    return functional.wait_tensor(functional.all_gather_into_tensor(value, 2, "g"))


def first(x: torch.Tensor) -> torch.Tensor:
    return x.exp() + 1


def second(x: torch.Tensor) -> torch.Tensor:
    return 1 + x.clone().exp().neg().neg()


def wrong(x: torch.Tensor) -> torch.Tensor:
    return x.exp().cos()


@pytest.mark.parametrize("holder", [0, 1])
def test_the_rank_that_holds_the_element(holder: int, tmp_path: Path) -> None:
    assert reported([first, second], Shard(0)).verdict is Verdict.VERIFIED
    report = reported([wrong, second] if holder == 0 else [first, wrong], Shard(0))
    found = report.counterexample
    assert found is not None
    assert (found.rank, found.index[0] // 3) == (holder, holder)
    assert (found.output, found.mesh, found.detail) == ("output.0", {"rank": 2}, "Shard(0) over rank")
    found.save(tmp_path / "repro.py")
    text = (tmp_path / "repro.py").read_text()
    assert f"    # rank {holder}, " in text
    with pytest.raises(AssertionError, match=r"output.0 at \[\d, \d\] is 2 in the spec"):
        runpy.run_path(str(tmp_path / "repro.py"), run_name="__main__")
    torch.set_default_dtype(torch.float32)


def test_the_script_has_the_mended_graphs_of_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = reported([first, lambda x: second(x) * 2], Shard(0))
    (finding,) = report.findings
    assert finding.hint is not None
    assert finding.hint.endswith("(checked)")
    assert report.counterexample is not None
    report.counterexample.save(tmp_path / "repro.py")
    with pytest.raises(AssertionError, match=r"output.0 at \[\d, \d\] is "):
        runpy.run_path(str(tmp_path / "repro.py"), run_name="__main__")
    monkeypatch.setattr("sys.argv", ["repro.py", "mended"])
    runpy.run_path(str(tmp_path / "repro.py"), run_name="__main__")
    torch.set_default_dtype(torch.float32)


def test_what_every_rank_holds_is_compared_for_each() -> None:
    assert (
        reported([lambda x: gathered(first(x)), lambda x: gathered(second(x))], Replicate()).verdict is Verdict.VERIFIED
    )
    report = reported([lambda x: gathered(first(x)), lambda x: gathered(second(x)).cos()], Replicate())
    found = report.counterexample
    assert found is not None
    assert (found.rank, found.output, found.detail) == (1, "output.0", "Replicate over rank")
