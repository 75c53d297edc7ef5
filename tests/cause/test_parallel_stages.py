"""A reduction that every stage lacks, where the ranks of a stage are tensor-parallel."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch.distributed.tensor import Shard
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support import fake_world
from verifycompile import Verdict, verify_graphs


class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return collectives.all_reduce(grad, "sum", ctx.group), None


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return collectives.all_reduce(x, "sum", group)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def spec(x, up, down):
    x, up, down = (value.detach().requires_grad_() for value in (x, up, down))
    y = x
    for layer in range(2):
        y = y + torch.tanh(torch.sin(y) @ up[layer]) @ down[layer]
    loss = y.square().mean()
    return [loss.detach(), *torch.autograd.grad(loss, [x, up, down])]


def block(x, up, down, group, mistake):
    h = torch.sin(x)
    if mistake != "not copied":
        h = Copied.apply(h, group)
    y = torch.tanh(h @ up) @ down
    return x + (y if mistake == "not summed" else Summed.apply(y, group))


def stage(mistake):
    def run(x, up, down):
        rank = dist.get_rank()
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        x, up, down = (value.detach().requires_grad_() for value in (x, up, down))
        if rank >= 2:
            x = torch.empty(3, 4)
            dist.recv(x, rank - 2)
            x.requires_grad_()
        y = block(x, up[0], down[0], groups[rank // 2], mistake)
        if rank < 2:
            dist.send(y.detach(), rank + 2)
            gradient = torch.empty(3, 4)
            dist.recv(gradient, rank + 2)
            return list(torch.autograd.grad(y, [x, up, down], gradient))
        loss = y.square().mean()
        gradient, *own = torch.autograd.grad(loss, [x, up, down])
        dist.send(gradient, rank - 2)
        return [loss.detach(), *own]

    return run


def traced(function, inputs):
    graph = make_fx(function, tracing_mode="fake", record_stack_traces=True)(*inputs.values())
    for node, name in zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True):
        node.name = node.target = name
    graph.recompile()
    return graph


@pytest.mark.parametrize("mistake", ["", "not summed", "not copied"])
def test_a_reduction_that_every_stage_lacks(mistake):
    x = torch.empty(3, 4)
    whole = {"x": x, "up": torch.empty(2, 4, 4), "down": torch.empty(2, 4, 4)}
    own = {"x": x, "up": torch.empty(1, 4, 2), "down": torch.empty(1, 2, 4)}
    graphs = []
    for rank in range(4):
        with fake_world(4, rank=rank):
            graphs.append(traced(stage(mistake), own))
    up, down = (Shard(0), Shard(2)), (Shard(0), Shard(1))
    first = {"output.0": "output.1", "output.1": ("output.2", up), "output.2": ("output.3", down)}
    last = {"output.0": "output.0", "output.1": ("output.2", up), "output.2": ("output.3", down)}
    report = verify_graphs(
        traced(spec, whole),
        graphs,
        [{"up": ("up", up), "down": ("down", down)}] * 4,
        [first, first, last, last],
        mesh={"pp": 2, "tp": 2},
        groups={"1": [0, 1], "2": [2, 3]},
    )
    if not mistake:
        assert report.verdict is Verdict.VERIFIED
        return
    assert report.verdict is Verdict.REFUTED
    function, said = (block, "y = torch.tanh") if mistake == "not summed" else (stage, "torch.autograd.grad(")
    lines, begin = inspect.getsourcelines(function)
    expected = [(__file__, begin + at) for at, line in enumerate(lines) if said in line]
    assert [(found.impl_location.file, found.impl_location.line) for found in report.findings] == expected
    for finding in report.findings:
        assert finding.code == "VC101"
        assert finding.hint.startswith("all-reduce `")
        assert "over `tp` (sum) after line " in finding.hint
