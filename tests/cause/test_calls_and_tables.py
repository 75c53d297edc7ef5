"""Causes in how a line is called, in tables and numbers of a rank, and in what is computed too early or twice."""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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
Placements = Mapping[str, tuple[Placement, ...]]
ROWS, COLUMNS, WHOLE = (Shard(0),), (Shard(1),), (Replicate(),)
RANKS = 2


class Mistake(NamedTuple):
    """``program`` of the mesh and of whether it is the wrong one. ``line``: the line that is named; ``hint``: in it."""

    spec: Program
    program: Callable[[DeviceMesh, bool], Program]
    inputs: tuple[torch.Tensor, ...]
    placements: Placements
    output: tuple[Placement, ...]
    code: str
    line: str
    hint: str


def gated(x, gate, up, down):
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


def loaded(mesh, wrong):
    def part(weight, dim, rank):
        size = weight.shape[dim] // RANKS
        return weight.narrow(dim, rank * size, size)

    def program(x, gate, up, down):
        rank = mesh.get_local_rank()
        first = part(gate, 0, rank)
        second = part(up, 0, 0 if wrong else rank)
        return funcol.all_reduce((F.silu(x @ first.T) * (x @ second.T)) @ part(down, 1, rank).T, "sum", mesh)

    return program


def attention(q, k):
    return torch.einsum("qhd,khd->hqk", q, k).softmax(-1)


