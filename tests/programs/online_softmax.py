"""Attention by online softmax: blocks of keys one after the other, and keys sharded over the ranks (flash decoding).

Maxima are subtracted only to keep exponentials small: what is computed is the softmax of all scores. ``mistake`` is one
of those in ``BLOCKWISE`` and ``DECODING``, or empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh

from tests.programs import attention
from tests.soundness.plain import all_gather, all_reduce

Tensor = torch.Tensor
Block = tuple[Tensor, Tensor, Tensor | None]
"""Keys, values, and which of the keys each row of the query may see."""
LOWEST = float("-inf")


def _scores(query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    return scores if mask is None else scores.masked_fill(~mask, LOWEST)


def whole(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return _scores(query, key).softmax(-1) @ value


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def running(query: Tensor, blocks: Sequence[Block], mistake: str, detached: bool = True) -> Tensor:
    """A running maximum, sum and output, rescaled whenever the maximum grows."""
    largest = torch.full(query.shape[:-1], LOWEST)
    total, output = torch.zeros(query.shape[:-1]), torch.zeros_like(query)
    for key, value, mask in blocks:
        scores = _scores(query, key, mask)
        here = scores.amax(-1)
        new = torch.maximum(largest, here.detach() if detached else here)
        weights = torch.exp(scores - new.unsqueeze(-1))
        scale = torch.exp(new - largest) if mistake == "scale inverted" else torch.exp(largest - new)
        kept = output if mistake == "output not rescaled" else output * scale.unsqueeze(-1)
        total = (total if mistake == "sum not rescaled" else total * scale) + weights.sum(-1)
        output, largest = kept + weights @ value, new
    return output if mistake == "not divided" else output / total.unsqueeze(-1)


def merged(query: Tensor, blocks: Sequence[Block], mistake: str) -> Tensor:
    """Attention over each block, combined by the logarithms of their sums."""
    output, total = None, None
    for key, value, mask in blocks:
        scores = _scores(query, key, mask)
        here, part = torch.logsumexp(scores, -1), scores.softmax(-1) @ value
        if output is None or total is None:
            output, total = part, here
            continue
        new = torch.maximum(total, here) if mistake == "largest in place of the sum" else torch.logaddexp(total, here)
        earlier = torch.exp(total - new).unsqueeze(-1)
        output = (
            output * (1 if mistake == "output not rescaled" else earlier) + torch.exp(here - new).unsqueeze(-1) * part
        )
        total = new
    assert output is not None
    return output


def _blocks(operands: tuple[Tensor, Tensor, Tensor], mesh: DeviceMesh, masked: bool, mistake: str) -> list[Block]:
    query, key, value = operands
    ranks, rows = mesh.size(), query.shape[2]
    keys = attention._Gather.apply(key, mesh, True).chunk(ranks, 2)
    values = attention._Gather.apply(value, mesh, True).chunk(ranks, 2)
    first = 0 if mistake == "positions of the first rank" else mesh.get_local_rank() * rows
    order = list(range(ranks))
    if mistake == "values of another block":
        values = values[::-1]
    if mistake == "block left out":
        order = order[:-1]
    if mistake == "block twice":
        order = [*order, 0]
    if mistake == "masked block first":
        order = order[::-1]
    query_positions = first + torch.arange(rows)[:, None]
    masks = [query_positions >= block * rows + torch.arange(rows) for block in range(ranks)]
    if mistake == "mask of the first block":
        masks = [masks[0]] * ranks
    return [(keys[b], values[b], masks[b] if masked else None) for b in order]


Program = Callable[[DeviceMesh, str], Callable[[Tensor, Tensor, Tensor], Tensor]]


def _blockwise(attend: Callable[..., Tensor], masked: bool, **options: bool) -> Program:
    def program(mesh: DeviceMesh, mistake: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return attend(query, _blocks((query, key, value), mesh, masked, mistake), mistake, **options)

        return run

    return program


BLOCKWISE: dict[str, tuple[Callable[..., Tensor], Program, tuple[str, ...]]] = {
    "running maximum": (
        whole,
        _blockwise(running, False),
        ("scale inverted", "output not rescaled", "block left out", "block twice", "values of another block"),
    ),
    "running maximum that is differentiated": (
        whole,
        _blockwise(running, False, detached=False),
        ("sum not rescaled", "not divided", "block twice"),
    ),
    "causal, running maximum": (
        causal,
        _blockwise(running, True),
        ("positions of the first rank", "mask of the first block", "output not rescaled", "masked block first"),
    ),
    "merged by logarithms": (
        whole,
        _blockwise(merged, False),
        ("largest in place of the sum", "output not rescaled", "values of another block"),
    ),
}
"""Spec, program and its mistakes; the sequence is sharded, keys and values are gathered."""


def by_largest(mesh: DeviceMesh, mistake: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Flash decoding: each rank has some of the keys; the largest score of all ranks is subtracted."""

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = _scores(query, key)
        own = scores.amax(-1)
        largest = all_reduce(own, mesh, operation="max")
        weights = torch.exp(scores - (own if mistake == "own maximum" else largest).unsqueeze(-1))
        total = weights.sum(-1) if mistake == "own sum" else all_reduce(weights.sum(-1), mesh)
        output = all_reduce(weights @ value, mesh, operation="avg" if mistake == "averaged" else "sum")
        return output / total.unsqueeze(-1)

    return run


def by_rescaling(mesh: DeviceMesh, mistake: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The same with own maxima, and sums that are rescaled before they are reduced."""

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = _scores(query, key)
        own = scores.amax(-1)
        weights = torch.exp(scores - own.unsqueeze(-1))
        scale = torch.exp(own - all_reduce(own, mesh, operation="max"))
        total = all_reduce(weights.sum(-1) * (1 if mistake == "sum not rescaled" else scale), mesh)
        output = all_reduce((weights @ value) * (1 if mistake == "not rescaled" else scale.unsqueeze(-1)), mesh)
        return output / (total * scale if mistake == "scaled twice" else total).unsqueeze(-1)

    return run


def by_logarithms(mesh: DeviceMesh, mistake: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Own attention, weighted by a softmax of the logarithms of all ranks' sums."""

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = _scores(query, key)
        totals = all_gather(torch.logsumexp(scores, -1).unsqueeze(0), mesh)
        outputs = all_gather((scores.softmax(-1) @ value).unsqueeze(0), mesh)
        weights = totals.softmax(-1 if mistake == "over the rows" else 0)
        if mistake == "sigmoid":
            weights = totals.sigmoid()
        if mistake == "mean":
            return outputs.mean(0)
        return (weights.unsqueeze(-1) * outputs).sum(0)

    return run


DECODING: dict[str, tuple[Program, tuple[str, ...]]] = {
    "largest of all ranks": (by_largest, ("own maximum", "own sum", "averaged")),
    "own maxima, rescaled": (by_rescaling, ("sum not rescaled", "not rescaled", "scaled twice")),
    "logarithms of sums": (by_logarithms, ("over the rows", "sigmoid", "mean")),
}
"""Programs without gradients: keys and values sharded over the sequence, one query on all ranks."""
