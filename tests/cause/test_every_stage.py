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


def layers(x, weights, is_halved=False):
    for up, down in zip(weights[::2], weights[1::2], strict=True):
        y = torch.sin(x) @ up
        if is_halved:
            y = y / 2
        x = x + torch.tanh(y) @ down
    return x


def spec(x, *weights):
    weights = [weight.detach().requires_grad_() for weight in weights]
    loss = layers(x, weights).square().mean()
    return [loss.detach(), *torch.autograd.grad(loss, weights)]


def first_stage(is_halved: bool) -> Callable[..., Any]:
    def run(x, *weights):
        weights = [weight.detach().requires_grad_() for weight in weights]
        y = layers(x, weights, is_halved)
        dist.send(y.detach(), 1)
        gradient = torch.empty(3, WIDTH)
        dist.recv(gradient, 1)
        return list(torch.autograd.grad(y, weights, gradient))

    return run


def last_stage(is_halved: bool) -> Callable[..., Any]:
    def run(*weights):
        weights = [weight.detach().requires_grad_() for weight in weights]
        x = torch.empty(3, WIDTH)
        dist.recv(x, 0)
        x.requires_grad_()
        loss = layers(x, weights, is_halved).square().mean()
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


@pytest.mark.parametrize("is_halved", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_a_division_that_every_layer_of_every_stage_makes(count, is_halved):
    names = [[f"{name}{stage}{layer}" for layer in range(count) for name in ("up", "down")] for stage in range(2)]
    x = torch.empty(3, WIDTH)
    weights = [{name: torch.empty(WIDTH, WIDTH) for name in of_stage} for of_stage in names]
    graphs = []
    for rank, stage in enumerate((first_stage, last_stage)):
        with fake_world(2, rank=rank):
            graphs.append(traced(stage(is_halved), ({} if rank else {"x": x}) | weights[rank]))
    gradients = 2 * count
    outputs = [
        {f"output.{at}": f"output.{at + 1}" for at in range(gradients)},
        {"output.0": "output.0"} | {f"output.{at}": f"output.{at + gradients}" for at in range(1, gradients + 1)},
    ]
    whole = traced(spec, {"x": x} | weights[0] | weights[1])
    report = verify_graphs(whole, graphs, [{}, {}], outputs)
    if not is_halved:
        assert report.verdict is Verdict.VERIFIED
        return
    assert report.verdict is Verdict.REFUTED
    places = [(finding.impl_location.file, finding.impl_location.line) for finding in report.findings]
    lines, first = inspect.getsourcelines(layers)
    assert places[0] == (__file__, first + next(at for at, line in enumerate(lines) if "y / 2" in line))
    begins = [
        first + next(at for at, line in enumerate(lines) if "autograd.grad(" in line)
        for lines, first in map(inspect.getsourcelines, (first_stage, last_stage))
    ]
    assert places[1:] == [(__file__, begin) for begin in begins]
    for finding in report.findings:
        assert finding.hint.startswith("leave out the division by 2 of ")
        assert finding.hint.endswith("(checked, together with the help of the other findings)")
