"""Functions that two programs write differently: by other functions, by extremes of what they are of, by counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from tests.programs.forms import comm
from tests.programs.forms.form import S0, S1, S2, Form, P, R

Function = Callable[..., torch.Tensor]


class Gated(nn.Module):
    """A gated layer with the exact gelu; on ranks it is written out, behind a gather and in front of a scatter."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake
        width = 16 if mesh is None else 16 // mesh.size()
        self.norm, self.gate, self.up = nn.LayerNorm(8), nn.Linear(8, width), nn.Linear(8, width, bias=False)
        self.down = nn.Linear(width, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(x)
        if self.mesh is None:
            return x + self.down(F.gelu(self.gate(hidden)) * self.up(hidden))
        group = self.mesh.get_group()
        hidden = comm.gather(hidden, 0, group)
        gate = self.gate(hidden)
        scaled = gate / (2.0 if self.mistake == "another scale" else math.sqrt(2.0))
        share = torch.tanh(scaled) if self.mistake == "another function" else torch.erf(scaled)
        opened = 0.5 * gate * (share if self.mistake == "no half" else 1.0 + share)
        return x + comm.scatter(self.down(opened * self.up(hidden)), 0, group)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.t() / 2).softmax(-1) @ v


def by_powers_of_two(mesh: DeviceMesh, mistake: str) -> Function:
    """Keys over ranks, merged as kernels do it: by ``exp2`` of scores that are scaled by ``log2(e)``."""

    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.t()) * (0.5 if mistake == "powers of two" else 0.5 * 1.4426950408889634)
        largest = scores.amax(-1, True)
        weights = torch.exp2(scores - largest)
        of_all = comm.total(largest, mesh, "max")
        scale = torch.exp(largest - of_all) if mistake == "another base" else torch.exp2(largest - of_all)
        total = weights.sum(-1, True) * (1 if mistake == "own sums" else scale)
        return comm.total(scale * (weights @ v), mesh) / comm.total(total, mesh)

    return program


def of_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def added_to_nothing(_: DeviceMesh, mistake: str) -> Function:
    """Scores as Megatron computes them: ``baddbmm`` beside memory that nothing was written to."""

    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        beside = torch.arange(2.0) if mistake == "beside other ones" else torch.empty(2)
        scores = torch.baddbmm(
            beside.expand(*q.shape[:2], 2), q, k.transpose(1, 2), beta=1.0 if mistake == "beside other ones" else 0.0,
            alpha=1.0 if mistake == "not scaled" else 0.5,
        )  # fmt: skip
        return scores.softmax(1 if mistake == "over queries" else 2) @ v

    return program


