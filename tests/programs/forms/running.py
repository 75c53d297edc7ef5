"""Running sums over sharded positions: each rank's own, and what the ranks before it have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from tests.programs.forms import comm
from tests.programs.forms.form import S0, S1, Form, R

EXPERTS = 4


class Running(nn.Module):
    """``style``: how what comes before is taken of the totals of all ranks."""

    def __init__(self, style: str, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.style, self.mesh, self.mistake = style, mesh, mistake

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x)
        if self.mesh is None:
            return torch.tanh(x.flip(0).cumsum(0).flip(0) if self.style == "reversed" else x.cumsum(0))
        before: Any = getattr(self, self.style)(x, self.mesh.get_local_rank(), self.mesh.get_group())
        if self.mistake == "own alone":
            before = 0 * before
        if self.mistake == "own total too":
            before = before + x.sum(0)
        own = x.flip(0).cumsum(0).flip(0) if self.style == "reversed" else x.cumsum(0)
        return torch.tanh(own + before)

    def masked(self, x: torch.Tensor, rank: int, group: Any) -> torch.Tensor:
        totals = comm.gather(x.cumsum(0)[-1:], 0, group)
        earlier = torch.arange(totals.shape[0]) < (rank + 1 if self.mistake == "later too" else rank)
        return (totals * earlier[:, None]).sum(0)

    def exclusive(self, x: torch.Tensor, rank: int, group: Any) -> torch.Tensor:
        totals = comm.gather(x.sum(0, keepdim=True), 0, group)
        return (totals.cumsum(0) - (0 if self.mistake == "later too" else totals))[rank]

    def first_ranks(self, x: torch.Tensor, rank: int, group: Any) -> torch.Tensor:
        totals = comm.gather(x.sum(0, keepdim=True), 0, group)
        return totals[: rank + (self.mistake == "later too")].sum(0)

    def with_zero(self, x: torch.Tensor, rank: int, group: Any) -> torch.Tensor:
        totals = comm.gather(x.sum(0, keepdim=True), 0, group).cumsum(0)
        return torch.cat([torch.zeros_like(totals[:1]), totals])[rank + (self.mistake == "later too")]

    def reversed(self, x: torch.Tensor, rank: int, group: Any) -> torch.Tensor:
        totals = comm.gather(x.sum(0, keepdim=True), 0, group)
        later = torch.arange(totals.shape[0]) > rank
        if self.mistake == "later too":
            later = ~later
        return torch.einsum("rd,r->d", totals, later.to(x.dtype))


class Scan(nn.Module):
    """A state that decays from position to position, as that of a selective scan: ranks go on from those before them."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        state, decay, states, decays = torch.zeros_like(x[0]), torch.ones_like(x[0]), [], []
        for value, share in zip(x, torch.sigmoid(gate), strict=True):
            state, decay = share * state + value, share * decay
            states.append(state)
            decays.append(decay)
        if self.mesh is None:
            return torch.stack(states)
        group = self.mesh.get_group()
        ends, left = comm.gather(state[None], 0, group), comm.gather(decay[None], 0, group)
        before = [torch.zeros_like(state)]
        for end, share in zip(ends[:-1], left[:-1], strict=True):
            before.append(end + before[-1] * (1 if self.mistake == "without decay" else share))
        rank = self.mesh.get_local_rank()
        carried = torch.stack(before)[max(rank - 1, 0) if self.mistake == "of the rank before" else rank]
        if self.mistake == "own alone":
            carried = 0 * carried
        return torch.stack(states) + torch.stack(decays) * carried


class Places(nn.Module):
    """The place of each token among those of its expert, before the tokens are cut at a capacity."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake

    def forward(self, experts: torch.Tensor) -> torch.Tensor:
        chosen = F.one_hot(experts, EXPERTS)
        places = chosen.cumsum(0) - 1
        if self.mesh is not None and self.mistake != "own alone":
            counts = comm.gather(chosen.sum(0, keepdim=True), 0, self.mesh.get_group())
            ends = counts.cumsum(1 if self.mistake == "over experts" else 0)
            places = places + (ends if self.mistake == "later too" else ends - counts)[self.mesh.get_local_rank()]
        return (places * chosen).sum(-1)


class Sorted(nn.Module):
    """The place of each token once all are sorted by expert: the look-ups of what is before it are added up."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake

    def forward(self, experts: torch.Tensor) -> torch.Tensor:
        chosen = F.one_hot(experts, EXPERTS)
        counts = own = chosen.sum(0)
        place = chosen.cumsum(0).gather(1, experts[:, None]).squeeze(1) - 1
        if self.mesh is not None:
            every = comm.gather(own[None], 0, self.mesh.get_group())
            before = (every if self.mistake == "totals" else every.cumsum(0) - every)[self.mesh.get_local_rank()]
            place = place if self.mistake == "own alone" else place + before[experts]
            counts = own if self.mistake == "own experts" else every.sum(0)
        return place + (counts.cumsum(0) - counts)[experts]


Features = Callable[[torch.Tensor], torch.Tensor]


def positive(x: torch.Tensor) -> torch.Tensor:
    return F.elu(x) + 1


