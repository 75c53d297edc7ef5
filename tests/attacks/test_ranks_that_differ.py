"""Ranks that hold different numbers, choices or tensors: seen wherever Python keeps them.

Every carrier holds the position at which a rank's rows begin. Rightly it is ``rank * ROWS``; wrongly it is the rank
itself, which is right on rank 0.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.attacks.jobs import ROWS as BY_ROWS
from tests.attacks.jobs import Job, Programs, failures, outcomes

PROGRAMS = Programs()
ROWS = 2
WORLD = 2
WAYS = ("compile", "factory")

Forward = Callable[[torch.Tensor], torch.Tensor]


def x() -> torch.Tensor:
    return (torch.linspace(-1, 2, WORLD * ROWS * 3) * 7).sin().reshape(WORLD * ROWS, 3)


def moved(value: torch.Tensor, start: Any) -> torch.Tensor:
    """What every carrier computes: each row plus its position in the whole."""
    return torch.tanh(value) + (torch.arange(value.shape[0]) + start)[:, None]


def spec(x: torch.Tensor) -> torch.Tensor:
    return moved(x, 0)


# ------------------------------------------------------------------------------------------------ where a number stays

CARRIERS: dict[str, Callable[[int], Callable[..., Any]]] = {}


def carrier(make: Callable[[int], Callable[..., Any]]) -> Callable[[int], Callable[..., Any]]:
    CARRIERS[make.__name__] = make
    return make


START = 0
CONFIG: dict[str, Any] = {}
STARTS: list[int] = []
PLACE: contextvars.ContextVar[int] = contextvars.ContextVar("PLACE")


class Outer(nn.Module):
    """A module whose input is called ``x``."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@carrier
def module_global(start: int) -> Forward:
    global START  # noqa: PLW0603 - as users do
    START = start
    return lambda x: moved(x, START)


@carrier
def dictionary_updated(start: int) -> Forward:
    CONFIG.clear()
    CONFIG.update(nested={"start": start})
    return lambda x: moved(x, CONFIG["nested"]["start"])


@carrier
def list_appended(start: int) -> Forward:
    STARTS.clear()
    STARTS.append(start)
    return lambda x: moved(x, STARTS[-1])


@carrier
def class_attribute(start: int) -> Forward:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return moved(x, self.start)

    Model.start = start
    return Model()


@carrier
def attribute_of_computed_name(start: int) -> Forward:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return moved(x, self.first_row)

    model = Model()
    setattr(model, "".join(reversed("wor_tsrif")), start)
    return model


@carrier
def changed_default(start: int) -> Forward:
    def forward(x: torch.Tensor, start: int = 0) -> torch.Tensor:
        return moved(x, start)

    forward.__defaults__ = (start,)
    return lambda x: forward(x)


@carrier
def partial_application(start: int) -> Forward:
    shift = functools.partial(moved, start=start)
    return lambda x: shift(x)


@carrier
def closure_of_closures(start: int) -> Forward:
    def outer() -> Callable[[], int]:
        return lambda: start

    read = outer()
    return lambda x: moved(x, read())


@carrier
def property_of_a_module(start: int) -> Forward:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._held = start

        @property
        def start(self) -> int:
            return self._held

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return moved(x, self.start)

    return Model()


@carrier
def frozen_dataclass(start: int) -> Forward:
    @dataclasses.dataclass(frozen=True)
    class Settings:
        start: int

    settings = Settings(start)
    return lambda x: moved(x, settings.start)


@carrier
def context_variable(start: int) -> Forward:
    PLACE.set(start)
    return lambda x: moved(x, PLACE.get())


@carrier
def environment_variable(start: int) -> Forward:
    os.environ["START_OF_THIS_RANK"] = str(start)
    return lambda x: moved(x, int(os.environ["START_OF_THIS_RANK"]))


@carrier
def text(start: int) -> Forward:
    held = f"rows from {start}"
    return lambda x: moved(x, int(held.rsplit(maxsplit=1)[-1]))


@carrier
def forward_hook(start: int) -> Forward:
    model = nn.Identity()
    model.register_forward_hook(lambda module, args, output: moved(output, start))
    return Outer(model)


@carrier
def buffer(start: int) -> Forward:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places = torch.arange(ROWS) + start

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x) + self.places[:, None]

    return Model()


@carrier
def tensor_in_a_closure(start: int) -> Forward:
    places = torch.arange(ROWS) + start
    return lambda x: torch.tanh(x) + places[:, None]


