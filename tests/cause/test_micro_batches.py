"""What stages of a pipeline do to each micro-batch, or forget of some of them, is told where they do it."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed as dist

from tests.cause.test_every_stage import traced
from tests.support import fake_world
from verifycompile import Verdict, verify_graphs

MICRO = 3


def spec(x, w, head):
    w, head = (weight.detach().requires_grad_() for weight in (w, head))
    loss = (torch.tanh(x @ w) @ head).square().sum()
    return [loss.detach(), *torch.autograd.grad(loss, [w, head])]


def first_stage(mistake):
    def run(x, w, head):
        del head
        w = w.detach().requires_grad_()
        total = 0.0
        for part in x.chunk(MICRO):
            y = part @ w
            if mistake != "plain":
                y = torch.tanh(y)
            dist.send(y.detach(), 1)
            back = torch.empty_like(y)
            dist.recv(back, 1)
            (own,) = torch.autograd.grad(y, [w], back)
            total = own if mistake == "assigned" else total + own
        return [total]

    return run


def last_stage(mistake):
    def run(x, w, head):
        del w
        head = head.detach().requires_grad_()
        total, gradient = 0.0, 0.0
        for number, part in enumerate(x.chunk(MICRO)):
            h = torch.empty(part.shape[0], 4)
            dist.recv(h, 0)
            h.requires_grad_()
            loss = (h @ head).square().sum()
            back, own = torch.autograd.grad(loss, [h, head])
            dist.send(back, 0)
            gradient = gradient + own
            if number > 0 or mistake != "first lost":
                total = total + loss.detach()
        return [total, gradient]

    return run


GRADIENT = "torch.autograd.grad(y, [w], back)"
MISTAKES = {
    "assigned": (
        first_stage,
        "autograd.grad(y",
        "VC119",
        f"add up `{GRADIENT}` of all 3 turns at line {{line}} (checked)",
    ),
    "first lost": (last_stage, "total + loss", "VC119", "add up `total` of all 3 turns at line {line} (checked)"),
    "plain": (
        first_stage,
        "y = part @ w",
        "VC108",
        "compute `tanh` in `(torch.tanh(x @ w) @ head).square().sum()` (line 20 of the spec) and use it ",
    ),
}
"""What is wrong -> the function and the line that say so, the code, and how the hint begins."""


@pytest.mark.parametrize("mistake", ["", *MISTAKES])
def test_a_mistake_that_a_stage_makes_with_micro_batches(mistake):
    inputs = {"x": torch.empty(6, 3), "w": torch.empty(3, 4), "head": torch.empty(4, 2)}
    graphs = []
    for rank, stage in enumerate((first_stage, last_stage)):
        with fake_world(2, rank=rank):
            graphs.append(traced(stage(mistake), inputs))
    outputs = [{"output.0": "output.1"}, {"output.0": "output.0", "output.1": "output.2"}]
    report = verify_graphs(traced(spec, inputs), graphs, [{}, {}], outputs)
    if not mistake:
        assert report.verdict is Verdict.VERIFIED
        return
    assert report.verdict is Verdict.REFUTED
    finding, *_ = report.findings  # of the derivative as well, where the graph has it
    function, said, code, hint = MISTAKES[mistake]
    lines, first = inspect.getsourcelines(function)
    line = first + next(at for at, text in enumerate(lines) if said in text)
    assert (finding.code, finding.impl_location.line) == (code, line), str(report)
    assert finding.hint.startswith(hint.format(line=line))