class States(nn.Module):
    """Causal linear attention: what a rank attends to of its own part, and the summed states of the ranks before.

    ``features``: of queries and keys; with them the weights of a query are divided by their sum, by a column of ones.
    """

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "", features: Features | None = None) -> None:
        super().__init__()
        self.mesh, self.mistake, self.features = mesh, mistake, features

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if self.features is not None:
            q, k = self.features(q), self.features(k)
            v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
        sums = (q @ k.transpose(-1, -2)).tril() @ v
        if self.mesh is not None and self.mistake != "own alone":
            sums = sums + q @ self.before(k.transpose(-1, -2) @ v, self.mesh)
        if self.features is None:
            return sums
        of_ones = v.shape[1] / 2 if self.mistake == "counted" else sums[..., -1:]
        return sums[..., :-1] / of_ones

    def before(self, state: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        states = comm.gather(state[None], 0, mesh.get_group(), self.mistake == "gradients of the others lost")
        last = mesh.get_local_rank() + (self.mistake == "own total too")
        earlier = (torch.arange(states.shape[0]) < last).to(state)
        return (states * earlier[:, None, None, None]).sum(0)


class Oscillators(nn.Module):
    """A diagonal recurrence in complex numbers, by channel: exponentials, and constants with an imaginary part."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake

    def forward(self, x: torch.Tensor, decay: torch.Tensor, angle: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        factor = (1j * angle - decay.exp()).exp()
        if self.mistake == "decays twice":
            factor = factor * factor
        state = torch.zeros_like(factor) if self.mistake == "first is lost" else factor * x[0]
        state = factor * state + x[1]
        part = torch.view_as_real(state)[..., 0] @ out
        if self.mesh is None or self.mistake == "not reduced":
            return part
        return comm.leave(part, self.mesh.get_group())


class Buckets(nn.Module):
    """A table of matrices by the remainder of a token's number, of which a rank holds some."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake

    def forward(self, tokens: torch.Tensor, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        bucket = tokens % EXPERTS
        if self.mesh is None:
            return torch.einsum("td,tdh->th", x, table[bucket])
        own = table.shape[0]
        rank = self.mesh.get_local_rank() if self.mistake != "of the first rank" else 0
        x = comm.enter(x, self.mesh.get_group()) if self.mistake != "gradient not reduced" else x
        part = torch.einsum("td,tdh->th", x, table[bucket % own])
        if self.mistake != "of all ranks":
            part = torch.where((bucket // own == rank)[:, None], part, 0.0)
        return comm.leave(part, self.mesh.get_group())


def normalised(name: str, features: Features, *, trained: bool) -> Form:
    return Form(
        f"states-of-{name}-attention-2",
        {"cp": 2},
        lambda: States(features=features),
        lambda mesh, mistake: States(mesh, mistake, features),
        lambda: tuple(torch.randn(1, 3, 2, requires_grad=trained) for _ in range(3)),
        {"in_placements": dict.fromkeys("qkv", (S1,)), "out_placements": {"output.0": (S1,)}},
        ("own alone", "own total too", "counted"),
    )


def running(style: str, ranks: int) -> Form:
    return Form(
        f"running-{style}-{ranks}",
        {"cp": ranks},
        lambda: Running(style),
        lambda mesh, mistake: Running(style, mesh, mistake),
        lambda: (torch.randn(3, 2, requires_grad=style not in {"masked", "with_zero"}),),
        {"in_placements": {"x": (S0,)}, "out_placements": {"output.0": (S0,)}},
        ("own alone", "own total too", "later too"),
    )


FORMS = (
    running("masked", 4),
    running("exclusive", 3),
    running("reversed", 4),
    running("first_ranks", 4),
    running("with_zero", 3),
    Form(
        "scan-3",
        {"cp": 3},
        Scan,
        Scan,
        lambda: (torch.randn(2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)),
        {"in_placements": {"x": (S0,), "gate": (S0,)}, "out_placements": {"output.0": (S0,)}},
        ("of the rank before", "own alone", "without decay"),
    ),
    Form(
        "places-of-tokens-4",
        {"ep": 4},
        Places,
        Places,
        lambda: (torch.tensor([0, 2, 1, 2, 3, 0]),),
        {"in_placements": {"experts": (S0,)}, "out_placements": {"output.0": (S0,)}},
        ("own alone", "over experts", "later too"),
    ),
    Form(
        "places-once-sorted-2",
        {"ep": 2},
        Sorted,
        Sorted,
        lambda: (torch.tensor([0, 2, 1, 2, 3, 0]),),
        {"in_placements": {"experts": (S0,)}, "out_placements": {"output.0": (S0,)}},
        ("own alone", "totals", "own experts"),
    ),
    Form(
        "states-of-linear-attention-2",
        {"cp": 2},
        States,
        States,
        lambda: tuple(torch.randn(2, 3, 2, requires_grad=True) for _ in range(3)),
        {"in_placements": dict.fromkeys("qkv", (S1,)), "out_placements": {"output.0": (S1,)}},
        ("own alone", "own total too", "gradients of the others lost"),
    ),
    normalised("positive", positive, trained=False),
    normalised("sigmoid", torch.sigmoid, trained=True),
    Form(
        "complex-recurrence-2",
        {"tp": 2},
        Oscillators,
        Oscillators,
        lambda: (torch.randn(2, 3), *(torch.randn(3, requires_grad=True) for _ in "dr"), torch.randn(3, 2)),
        {
            "in_placements": {"x": (S1,), "decay": (S0,), "angle": (S0,), "out": (S0,)},
            "out_placements": {"output.0": (R,)},
        },
        ("decays twice", "first is lost", "not reduced"),
    ),
    Form(
        "buckets-of-tokens-2",
        {"ep": 2},
        Buckets,
        Buckets,
        lambda: (torch.tensor([9, 2, 7, 4]), *(torch.randn(s, requires_grad=True) for s in ((4, 2), (2, 2, 3)))),
        {
            "in_placements": {"tokens": (R,), "x": (R,), "table": (S0,)},
            "out_placements": {"output.0": (R,)},
        },
        ("of the first rank", "gradient not reduced", "of all ranks"),
    ),
)
