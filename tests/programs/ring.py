# ruff: noqa: PLR0917  # signatures of autograd functions
"""Ring attention: keys and values travel around the ranks, parts of the output are merged by their logarithms.

As in ring-flash-attention: messages between neighbours, a backward pass by hand in which the gradients of keys and values
travel along with them. ``mistake``: one of those in ``RINGS``, or empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh

Tensor = torch.Tensor
LOWEST = float("-inf")


def _scores(query: Tensor, key: Tensor, causal: bool) -> Tensor:
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if not causal:
        return scores
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), LOWEST)


def _attend(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    scores = _scores(query, key, causal)
    total = torch.logsumexp(scores, -1, keepdim=True)
    return torch.exp(scores - total) @ value, total


def _gradients(
    gradient: Tensor, operands: tuple[Tensor, Tensor, Tensor], output: Tensor, total: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = operands
    weights = torch.exp(_scores(query, key, causal) - total)
    along = (gradient * output).sum(-1, keepdim=True)
    of_scores = weights * (gradient @ value.transpose(-1, -2) - along) * query.shape[-1] ** -0.5
    return of_scores @ key, of_scores.transpose(-1, -2) @ query, weights.transpose(-1, -2) @ gradient


def by_sigmoid(output: Tensor, total: Tensor, part: Tensor, here: Tensor) -> tuple[Tensor, Tensor]:
    return output - torch.sigmoid(here - total) * (output - part), total - F.logsigmoid(total - here)


def by_logarithm(output: Tensor, total: Tensor, part: Tensor, here: Tensor) -> tuple[Tensor, Tensor]:
    new = total + torch.log(1 + torch.exp(here - total))
    return torch.exp(total - new) * output + torch.exp(here - new) * part, new


def not_rescaled(output: Tensor, total: Tensor, part: Tensor, here: Tensor) -> tuple[Tensor, Tensor]:
    new = torch.logaddexp(total, here)
    return output + torch.exp(here - new) * part, new


def turned_round(output: Tensor, total: Tensor, part: Tensor, here: Tensor) -> tuple[Tensor, Tensor]:
    return output - torch.sigmoid(total - here) * (output - part), total - F.logsigmoid(total - here)


Merge = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class _Ring:
    """Sends tensors to the next rank and receives those of the one before."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.works: list[Any] = []

    def start(self, *tensors: Tensor) -> list[Tensor]:
        received = [torch.empty_like(tensor) for tensor in tensors]
        calls: list[Any] = []
        for sent, buffer in zip(tensors, received):  # noqa: B905 - traced
            calls.append(dist.P2POp(dist.isend, sent, (self.rank + 1) % self.size))
            calls.append(dist.P2POp(dist.irecv, buffer, (self.rank - 1) % self.size))
        self.works = dist.batch_isend_irecv(calls)
        return received

    def wait(self) -> None:
        for work in self.works:
            work.wait()


def _forward(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, merge: Merge, mistake: str
) -> tuple[Tensor, Tensor]:
    ring = _Ring()
    output = total = None
    following: list[Tensor] = []
    steps = ring.size - 1 if mistake == "one step too few" else ring.size
    for step in range(steps):
        if step + 1 < steps:
            following = ring.start(key, value)
        if not causal or step <= (0 if mistake == "own block alone" else ring.rank):
            part, here = _attend(query, key, value, causal and (step == 0 or mistake == "every block masked"))
            merged = (part, here) if output is None or total is None else merge(output, total, part, here)
            output, total = merged
        if step + 1 < steps:
            ring.wait()
            key = following[0]
            value = value if mistake == "values stay" else following[1]
    assert output is not None
    assert total is not None
    return output, total


