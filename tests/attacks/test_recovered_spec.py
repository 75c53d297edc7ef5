"""Without a given spec: what the program makes of its numbers must not become its own measure.

A column-parallel projection is cut by heads. The number of heads is divided by the degree (right), or was forgotten
(wrong), wherever it is kept.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.attacks.jobs import Job, Program, Programs, failures, outcomes
from tests.sampled import taken
from tests.support import fake_mesh_world
from verifycompile import verify

PROGRAMS = Programs()
WIDTH, HEADS = 16, 4
PLAN = {"q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(), "o": RowwiseParallel()}


def x() -> torch.Tensor:
    return torch.randn(2, 6, WIDTH, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """``heads()`` is where a subclass keeps its number of heads."""

    def __init__(self, heads: int = HEADS) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.keep(heads)

    def keep(self, heads: int) -> None:
        self.n_heads = heads

    def heads(self) -> int:
        return self.n_heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q, k, v = (w(x).view(b, s, self.heads(), -1).transpose(1, 2) for w in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, -1))


class OfAnotherName(Attention):
    def keep(self, heads: int) -> None:
        self.zebra = heads

    def heads(self) -> int:
        return self.zebra


class InAConfiguration(Attention):
    def keep(self, heads: int) -> None:
        self.config = types.SimpleNamespace(n_heads=heads)

    def heads(self) -> int:
        return self.config.n_heads


class InADictionary(Attention):
    def keep(self, heads: int) -> None:
        self.config = {"model": {"heads": heads}}

    def heads(self) -> int:
        return self.config["model"]["heads"]


class InATuple(Attention):
    def keep(self, heads: int) -> None:
        self.sizes = (WIDTH, heads)

    def heads(self) -> int:
        return self.sizes[1]


@dataclasses.dataclass
class Sizes:
    heads: int


class InADataclass(Attention):
    def keep(self, heads: int) -> None:
        self.sizes = Sizes(heads)

    def heads(self) -> int:
        return self.sizes.heads


class InASubmodule(Attention):
    def keep(self, heads: int) -> None:
        self.settings = nn.Module()
        self.settings.count = heads

    def heads(self) -> int:
        return self.settings.count


class ByAProperty(Attention):
    def keep(self, heads: int) -> None:
        self._count = heads * 2

    def heads(self) -> int:
        return self.half

    @property
    def half(self) -> int:
        return self._count // 2


class AsAShape(Attention):
    def keep(self, heads: int) -> None:
        self.shape = torch.Size((heads, -1 % 7))

    def heads(self) -> int:
        return self.shape[0]


class AsText(Attention):
    def keep(self, heads: int) -> None:
        self.name = f"attention-{heads}"

    def heads(self) -> int:
        return int(self.name.split("-")[1])


class InACache(Attention):
    """What a class keeps under the attribute's name is how it is found."""

    def keep(self, heads: int) -> None:
        self.width = WIDTH // heads

    @functools.cached_property
    def count(self) -> int:
        return WIDTH // self.width

    def heads(self) -> int:
        return self.count


class AsAListOfModules(Attention):
    def keep(self, heads: int) -> None:
        self.parts = nn.ModuleList(nn.Identity() for _ in range(heads))

    def heads(self) -> int:
        return len(self.parts)


class AsTheSizeOfABuffer(Attention):
    def keep(self, heads: int) -> None:
        self.register_buffer("slopes", torch.ones(heads), persistent=False)

    def heads(self) -> int:
        return self.slopes.shape[0]


class AsASet(Attention):
    def keep(self, heads: int) -> None:
        self.ids = frozenset(range(heads))

    def heads(self) -> int:
        return len(self.ids)


SIZES = [AsAListOfModules, AsTheSizeOfABuffer, AsASet]
"""Right once divided, and no reading of a number says so: what is recovered may be the spec, or not."""

HOLDERS = [
    Attention, OfAnotherName, InAConfiguration, InADictionary, InATuple, InADataclass, InASubmodule, ByAProperty, AsAShape, AsText,
]  # fmt: skip


def _parallel(mesh: DeviceMesh, make: type[Attention], heads: int, change: int | None = None) -> Callable[[], nn.Module]:
    """``heads``: when the model is made. ``change``: what is kept after it was parallelized."""

    def build() -> nn.Module:
        model = parallelize_module(make(heads), mesh, PLAN)
        if change is not None:
            model.keep(change)
        return model

    return build