def of_flat_table(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return table.flatten()[(x.argmin(1) * 3)[:, None] + torch.arange(3)]


def rows_of_flat_table(mesh: DeviceMesh, mistake: str) -> Function:
    """Each rank looks its own samples up, at positions that are computed of their codes."""

    def program(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        whole = table if mistake == "gradient not summed" else comm.enter(table, mesh)
        codes = x.argmax(1) if mistake == "codes of the largest" else x.argmin(1)
        columns = torch.arange(3).flip(0) if mistake == "columns turned" else torch.arange(3)
        return whole.flatten()[(codes * 3)[:, None] + columns]

    return program


def extremes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scale = x.abs().amax().clamp(min=1e-5) / 127
    decreasing = (1 / (x.square() + 1)).amax(), (3 - 2 * x).amin(0)
    return x / scale, (2 * x + 1).exp().amax(0), x.abs().amin().sqrt(), x.norm().clamp(min=0, max=2), *decreasing


def of_extremes(mesh: DeviceMesh, mistake: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scale = comm.total(x.abs().amax().clamp(min=1 if mistake == "another limit" else 1e-5) / 127, mesh, "max")
        largest = comm.total((-x if mistake == "of the negated" else x).amax(0), mesh, "max")
        least = comm.total(x.abs().sqrt().amin(), mesh, "max" if mistake == "largest of least" else "min")
        norm = comm.total(x.square().sum(), mesh).sqrt()
        square = comm.total(x.square().amax() if mistake == "largest of inverses" else x.square().amin(), mesh, "min")
        decreasing = 1 / (square + 1), 3 - 2 * (-largest if mistake == "end not changed" else largest)
        bounded = norm.clamp(max=1 if mistake == "another bound" else 2)
        return x / scale, (2 * largest + 1).exp(), least, bounded, *decreasing

    return program


def skipped(w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return torch.where((g > 1).any(), w, w - g)


def by_count(mesh: DeviceMesh, mistake: str) -> Function:
    def program(w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        count = (g > 1).sum()
        if mistake != "own count":
            count = comm.total(count, mesh)
        none = count <= 1 if mistake == "one is none" else count == 0
        return torch.where(none if mistake == "turned round" else ~none, w, w - g)

    return program


def from_each_on(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0).cumsum(0).flip(0)


def less_those_before(_: DeviceMesh, mistake: str) -> Function:
    def program(x: torch.Tensor) -> torch.Tensor:
        before = x.cumsum(0) - (0 if mistake == "without itself" else x)
        total = x.sum(0, keepdim=True) if mistake != "mean" else x.mean(0, keepdim=True)
        return before - total if mistake == "turned round" else total - before

    return program


class Head(nn.Module):
    """The logits of a rank's classes are written to their places among all classes."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake
        self.weight = nn.Parameter(torch.randn(16 if mesh is None else 16 // mesh.size(), 6))

    def forward(self, h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.mesh is None:
            return F.cross_entropy(h @ self.weight.t(), y)
        group = self.mesh.get_group()
        own = comm.enter(h, group) @ self.weight.t()
        count = own.shape[1]
        first = dist.get_rank(group) * count
        if self.mistake == "from the end":
            first = 16 - count - first
        places = torch.arange(count) + (0 if self.mistake == "first places" else first)
        logits = torch.zeros(own.shape[0], 16).index_copy(1, places, own)
        return F.cross_entropy(logits if self.mistake == "not reduced" else comm.leave(logits, group), y)


def frequencies(rows: torch.Tensor, base: float = 10000.0) -> torch.Tensor:
    return torch.outer(rows.float(), 1.0 / base ** (torch.arange(0, 4, 2).float() / 4))


def turned_by_halves(q: torch.Tensor) -> torch.Tensor:
    angles = frequencies(torch.arange(q.shape[0])).repeat(1, 2)
    first, second = q.chunk(2, -1)
    return q * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


def turned_by_pairs(q: torch.Tensor) -> torch.Tensor:
    angles = frequencies(torch.arange(q.shape[0]))
    even, odd = q[:, 0::2], q[:, 1::2]
    turned = even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()
    return torch.stack(turned, -1).flatten(-2)


def rotary(style: str) -> Callable[[DeviceMesh, str], Function]:
    """Rotary embedding of a rank's own positions, with the formula of another library."""

    def program_of(mesh: DeviceMesh, mistake: str) -> Function:
        def program(q: torch.Tensor) -> torch.Tensor:
            first = 0 if mistake == "positions of the first rank" else mesh.get_local_rank() * q.shape[0]
            angles = frequencies(torch.arange(first, first + q.shape[0]), 100.0 if mistake == "another base" else 10000.0)
            if mistake == "turned back":
                angles = -angles
            if style == "halves":
                (a, b), c, s = q.chunk(2, -1), angles.cos(), angles.sin()
                return torch.cat([a * c - b * s, b * c + a * s], -1)
            if style == "complex":
                pairs = torch.view_as_complex(q.unflatten(-1, (2, 2)))
                return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
            pairs, angles = q.unflatten(-1, (2, 2)), angles.repeat_interleave(2, -1)
            return q * angles.cos() + torch.stack([-pairs[..., 1], pairs[..., 0]], -1).flatten(-2) * angles.sin()

        return program

    return program_of


def with_slopes(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    slopes = 2.0 ** (-2.0 * torch.arange(1, q.shape[0] + 1))
    places = torch.arange(3)
    return (q @ k.mT + slopes[:, None, None] * (places[None] - places[:, None])).softmax(-1)


def with_own_slopes(mesh: DeviceMesh, mistake: str) -> Function:
    def program(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        heads = torch.arange(1, q.shape[0] + 1)
        if mistake != "slopes of the first rank":
            heads = heads + mesh.get_local_rank() * q.shape[0]
        slopes = torch.exp2((-1.0 if mistake == "half the exponent" else -2.0) * heads)
        places = torch.arange(3)
        distance = places[None] - places[:, None]
        return (q @ k.mT + slopes[:, None, None] * (-distance if mistake == "turned round" else distance)).softmax(-1)

    return program


def fused(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    h = x @ w
    return (F.silu(h[:, 0::2]) * h[:, 1::2]) @ u


def fused_in_pairs(mesh: DeviceMesh, mistake: str) -> Function:
    def program(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        h = (x if mistake == "gradient not reduced" else comm.enter(x, mesh.get_group())) @ w
        gate, up = h.chunk(2, -1) if mistake == "halves" else h.unflatten(-1, (-1, 2)).unbind(-1)
        if mistake == "exchanged":
            gate, up = up, gate
        return comm.leave((gate * torch.sigmoid(gate) * up) @ u, mesh.get_group())

    return program


def of_halves(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    gate, up = (x @ torch.cat(w.unbind(0), 1)).chunk(2, -1)
    return (F.gelu(gate) * up) @ u


def of_two_weights(mesh: DeviceMesh, mistake: str) -> Function:
    def program(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        own = x if mistake == "gradient not reduced" else comm.enter(x, mesh.get_group())
        gate, up = torch.einsum("td,kdf->ktf", own, w.flip(0) if mistake == "exchanged" else w)
        return comm.leave((F.gelu(gate) * (gate if mistake == "gate twice" else up)) @ u, mesh.get_group())

    return program


def with_positions(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x + table[: x.shape[0]]) + table[1 : x.shape[0] + 1]


def with_own_positions(mesh: DeviceMesh, mistake: str) -> Function:
    def program(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        table = table if mistake == "gradient not reduced" else comm.enter(table, mesh.get_group())
        first = 0 if mistake == "positions of the first rank" else mesh.get_local_rank() * x.shape[0]
        places = torch.arange(x.shape[0]) + first
        following = F.embedding(places if mistake == "not the next one" else places + 1, table)
        return torch.tanh(x + F.embedding(places, table)) + following

    return program


def sine_of_rows(indices: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return F.embedding(indices, table).sin()


def in_two_parts(_: DeviceMesh, mistake: str) -> Function:
    def program(indices: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        rows = F.embedding(indices, table)
        kept = (indices > 3).unsqueeze(-1).to(rows.dtype)
        rest = {"same mask": kept, "nothing else": 0 * kept, "twice": 2 - kept}.get(mistake, 1 - kept)
        return (rows * kept + rows * rest).sin()

    return program


def loss_of_kept(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(torch.tanh(x @ w), y, ignore_index=0)


def in_micro_batches(mesh: DeviceMesh, mistake: str) -> Function:
    """Micro-batches of different sizes, divided once by the number of tokens that all ranks keep."""

    def program(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        group = mesh.get_group()
        w = w if mistake == "gradient not reduced" else comm.enter(w, group)
        count = (y != 0).sum() if mistake == "own count" else comm.total((y != 0).sum(), group)
        total = torch.zeros(())
        for first, last in ((0, 2), (2, 5 if mistake == "last token missing" else 6)):
            logits = torch.tanh(x[first:last] @ w)
            total = total + F.cross_entropy(logits, y[first:last], ignore_index=0, reduction="sum") / count
        return comm.leave(total, group)

    return program


def experts(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Each expert sees its own tokens, and zeros in the place of the others."""
    weights, chosen = (x @ gate).softmax(-1).max(-1)
    result = torch.zeros_like(x)
    for number in range(up.shape[0]):
        own = (chosen == number)[:, None].to(x.dtype)
        result = result + weights[:, None] * (F.gelu((x * own) @ up[number]) @ down[number])
    return result


def own_experts(mesh: DeviceMesh, mistake: str) -> Function:
    """Each expert sees all tokens, and its results for the others are dropped."""

    def program(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        x, gate = (comm.enter(value, mesh.get_group()) for value in (x, gate))
        weights, chosen = (x @ gate).softmax(-1).max(-1)
        result = torch.zeros_like(x)
        for number in range(up.shape[0]):
            place = number if mistake == "places of the first rank" else number + up.shape[0] * mesh.get_local_rank()
            own = (chosen != place if mistake == "the others" else chosen == place)[:, None].to(x.dtype)
            kept = 1 if mistake == "not dropped" else own
            result = result + kept * weights[:, None] * (F.gelu(x @ up[number]) @ down[number])
        return comm.leave(result, mesh.get_group())

    return program


def experts_of_two(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Each token goes to its two best experts."""
    weights, chosen = (x @ gate).softmax(-1).topk(2, -1)
    result = torch.zeros_like(x)
    for number in range(up.shape[0]):
        own = (weights * (chosen == number)).sum(-1, keepdim=True)
        result = result + own * (F.silu(x @ up[number]) @ down[number])
    return result


def tokens_of_any_choice(mesh: DeviceMesh, mistake: str) -> Function:
    """An expert sees the tokens of which it is any of the choices, and zeros in the place of the others."""

    def program(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        x, gate = (comm.enter(value, mesh.get_group()) for value in (x, gate))
        weights, chosen = (x @ gate).softmax(-1).topk(2, -1)
        result = torch.zeros_like(x)
        for number in range(up.shape[0]):
            place = number if mistake == "places of the first rank" else number + up.shape[0] * mesh.get_local_rank()
            hit = chosen == place
            seen = hit.all(-1, keepdim=True) if mistake == "all choices" else hit.any(-1, keepdim=True)
            seen = hit[:, :1] if mistake == "first choice" else seen
            own = (weights * hit).sum(-1, keepdim=True)
            result = result + own * (F.silu((x * seen.to(x.dtype)) @ up[number]) @ down[number])
        return comm.leave(result, mesh.get_group())

    return program


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(q.shape[0])
    return (q @ k.t()).masked_fill(rows > rows[:, None], float("-inf")).softmax(-1) @ v


def in_stripes(mesh: DeviceMesh, mistake: str) -> Function:
    """Each rank attends from every third row, from its own number on, so that all have as much to do."""

    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        rank, ranks, rows = mesh.get_local_rank(), mesh.size(), q.shape[0]
        q, k, v = (comm.gather(value, 0, mesh.get_group()) for value in (q, k, v))
        first = 0 if mistake == "first stripe" else rank
        own = torch.arange(rows) * ranks + (rank + 1 if mistake == "a row further" else rank)
        seen = torch.arange(k.shape[0]) <= own[:, None]
        out = torch.where(seen, q[first::ranks] @ k.t(), float("-inf")).softmax(-1) @ v
        every = comm.gather(out, 0, mesh.get_group()) if mistake == "in blocks" else _in_turn(mesh, out)
        return every[rows * rank : rows * (rank + 1)]

    return program


def _in_turn(mesh: DeviceMesh, rows: torch.Tensor) -> torch.Tensor:
    return comm.gather(rows[:, None], 1, mesh.get_group()).flatten(0, 1)


def best(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logarithms = x.log_softmax(-1)
    return logarithms.topk(2).values, logarithms.argmax(-1)


def best_before_dividing(mesh: DeviceMesh, mistake: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """What is taken from all elements of a row alike changes none of their places."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        largest = x.topk(2, largest=mistake != "least").values
        divisor = x.logsumexp(-1, keepdim=mistake != "of another row")
        place = (x - x.amax(0, keepdim=True) if mistake == "by columns" else x).argmax(-1)
        return largest - divisor, place

    return program


def limited(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Decay by distances that are limited below at zero, and softplus."""
    distance = torch.arange(3)[:, None] - torch.arange(3)
    return (0.9 ** distance.clamp(min=0) * (distance >= 0)) @ x, F.softplus(x, beta=2.0)


def without_limits(mesh: DeviceMesh, mistake: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        distance = torch.arange(3)[:, None] - torch.arange(3)
        seen = distance > 0 if mistake == "without itself" else distance >= 0
        decay = (0.8 if mistake == "another decay" else 0.9) ** distance
        power = torch.exp(x if mistake == "not scaled" else 2 * x)
        return torch.where(seen, decay, 0.0) @ x, torch.where(2 * x > 20, x, torch.log1p(power) / 2)

    return program


def form(
    name: str, spec: Any, program: Any, *mistakes: str, args: Callable[[], tuple[Any, ...]], placed: Mapping[str, Any],
    outputs: tuple[Any, ...], ranks: int = 2, **options: Any,
) -> Form:  # fmt: skip
    """``spec``: a function, or a module to be built."""
    named = {f"output.{place}": (placement,) for place, placement in enumerate(outputs)}
    given: dict[str, Any] = {"in_placements": {name: (placement,) for name, placement in placed.items()}, "out_placements": named}
    build = spec if isinstance(spec, type) else lambda: spec
    return Form(f"{name}-{ranks}", {"tp": ranks}, build, program, args, {**given, **options}, mistakes)


FORMS = (
    form(
        "gelu-by-error-function", Gated, Gated, "another scale", "another function", "no half",
        args=lambda: (torch.randn(2, 8),), placed={"x": S0}, outputs=(S0,),
        param_placements={"gate.*": (S0,), "up.weight": (S0,), "down.weight": (S1,)},
        grad_placements={"norm.*": (P,)},
    ),
    form(
        "softmax-by-powers-of-two", attended, by_powers_of_two, "powers of two", "another base", "own sums",
        args=lambda: (torch.randn(1, 4), torch.randn(3, 4), torch.randn(3, 4)),
        placed={"q": R, "k": S0, "v": S0}, outputs=(R,),
    ),
    form(
        "scores-beside-memory-not-written", of_heads, added_to_nothing, "beside other ones", "not scaled", "over queries",
        args=lambda: (torch.randn(2, 3, 4), torch.randn(2, 2, 4), torch.randn(2, 2, 4)),
        placed={"q": S0, "k": S0, "v": S0}, outputs=(S0,),
    ),
    form(
        "rows-of-a-flat-table", of_flat_table, rows_of_flat_table,
        "gradient not summed", "codes of the largest", "columns turned",
        args=lambda: (torch.randn(2, 4), torch.randn(4, 3, requires_grad=True)),
        placed={"x": S0, "table": R}, outputs=(S0,),
    ),
    form(
        "functions-of-extremes", extremes, of_extremes,
        "another limit", "of the negated", "largest of least", "another bound", "largest of inverses", "end not changed",
        args=lambda: (torch.randn(2, 4),), placed={"x": S0}, outputs=(S0, R, R, R, R, R),
    ),
    form(
        "any-by-a-count", skipped, by_count, "own count", "one is none", "turned round",
        args=lambda: (torch.randn(2, 4), torch.randn(2, 4)), placed={"w": S0, "g": S0}, outputs=(S0,),
    ),
    form(
        "sums-from-each-on", from_each_on, less_those_before, "without itself", "mean", "turned round",
        args=lambda: (torch.randn(3, 4),), placed={"x": S1}, outputs=(S1,),
    ),
    form(
        "logits-in-their-places", Head, Head, "from the end", "first places", "not reduced",
        args=lambda: (torch.randn(5, 6, requires_grad=True), torch.randint(0, 16, (5,))),
        placed={"h": R, "y": R}, outputs=(R,), param_placements={"weight": (S0,)},
    ),
    *(
        form(
            f"rotary-{style}", spec, rotary(style), "positions of the first rank", "another base", "turned back",
            args=lambda: (torch.randn(3, 4, requires_grad=True),), placed={"q": S0}, outputs=(S0,),
        )
        for style, spec in (("halves", turned_by_halves), ("pairs", turned_by_pairs), ("complex", turned_by_pairs))
    ),
    form(
        "slopes-by-powers", with_slopes, with_own_slopes,
        "slopes of the first rank", "half the exponent", "turned round",
        args=lambda: (torch.randn(2, 3, 4, requires_grad=True), torch.randn(2, 3, 4)),
        placed={"q": S0, "k": S0}, outputs=(S0,),
    ),
    form(
        "gate-in-pairs", fused, fused_in_pairs, "halves", "exchanged", "gradient not reduced",
        args=lambda: tuple(torch.randn(size, requires_grad=True) for size in ((3, 4), (4, 4), (2, 4))),
        placed={"x": R, "w": S1, "u": S0}, outputs=(R,),
    ),
    form(
        "gate-of-two-weights", of_halves, of_two_weights, "exchanged", "gate twice", "gradient not reduced",
        args=lambda: tuple(torch.randn(size, requires_grad=True) for size in ((3, 4), (2, 4, 2), (2, 4))),
        placed={"x": R, "w": S2, "u": S0}, outputs=(R,),
    ),
    form(
        "positions-that-count", with_positions, with_own_positions,
        "positions of the first rank", "not the next one", "gradient not reduced",
        args=lambda: (torch.randn(3, 4, requires_grad=True), torch.randn(8, 4, requires_grad=True)),
        placed={"x": S0, "table": R}, outputs=(S0,),
    ),
    form(
        "rows-in-two-parts", sine_of_rows, in_two_parts, "same mask", "nothing else", "twice",
        args=lambda: (torch.tensor([0, 5, 4, 2]), torch.randn(6, 2, requires_grad=True)),
        placed={"indices": R, "table": S1}, outputs=(S1,),
    ),
    form(
        "experts-that-drop-results", experts, own_experts, "places of the first rank", "the others", "not dropped",
        args=lambda: tuple(torch.randn(size, requires_grad=True) for size in ((3, 4), (4, 4), (2, 4, 3), (2, 3, 4))),
        placed={"x": R, "gate": R, "up": S0, "down": S0}, outputs=(R,),
    ),
    form(
        "experts-of-any-choice", experts_of_two, tokens_of_any_choice,
        "places of the first rank", "all choices", "first choice",
        args=lambda: tuple(torch.randn(size, requires_grad=True) for size in ((3, 4), (4, 4), (2, 4, 3), (2, 3, 4))),
        placed={"x": R, "gate": R, "up": S0, "down": S0}, outputs=(R,),
    ),
    form(
        "attention-in-stripes", causal, in_stripes, "first stripe", "a row further", "in blocks", ranks=3,
        args=lambda: tuple(torch.randn(3, 2, requires_grad=True) for _ in range(3)),
        placed={"q": S0, "k": S0, "v": S0}, outputs=(S0,),
    ),
    form(
        "best-before-dividing", best, best_before_dividing, "least", "of another row", "by columns",
        args=lambda: (torch.randn(2, 4),), placed={"x": S0}, outputs=(S0, S0),
    ),
    form(
        "limits-that-are-decided", limited, without_limits, "without itself", "another decay", "not scaled",
        args=lambda: (torch.randn(3, 2, requires_grad=True),), placed={"x": S1}, outputs=(S1, S1),
    ),
    form(
        "micro-batches-of-two-sizes", loss_of_kept, in_micro_batches,
        "own count", "last token missing", "gradient not reduced",
        args=lambda: (
            torch.randn(6, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True),
            torch.tensor([0, 2, 4, 1, 3, 0]),
        ),
        placed={"x": S0, "w": R, "y": S0}, outputs=(R,),
    ),
)  # fmt: skip
