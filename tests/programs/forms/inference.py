"""Inference and quantized weights: caches of keys and values, pages, sliding windows, scales of groups."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from tests.programs.forms.form import S0, S1, S2, Form, R

SIZE, LENGTH = 4, 6


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


class Decoder(nn.Module):
    """One step of decoding. ``written``: how the caches are written, which buffers hold."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, heads: int, written: str, mistake: str = "") -> None:
        super().__init__()
        self.heads, self.written, self.mistake = heads, written, mistake
        self.weight = nn.Linear(8, heads * 3 * SIZE, bias=False)
        self.register_buffer("keys", torch.zeros(2, heads, LENGTH, SIZE))
        self.register_buffer("values", torch.zeros(2, heads, LENGTH, SIZE))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        parts = self.weight(x).unflatten(-1, (self.heads, 3, SIZE)).transpose(1, 2)
        q, k, v = parts.unbind(-2)
        if self.written == "copied":
            self.keys.index_copy_(2, at, k)
            self.values.index_copy_(2, at, v)
        else:
            self.keys[:, :, at] = v if self.mistake == "values as keys" else k
            self.values[:, :, at if self.mistake != "next place" else at - 1] = v
        seen = torch.arange(LENGTH) <= at[:, None]
        if self.written == "copied":
            return attention(q, self.keys, self.values, seen).transpose(1, 2).flatten(2)
        if self.mistake == "without the last":
            seen = torch.arange(LENGTH) < at[:, None]
        out = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen)
        return out.transpose(1, 2).flatten(2)


