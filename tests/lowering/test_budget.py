"""A node whose normal form takes too much is an unknown that names what ran out; other nodes go on."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from tests.lowering.graphs import GraphBuilder, blockers
from tests.support import fake_mesh_world
from verifycompile import Verdict, verify
from verifycompile.ir import budget
from verifycompile.ir.budget import Budget, BudgetExceededError, Limits
from verifycompile.ir.term import TermPool

aten = torch.ops.aten
X = torch.arange(12.0).reshape(3, 4)


def product_and_sum(limits: Limits) -> list[tuple[str, str, str]]:
    g = GraphBuilder()
    x, w = g.input("x", X), g.input("w", X.T.contiguous())
    product = g.call(aten.mm.default, g.call(aten.exp.default, x), g.call(aten.add.Tensor, w, w))
    pool = TermPool()
    pool.budget.limits = limits
    return blockers(g.lower(product, pool=pool))


def test_within_the_limits() -> None:
    assert product_and_sum(Limits()) == []


def test_steps_of_one_node() -> None:
    assert product_and_sum(Limits(node_steps=0)) == [
        ("exp_default", "VC205", "`aten.exp.default`: its normal form took 0 steps"),
        ("mm_default", "VC205", "`aten.mm.default`: its normal form took 0 steps"),
    ]


def test_seconds_of_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_STEPS_PER_CLOCK", 1)
    found = Budget()
    found.limits = Limits(node_seconds=0.0)
    with found.node():
        started = time.thread_time()
        while time.thread_time() == started:
            pass
        with pytest.raises(BudgetExceededError, match=r"^its normal form took 0 seconds$"):
            found.spend()


def test_what_is_done_between_nodes_is_not_limited() -> None:
    found = Budget()
    found.limits = Limits(node_steps=0)
    found.spend()
    with found.node(), pytest.raises(BudgetExceededError):
        found.spend()
    found.spend()


def test_a_program_beyond_the_limits_is_unproved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits.__init__, "__defaults__", (3, 20.0))
    with fake_mesh_world((2,), ("tp",)) as mesh:
        module = nn.Sequential(nn.Linear(4, 8), nn.Softmax(-1))
        model = parallelize_module(module, mesh, {"0": ColwiseParallel(output_layouts=Replicate())})
        report = verify(model, (torch.randn(3, 4),), mesh=mesh)
    assert report.verdict is Verdict.UNPROVED
    assert {finding.code for finding in report.findings} == {"VC205"}