def exchanged(mesh, wrong):
    def heads(x):
        size, count, width = x.shape
        parts = x.view(size, count // RANKS, RANKS, width).transpose(1, 2)
        if not wrong:
            parts = x.view(size, RANKS, count // RANKS, width)
        return funcol.all_to_all_single(parts.transpose(0, 1).contiguous(), None, None, mesh).flatten(0, 1)

    return lambda q, k: attention(heads(q), heads(k))


def sloped(q, k):
    heads = q.shape[1]
    slopes = 2.0 ** (-8.0 / heads * torch.arange(1, heads + 1))
    return (torch.einsum("qhd,khd->hqk", q, k) + slopes[:, None, None]).square()


def with_slopes(mesh, wrong):
    def program(q, k):
        heads = q.shape[1] if wrong else q.shape[1] * RANKS
        slopes = 2.0 ** (-8.0 / heads * torch.arange(1, heads + 1))
        own = slopes if wrong else slopes.chunk(RANKS)[mesh.get_local_rank()]
        return (torch.einsum("qhd,khd->hqk", q, k) + own[:, None, None]).square()

    return program


def turned(x):
    return x * torch.arange(x.shape[0]).sqrt().cos()[:, None]


def turned_by_turns(mesh, wrong):
    def program(x):
        count, rank = x.shape[0], mesh.get_local_rank()
        own = torch.arange(count) * RANKS + rank if wrong else torch.arange(count) + rank * count
        return x * own.sqrt().cos()[:, None]

    return program


def experts(x, p, w):
    return torch.einsum("te,ted->td", p, torch.einsum("ti,eid->ted", x, w))


def weighted(mesh, wrong):
    def program(x, p, w):
        own = p.chunk(RANKS, 1)[mesh.get_local_rank()]
        taken = x[:, None] * own[:, :, None] if wrong else x[:, None].expand(-1, own.shape[1], -1)
        return funcol.all_reduce(torch.einsum("te,ted->td", own, torch.einsum("tei,eid->ted", taken, w)), "sum", mesh)

    return program


def rows_of(ids, table):
    return F.embedding(ids, table)


def looked_up(mesh, wrong):
    def program(ids, table):
        count = 3 if wrong else table.shape[0]
        start = mesh.get_local_rank() * count
        outside = (ids < start) | (ids >= start + count)
        rows = F.embedding((ids - start).masked_fill(outside, 0), table)
        return funcol.all_reduce(rows.masked_fill(outside[:, None], 0.0), "sum", mesh)

    return program


def loss_of_labelled(logits, labels):
    return F.cross_entropy(logits, labels, ignore_index=-100)


def averaged(mesh, wrong):
    def program(logits, labels):
        own = F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
        count = (labels != -100).sum()
        if wrong:
            return funcol.all_reduce(own / count, "avg", mesh)
        return funcol.all_reduce(own, "sum", mesh) / funcol.all_reduce(count, "sum", mesh)

    return program


def added(x, a, b):
    return x @ a + x @ b


def added_after(mesh, wrong):
    def product(x, w, *, reduces):
        y = x @ w
        return funcol.all_reduce(y, "sum", mesh) if reduces else y

    def program(x, a, b):
        first = product(x, a, reduces=False)
        second = product(x, b, reduces=wrong)
        return funcol.all_reduce(first + second, "sum", mesh)

    return program


def attended(q, k, v):
    return (q @ k.T).softmax(-1) @ v


def merged(mesh, wrong):
    def program(q, k, v):
        scores = q @ k.T
        norm = scores.logsumexp(-1, keepdim=True)
        own = (scores - norm).exp() @ v
        norm = norm / math.log(2) if wrong else norm
        return funcol.all_reduce(
            own * (norm - funcol.all_gather_tensor(norm[None], 0, mesh).logsumexp(0)).exp(), "sum", mesh
        )

    return program


def by_keys(q, k):
    return q @ k.T @ k


def by_turns(mesh, wrong):
    def program(q, k):
        keys = funcol.all_gather_tensor(k, 0, mesh)
        total, count = torch.zeros_like(q), k.shape[0]
        for turn in range(RANKS):
            key = keys[turn * count : (turn + 1) * count]
            total = total + q @ key.T @ (k if wrong else key)
        return total

    return program


def slopes(heads):
    return torch.tensor([2.0 ** (-8.0 * (i + 1) / heads) for i in range(heads)])


def with_held_slopes(scores):
    return (scores - slopes(scores.shape[0])[:, None, None]).square()


def of_held_slopes(mesh, wrong):
    def program(scores):
        own = scores.shape[0]
        first = mesh.get_local_rank() * own
        held = slopes(own) if wrong else slopes(own * RANKS)[first : first + own]
        return (scores - held[:, None, None]).square()

    return program


def after_ends(x):
    return x + torch.cat([torch.zeros_like(x[:1]), x[:-1]])


def with_ends_of_others(mesh, wrong):
    def before(x):
        rank = mesh.get_local_rank()
        ends = funcol.all_gather_tensor(x[-1:], 0, mesh)
        ends = torch.cat([torch.zeros_like(ends[:1]), ends])
        if wrong:
            return ends[rank + 1]
        return ends[rank]

    return lambda x: x + torch.cat([before(x)[None], x[:-1]])


def written(cache, new, position):
    return torch.where((torch.arange(cache.shape[0]) == position)[:, None], new, cache)


def written_by_part(mesh, wrong):
    def program(cache, new, position):
        own = cache.shape[0]
        local = position % own if wrong else position - mesh.get_local_rank() * own
        return torch.where((torch.arange(own) == local)[:, None], new, cache)

    return program


def of_both(x, w, v):
    return torch.tanh((x @ w).sum() + (x @ v).sum())


def of_both_parts(mesh, wrong):
    def program(x, w, v):
        both = (x @ w).sum() + (x @ v).sum()
        both = both if wrong else funcol.all_reduce(both, "sum", mesh)
        twice = both * 2
        more = twice + both
        return torch.tanh(more / 3)

    return program


def squared(x, w):
    return ((x @ w) ** 2).sum(0)


def in_turns(mesh, wrong):
    def program(x, w):
        total = torch.zeros(w.shape[1])
        for part in x.chunk(2):
            own = ((part @ w) ** 2).sum(0)
            total = own if wrong else total + own
        return funcol.all_reduce(total, "sum", mesh)

    return program


class Normed(nn.Module):
    def __init__(self, channels, groups):
        super().__init__()
        self.groups, self.scale, self.shift = (
            groups,
            nn.Parameter(torch.ones(channels)),
            nn.Parameter(torch.ones(channels)),
        )

    def forward(self, x):
        return F.group_norm(x, self.groups, self.scale, self.shift)


numbers = torch.empty
def from_first(x, first):
    places = torch.arange(16.0)
    cos, sin = places.cos()[first : first + x.shape[0]], places.sin()[first : first + x.shape[0]]
    return x * cos[:, None] + sin[:, None]


def scores(q, k):
    return from_first(q, 0) @ from_first(k, 0).T


def scored(mesh, wrong):
    def program(q, k):
        first = mesh.get_local_rank() * q.shape[0]
        k = funcol.all_gather_tensor(k, 0, mesh)
        k = from_first(k, first if wrong else 0)
        return from_first(q, first) @ k.T

    return program


MISTAKES = {
    "gathered keys from the rank's position on": Mistake(
        scores, scored, (numbers(3, 4), numbers(3, 4)), {"q": ROWS, "k": ROWS}, ROWS, "VC117",
        "k = from_first(k, first if wrong else 0)", "take 0 on all ranks",
    ),
    "every rank loads the first part": Mistake(
        gated, loaded, (numbers(2, 4), numbers(6, 4), numbers(6, 4), numbers(4, 6)), {}, WHOLE, "VC104",
        "second = part(up, 0, 0 if wrong else rank)", "times its length, for the call at line {line} alone (checked)",
    ),
    "heads within ranks, in a helper": Mistake(
        attention, exchanged, (numbers(2, 4, 3), numbers(2, 4, 3)), {"q": ROWS, "k": ROWS}, ROWS, "VC104",
        "parts = x.view(size, count // RANKS, RANKS, width).transpose(1, 2)",
        "transpose dimensions 1 and 2 after line {line} (checked)",
    ),
    "slopes of the rank's heads": Mistake(
        sloped, with_slopes, (numbers(5, 2, 3), numbers(5, 2, 3)), {"q": COLUMNS, "k": COLUMNS}, ROWS, "VC117",
        "slopes = 2.0 ** (-8.0 / heads * torch.arange(1, heads + 1))",
        "for 4 entries, as the spec does, and take the rank's 2 entries from the rank's coordinate on `x` times 2 on",
    ),
    "positions that ranks count in turns": Mistake(
        turned, turned_by_turns, (numbers(3, 4),), {"x": ROWS}, ROWS, "VC117",
        "own = torch.arange(count) * RANKS + rank if wrong else torch.arange(count) + rank * count",
        "for 6 entries, as the spec does, and take the rank's 3 entries from the rank's coordinate on `x` times 3 on",
    ),
    "weights of experts twice": Mistake(
        experts, weighted, (numbers(3, 4), numbers(3, 4), numbers(2, 4, 5)), {"w": ROWS}, WHOLE, "VC108",
        "taken = x[:, None] * own[:, :, None] if wrong else x[:, None].expand(-1, own.shape[1], -1)",
        "use `x[:, None]` in the place of `x[:, None] * own[:, :, None]` at line {line} (checked)",
    ),
    "parts of an unpadded vocabulary": Mistake(
        rows_of, looked_up, (torch.tensor([0, 3, 4, 7]), numbers(4, 3)), {"table": ROWS}, WHOLE, "VC117",
        "outside = (ids < start) | (ids >= start + count)",
        "begin at the rank's coordinate on `x` times 4, not times 3 (checked)",
    ),
    "means of the ranks' labels": Mistake(
        loss_of_labelled, averaged, (numbers(3, 5), torch.tensor([0, 1, 2])), {"logits": ROWS, "labels": ROWS}, WHOLE,
        "VC113", 'return funcol.all_reduce(own / count, "avg", mesh)',
        ", and divide it by 2 (checked)",
    ),
    "reduced for one of two callers": Mistake(
        added, added_after, (numbers(2, 3), numbers(3, 4), numbers(3, 4)), {"x": COLUMNS, "a": ROWS, "b": ROWS}, WHOLE,
        "VC102", "second = product(x, b, reduces=wrong)", ", for the call at line {line} alone (checked)",
    ),
    "logarithms to another base": Mistake(
        attended, merged, (numbers(3, 4), numbers(2, 4), numbers(2, 4)), {"k": ROWS, "v": ROWS}, WHOLE, "VC103",
        "norm = norm / math.log(2) if wrong else norm", "leave out the division by 0.693147 at line {line} (checked)",
    ),
    "keys of the rank in all turns": Mistake(
        by_keys, by_turns, (numbers(2, 3), numbers(2, 3)), {"q": ROWS, "k": ROWS}, ROWS, "VC108",
        "total = total + q @ key.T @ (k if wrong else key)", "use `key` in the place of `k` at line {line} (checked)",
    ),
    "slopes that are held, of the rank's heads alone": Mistake(
        with_held_slopes, of_held_slopes, (numbers(2, 3, 3),), {"scores": ROWS}, ROWS, "VC117",
        "held = slopes(own) if wrong else slopes(own * RANKS)[first : first + own]",
        "compute `slopes(own)` for 4 entries, as the spec does, and take the rank's 2 entries",
    ),
    "the end of the rank's own part": Mistake(
        after_ends, with_ends_of_others, (numbers(2, 3),), {"x": ROWS}, ROWS, "VC117", "return ends[rank + 1]",
        "let line {line} take 0, 1 on the ranks: 1 less (checked)",
    ),
    "a slot that every rank takes for its own": Mistake(
        written, written_by_part, (numbers(4, 3), numbers(3), torch.tensor(5)), {"cache": ROWS}, ROWS, "VC117",
        "local = position % own if wrong else position - mesh.get_local_rank() * own",
        "subtract the rank's coordinate on `x` times 4 in the place of the remainder (checked)",
    ),
    "a sum of the ranks' sums that is used late": Mistake(
        of_both, of_both_parts, (numbers(4, 2), numbers(2, 3), numbers(2, 3)), {"x": COLUMNS, "w": ROWS, "v": ROWS},
        WHOLE, "VC101", "both = (x @ w).sum() + (x @ v).sum()", "over `x` (sum) after line {line} (checked)",
    ),
    "micro-batches that are not added up": Mistake(
        squared, in_turns, (numbers(4, 3), numbers(3, 2)), {"x": ROWS}, WHOLE, "VC119",
        "own = ((part @ w) ** 2).sum(0)", "add up `own` of all 2 turns at line {line} (checked)",
    ),
    "groups of all ranks": Mistake(
        Normed(8, 4), lambda _, wrong: Normed(4, 4 if wrong else 2), (numbers(2, 4, 5),), {"x": COLUMNS}, COLUMNS,
        "VC114", "return F.group_norm(x, self.groups, self.scale, self.shift)",
        "pass 2, this rank's share of 4, at line {line} (checked)",
    ),
}  # fmt: skip


def report_of(mistake: Mistake, *, wrong: bool) -> Report:
    with fake_mesh_world((RANKS,), ("x",)) as mesh:
        program = mistake.program(mesh, wrong)
        return verify(
            program,
            mistake.inputs,
            spec=mistake.spec,
            mesh=mesh,
            in_placements=dict(mistake.placements),
            param_placements={"*": ROWS} if isinstance(program, nn.Module) else {},
            out_placements={"output.0": mistake.output},
        )


@pytest.mark.parametrize("name", MISTAKES)
def test_the_right_program_is_verified(name):
    assert report_of(MISTAKES[name], wrong=False).verdict is Verdict.VERIFIED


@pytest.mark.parametrize("name", MISTAKES)
def test_the_line_the_code_and_the_hint(name):
    mistake = MISTAKES[name]
    report = report_of(mistake, wrong=True)
    assert report.verdict is Verdict.REFUTED, str(report)
    (finding,) = report.findings
    place = finding.impl_location
    assert place is not None
    assert (finding.code, linecache.getline(place.file, place.line).strip()) == (mistake.code, mistake.line), str(
        report
    )
    assert finding.hint is not None
    assert mistake.hint.format(line=place.line) in finding.hint


def clipped(g, scale):
    g = g / scale
    return g * (1.0 / (g.norm() + 1e-6)).clamp(max=1.0)


def unscaled(mesh, wrong):
    def program(g, scale):
        g = g if wrong else g / scale
        norm = funcol.all_reduce(g.square().sum(), "sum", mesh).sqrt()
        g = g * (1.0 / (norm + 1e-6)).clamp(max=1.0)
        return g / scale if wrong else g

    return program


def test_what_is_done_too_late_is_done_where_it_is_taken_first():
    case = Mistake(clipped, unscaled, (numbers(2, 3), numbers(())), {"g": ROWS}, ROWS, "", "", "")
    assert report_of(case, wrong=False).verdict is Verdict.VERIFIED
    (finding,) = report_of(case, wrong=True).findings
    assert finding.hint is not None
    assert finding.hint.startswith("compute `g / scale` (line ")
    assert " and use it in the place of `g` at line " in finding.hint
    assert finding.hint.endswith(" (checked)")
