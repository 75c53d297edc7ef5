"""Calls with operands of sizes that torch takes though nobody expects them: one operand of a sample is changed, or two.

Many operators broadcast, repeat or cut off an operand in silence: a source longer than its index, a weight of one element, a
gradient of another size than the slice. A declaration that takes a size for granted says then what torch does not compute.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence

import torch

from tests.operators.call import Sample, varied

Edit = Callable[[torch.Tensor], torch.Tensor]
LARGEST = 4096
"""Elements of an operand; what is larger is not tried."""


def _longer(dim: int, tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, varied(tensor, 1).narrow(dim, 0, 1)], dim)


def _twice(dim: int, tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, varied(tensor, 1)], dim)


def edits(tensor: torch.Tensor) -> Iterator[tuple[str, Edit]]:
    """Other tensors of its dtype and range, by what was done to it."""
    rank = tensor.dim()
    for dim in range(rank):
        size = tensor.shape[dim]
        if size > 1:
            yield f"first of dim {dim}", lambda t, d=dim: t.narrow(d, 0, 1)
            yield f"dim {dim} shorter", lambda t, d=dim: t.narrow(d, 0, t.shape[d] - 1)
            yield f"dim {dim} one number", lambda t, d=dim: t.narrow(d, 0, 1).expand(t.shape)
        if size > 0:
            yield f"dim {dim} longer", lambda t, d=dim: _longer(d, t)
            yield f"dim {dim} twice", lambda t, d=dim: _twice(d, t)
            yield f"dim {dim} dropped", lambda t, d=dim: t.select(d, 0)
            yield f"dim {dim} empty", lambda t, d=dim: t.narrow(d, 0, 0)
    for dim in {0, rank}:
        yield f"new dim {dim}", lambda t, d=dim: t.unsqueeze(d)
        yield f"new dim {dim} of two", lambda t, d=dim: torch.stack([t, varied(t, 1)], d)
    if rank and tensor.numel():
        yield "one element", lambda t: t.flatten()[:1]
        yield "no dim", lambda t: t.flatten()[0]
        yield "all dims of one", lambda t: t.flatten()[0].reshape([1] * t.dim())
    if rank > 1:
        yield "flat", lambda t: t.flatten()
        yield "transposed", lambda t: t.transpose(0, -1)
        yield "transposed in memory", lambda t: t.transpose(0, -1).contiguous().transpose(0, -1)
    if not tensor.is_floating_point() and not tensor.is_complex():
        yield "zeros", torch.zeros_like


def odd_samples(sample: Sample, pairs: int, draw: random.Random) -> Iterator[tuple[str, Sample]]:
    """The call with each operand changed alone, and with ``pairs`` of operands changed at once."""
    tensors = sample.tensors
    ways = [list(edits(tensor)) for tensor in tensors]
    for place, found in enumerate(ways):
        for name, edit in found:
            yield f"operand {place}: {name}", _changed(sample, {place: edit})
    both = [*itertools.combinations(range(len(tensors)), 2)]
    for _ in range(pairs if both else 0):
        left, right = draw.choice(both)
        (name, edit), (other, second) = draw.choice(ways[left]), draw.choice(ways[right])
        yield f"operand {left}: {name}, operand {right}: {other}", _changed(sample, {left: edit, right: second})
        same = [way for way in ways[right] if way[0] == name]
        if same:
            yield f"operands {left} and {right}: {name}", _changed(sample, {left: edit, right: same[0][1]})


def _changed(sample: Sample, changed: dict[int, Edit]) -> Sample:
    return sample.replaced([changed[k](t) if k in changed else t for k, t in enumerate(sample.tensors)])


def is_small(tensors: Sequence[torch.Tensor]) -> bool:
    return all(tensor.numel() <= LARGEST for tensor in tensors)
