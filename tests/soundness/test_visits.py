"""Cost is linear in depth: how often the operands of terms are read is at most a constant for each node.

Counted, never timed. The layers differ in a constant, so that none is another's repetition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard
from torch.fx.experimental.proxy_tensor import make_fx

import verifycompile
from verifycompile import Verdict
from verifycompile.ir.term import Term

SHALLOW, DEEP = 4, 16
RANKS = 2
ROWS, WIDTH = 4, 4
_MOST_VISITS = 50
"""For each node of both programs."""
_GROWTH = 3.0
"""How much more a node of the deep program may take than one of the shallow program; a quadratic cost takes four times
as much, and what is exponential takes thousands of times as much.
"""

collective = torch.ops._c10d_functional
Step = Callable[[Tensor, Tensor, float], Tensor]

STEPS: dict[str, Step] = {
    "square": lambda x, w, k: x * x + w[0] * k,
    "residual": lambda x, w, k: x + torch.tanh(x @ w) * k,
    "gated": lambda x, w, k: x + torch.sigmoid(x @ w) * (x * k),
    "normalized": lambda x, w, k: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + k) * w[0],
    "balanced": lambda x, w, k: torch.exp(x) / (torch.exp(x).sum(-1, keepdim=True) + k),
    "in-halves": lambda x, w, k: torch.cat([x[:, 2:] * k, x[:, :2] + x[:, 2:]], -1),
    "two-sums": lambda x, w, k: (x + w[0]) * (x + k),
    "below-largest": lambda x, w, k: x - k * x.amax(-1, keepdim=True),
    "softmax": lambda x, w, k: x + torch.softmax(x @ w * k, -1),
    "running-maximum": lambda x, w, k: torch.maximum(x, x @ w * k),
    "attention": lambda x, w, k: x + torch.softmax(x[:, :, None] * (x @ w * k)[:, None], -1).sum(-1) @ w,
}


class Visits:
    """Counts how often the operands of any term are read."""

    def __init__(self) -> None:
        self.number = 0

    def __get__(self, term: Term | None, owner: type[Term]) -> Any:
        if term is None:
            return self
        self.number += 1
        return term.__dict__["operands"]

    def __set__(self, term: Term, value: Any) -> None:
        term.__dict__["operands"] = value


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> Visits:
    counted = Visits()
    monkeypatch.setattr(Term, "operands", counted, raising=False)
    return counted


def program(steps: list[str], layers: int, ranks: int) -> torch.fx.GraphModule:
    """The value, and the gradients of its sum for the input and for all weights, those of all rows."""

    def run(x: Tensor, *weights: Tensor) -> list[Tensor]:
        inputs = [x, *weights]
        for number, weight in enumerate(weights):
            for step in steps:
                x = STEPS[step](x, weight, 1 + number / 8)
        with torch.enable_grad():
            gradients = torch.autograd.grad(x.sum(), inputs, allow_unused=True)
        found = [torch.zeros_like(i) if g is None else g for i, g in zip(inputs, gradients, strict=True)]
        if ranks > 1:
            found[1:] = [collective.wait_tensor(collective.all_reduce(g, "sum", "group")) for g in found[1:]]
        return [x, *found]

    x = torch.randn(ROWS // ranks, WIDTH, requires_grad=True)
    weights = [torch.randn(WIDTH, WIDTH, requires_grad=True) for _ in range(layers)]
    return make_fx(run, tracing_mode="fake")(x, *weights)


def visits_of_a_node(visits: Visits, steps: list[str], layers: int) -> float:
    """How many visits the proof takes for each node of both programs."""
    spec, implementation = program(steps, layers, 1), program(steps, layers, RANKS)
    x, *weights = [node.name for node in implementation.graph.find_nodes(op="placeholder")]
    before = visits.number
    report = verifycompile.verify_graphs(
        spec,
        implementation,
        {x: (Shard(0),), **dict.fromkeys(weights, (Replicate(),))},
        {f"output.{k}": (Shard(0),) if k < 2 else (Replicate(),) for k in range(layers + 2)},
        mesh={"dp": RANKS},
        groups={"group": tuple(range(RANKS))},
    )
    assert report.verdict is Verdict.VERIFIED, report
    return (visits.number - before) / (report.stats.spec_nodes + report.stats.implementation_nodes)


def check(visits: Visits, steps: list[str]) -> None:
    shallow, deep = (visits_of_a_node(visits, steps, layers) for layers in (SHALLOW, DEEP))
    assert 0 < deep <= _MOST_VISITS, f"{steps}: {deep:.0f} visits for each node"
    assert deep <= _GROWTH * shallow, f"{steps}: {shallow:.0f} visits for each node, then {deep:.0f}"


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("step", STEPS)
def test_visits_of_one_step(visits: Visits, step: str) -> None:
    check(visits, [step])