def _job(mesh: DeviceMesh, make: type[Attention], heads: int, change: int | None, *, given: bool, **options: Any) -> Job:
    return Job(_parallel(mesh, make, heads, change), make(HEADS), (x(),), given=given, mesh=False, placed=False, options=options)


for made in HOLDERS:
    # Forgotten to be divided: half of the width of a head.
    PROGRAMS.add(f"wrong_forgotten_{made.__name__}", lambda m, c=made: _job(m, c, HEADS, None, given=False), right=False, ways=("compile",) if made in HOLDERS[3:] else ("compile", "verify"))
    # Divided after construction: the record has the number before.
    if made is not InASubmodule:  # constructed before its number was set: two readings
        PROGRAMS.add(f"right_divided_{made.__name__}", lambda m, c=made: _job(m, c, HEADS, HEADS // 2, given=False), right=True)

for made in HOLDERS[:3]:
    # Divided twice, and multiplied.
    PROGRAMS.add(f"wrong_twice_{made.__name__}", lambda m, c=made: _job(m, c, HEADS, HEADS // 4, given=False), right=False)
    PROGRAMS.add(f"wrong_multiplied_{made.__name__}", lambda m, c=made: _job(m, c, HEADS, HEADS * 2, given=False), right=False)

for made in HOLDERS[:3]:
    PROGRAMS.add(f"right_given_{made.__name__}", lambda m, c=made: _job(m, c, HEADS // 2, None, given=True), right=True, ways=("compile", "verify"))
    PROGRAMS.add(f"wrong_given_{made.__name__}", lambda m, c=made: _job(m, c, HEADS, None, given=True), right=False, ways=("compile", "verify"))
    # Made with a wrong number: the constructor saw only this one.
    PROGRAMS.add(f"wrong_made_{made.__name__}", lambda m, c=made: _job(m, c, HEADS * 2, None, given=False), right=False)

PROGRAMS.add(
    "right_said_to_be_per_rank", lambda m: _job(m, Attention, HEADS // 2, None, given=False, per_rank_numbers=["n_heads"]), right=True
)


for made in (InACache, *SIZES):
    PROGRAMS.add(f"wrong_forgotten_{made.__name__}", lambda m, c=made: _job(m, c, HEADS, None, given=False), right=False)
for made in SIZES:
    PROGRAMS.add(f"right_given_{made.__name__}", lambda m, c=made: _job(m, c, HEADS, HEADS // 2, given=True), right=True)
    PROGRAMS.add(f"unsure_{made.__name__}", lambda m, c=made: _job(m, c, HEADS, HEADS // 2, given=False), right=True)
for made in (*SIZES, AsText):
    # Made for one rank: what the constructor was given says nothing of the single-device program.
    PROGRAMS.add(f"unsure_made_{made.__name__}", lambda m, c=made: _job(m, c, HEADS // m.size(), None, given=False), right=True)


# ------------------------------------------------------------------------------------------------ shared parameters


class Tied(nn.Module):
    """What reads and what writes share a parameter, whose gradients add up."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.read, self.write = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.write.weight = self.read.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.write(torch.tanh(self.read(x)))


def _tied(mesh: DeviceMesh, *, again: bool) -> Job:
    def build() -> nn.Module:
        column = ColwiseParallel(output_layouts=Replicate())
        model = parallelize_module(Tied(), mesh, {"read": column, "write": column})
        if again:
            model.write.weight = model.read.weight
        return model

    return Job(build, Tied(), (x(),), given=False, mesh=False, placed=False, backward=True)


PROGRAMS.add("right_shared_again", lambda m: _tied(m, again=True), right=True)
PROGRAMS.add("wrong_shared_no_more", lambda m: _tied(m, again=False), right=False, numbers=False)


# ------------------------------------------------------------------------------------------------ numbers in arithmetic


class Grouped(nn.Module):
    """``factor(self)`` multiplies the result: rightly by numbers of the whole model."""

    def __init__(self, factor: Callable[[Any], Any], **numbers: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.factor = factor
        vars(self).update(numbers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x))) * self.factor(self)


class Around(nn.Module):
    """Takes a number from the weight of the model in it: of the whole weight, or of this rank's part."""

    def __init__(self, inner: nn.Module, *, local: bool) -> None:
        super().__init__()
        self.inner = inner
        weight: Any = inner.up.weight
        self.width = (weight.to_local() if local else weight).shape[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) / self.width


@pytest.mark.parametrize(("late", "codes"), [(False, []), (True, ["VC209"])])
def test_the_size_of_a_part_is_an_answer_about_the_degree(late: bool, codes: list[str]) -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        inner = Grouped(lambda m: 1)
        model = None if late else Around(inner, local=False)
        parallelize_module(inner, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        report = verify(model or Around(inner, local=True), (x(),))
    assert [item.code for item in report.findings] == codes
    assert bool(report) == (not late)
    assert all(item.message.startswith(f"`width` is {WIDTH} (read at ") for item in report.findings)


def _grouped(mesh: DeviceMesh, factor: Callable[[Any], Any], held: dict[str, Any], whole: dict[str, Any], **options: Any) -> Job:
    """The model holds ``held`` once it is parallelized; the model of one device holds ``whole``."""

    def build() -> nn.Module:
        return parallelize_module(Grouped(factor, **held), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    return Job(build, Grouped(factor, **whole), (x(),), given=False, mesh=False, placed=False, options=options)


FACTORS: dict[str, tuple[Callable[[Any], Any], dict[str, Any], dict[str, Any]]] = {
    "divided_by_groups": (lambda m: 1 / m.n_groups, {"n_groups": 4}, {"n_groups": 8}),
    "root_of_the_width": (lambda m: m.hidden**-0.5, {"hidden": WIDTH // 2}, {"hidden": WIDTH}),
    "scale_kept": (lambda m: m.scale, {"scale": (WIDTH // 2) ** -0.5}, {"scale": WIDTH**-0.5}),
    "sum_of_counts": (lambda m: m.a + m.b, {"a": 2, "b": 3}, {"a": 4, "b": 6}),
    "in_a_list": (lambda m: m.counts[0], {"counts": [2]}, {"counts": [4]}),
    "length_of_a_list": (lambda m: len(m.items_of), {"items_of": [1, 2]}, {"items_of": [1, 2, 3, 4]}),
    "in_a_branch": (lambda m: 2 if m.count > 4 else 1, {"count": 4}, {"count": 8}),
    "flag": (lambda m: 2 if m.whole else 1, {"whole": False}, {"whole": True}),
    "text": (lambda m: 2 if m.mode == "single" else 1, {"mode": "parallel"}, {"mode": "single"}),
}
for title, (factor, held, whole) in FACTORS.items():
    # No record and no spec confirm the number held: what is verified says on which value it rests.
    PROGRAMS.add(f"listed_{title}", lambda m, f=factor, h=held, w=whole: _grouped(m, f, h, w), right=False, ways=("verify",))


class OfTheDegree(Grouped):
    pass


def _default_of(number: int) -> Callable[..., int]:
    def factor(_: object, model: object, number: int = number) -> int:
        return number

    return factor


def _size_in(text: str) -> int:
    return int(text.partition("=")[2][0])


DEGREES: dict[str, Callable[[DeviceMesh], Callable[[Any], Any]]] = {
    "size_of_the_mesh_kept": lambda mesh: (lambda size: lambda m: size)(mesh.size()),
    "world_size_in_the_call": lambda mesh: lambda m: dist.get_world_size(),
    "initialized_in_a_branch": lambda mesh: lambda m: 2 if dist.is_initialized() else 1,
    "group_size": lambda mesh: lambda m: mesh.get_group().size(),
    "size_of_the_mesh_in_the_call": lambda mesh: lambda m: mesh.size(),
    "one_over_the_degree": lambda mesh: lambda m: 1 / dist.get_world_size() ** 2,
    "ranks_of_the_mesh": lambda mesh: lambda m: mesh.mesh.numel(),
    "members_of_the_group": lambda mesh: lambda m: len(dist.get_process_group_ranks(mesh.get_group())),
    "default_of_a_method": lambda mesh: types.MethodType(_default_of(mesh.size()), object()),
    "argument_of_a_partial_application": lambda mesh: functools.partial(lambda m, number: number, number=mesh.size()),
    "layout_of_the_mesh_kept": lambda mesh: (lambda size: lambda m: size)(mesh._layout.numel()),
    "layout_of_the_mesh_in_the_call": lambda mesh: lambda m: mesh._layout.numel(),
    "backend_of_the_group_kept": lambda mesh: (lambda size: lambda m: size)(
        mesh.get_group()._get_backend(torch.device("cpu")).size()
    ),
    "text_of_the_mesh_kept": lambda mesh: (lambda size: lambda m: size)(_size_in(f"{mesh}")),
    "text_of_the_mesh_in_the_call": lambda mesh: lambda m: _size_in(f"{mesh}"),
    "available": lambda mesh: lambda m: 3 if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1 else 1,
}
for title, of in DEGREES.items():

    def _degree(mesh: DeviceMesh, of: Callable[[DeviceMesh], Callable[[Any], Any]] = of) -> Job:
        def build() -> nn.Module:
            return parallelize_module(Grouped(of(mesh)), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

        return Job(build, Grouped(lambda m: 1), (x(),), given=False, mesh=False, placed=False)

    PROGRAMS.add(f"wrong_{title}", _degree, right=False, ways=("compile", "verify"))


@PROGRAMS.wrong("compile", "verify")
def wrong_degree_kept_as_an_attribute(mesh: DeviceMesh) -> Job:
    def build() -> nn.Module:
        model = parallelize_module(Grouped(lambda m: m.tp, tp=1), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        model.tp = mesh.size()
        return model

    return Job(build, Grouped(lambda m: m.tp, tp=1), (x(),), given=False, mesh=False, placed=False)


@PROGRAMS.wrong("compile", "verify")
def wrong_world_size_of_the_environment(mesh: DeviceMesh) -> Job:
    os.environ["WORLD_SIZE"] = str(mesh.size())

    def build() -> nn.Module:
        factor = int(os.environ["WORLD_SIZE"])
        return parallelize_module(Grouped(lambda m: factor), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    return Job(build, Grouped(lambda m: 1), (x(),), given=False, mesh=False, placed=False)


# ------------------------------------------------------------------------------------------------ local parameters


class Local(nn.Module):
    """Plain parameters of one rank's size, as code before DTensor has them."""

    def __init__(self, hidden: int, mesh: DeviceMesh | None) -> None:
        super().__init__()
        torch.manual_seed(1)
        up, down = torch.randn(WIDTH, 2 * WIDTH), torch.randn(2 * WIDTH, WIDTH)
        if mesh is not None:
            up, down = up.chunk(2, 1)[mesh.get_rank()], down.chunk(2, 0)[mesh.get_rank()]
        self.up, self.down, self.mesh = nn.Parameter(up.clone()), nn.Parameter(down.clone()), mesh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x @ self.up) @ self.down
        if self.mesh is not None:
            y = torch.distributed._functional_collectives.all_reduce(y, "sum", self.mesh)
        return y


@PROGRAMS.wrong("compile", "verify", numbers=False)
def wrong_local_parameters_without_a_spec(mesh: DeviceMesh) -> Job:
    return Job(lambda: Local(WIDTH, mesh), Local(2 * WIDTH, None), (x(),), given=False, placed=False)


def _places() -> dict[str, Any]:
    from torch.distributed.tensor import Shard

    return {"param_placements": {"up": (Shard(1),), "down": (Shard(0),)}}


@PROGRAMS.right("compile")
def right_local_parameters_with_a_spec(mesh: DeviceMesh) -> Job:
    # The gradient of a functional sum is a sum again: only what is computed forward is right.
    made, whole = Local(WIDTH, mesh).requires_grad_(False), Local(2 * WIDTH, None).requires_grad_(False)
    return Job(lambda: made, whole, (x(),), placed=False, options=_places())


def _kind(program: Program) -> tuple[object, ...]:
    return program.name.partition("_")[0], program.right, program.ways


@pytest.mark.parametrize(
    "programs", [taken([*PROGRAMS], 3, _kind), pytest.param([*PROGRAMS], marks=pytest.mark.sweep)], ids=["part", "all"]
)
def test_programs(programs: list[Program]) -> None:
    names = {program.name for program in programs}
    found = outcomes(__file__, *names)
    listed = {key: outcome for key, outcome in found.items() if key[0].startswith("listed_")}
    for (name, _), outcome in listed.items():
        title = name.removeprefix("listed_")
        numbers = FACTORS[title][1]
        for verdict, text in zip(outcome.verdicts, outcome.texts, strict=True):
            if verdict == "verified":
                assert all(f"`{number}`" in text or f"`len({number})`" in text for number in numbers), f"{name}: {text}"
    for name in filter(lambda name: name.startswith("unsure_"), names):
        outcome = found.pop((name, "compile"))
        assert outcome.equal, outcome
        assert set(outcome.verdicts) == {"unproved"}, outcome
        assert all("unproved[VC209]" in text for text in outcome.texts), outcome
    others = collections.OrderedDict(
        (p.name, p) for p in programs if not p.name.startswith(("listed_", "unsure_"))
    )
    assert failures(Programs(dict(others)), found) == []
