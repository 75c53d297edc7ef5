"""Two pipeline stages and two micro-batches, forward and backward, each rank's program captured on its own.

    python examples/pipeline_stages.py          # verified: loss and gradients are those of the whole batch
    python examples/pipeline_stages.py --bug    # refused: the gradients are those of a sum over micro-batches

The ranks run different programs, so ``verify_graphs`` is given one graph of each, and told which input of a rank is
which input of the spec. Everything is captured with ``make_fx`` in one process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.fx
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import verifycompile
from verifycompile.testing import fake_group

BATCH, MICRO_BATCHES, DIM = 8, 2, 16


def single(x, y, first, second):
    """What is meant: the loss of the whole batch and its gradients, on one device."""
    first, second = first.detach().requires_grad_(), second.detach().requires_grad_()
    loss = F.mse_loss(torch.tanh(x @ first) @ second, y)
    return loss.detach(), *torch.autograd.grad(loss, (first, second))


def first_stage(x, weight):
    """Rank 0: sends what it computes of each micro-batch, and receives its gradients. Returns what it has of the
    results of ``single``, in their places.
    """
    weight = weight.detach().requires_grad_()
    sent = []
    for part in x.chunk(MICRO_BATCHES):
        sent.append(torch.tanh(part @ weight))
        dist.send(sent[-1].detach(), 1)
    total = torch.zeros_like(weight)
    for hidden in sent:
        gradient = torch.empty_like(hidden)
        dist.recv(gradient, 1)
        total = total + torch.autograd.grad(hidden, weight, gradient)[0]
    return None, total, None


def last_stage(scale: float) -> Callable:
    """Rank 1: the losses of the micro-batches, each times ``scale``, and their gradients."""

    def run(y, weight):
        weight = weight.detach().requires_grad_()
        parts = y.chunk(MICRO_BATCHES)
        received = [torch.empty(BATCH // MICRO_BATCHES, DIM) for _ in parts]
        for hidden in received:
            dist.recv(hidden, 0)
        loss, total = torch.zeros(()), torch.zeros_like(weight)
        for hidden, part in zip(received, parts, strict=True):
            activation = hidden.detach().requires_grad_()
            part_of_loss = F.mse_loss(activation @ weight, part)
            scaled = part_of_loss * scale
            of_weight, of_activation = torch.autograd.grad(scaled, (weight, activation))
            dist.send(of_activation, 0)
            loss, total = loss + part_of_loss.detach() / MICRO_BATCHES, total + of_weight
        return loss, None, total

    return run


def capture(function: Callable, names: str, *values: torch.Tensor) -> torch.fx.GraphModule:
    """The graph of ``function``, with ``names`` as the names of its inputs and the source line of each of its nodes."""
    graph = make_fx(function, record_stack_traces=True)(*values)
    for node, name in zip(graph.graph.find_nodes(op="placeholder"), names.split(), strict=True):
        node.name = node.target = name
    graph.recompile()
    return graph


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bug", action="store_true", help="forget to divide by the number of micro-batches")
    arguments = parser.parse_args()
    x, y = torch.randn(2, BATCH, DIM)
    first, second = torch.randn(2, DIM, DIM)
    spec = capture(single, "x y first second", x, y, first, second)
    with fake_group(2, rank=0):
        rank_0 = capture(first_stage, "x weight", x, first)
    with fake_group(2, rank=1):
        rank_1 = capture(last_stage(1.0 if arguments.bug else 1 / MICRO_BATCHES), "y weight", y, second)
    report = verifycompile.verify_graphs(spec, [rank_0, rank_1], [{"weight": "first"}, {"weight": "second"}])
    print(report)
    return 0 if report else 1


if __name__ == "__main__":
    sys.exit(main())
