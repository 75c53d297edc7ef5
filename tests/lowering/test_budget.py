"""A node whose normal form takes too much is an unknown that names what ran out; other nodes go on."""

from __future__ import annotations

import functools
import time

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from tests.lowering.graphs import GraphBuilder, blockers
from tests.support import fake_mesh_world
from verifycompile import Verdict, verify
from verifycompile.ir import budget, limit
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


def test_each_node_has_its_steps_and_the_clock_is_read_every_64_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found, clock = Budget(), [0.0]
    monkeypatch.setattr(time, "thread_time", lambda: clock[0])
    found.limits = Limits(node_steps=200, node_seconds=1.0)
    with found.node():
        clock[0] = 1.0
        for _ in range(100):
            found.spend()
        clock[0] = 1.5
        for _ in range(27):
            found.spend()
        with pytest.raises(BudgetExceededError, match="seconds"):
            found.spend()
    with found.node():
        for _ in range(200):
            found.spend()
        with found.node():  # one that is needed for it
            pass
        with pytest.raises(BudgetExceededError, match="steps"):
            found.spend()


def test_a_question_has_steps_of_its_own() -> None:
    found = Budget()
    with found.node(steps=2):
        found.spend()
        with found.node(), found.node(steps=9):  # within a question its own limit holds
            found.spend()
        with pytest.raises(BudgetExceededError, match=r"^its normal form took 2 steps$"):
            found.spend()
    with found.node(steps=0), pytest.raises(BudgetExceededError, match=r"^its normal form took 0 steps$"):
        found.spend()


class _Reached:
    place: object = None

    def check(self) -> None:
        raise TimeoutError


def test_a_limit_of_the_thread_ends_the_work() -> None:
    reached = _Reached()
    limit.put(reached)
    try:
        for work in (limit.check, Budget().spend, functools.partial(limit.note_place, "node")):
            with pytest.raises(TimeoutError):
                work()
    finally:
        limit.put(None)
    assert reached.place is None
    limit.check()
    limit.note_place("node")


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
