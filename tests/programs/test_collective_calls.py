"""Calls of torch.distributed by hand, most of which torch.compile alone does not trace: right ones verify."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.fx
from torch.distributed.tensor import Shard

from tests.programs.collective_calls import (
    PROGRAMS,
    WHOLE,
    WORLD,
    Calls,
    Of,
    summed_by_operator,
    summed_later,
    total,
)  # fmt: skip
from tests.support import fake_world
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.errors import UsageError
from verifycompile.frontends.model import verify
from verifycompile.torch_interface.errors import RefinementError


def report_on(calls: Calls, program: Callable[[torch.Tensor], Any]) -> Report:
    with fake_world(WORLD):
        x = torch.randn(4, 4, requires_grad=calls.grad)
        return verify(None, (x,), build=lambda: Of(program), spec=Of(calls.spec), **calls.options)


@pytest.mark.parametrize("calls", PROGRAMS, ids=lambda calls: calls.name)
def test_verifies(calls: Calls) -> None:
    report = report_on(calls, calls.program)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert {"output.0", *(["grad.x"] if calls.grad else [])} <= report.relations.keys()


MISTAKES = [
    pytest.param(calls, m, id=f"{calls.name}: {name}") for calls in PROGRAMS for name, m in calls.mistakes.items()
]


@pytest.mark.sampled(every=2, of=("calls.name",))
@pytest.mark.parametrize(("calls", "mistake"), MISTAKES)
def test_mistake_does_not_verify(calls: Calls, mistake: Callable[[torch.Tensor], Any]) -> None:
    report = report_on(calls, mistake)
    assert report.verdict is not Verdict.VERIFIED, str(report)
    assert report.findings


def test_a_gradient_that_torch_does_not_compute_is_a_graph_break() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.tanh()
        dist.broadcast(y, 0)
        return y

    with fake_world(WORLD), pytest.raises(UsageError) as broken:
        verify(Of(program), (torch.randn(4, requires_grad=True),), spec=Of(torch.tanh))
    assert broken.value.code == "VC305"
    assert "torch.distributed.broadcast has no gradient and is called on a tensor that requires one." in str(
        broken.value
    )
    assert "use torch.distributed._functional_collectives.broadcast." in str(broken.value)


def test_torch_compile_traces_them_and_runs_without_marks() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def inner(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    options: Any = {"inner": inner, "spec": Of(total), "in_placements": {"x": (Shard(0),)}}
    with fake_world(WORLD):
        torch.compile(Of(summed_later()), backend="verify", options=options)(torch.randn(4, 4))
        with pytest.raises(RefinementError) as refused:
            torch.compile(Of(summed_later(wait=False)), backend="verify", options=options)(torch.randn(4, 4))
    (graph,) = graphs
    assert [str(node.target) for node in graph.graph.nodes if "_verifycompile" in str(node.target)] == []
    assert any("all_reduce" in str(node.target) for node in graph.graph.nodes)
    (finding,) = refused.value.report.findings
    assert finding.code == "VC201"
    assert finding.message == (
        "a tensor that a collective writes is read before the program waits for it, or where it stays undefined"
    )


def test_what_is_read_before_it_is_waited_for_is_named_at_the_line_of_its_collective() -> None:
    question = Calls("read before", summed_by_operator("before"), total, {}, out=WHOLE)
    report = report_on(question, question.program)
    assert report.verdict is Verdict.UNPROVED
    (finding,) = report.findings
    assert (finding.code, finding.message) == (
        "VC206",
        "the result of `_c10d_functional.all_reduce.default` is read before the program waits for it with `wait_tensor`.",
    )
    assert finding.impl_location is not None
    line = linecache.getline(finding.impl_location.file, finding.impl_location.line)
    assert "under_way = calls.all_reduce(" in line