def paged(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    k = keys.index_select(0, table.flatten()).unflatten(0, tuple(table.shape)).flatten(1, 2)
    v = F.embedding(table, values.flatten(1)).view(table.shape[0], -1, *values.shape[2:])
    weights = (torch.einsum("bhd,bkhd->bhk", q, k) / 2).softmax(-1)
    return torch.einsum("bhk,bkhd->bhd", weights, v)


def paged_on_ranks(_: DeviceMesh, mistake: str) -> Callable[..., Any]:
    def program(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        shape = (table.shape[0], -1, *keys.shape[2:])
        of_keys = table.t() if mistake == "pages of another row" else table
        k = keys[of_keys.reshape(-1)].view(shape).transpose(1, 2)
        v = (values if mistake != "keys as values" else keys)[table].view(shape).transpose(1, 2)
        scale = 0.5 if mistake != "another scale" else 0.25
        return F.scaled_dot_product_attention(q[:, :, None], k, v, scale=scale)[:, :, 0]

    return program


def written_and_read(low: float) -> Callable[..., torch.Tensor]:
    """One step of decoding; ``low``: the score of later places."""

    def program(  # noqa: PLR0917 - as a step of decoding takes them
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, at: torch.Tensor
    ) -> torch.Tensor:
        keys, values = keys.index_copy(2, at, k), values.index_copy(2, at, v)
        return (q @ keys.mT).masked_fill(torch.arange(keys.shape[2]) > at, low).softmax(-1) @ values

    return program


def written_where_it_lies(mesh: DeviceMesh, mistake: str) -> Callable[..., Any]:
    """Caches split by sequence: scores of later places are low, and their weights are zero."""

    def program(  # noqa: PLR0917 - as a step of decoding takes them
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, at: torch.Tensor
    ) -> torch.Tensor:
        group, rows = mesh.get_group(), keys.shape[2]
        places = torch.arange(rows) + (0 if mistake == "own places" else mesh.get_local_rank() * rows)
        here = (places == at)[:, None]
        keys, values = torch.where(here, k, keys), torch.where(here, v, values)
        later = places >= at if mistake == "one place less" else places > at
        scores = (q @ keys.mT).masked_fill(later, -1e30)
        largest = funcol.all_reduce(scores.amax(-1, keepdim=True), "max", group)
        weights = (scores - largest).exp() * (1 if mistake == "one place less" else ~later)
        total = weights.sum(-1, keepdim=True)
        total = total if mistake == "own total" else funcol.all_reduce(total, "sum", group)
        return funcol.all_reduce(weights @ values, "sum", group) / total

    return program


LOW = torch.finfo(torch.float32).min


def seen_up_to(low: float) -> Callable[..., torch.Tensor]:
    def program(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return (q @ keys.mT).masked_fill(torch.arange(keys.shape[2]) > at, low).softmax(-1) @ values

    return program


def merged_by_their_sums(mesh: DeviceMesh, mistake: str) -> Callable[..., Any]:
    """Each rank attends to its part of the caches; the parts weigh what their sums of exponentials do."""

    def program(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        group, rows = mesh.get_group(), keys.shape[2]
        places = torch.arange(rows) + (0 if mistake == "own places" else mesh.get_local_rank() * rows)
        scores = (q @ keys.mT).masked_fill(places >= at if mistake == "one place less" else places > at, LOW)
        total = scores.logsumexp(-1, keepdim=True)
        totals = funcol.all_gather_tensor(total[None], 0, group)
        if mistake == "alike":
            totals = torch.zeros_like(totals)
        parts = funcol.all_gather_tensor((scores.softmax(-1) @ values)[None], 0, group)
        return (totals.softmax(0) * parts).sum(0)

    return program


def slots(k: torch.Tensor, cache: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return cache.flatten(0, 1).index_copy(0, places, k).view_as(cache)


def slots_on_ranks(_: DeviceMesh, mistake: str) -> Callable[..., Any]:
    def program(k: torch.Tensor, cache: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        rows, page = cache.clone(), cache.shape[1]
        if mistake == "added":
            rows[places // page, places % page] += k
        elif mistake == "another page":
            rows.view(-1, *k.shape[1:])[places - 1] = k
        else:
            rows.view(-1, *k.shape[1:])[places] = k.flip(0) if mistake == "reversed" else k
        return rows

    return program


def window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    at = torch.arange(q.shape[1])
    return attention(q, k, v, (at[None] <= at[:, None]) & (at[None] > at[:, None] - 3))


def window_on_ranks(mesh: DeviceMesh, mistake: str) -> Callable[..., Any]:
    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        rows, rank = q.shape[1], mesh.get_local_rank()
        if mistake != "own keys":
            k, v = (funcol.all_gather_tensor(value, 1, mesh) for value in (k, v))
        first = rows * rank if mistake != "no offset" else 0
        apart = (torch.arange(rows) + first)[:, None] - torch.arange(k.shape[1])[None]
        seen = torch.logical_and(apart >= 0, apart < (2 if mistake == "shorter" else 3))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    return program


def groups(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """A weight of whole numbers, with a scale and a zero point for each group of inputs."""
    real = (weight.view(4, -1, 4).float() - zero[..., None]) * scale[..., None]
    return x @ real.view(4, -1).t()


def groups_on_ranks(mesh: DeviceMesh, mistake: str) -> Callable[..., Any]:
    def program(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
        shift = zero * scale if mistake == "another sign" else -zero * scale
        if mistake == "without zero points":
            shift = 0 * shift
        whole = weight.unflatten(1, (-1, 4)).to(x.dtype)
        y = F.linear(x, torch.addcmul(shift[..., None], whole, scale[..., None]).flatten(1))
        return y if mistake == "own part" else funcol.all_reduce(y, "sum", mesh)

    return program


def greedy(h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (h @ weight.t()).argmax(-1)


def best_of_ranks(mesh: DeviceMesh, mistake: str) -> Callable[..., Any]:
    """Greedy decoding over a sharded vocabulary: each rank's candidate, then the first best of all ranks."""

    def program(h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        score, word = F.linear(h, weight).max(-1, keepdim=True)
        if mistake != "places in a shard":
            word = word + mesh.get_local_rank() * weight.shape[0]
        scores, words = (funcol.all_gather_tensor(value, 1, mesh) for value in (score, word))
        rank = scores.argmin(1) if mistake == "worst rank" else scores.argmax(1)
        return words[:, 0] if mistake == "first rank" else words.gather(1, rank[:, None]).squeeze(1)

    return program


def pairs_of_ranks(mesh: DeviceMesh, mistake: str) -> Callable[..., Any]:
    """The same: scores and words travel in one tensor, words as numbers of its dtype."""

    def program(h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        score, word = torch.max(h @ weight.t(), dim=-1)
        if mistake != "places in a shard":
            word = word + weight.shape[0] * mesh.get_local_rank()
        every = funcol.all_gather_tensor(torch.stack((score, word.to(score.dtype)), -1)[None], 0, mesh)
        rank = (
            every[..., 0].argmin(0, keepdim=True) if mistake == "worst rank" else every[..., 0].argmax(0, keepdim=True)
        )
        return torch.take_along_dim(every[..., 0 if mistake == "scores" else 1], rank, 0)[0].long()

    return program


def least_of_ranks(mesh: DeviceMesh, mistake: str) -> Callable[..., Any]:
    """The same without a gather: the least word of the ranks whose score is that of the best."""

    def program(h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        score, word = (h @ weight.t()).max(-1)
        if mistake != "places in a shard":
            word = word + weight.shape[0] * mesh.get_local_rank()
        best = funcol.all_reduce(score, "max", mesh)
        words = weight.shape[0] * (1 if mistake == "number of others is a word" else mesh.size())
        return funcol.all_reduce(torch.where(score == best, word, words), "max" if mistake == "last" else "min", mesh)

    return program


def nearest(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return (x[:, None] - codes).square().sum(-1).argmin(-1)


def nearest_of_ranks(mesh: DeviceMesh, mistake: str) -> Callable[..., Any]:
    """Codes of a quantizer, sharded: the first of the nearest ones among the candidates of all ranks."""

    def program(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        near, code = (x[:, None] - codes).square().sum(-1).min(-1, keepdim=True)
        code = code + (codes.shape[0] - (mistake == "overlapping")) * mesh.get_local_rank()
        every, places = (funcol.all_gather_tensor(value, 1, mesh) for value in (near, code))
        bound = every.amax(1, keepdim=True) if mistake == "farthest" else every.amin(1, keepdim=True)
        others = every != bound if mistake == "farthest" else every > bound
        return places.masked_fill(others, 0 if mistake == "others first" else 10**6).amin(1)

    return program


def likely(h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    logits = h @ weight.t()
    return torch.where(logits >= logits.amax(-1, keepdim=True) - 2.5, logits, -100.0)


def likely_on_ranks(mesh: DeviceMesh, mistake: str) -> Callable[..., Any]:
    """What is much less likely than the best word is no choice any more."""

    def program(h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        logits = F.linear(h, weight)
        best = logits.max(-1, keepdim=True).values
        if mistake != "own maximum":
            best = funcol.all_reduce(best, "max", mesh)
        unlikely = logits < best - (1.5 if mistake == "another bound" else 2.5)
        return logits.masked_fill(~unlikely if mistake == "turned round" else unlikely, -100.0)

    return program


def largest(h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.topk(h @ weight.t(), 3, dim=-1).values.softmax(-1)


def largest_of_ranks(mesh: DeviceMesh, mistake: str) -> Callable[..., Any]:
    def program(h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        own = F.linear(h, weight).topk(2 if mistake == "fewer of each rank" else 3, sorted=False)[0]
        every = funcol.all_gather_tensor(own, 1, mesh)
        best = every[:, :3] if mistake == "of the first rank" else every.topk(3, largest=mistake != "least")[0]
        return best.softmax(-1)

    return program


_VOCABULARY = {"in_placements": {"weight": (S0,)}, "out_placements": {"output.0": (R,)}}
_CACHES = {"keys": (S1,), "values": (S1,)}

FORMS = (
    Form(
        "greedy-decoding-4",
        {"tp": 4},
        lambda: greedy,
        best_of_ranks,
        lambda: (torch.randn(3, 4), torch.randn(5, 4)),
        _VOCABULARY,
        ("places in a shard", "worst rank", "first rank"),
    ),
    Form(
        "greedy-decoding-in-pairs-3",
        {"tp": 3},
        lambda: greedy,
        pairs_of_ranks,
        lambda: (torch.randn(3, 4), torch.randn(5, 4)),
        _VOCABULARY,
        ("places in a shard", "worst rank", "scores"),
    ),
    Form(
        "greedy-decoding-by-the-least-4",
        {"tp": 4},
        lambda: greedy,
        least_of_ranks,
        lambda: (torch.randn(3, 4), torch.randn(5, 4)),
        _VOCABULARY,
        ("places in a shard", "number of others is a word", "last"),
    ),
    Form(
        "nearest-codes-3",
        {"tp": 3},
        lambda: nearest,
        nearest_of_ranks,
        lambda: (torch.randn(3, 4), torch.randn(5, 4)),
        {"in_placements": {"codes": (S0,)}, "out_placements": {"output.0": (R,)}},
        ("overlapping", "farthest", "others first"),
    ),
    Form(
        "likely-words-2",
        {"tp": 2},
        lambda: likely,
        likely_on_ranks,
        lambda: (torch.randn(3, 4), torch.randn(5, 4)),
        {"in_placements": {"weight": (S0,)}, "out_placements": {"output.0": (S1,)}},
        ("own maximum", "another bound", "turned round"),
    ),
    Form(
        "largest-logits-2",
        {"tp": 2},
        lambda: largest,
        largest_of_ranks,
        lambda: (torch.randn(3, 4), torch.randn(5, 4)),
        _VOCABULARY,
        ("fewer of each rank", "of the first rank", "least"),
    ),
    Form(
        "decoder-caches-2",
        {"tp": 2},
        lambda: Decoder(4, "copied"),
        lambda _, mistake: Decoder(2, "assigned", mistake),
        lambda: (torch.randn(2, 2, 8), torch.tensor([3, 4])),
        {"param_placements": {**_CACHES, "weight.weight": (S0,)}, "out_placements": {"output.0": (S2,)}},
        ("values as keys", "next place", "without the last"),
    ),
    Form(
        "pages-2",
        {"tp": 2},
        lambda: paged,
        paged_on_ranks,
        lambda: (
            *(torch.randn(s) for s in ((2, 2, 4), (5, 3, 2, 4), (5, 3, 2, 4))),
            torch.tensor([[0, 4, 2], [1, 3, 2]]),
        ),
        {"in_placements": {"q": (S1,), "keys": (S2,), "values": (S2,)}, "out_placements": {"output.0": (S1,)}},
        ("pages of another row", "keys as values", "another scale"),
    ),
    Form(
        "caches-by-sequence-2",
        {"cp": 2},
        lambda: written_and_read(float("-inf")),
        written_where_it_lies,
        lambda: (*(torch.randn(1, 2, rows, 3) for rows in (1, 1, 1, 4, 4)), torch.tensor([5])),
        {
            "in_placements": {"keys": (S2,), "values": (S2,)},
            "out_placements": {"output.0": (R,)},
        },
        ("own places", "one place less", "own total"),
    ),
    Form(
        "caches-merged-4",
        {"cp": 4},
        lambda: seen_up_to(LOW),
        merged_by_their_sums,
        lambda: (*(torch.randn(1, 2, rows, 3) for rows in (1, 2, 2)), torch.tensor([5])),
        {"in_placements": {"keys": (S2,), "values": (S2,)}, "out_placements": {"output.0": (R,)}},
        ("own places", "one place less", "alike"),
    ),
    Form(
        "slots-of-pages-2",
        {"tp": 2},
        lambda: slots,
        slots_on_ranks,
        lambda: (torch.randn(3, 2, 4), torch.randn(5, 3, 2, 4), torch.tensor([1, 4, 7])),
        {"in_placements": {"k": (S1,), "cache": (S2,)}, "out_placements": {"output.0": (S2,)}},
        ("reversed", "another page", "added"),
    ),
    Form(
        "sliding-window-cp-2",
        {"cp": 2},
        lambda: window,
        window_on_ranks,
        lambda: (torch.randn(2, 4, 4), torch.randn(2, 4, 4), torch.randn(2, 4, 4)),
        {"in_placements": dict.fromkeys("qkv", (S1,)), "out_placements": {"output.0": (S1,)}},
        ("no offset", "shorter", "own keys"),
    ),
    Form(
        "scales-of-groups-2",
        {"tp": 2},
        lambda: groups,
        groups_on_ranks,
        lambda: (
            torch.randn(3, 8),
            torch.randint(0, 15, (4, 8), dtype=torch.uint8),
            torch.rand(4, 2),
            torch.rand(4, 2),
        ),
        {
            "in_placements": dict.fromkeys(("x", "weight", "scale", "zero"), (S1,)),
            "out_placements": {"output.0": (R,)},
        },
        ("another sign", "without zero points", "own part"),
    ),
)
