"""A mistake that every stage of a pipeline makes, and makes in its backward pass again, is told where they make it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support import fake_world
from verifycompile import Verdict, verify_graphs

WIDTH = 4


def layers(x, weights, mistake=""):
    for up, down in zip(weights[::2], weights[1::2], strict=True):
        y = torch.sin(x) @ up
        if mistake == "halved":
            y = y / 2
        x = x + torch.tanh(y) @ down
    return x


def layers_of_stage(x, weights, mistake):
    if mistake in ("", "halved"):
        return layers(x, weights, mistake)
    for up, down in zip(weights[::2], weights[1::2], strict=True):
        if mistake == "lost":
            x = torch.tanh(torch.sin(x) @ up) @ down
        if mistake == "left out":
            x = x + torch.tanh(x @ up) @ down
        if mistake == "another":
            x = x + torch.relu(torch.sin(x) @ up) @ down
        if mistake == "residual":
            x = torch.sin(x) + torch.tanh(torch.sin(x) @ up) @ down
    return x


def spec(x, *weights):
    weights = [weight.detach().requires_grad_() for weight in weights]
    loss = layers(x, weights).square().mean()
    return [loss.detach(), *torch.autograd.grad(loss, weights)]


def first_stage(mistake: str) -> Callable[..., Any]:
    def run(x, *weights):
        weights = [weight.detach().requires_grad_() for weight in weights]
        y = layers_of_stage(x, weights, mistake)
        dist.send(y.detach(), 1)
        gradient = torch.empty(3, WIDTH)
        dist.recv(gradient, 1)
        return list(torch.autograd.grad(y, weights, gradient))

    return run


def last_stage(mistake: str) -> Callable[..., Any]:
    def run(*weights):
        weights = [weight.detach().requires_grad_() for weight in weights]
        x = torch.empty(3, WIDTH)
        dist.recv(x, 0)
        x.requires_grad_()
        loss = layers_of_stage(x, weights, mistake).square().mean()
        gradient, *own = torch.autograd.grad(loss, [x, *weights])
        dist.send(gradient, 0)
        return [loss.detach(), *own]

    return run


def traced(function: Callable[..., Any], inputs: Mapping[str, torch.Tensor]) -> torch.fx.GraphModule:
    graph = make_fx(function, tracing_mode="fake", record_stack_traces=True)(*inputs.values())
    for node, name in zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True):
        node.name = node.target = name
    graph.recompile()
    return graph


LOST = "torch.tanh(torch.sin(x) @ up) @ down"
MISTAKES = {
    "halved": (layers, "y = y / 2", "leave out the division by 2 of "),
    "lost": (layers_of_stage, LOST, f"add to `{LOST}` at line {{line}} what it is computed of, each time "),
    "left out": (
        layers_of_stage,
        "x + torch.tanh(x @ up)",
        "compute `sin` in `torch.sin(x) @ up` (line 22 of the spec) and use it in the place of `x` at line ",
    ),
    "another": (layers_of_stage, "torch.relu(", "compute `tanh` in "),
    "residual": (layers_of_stage, "torch.sin(x) + ", "use `x` in the place of `sin` in "),
}
FORWARD = ("left out", "another", "residual")
"""What is mended in the forward pass alone: the captured backward pass is that of the mistake."""
"""What is wrong -> the function and the line that say so, and how the hint begins."""


@pytest.mark.sampled(every=2, of=("mistake",))
@pytest.mark.parametrize("mistake", ["", *MISTAKES])
@pytest.mark.parametrize("count", [2, 3])
def test_a_mistake_that_every_layer_of_every_stage_makes(count, mistake):
    names = [[f"{name}{stage}{layer}" for layer in range(count) for name in ("up", "down")] for stage in range(2)]
    x = torch.empty(3, WIDTH)
    weights = [{name: torch.empty(WIDTH, WIDTH) for name in of_stage} for of_stage in names]
    graphs = []
    for rank, stage in enumerate((first_stage, last_stage)):
        with fake_world(2, rank=rank):
            graphs.append(traced(stage(mistake), ({} if rank else {"x": x}) | weights[rank]))
    gradients = 2 * count
    outputs = [
        {f"output.{at}": f"output.{at + 1}" for at in range(gradients)},
        {"output.0": "output.0"} | {f"output.{at}": f"output.{at + gradients}" for at in range(1, gradients + 1)},
    ]
    whole = traced(spec, {"x": x} | weights[0] | weights[1])
    report = verify_graphs(whole, graphs, [{}, {}], outputs)
    if not mistake:
        assert report.verdict is Verdict.VERIFIED
        return
    assert report.verdict is Verdict.REFUTED
    (finding,) = report.findings
    function, said, hint = MISTAKES[mistake]
    lines, first = inspect.getsourcelines(function)
    line = first + next(at for at, text in enumerate(lines) if said in text)
    assert (finding.impl_location.file, finding.impl_location.line) == (__file__, line)
    assert finding.hint.startswith(hint.format(line=line))
    if mistake not in FORWARD:
        assert finding.hint.endswith(" (checked)")
        return
    assert ", each time that the line runs (checked: `output.0`" in finding.hint
    assert finding.hint.endswith(" proved so)")