@carrier
def modules_in_a_loop(start: int) -> Forward:
    class AddOne(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(AddOne() for _ in range(start))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = moved(x, 0)
            for layer in self.layers:
                x = layer(x)
            return x

    return Model()


@carrier
def read_in_the_call(start: int) -> Forward:
    """``start`` is of the form ``rank * n``: read where it is used."""
    step = 0 if dist.get_rank() == 0 else start // dist.get_rank()
    return lambda x: moved(x, dist.get_rank() * (ROWS if step == 0 else step))


def _right(make: Callable[[int], Callable[..., Any]]) -> Callable[[DeviceMesh], Job]:
    return lambda mesh: Job(
        lambda: make(dist.get_rank() * ROWS), spec, (x(),), {"x": BY_ROWS}, {"out_placements": {"output.0": BY_ROWS}}
    )


def _wrong(make: Callable[[int], Callable[..., Any]]) -> Callable[[DeviceMesh], Job]:
    return lambda mesh: Job(
        lambda: make(dist.get_rank()), spec, (x(),), {"x": BY_ROWS}, {"out_placements": {"output.0": BY_ROWS}}
    )


ONE_FOR_A_PROCESS = {"environment_variable"}
"""What a factory cannot hold for several ranks on one process: it refuses them."""

BY_A_FACTORY = {"buffer", "tensor_in_a_closure"}
"""Contents of tensors: the ranks of a job tell each other digests of them, which say nothing of how they go on."""

NOT_PROVED = {
    "context_variable": "Dynamo breaks the graph where it is read",
}
"""Where even the right program is refused, and why; the wrong one is asked about all the same."""

for k, (name, make) in enumerate(CARRIERS.items()):
    way = "compile" if name in ONE_FOR_A_PROCESS else "factory" if name in BY_A_FACTORY else WAYS[k % 2]
    if name not in NOT_PROVED:
        PROGRAMS.add(f"right_{name}", _right(make), right=True, ways=(way,))
    PROGRAMS.add(f"wrong_{name}", _wrong(make), right=False, ways=(way,))


# ------------------------------------------------------------------------------------------------ choices


def activation(index: int) -> Forward:
    table = [F.relu, F.gelu]
    return lambda x: table[index](x)


def approximation(index: int) -> Forward:
    return nn.Sequential(nn.GELU(["none", "tanh"][index]))


def epsilon(index: int) -> Forward:
    return nn.Sequential(nn.LayerNorm(3, eps=[1e-5, 1e-1][index], elementwise_affine=False))


def training(index: int) -> Forward:
    return nn.Sequential(nn.Dropout(1.0)).train(index == 1)


def dtype(index: int) -> Forward:
    kind = [torch.float32, torch.int32][index]
    return lambda x: x.to(kind).to(torch.float32)


def branch_on_none(index: int) -> Forward:
    scale = [None, 3.0][index]
    return lambda x: x if scale is None else x * scale


def extra_hook(index: int) -> Forward:
    model = nn.Sequential(nn.Tanh())
    if index:
        model[0].register_forward_hook(lambda module, args, output: output * 2)
    return model


def another_class(index: int) -> Forward:
    class Plain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 1

    class Doubled(Plain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    return [Plain, Doubled][index]()


def order_of_layers(index: int) -> Forward:
    layers = [nn.Tanh(), nn.Softplus()]
    return nn.Sequential(*(layers if index == 0 else layers[::-1]))


def seeded_constant(index: int) -> Forward:
    noise = torch.randn(3, generator=torch.Generator().manual_seed(index))
    return lambda x: x + noise


def seeded_buffer(index: int) -> Forward:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer(
                "noise", torch.randn(3, generator=torch.Generator().manual_seed(index)), persistent=False
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.noise

    return Model()


CHOICES = [
    activation, approximation, epsilon, training, dtype, branch_on_none, extra_hook, another_class, order_of_layers,
    seeded_constant, seeded_buffer,
]  # fmt: skip


def _with_x(made: Callable[..., Any]) -> Callable[..., Any]:
    return Outer(made) if isinstance(made, nn.Module) else made


def _choice(make: Callable[[int], Forward], index: Callable[[int], int]) -> Callable[[DeviceMesh], Job]:
    def job(mesh: DeviceMesh) -> Job:
        reference = make(0)
        options = {"out_placements": {"output.0": BY_ROWS}}
        return Job(
            lambda: _with_x(make(index(dist.get_rank()))), lambda x: reference(x), (x(),), {"x": BY_ROWS}, options
        )

    return job


for k, make in enumerate(CHOICES):
    PROGRAMS.add(f"wrong_{make.__name__}", _choice(make, lambda rank: rank), right=False, ways=(WAYS[k % 2],))
for make in (activation, epsilon, another_class):
    PROGRAMS.add(f"right_{make.__name__}", _choice(make, lambda rank: rank // WORLD), right=True)


# ------------------------------------------------------------------------------------------------ what the call passes


@PROGRAMS.wrong("compile")
def wrong_number_passed_to_the_call(mesh: DeviceMesh) -> Job:
    return Job(
        lambda: lambda x, start: moved(x, start),
        lambda x, start: moved(x, 0),
        (x(), dist.get_rank()),
        {"x": BY_ROWS},
        {"out_placements": {"output.0": BY_ROWS}},
    )


@PROGRAMS.wrong("compile")
def wrong_keyword_passed_to_the_call(mesh: DeviceMesh) -> Job:
    def forward(x: torch.Tensor, mode: str = "none") -> torch.Tensor:
        return F.gelu(x, approximate=mode)

    return Job(
        lambda: forward,
        lambda x, mode="none": F.gelu(x, approximate="none"),
        (x(),),
        {"x": BY_ROWS},
        kwargs={"mode": ["none", "tanh"][dist.get_rank()]},
    )


def _open_rows(*rows: int) -> Callable[[DeviceMesh], Job]:
    """A mean of the ranks' means, of which the graph leaves the number of rows open; ``rows`` of each rank."""

    def job(mesh: DeviceMesh) -> Job:
        whole = torch.sin(torch.arange(sum(rows) * 3.0)).view(-1, 3)
        own = whole.split(rows)[dist.get_rank()].clone()
        torch._dynamo.maybe_mark_dynamic(own, 0)

        def forward(x: torch.Tensor) -> torch.Tensor:
            return dist._functional_collectives.all_reduce(x.mean(), "avg", mesh)

        return Job(lambda: forward, lambda x: x.mean(), (whole,), {"x": BY_ROWS}, given_args=(own,))

    return job


PROGRAMS.add("right_rows_left_open", _open_rows(4, 4), right=True, ways=("compile", "verify"))
PROGRAMS.add("wrong_rows_left_open", _open_rows(5, 3), right=False, ways=("compile", "verify"))
OPEN = "the graph leaves sizes or numbers of `x.size(0)` open, which are 5 on rank 0 and 3 on rank 1"


def _tokens(by_rank: int) -> Callable[[DeviceMesh], Job]:
    """A table of which each rank holds columns, and tokens that all are taken to pass alike."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table = nn.Embedding(8, 4)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.table(tokens)

    def job(mesh: DeviceMesh) -> Job:
        tokens = torch.arange(6) % 4
        plan = {"table": ColwiseParallel(output_layouts=Replicate())}
        own = tokens + by_rank * dist.get_rank()
        return Job(lambda: parallelize_module(Table(), mesh, plan), Table(), (tokens,), given_args=(own,))

    return job


PROGRAMS.add("right_tokens", _tokens(0), right=True)
PROGRAMS.add("wrong_tokens", _tokens(1), right=False)


def _long_table(are_exchanged: bool) -> Callable[[DeviceMesh], Job]:
    """A table that is compared by a checksum, of which rank 1 holds two entries exchanged. No spec says which is meant."""

    class Table(nn.Module):
        def __init__(self, are_exchanged: bool) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(2**17))
            if are_exchanged:
                self.table[[5, 7]] = self.table[[7, 5]]

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.table[tokens] * 1.0

    def job(mesh: DeviceMesh) -> Job:
        whole = (Replicate(),)
        model = Table(are_exchanged and dist.get_rank() == 1)
        options = {"out_placements": {"output.0": whole}}
        return Job(lambda: model, Table(False), (torch.arange(16),), {"tokens": whole}, options, given=False)

    return job


PROGRAMS.add("right_long_table", _long_table(False), right=True)
PROGRAMS.add("wrong_long_table", _long_table(True), right=False)


# ------------------------------------------------------------------------------------------------ where results go


class Pair(nn.Module):
    """Two values that ``put`` stores under other names where ``are_exchanged``, and which ``taken`` then takes."""

    def __init__(self, pair: Callable[[torch.Tensor, bool], Any], are_exchanged: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.pair, self.are_exchanged = pair, are_exchanged

    def forward(self, x: torch.Tensor) -> Any:
        return self.pair(self.between(x), self.are_exchanged)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))


def returned(y: torch.Tensor, are_exchanged: bool) -> Any:
    return {"b": y * 2, "a": y + 1} if are_exchanged else {"a": y * 2, "b": y + 1}


def in_another_order(y: torch.Tensor, are_exchanged: bool) -> Any:
    """The same under each key."""
    if are_exchanged:
        b = y + 1
        return {"b": b, "a": y * 2}
    return {"a": y * 2, "b": y + 1}


def ways_of(pair: Callable[..., Any]) -> tuple[str, ...]:
    """A factory makes each rank's graph without graph breaks. Of a dictionary the harness compares the first value."""
    return WAYS if pair is returned else ("compile",)


def local_variables(y: torch.Tensor, are_exchanged: bool) -> torch.Tensor:
    if are_exchanged:
        b = y * 2
        a = y + 1
    else:
        a = y * 2
        b = y + 1
    torch._dynamo.graph_break()
    return a - torch.tanh(b)


def dictionary(y: torch.Tensor, are_exchanged: bool) -> torch.Tensor:
    held = returned(y, are_exchanged)
    torch._dynamo.graph_break()
    return held["a"] - torch.tanh(held["b"])


def object_s_attributes(y: torch.Tensor, are_exchanged: bool) -> torch.Tensor:
    held: Any = Held()
    held.__dict__.update(returned(y, are_exchanged))
    torch._dynamo.graph_break()
    return held.a - torch.tanh(held.b)


class Held:
    """Attributes."""


class Before(Pair):
    """The values come before what is parallel, in a graph of which nothing else is asked."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.between(self.pair(x, self.are_exchanged))


def _places(
    kind: type[Pair], pair: Callable[[torch.Tensor, bool], Any], are_exchanged: bool
) -> Callable[[DeviceMesh], Job]:
    def job(mesh: DeviceMesh) -> Job:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        value = torch.linspace(-1, 2, 16).reshape(4, 4)

        def build() -> nn.Module:
            return parallelize_module(kind(pair, are_exchanged and dist.get_rank() == 1), mesh, plan)

        return Job(build, kind(pair, False), (value,), given=False, placed=False, mesh=False)

    return job


PLACES = {
    "returned": (Pair, returned),
    "local_variables": (Pair, local_variables),
    "dictionary": (Pair, dictionary),
    "attributes": (Pair, object_s_attributes),
    "local_variables_before": (Before, local_variables),
    "dictionary_before": (Before, dictionary),
}
for name, (kind, pair) in PLACES.items():
    PROGRAMS.add(
        f"right_{name}", _places(kind, pair, False), right=True, ways=ways_of(pair), numbers=pair is not returned
    )
    PROGRAMS.add(
        f"wrong_{name}", _places(kind, pair, True), right=False, ways=ways_of(pair), numbers=pair is not returned
    )
PROGRAMS.add(
    "right_in_another_order", _places(Pair, in_another_order, True), right=True, ways=("factory",), numbers=False
)


LEFT_OPEN = ("right_rows_left_open", "wrong_rows_left_open")


def test_rows_left_open() -> None:
    programs = Programs({name: PROGRAMS.found[name] for name in LEFT_OPEN})
    found = outcomes(__file__, *LEFT_OPEN)
    assert failures(programs, found) == []
    assert all(OPEN in text for way in ("compile", "verify") for text in found[LEFT_OPEN[1], way].texts)
    same = found[LEFT_OPEN[0], "verify"].texts
    assert all(
        "at every call the ranks have the same sizes and numbers, which the graph leaves open" in t for t in same
    )


def test_places() -> None:
    names = [*(f"{kind}_{name}" for name in PLACES for kind in ("right", "wrong")), "right_in_another_order"]
    found = outcomes(__file__, *names)
    assert failures(Programs({name: PROGRAMS.found[name] for name in names}), found) == []
    for name, place in (("returned", "['a']"), ("local_variables", "[a]"), ("dictionary", "[held]['a']")):
        told = LEAVES.format(place)
        assert all(told in text for text in found[f"wrong_{name}", "compile"].texts)


LEAVES = (
    "what the graph leaves behind at {} is `output.0` on rank 0 and `output.1` on rank 1: return the same at each place, "
    "and in the same order, on all ranks."
)


def test_programs() -> None:
    apart = {
        *LEFT_OPEN,
        "right_in_another_order",
        *(f"{kind}_{name}" for name in PLACES for kind in ("right", "wrong")),
    }
    chosen = {p.name: p for p in PROGRAMS if p.name not in apart}
    assert failures(Programs(chosen), outcomes(__file__, *chosen)) == []