def _backward(gradient: Tensor, saved: tuple[Tensor, ...], causal: bool, mistake: str) -> tuple[Tensor, ...]:
    query, key, value, output, total = saved
    ring, back = _Ring(), _Ring()
    of_query = of_key = of_value = None
    following: list[Tensor] = []
    sums: list[Tensor] = []
    for step in range(ring.size):
        if step + 1 < ring.size:
            following = ring.start(key, value)
        if not causal or step <= ring.rank:
            masked = causal and step == 0
            parts = _gradients(gradient, (query, key, value), output, total, masked)
            if of_query is None:
                of_query, of_key, of_value = parts
            else:
                back.wait()
                of_query = of_query + parts[0]
                of_key, of_value = parts[1] + sums[0], parts[2] + sums[1]
        elif step != 0:
            back.wait()
            of_key, of_value = sums
        if step + 1 < ring.size:
            ring.wait()
            key, value = following
        assert of_key is not None
        assert of_value is not None
        sums = back.start(of_key, of_value)
    back.wait()
    assert of_query is not None
    if mistake == "gradients not sent home":
        assert of_key is not None
        assert of_value is not None
        return of_query, of_key, of_value
    return of_query, *sums


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, query: Tensor, key: Tensor, value: Tensor, causal: bool, merge: Merge, mistake: str
    ) -> Tensor:
        output, total = _forward(query, key, value, causal, merge, mistake)
        context.save_for_backward(query, key, value, output, total)
        context.causal, context.mistake = causal, mistake
        return output

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        return *_backward(gradient, context.saved_tensors, context.causal, context.mistake), None, None, None


Program = Callable[[Tensor, Tensor, Tensor], Tensor]


def by_messages(mesh: DeviceMesh, mistake: str, causal: bool = False, merge: Merge = by_sigmoid) -> Program:
    wrong: dict[str, Merge] = {"not rescaled": not_rescaled, "weights turned round": turned_round}

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _RingAttention.apply(query, key, value, causal, wrong.get(mistake, merge), mistake)  # type: ignore[return-value]

    return run


def to_the_next(mesh: DeviceMesh) -> Callable[[Tensor], Tensor]:
    """Every rank's tensor, sent to the next one."""
    ranks = mesh.size()
    targets = [(rank + 1) % ranks for rank in range(ranks)]

    def shifted(x: Tensor) -> Tensor:
        return collectives.permute_tensor(x.contiguous().flatten(), targets, (mesh, 0)).view_as(x)

    return shifted


def by_permutation(mesh: DeviceMesh, mistake: str, causal: bool = False) -> Program:
    """A running maximum and sum; blocks travel by ``permute_tensor``, which autograd differentiates."""
    ranks, shifted = mesh.size(), to_the_next(mesh)

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows, rank = query.shape[2], dist.get_rank()
        largest = torch.full((*query.shape[:-1], 1), LOWEST)
        total, output = torch.zeros_like(largest), torch.zeros_like(query)
        for step in range(ranks - (mistake == "one step too few")):
            scores = _scores(query, key, False)
            if causal:
                block = (rank + step if mistake == "other direction" else rank - step) % ranks
                first = 0 if mistake == "own block's positions" else (block - rank) * rows
                keep = torch.arange(rows)[:, None] >= first + torch.arange(rows)
                scores = scores.masked_fill(~keep, LOWEST)
            new = torch.maximum(largest, scores.amax(-1, keepdim=True).detach())
            weights = torch.exp(scores - new)
            scale = 1 if mistake == "sum not rescaled" else torch.exp(largest - new)
            total = total * scale + weights.sum(-1, keepdim=True)
            output, largest = output * torch.exp(largest - new) + weights @ value, new
            if step + 1 < ranks:
                key = shifted(key)
                value = value if mistake == "values stay" else shifted(value)
        return output / total

    return run


def masked_blocks(mesh: DeviceMesh, mistake: str, merge: Merge) -> Program:
    """A causal ring that masks blocks which it should skip, and merges their softmax."""
    ranks, shifted = mesh.size(), to_the_next(mesh)

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows, rank = query.shape[2], dist.get_rank()
        output = total = None
        for step in range(ranks):
            keep = torch.arange(rows)[:, None] >= ((rank - step) % ranks - rank) * rows + torch.arange(rows)
            scores = _scores(query, key, False).masked_fill(~keep, LOWEST)
            here = torch.logsumexp(scores, -1, keepdim=True)
            part = torch.exp(scores - here) @ value
            merged = (part, here) if output is None or total is None else merge(output, total, part, here)
            output, total = merged
            key, value = shifted(key), shifted(value)
        assert output is not None
        return output

    return run
