"""Ranks that run different graphs are compared for sizes that are known; where one is left open, a sentence says so."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Verdict


class ByRank(nn.Module):
    """Ranks that run different graphs: the first doubles by adding. ``wrong``: another factor there."""

    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.adds = dist.get_rank() == 0
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return (y + y if not self.wrong else y + y + y) if self.adds else y * 2


@pytest.mark.parametrize("wrong", [False, True])
def test_ranks_that_run_different_graphs_of_sizes_that_are_left_open(wrong: bool) -> None:
    sentence = (
        "the ranks run different graphs, which can be compared for sizes that are known, and a size of `x` is left open; "
        "compile with `dynamic=False`, or mark its dimensions as static."
    )
    with fake_mesh_world((2,), ("tp",)) as mesh:

        def asked(x: torch.Tensor) -> verifycompile.Report:
            build = functools.partial(ByRank, wrong)
            return verifycompile.verify(build(), (x,), mesh=mesh, build=build, spec=lambda x: 2 * x.sin())

        known, open_size = torch.randn(4, 8), torch.randn(4, 8)
        torch._dynamo.mark_dynamic(open_size, 0)
        assert asked(known).verdict is (Verdict.REFUTED if wrong else Verdict.VERIFIED)
        report = asked(open_size)
    assert report.verdict is Verdict.UNPROVED
    assert report.findings[0].code == "VC206"
    assert sentence in str(report)


@pytest.mark.parametrize(("implementation", "verdict"), [
    (lambda x, n, m: x * n, Verdict.VERIFIED), (lambda x, n, m: x * m, Verdict.REFUTED),
    (lambda x, m, n: x * m, Verdict.REFUTED), (lambda x, k, m: x * k, Verdict.REFUTED),
    (lambda x, n, m, k: x * n, Verdict.VERIFIED), (lambda x, n, m, k: x * k, Verdict.REFUTED),
])  # fmt: skip
def test_numbers_that_are_left_open_are_those_of_their_names(implementation: Any, verdict: Verdict) -> None:
    """Each trace calls the second argument by one symbol."""

    def traced(function: Any) -> torch.fx.GraphModule:
        numbers = ({"n": 3, "m": 5, "k": 7}[name] for name in function.__code__.co_varnames[1:])
        return make_fx(function, tracing_mode="symbolic")(torch.randn(4, 6), *numbers)

    report = verifycompile.verify_graphs(traced(lambda x, n, m: x * n), traced(implementation), mesh=(2,))
    assert report.verdict is verdict, str(report)


@pytest.mark.parametrize("sizes", [(4, 4), (4, 6)])
def test_sizes_that_a_trace_takes_for_one_are_listed(sizes: tuple[int, int]) -> None:
    """Both quotients are the same of a square, and that it is one no one but the trace has said."""

    def traced(function: Any) -> torch.fx.GraphModule:
        return make_fx(function, tracing_mode="symbolic")(torch.randn(sizes))

    report = verifycompile.verify_graphs(traced(lambda x: x / x.size(0)), traced(lambda x: x / x.size(1)), mesh=(2,))
    listed = "sizes that the spec's graph takes for one: `x_1.size(0)`, `x_1.size(1)`"
    is_square = sizes[0] == sizes[1]
    assert report.verdict is (Verdict.VERIFIED if is_square else Verdict.REFUTED), str(report)
    assert (listed in report.assumptions) is is_square


@pytest.mark.parametrize("numbers", [(4, 4), (5, 4)])
def test_numbers_that_a_trace_takes_for_sizes_are_listed(numbers: tuple[int, int]) -> None:
    """A number that equals a size when it is traced has the size's symbol: that it always does no one else has said."""
    functions = (lambda x, n: x * x.size(0), lambda x, n: x * n)
    graphs = (
        make_fx(function, tracing_mode="symbolic")(torch.randn(4, 6), number)
        for function, number in zip(functions, numbers, strict=True)
    )
    report = verifycompile.verify_graphs(*graphs, mesh=(2,))
    assert report.verdict is Verdict.VERIFIED, str(report)
    label = "the spec's graph" if numbers[0] == 4 else "the graph of all ranks"
    assert f"sizes that {label} takes for one: `x_1.size(0)`, `n_1`" in report.assumptions
    assert report.certificate is not None
    assert "n_1 is x_1.size(0)" in verifycompile.check_certificate(report.certificate).sizes
