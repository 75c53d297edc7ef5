"""Causes that take other elements: another cut, bound, piece or operand than the spec's, at their line and mended."""

from __future__ import annotations

import dataclasses
import linecache
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from tests.support import fake_mesh_world
from verifycompile import Report, Verdict, verify

Program = Callable[..., Any]
ROWS = (Shard(0),)


@dataclasses.dataclass(frozen=True)
class Mistake:
    """``program`` makes the wrong program of the mesh; ``line``: what the line that is named says, at its end."""

    spec: Program
    program: Callable[[DeviceMesh], Program]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    code: str
    line: str
    hint: str
    placements: Mapping[str, tuple[Placement, ...]] = dataclasses.field(
        default_factory=dict[str, tuple[Placement, ...]]
    )
    output: tuple[Placement, ...] = (Replicate(),)


def squares(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w - y).square().sum()


def cut_contiguously(mesh: DeviceMesh) -> Program:
    def program(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        rank, ranks = mesh.get_local_rank(), mesh.size()
        own = torch.cat([x.chunk(2 * ranks)[rank], x.chunk(2 * ranks)[2 * ranks - 1 - rank]])
        labels = y.chunk(ranks)[rank]
        return funcol.all_reduce((own @ w - labels).square().sum(), "sum", mesh)

    return program


def stale_micro_batch(mesh: DeviceMesh) -> Program:
    def program(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2)
        wanted = y.chunk(2)
        total = (first @ w - wanted[0]).square().sum()
        total = total + (second @ w - wanted[0]).square().sum()
        return funcol.all_reduce(total, "sum", mesh)

    return program


def rows_of(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return F.embedding(ids, table)


def bound_taken_in(mesh: DeviceMesh) -> Program:
    def program(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        rows = table.shape[0]
        local = ids - mesh.get_local_rank() * rows
        ours = (local >= 0) & (local <= rows)
        return funcol.all_reduce(table[local.clamp(0, rows - 1)] * ours[:, None], "sum", mesh)

    return program


def gradient_of_weight(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w).t() @ (x @ w - y)


def reused_buffer(mesh: DeviceMesh) -> Program:
    def program(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        buffer = torch.tanh(x @ w)
        kept = buffer.clone()
        buffer.copy_(x @ w - y)
        own = buffer.t() @ (x @ w - y)
        return funcol.all_reduce(own, "sum", mesh) + 0 * kept.sum()

    return program


def first_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x[:5] @ w


def rows_from_the_end(mesh: DeviceMesh) -> Program:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        whole = funcol.all_gather_tensor(x, 0, mesh)
        kept = whole[1:]
        return kept @ w

    return program


def normalized(x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, training=True)


def normalized_by_rank(_: DeviceMesh) -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, None, None, training=True)

    return program


def chances(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    terms = scores.exp()
    return terms.gather(1, target[:, None])[:, 0] / terms.sum(-1)


def chances_of_gathered(mesh: DeviceMesh) -> Program:
    def program(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        words = scores.shape[1]
        terms = funcol.all_gather_tensor(scores.exp(), 1, mesh)
        local = target - mesh.get_local_rank() * words
        ours = (local >= 0) & (local < words)
        picked = terms.gather(1, local.clamp(0, words - 1)[:, None])[:, 0] * ours
        return funcol.all_reduce(picked, "sum", mesh) / funcol.all_reduce(terms.sum(-1), "sum", mesh)

    return program


def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2


def in_steps(mesh: DeviceMesh) -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        heads = x[:, mesh.get_local_rank() :: 2]
        return torch.tanh(heads) * 2

    return program


def causal(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv1d(F.pad(x, (2, 0)), w)


def zeros_of_the_border(_: DeviceMesh) -> Program:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        padded = F.pad(x, (2, 0))
        return F.conv1d(padded, w)

    return program


def loss_of_the_next(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    labels = F.pad(ids, (0, 1), value=-100)[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def shifted_within_the_part(mesh: DeviceMesh) -> Program:
    def program(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        rank, count = mesh.get_local_rank(), ids.shape[1] // mesh.size()
        own = ids[:, rank * count : (rank + 1) * count]
        labels = F.pad(own, (0, 1), value=-100)[:, 1:]
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return funcol.all_reduce(total, "sum", mesh)

    return program


def scores_of_groups(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.repeat_interleave(2, 0).transpose(1, 2)


def tiled_groups(_: DeviceMesh) -> Program:
    def program(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        heads = k.repeat(2, 1, 1)
        return q @ heads.transpose(1, 2)

    return program


def queries(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh((x @ w).view(-1, 2, 3, 4)[:, :, 0])


def components_first(_: DeviceMesh) -> Program:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        split = (x @ w).view(-1, 3, 2, 4)
        return torch.tanh(split[:, 0])

    return program


def ids_of_the_whole(mesh: DeviceMesh) -> Program:
    def program(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        rows = table.shape[0]
        first = mesh.get_local_rank() * rows
        ours = (ids >= first) & (ids < first + rows)
        index = ids.clamp(0, rows - 1)
        return funcol.all_reduce(table[index] * ours[:, None], "sum", mesh)

    return program


def rows_of_others(mesh: DeviceMesh) -> Program:
    def program(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        local = ids - mesh.get_local_rank() * table.shape[0]
        inside = (local >= 0) & (local < table.shape[0])
        found = F.embedding(torch.where(inside, local, 0), table)
        return funcol.all_reduce(found, "sum", mesh)

    return program


def gated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    gate, up = (x @ w).chunk(2, 1)
    return F.silu(gate) * up


def gate_for_up(_: DeviceMesh) -> Program:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        up, gate = (x @ w).chunk(2, 1)
        return F.silu(gate) * up

    return program


def residual(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        h = x + torch.relu(x @ w)
        x = h + torch.relu(F.layer_norm(h, (4,)) @ w)
    return x


def stale_residual(_: DeviceMesh) -> Program:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            h = x + torch.relu(x @ w)
            normal = F.layer_norm(x, (4,))
            x = h + torch.relu(normal @ w)
        return x

    return program


def first_targets_only(mesh: DeviceMesh) -> Program:
    def program(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        total, targets = 0, y.chunk(3)
        for part, _target in zip(x.chunk(3), targets, strict=True):
            total = total + (part @ w - targets[0]).square().sum()
        return funcol.all_reduce(total, "sum", mesh)

    return program


def attended(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    later = torch.arange(k.shape[0])[None] > torch.arange(q.shape[0])[:, None]
    return (q @ k.t()).masked_fill(later, -torch.inf).softmax(-1)


def attended_from_another_row(mesh: DeviceMesh) -> Program:
    def program(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        first = mesh.get_local_rank() * (q.shape[0] - 1)
        later = torch.arange(k.shape[0])[None] > torch.arange(q.shape[0])[:, None] + first
        return (q @ k.t()).masked_fill(later, -torch.inf).softmax(-1)

    return program


def convolved(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.conv1d(x, w, b)


def convolved_with_the_bias_of_all(mesh: DeviceMesh) -> Program:
    def program(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(F.conv1d(x, w, b), "sum", mesh)

    return program


def largest(x: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    return (x @ head).argmax(-1)


def largest_of_own_part(mesh: DeviceMesh) -> Program:
    def program(x: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        top, index = (x @ head).max(-1)
        tops, indices = (funcol.all_gather_tensor(value[None], 0, mesh) for value in (top, index))
        return indices.gather(0, tops.argmax(0, keepdim=True))[0]

    return program


def activated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).tanh()


def columns_gathered_as_rows(mesh: DeviceMesh) -> Program:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return funcol.all_gather_tensor((x @ w).tanh(), 0, mesh).view(x.shape[0], -1)

    return program


def scaled_columns(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x @ w) * scale


def scales_of_the_first_rank(mesh: DeviceMesh) -> Program:
    def program(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        own = scale.chunk(mesh.size())[0]
        return (x @ w) * own

    return program


def guided(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    without, conditioned = (x @ w).tanh().chunk(2)
    return without + 3 * (conditioned - without)


def guided_the_other_way(mesh: DeviceMesh) -> Program:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        conditioned, without = funcol.all_gather_tensor((x @ w).tanh(), 0, mesh).chunk(2)
        return without + 3 * (conditioned - without)

    return program


def orthogonal_step(w: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    return w - (3 * m - m @ m.t() @ m)


def orthogonal_step_of_shards(mesh: DeviceMesh) -> Program:
    def program(w: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        square = m @ m.t()
        return w - (3 * m - square @ m)

    return program


def mean_of_squares(x: torch.Tensor) -> torch.Tensor:
    return x.square().mean()


def mean_with_padding(mesh: DeviceMesh) -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        padded = F.pad(x, (0, 0, 0, 1))
        length = padded.shape[0] // mesh.size()
        own = padded[mesh.get_local_rank() * length :][:length]
        return funcol.all_reduce(own.square().sum(), "sum", mesh) / padded.numel()

    return program


def numbers(*shapes: list[int]) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: tuple(torch.randn(shape) for shape in shapes)


def turned(x: torch.Tensor) -> torch.Tensor:
    even, odd = x[:, 0::2], x[:, 1::2]
    return torch.stack([even - odd.sin(), odd + even.sin()], -1).flatten(-2)


def turned_by_halves(mesh: DeviceMesh) -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        even, odd = x.chunk(2, 1)
        return torch.cat([even - odd.sin(), odd + even.sin()], -1)

    return program


def skipped(w: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    return torch.where((d.abs() > 4.0).any(), w, w - d)


def skipped_by_one_rank(mesh: DeviceMesh) -> Program:
    return skipped


def running(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(0)


def running_twice_over_own(mesh: DeviceMesh) -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        totals = funcol.all_gather_tensor(x.sum(0, keepdim=True), 0, mesh)
        before = torch.arange(mesh.size()) <= mesh.get_local_rank()
        return x.cumsum(0) + (totals * before[:, None]).sum(0)

    return program


def damped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x + torch.tanh(x @ w) * 0.22


def damped_twice(mesh: DeviceMesh) -> Program:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x @ w) * 0.22
        return x + y * 0.22

    return program


def correlated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    hidden = torch.tanh(x @ w)
    return x.t() @ hidden.cos()


def gathered_into_one_buffer(mesh: DeviceMesh) -> Program:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        buffer = torch.empty(x.shape[0] * mesh.size(), x.shape[1])
        before = buffer.copy_(funcol.all_gather_tensor(x, 0, mesh))
        rows = torch.tanh(x @ w)
        after = buffer.copy_(funcol.all_gather_tensor(rows, 0, mesh))
        slope = after.cos()
        return before.t() @ slope

    return program


def rows_of_experts(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.bmm(x, w))


def read_by_expert(mesh: DeviceMesh) -> Program:
    """Equally many rows for each expert are exchanged; what comes, by sender and expert, is read as by expert."""

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        received = funcol.all_to_all_single(x, None, None, mesh)
        blocks = received.view(w.shape[0], -1, 2)
        done = rows_of_experts(blocks, w).unflatten(1, (mesh.size(), -1)).transpose(0, 1).reshape(x.shape)
        return funcol.all_to_all_single(done, None, None, mesh)

    return program


def gated_and_added(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    first, second, third = (x @ w).chunk(3, 1)
    return torch.sin(first) * second + third


def cut_by_own_width(mesh: DeviceMesh) -> Program:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        width = y.shape[1] // 3 // mesh.size()
        start = mesh.get_local_rank() * width
        first, second, third = (y[:, i * width + start : i * width + start + width] for i in range(3))
        return torch.sin(first) * second + third

    return program


def loss_of_the_second_next(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, F.pad(labels[2:], (0, 2), value=-100), reduction="sum")


def loss_of_the_second_next_of_part(mesh: DeviceMesh) -> Program:
    return lambda logits, labels: funcol.all_reduce(loss_of_the_second_next(logits, labels), "sum", mesh)


BATCH = {"x": ROWS, "y": ROWS}
MISTAKES = {
    "cut contiguously": Mistake(
        squares, cut_contiguously, numbers([8, 4], [8, 3], [4, 3]), "VC104", "labels = y.chunk(ranks)[rank]", "cut `y` at"
    ),
    "stale micro-batch": Mistake(
        squares, stale_micro_batch, numbers([4, 4], [4, 3], [4, 3]), "VC108",
        "total = total + (second @ w - wanted[0]).square().sum()", "use piece 1 of `y` in the place of piece 0", BATCH,
    ),
    "bound taken in": Mistake(
        rows_of, bound_taken_in, lambda: (torch.tensor([0, 3, 4, 7]), torch.randn(4, 3)), "VC117",
        "ours = (local >= 0) & (local <= rows)", "compare with `<` in the place of `<=` in `local <= rows`", {"table": ROWS},
    ),
    "reused buffer": Mistake(
        gradient_of_weight, reused_buffer, numbers([4, 4], [4, 3], [4, 3]), "VC108",
        "buffer.copy_(x @ w - y)", "in the place of", BATCH,
    ),
    "rows from the end": Mistake(
        first_rows, rows_from_the_end, numbers([3, 4], [4, 3]), "VC104", "kept = whole[1:]",
        "take positions 0 to 4 of dimension 0 of `whole`", {"x": ROWS},
    ),
    "statistics of a rank": Mistake(
        normalized, normalized_by_rank, numbers([2, 3]), "VC114", "return F.batch_norm(x, None, None, training=True)",
        "gather `x` over `x` along dimension 0 before", {"x": ROWS}, ROWS,
    ),
    "parts gathered": Mistake(
        chances, chances_of_gathered, lambda: (torch.randn(4, 3), torch.tensor([0, 3, 2, 5])), "VC104",
        "terms = funcol.all_gather_tensor(scores.exp(), 1, mesh)", "leave out the gather over `x` at line",
        {"scores": (Shard(1),)},
    ),
    "positions in steps": Mistake(
        doubled, in_steps, numbers([3, 8]), "VC104", "heads = x[:, mesh.get_local_rank() :: 2]",
        "take 4 positions of `x` from the rank's coordinate on `x` times 4 on", {}, (Shard(1),),
    ),
    "zeros at the border of a part": Mistake(
        causal, zeros_of_the_border, numbers([1, 2, 4], [3, 2, 3]), "VC104", "padded = F.pad(x, (2, 0))",
        "make `padded` of the whole, along dimension 2, and let each rank of `x` take its part then",
        {"x": (Shard(2),)}, (Shard(2),),
    ),
    "labels shifted within the part": Mistake(
        loss_of_the_next, shifted_within_the_part, lambda: (torch.randn(2, 3, 5), torch.randint(0, 5, (2, 6))), "VC104",
        "labels = F.pad(own, (0, 1), value=-100)[:, 1:]", "make `labels` of the whole, along dimension 1",
        {"logits": (Shard(1),)},
    ),
    "tiled groups": Mistake(
        scores_of_groups, tiled_groups, numbers([4, 3, 2], [2, 3, 2]), "VC104", "heads = k.repeat(2, 1, 1)",
        "repeat each entry of dimension 0 of `k` 2 times (`repeat_interleave`)", {"q": ROWS, "k": ROWS}, ROWS,
    ),
    "components before heads": Mistake(
        queries, components_first, numbers([3, 4], [4, 24]), "VC104", "split = (x @ w).view(-1, 3, 2, 4)",
        "view dimension 1 of `x @ w` as 2 times 3 entries, and transpose the two", {"x": ROWS}, ROWS,
    ),
    "blocks of the senders": Mistake(
        rows_of_experts, read_by_expert, numbers([4, 3, 2], [2, 2, 2]), "VC104",
        "blocks = received.view(w.shape[0], -1, 2)",
        "view `received` as (2, 2, 3, 2) and transpose dimensions 0 and 1 before line ",
        {"x": (Shard(1),), "w": ROWS}, (Shard(1),),
    ),
    "whole of three cut by the width of a part": Mistake(
        gated_and_added, cut_by_own_width, numbers([3, 4], [4, 12]), "VC118",
        "first, second, third = (y[:, i * width + start : i * width + start + width] for i in range(3))",
        "let the pieces of `y` begin 4 entries apart, not 2, at line ", {}, (Shard(1),),
    ),
    "ids of the whole": Mistake(
        rows_of, ids_of_the_whole, lambda: (torch.tensor([0, 3, 4, 7]), torch.randn(4, 3)), "VC117",
        "index = ids.clamp(0, rows - 1)", "times 4 from `ids`, where it is made an index", {"table": ROWS},
    ),
    "rows of others": Mistake(
        rows_of, rows_of_others, lambda: (torch.tensor([0, 3, 4, 7]), torch.randn(4, 3)), "VC117",
        "found = F.embedding(torch.where(inside, local, 0), table)", "set `found` to 0 where", {"table": ROWS},
    ),
    "gate for up": Mistake(
        gated, gate_for_up, numbers([3, 4], [4, 6]), "VC108", "up, gate = (x @ w).chunk(2, 1)",
        "exchange `up` and `gate` where they are used", {"x": ROWS}, ROWS,
    ),
    "first targets only": Mistake(
        squares, first_targets_only, numbers([3, 4], [3, 3], [4, 3]), "VC119",
        "total = total + (part @ w - targets[0]).square().sum()", "use piece 2 of `y` in the place of piece 0 of `y`", BATCH,
    ),
    "attended from another row": Mistake(
        attended, attended_from_another_row, numbers([4, 5], [8, 5]), "VC117",
        "later = torch.arange(k.shape[0])[None] > torch.arange(q.shape[0])[:, None] + first",
        "begin at the rank's coordinate on `x` times 4, not times 3",
        {"q": ROWS}, ROWS,
    ),
    "bias of a convolution": Mistake(
        convolved, convolved_with_the_bias_of_all, numbers([2, 3, 5], [4, 3, 2], [4]), "VC116",
        'return funcol.all_reduce(F.conv1d(x, w, b), "sum", mesh)', "add `b` after the sum over `x`",
        {"x": (Shard(1),), "w": (Shard(1),)},
    ),
    "stale residual in each layer": Mistake(
        residual, stale_residual, numbers([3, 4], [4, 4]), "VC108", "x = h + torch.relu(normal @ w)",
        "compute `h + torch.relu(F.layer_norm(h, (4,)) @ w)`", {"x": ROWS}, ROWS,
    ),
    "index within a part": Mistake(
        largest, largest_of_own_part, numbers([3, 2], [2, 4]), "VC117", "top, index = (x @ head).max(-1)",
        "add the rank's coordinate on `x` times 4 to `index`", {"head": (Shard(1),)},
    ),
    "columns gathered as rows": Mistake(
        activated, columns_gathered_as_rows, numbers([3, 4], [4, 2]), "VC104",
        "return funcol.all_gather_tensor((x @ w).tanh(), 0, mesh).view(x.shape[0], -1)",
        "gather `(x @ w).tanh()` over `x` along dimension 1", {"w": (Shard(1),)},
    ),
    "scales of the first rank": Mistake(
        scaled_columns, scales_of_the_first_rank, numbers([3, 2], [2, 2], [4]), "VC104",
        "own = scale.chunk(mesh.size())[0]", "take the piece that the rank's coordinate on `x` counts",
        {"w": (Shard(1),)}, (Shard(1),),
    ),
    "guided the other way": Mistake(
        guided, guided_the_other_way, numbers([2, 3], [3, 3]), "VC108",
        "conditioned, without = funcol.all_gather_tensor((x @ w).tanh(), 0, mesh).chunk(2)",
        "exchange `conditioned` and `without` where they are used", {"x": ROWS},
    ),
    "step of shards": Mistake(
        orthogonal_step, orthogonal_step_of_shards, numbers([2, 4], [2, 4]), "VC114", "square = m @ m.t()",
        "gather `m` over `x` along dimension 0 before", {"w": ROWS, "m": ROWS}, ROWS,
    ),
    "mean over padding": Mistake(
        mean_of_squares, mean_with_padding, lambda: (torch.empty(1001, 512, device="meta"),), "VC108",
        'return funcol.all_reduce(own.square().sum(), "sum", mesh) / padded.numel()',
        "pass 512512 in the place of 513024",
    ),
    "halves for pairs": Mistake(
        turned, turned_by_halves, numbers([4, 4]), "VC108",
        "return torch.cat([even - odd.sin(), odd + even.sin()], -1)",
        "of the spec) in the place of `torch.cat([even - odd.sin(), odd + even.sin()], -1)`", {"x": ROWS}, ROWS,
    ),
    "overflow that one rank sees": Mistake(
        skipped, skipped_by_one_rank, numbers([3, 3], [3, 3]), "VC114",
        "return torch.where((d.abs() > 4.0).any(), w, w - d)", "gather `d` over `x` along dimension 0",
        {"w": ROWS, "d": ROWS}, ROWS,
    ),
    "own part among those before": Mistake(
        running, running_twice_over_own, numbers([3, 4]), "VC117",
        "before = torch.arange(mesh.size()) <= mesh.get_local_rank()", "compare with `<` in the place of `<=`",
        {"x": ROWS}, ROWS,
    ),
    "scale that the residual has already": Mistake(
        damped, damped_twice, numbers([3, 4], [4, 4]), "VC103", "return x + y * 0.22",
        "leave out the multiplication by 0.22", {"x": ROWS}, ROWS,
    ),
    "memory that is written again": Mistake(
        correlated, gathered_into_one_buffer, numbers([4, 4], [4, 4]), "VC108",
        "after = buffer.copy_(funcol.all_gather_tensor(rows, 0, mesh))", "copy `before` before line ", {"x": ROWS},
    ),
    "labels of the part": Mistake(
        loss_of_the_second_next, loss_of_the_second_next_of_part,
        lambda: (torch.randn(4, 5), torch.randint(0, 5, (4,))), "VC117",
        "return lambda logits, labels: funcol.all_reduce(loss_of_the_second_next(logits, labels), \"sum\", mesh)",
        "of the whole, along dimension 0", {"logits": ROWS, "labels": ROWS},
    ),
}  # fmt: skip


def report_of(mistake: Mistake) -> Report:
    with fake_mesh_world((2,), ("x",)) as mesh:
        return verify(
            mistake.program(mesh),
            mistake.inputs(),
            spec=mistake.spec,
            mesh=mesh,
            in_placements=dict(mistake.placements),
            out_placements={"output.0": mistake.output},
        )


@pytest.mark.parametrize("name", MISTAKES)
def test_the_line_the_code_and_the_hint(name: str) -> None:
    mistake = MISTAKES[name]
    report = report_of(mistake)
    assert report.verdict is Verdict.REFUTED, str(report)
    (finding,) = report.findings
    assert finding.impl_location is not None
    line = linecache.getline(finding.impl_location.file, finding.impl_location.line)
    assert (finding.code, line.strip()) == (mistake.code, mistake.line), str(report)
    assert finding.hint is not None
    assert mistake.hint in finding.hint
    assert finding.hint.endswith("(checked)")
    assert not any("the proof stopped here" in note for note in finding.notes)


class Sum(torch.autograd.Function):
    """The sum over the ranks; the gradient passes."""

    @staticmethod
    def forward(_: Any, value: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        return funcol.all_reduce(value, "sum", mesh)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class Words(nn.Module):
    """An embedding, of which each rank has its rows if there is a mesh, in front of a layer that is no sum."""

    def __init__(self, mesh: DeviceMesh | None = None, *, masked: bool = True) -> None:
        super().__init__()
        self.mesh, self.masked = mesh, masked
        self.table = nn.Parameter(torch.randn(8 if mesh is None else 8 // mesh.size(), 4))
        self.layer = nn.Linear(4, 3)

    def looked_up(self, ids: torch.Tensor) -> torch.Tensor:
        if self.mesh is None:
            return F.embedding(ids, self.table)
        local = ids - self.mesh.get_local_rank() * self.table.shape[0]
        inside = (local >= 0) & (local < self.table.shape[0])
        rows = F.embedding(torch.where(inside, local, 0), self.table)
        return Sum.apply(torch.where(inside[..., None], rows, 0.0) if self.masked else rows, self.mesh)  # pyright: ignore[reportUnknownMemberType, reportReturnType]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(self.looked_up(ids)))


@pytest.mark.parametrize("masked", [True, False])
def test_the_gradient_of_the_same_line_is_mended_with_it(masked: bool) -> None:
    with fake_mesh_world((2,), ("x",)) as mesh:
        report = verify(
            Words(mesh, masked=masked),
            (torch.tensor([[0, 3, 4], [7, 1, 5]]),),
            spec=Words(),
            mesh=mesh,
            param_placements={"table": ROWS},
            out_placements={"output.0": (Replicate(),)},
        )
    if masked:
        assert report.verdict is Verdict.VERIFIED, str(report)
        return
    (finding,) = report.findings
    assert (report.verdict, finding.code) == (Verdict.REFUTED, "VC117"), str(report)
    assert finding.impl_location is not None
    line = linecache.getline(finding.impl_location.file, finding.impl_location.line)
    assert line.strip() == "rows = F.embedding(torch.where(inside, local, 0), self.table)"
    assert str(finding.hint).startswith("set `rows` to 0 where ")
    assert str(finding.hint).endswith("(checked)"), "outputs and gradients alike"


class Joined(torch.autograd.Function):
    """The ranks' columns assembled; of the gradient each rank takes its own."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        ctx.mesh = mesh
        return funcol.all_gather_tensor(value, 1, mesh)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0].chunk(ctx.mesh.size(), 1)[ctx.mesh.get_local_rank()], None


class Summed(torch.autograd.Function):
    """The value; the gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        ctx.mesh = mesh
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return funcol.all_reduce(gradients[0], "sum", ctx.mesh), None


class Classes(nn.Module):
    """A loss of logits, of which each rank computes its columns where there is a mesh."""

    def __init__(self, loss: Program, mesh: DeviceMesh | None = None, *, joined: bool = True) -> None:
        super().__init__()
        self.loss, self.mesh, self.joined = loss, mesh, joined
        self.head = nn.Parameter(torch.randn(3, 8 if mesh is None else 8 // mesh.size()))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self.mesh is None:
            return self.loss(x @ self.head, labels)
        logits = Summed.apply(x, self.mesh) @ self.head  # pyright: ignore[reportUnknownMemberType]
        if self.joined:
            logits = Joined.apply(logits, self.mesh)  # pyright: ignore[reportUnknownMemberType]
        return self.loss(logits, labels)


LOSSES: dict[str, Program] = {
    "cross entropy": F.cross_entropy,
    "picked": lambda logits, labels: -logits.log_softmax(-1).gather(1, labels[:, None]).mean(),
    "some classes": lambda logits, labels: logits.log_softmax(-1)[:, :2].sum(),
}


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_over_own_classes_is_mended_with_its_gradients(loss: str, joined: bool) -> None:
    with fake_mesh_world((2,), ("x",)) as mesh:
        report = verify(
            Classes(LOSSES[loss], mesh, joined=joined),
            (torch.randn(4, 3, requires_grad=True), torch.tensor([0, 3, 2, 1])),
            spec=Classes(LOSSES[loss]),
            mesh=mesh,
            param_placements={"head": (Shard(1),)},
            out_placements={"output.0": (Replicate(),)},
        )
    if joined:
        assert report.verdict is Verdict.VERIFIED, str(report)
        return
    (finding,) = report.findings
    assert (report.verdict, finding.code) == (Verdict.REFUTED, "VC115" if loss == "cross entropy" else "VC114")
    assert str(finding.hint).startswith("gather `logits` over `x` along dimension 1 before ")
    assert str(finding.hint).endswith("(checked)"), "outputs and gradients alike"
