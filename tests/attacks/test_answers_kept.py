"""``build`` with an answer about the rank that was given before: this rank's is no other rank's.

Each row scales its result by ``1 + number``. Wrongly the number is an answer that is kept from one call of ``build`` for
the next, or from before all: on this rank, 0, it changes nothing. The right twins ask anew, or ask for other reasons.
"""

from __future__ import annotations

import copy
import functools
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from tests.support import fake_mesh_world
from verifycompile import Report, Verdict, verify

ROWS = (Shard(0),)
LOG = logging.getLogger(__name__)
HELD: dict[str, int] = {}
number_of_all: int | None = None


class Scaled(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * (1.0 + self.number)


def asked(build: Callable[[], Any], model: Any = None) -> Report:
    options: dict[str, Any] = {"in_placements": {"x": ROWS}, "out_placements": {"output.0": ROWS}}
    return verify(model, (torch.ones(2, 3),), spec=lambda x: torch.tanh(x), build=build, **options)


KEPT: dict[str, tuple[Callable[[DeviceMesh], Report], str]] = {}


def kept(holder: str) -> Callable[[Callable[[DeviceMesh], Report]], Callable[[DeviceMesh], Report]]:
    def add(ask: Callable[[DeviceMesh], Report]) -> Callable[[DeviceMesh], Report]:
        KEPT[ask.__name__] = (ask, holder)
        return ask

    return add


@kept("`rank`, which `<lambda>` reads")
def variable(mesh: DeviceMesh) -> Report:
    rank = mesh.get_local_rank()
    return asked(lambda: Scaled(rank))


@kept("`start`, which `<lambda>` reads")
def computed_with_it(mesh: DeviceMesh) -> Report:
    place = mesh.get_coordinate()
    assert place is not None
    rank, *_ = place
    start = rank * 4
    return asked(lambda: Scaled(start))


@kept("`factor`, which `<lambda>` reads")
def decided_by_it(mesh: DeviceMesh) -> Report:
    if dist.get_rank() == 0:
        factor = 0
    else:
        factor = 1
    return asked(lambda: Scaled(factor))


@kept("`factor`, which `<lambda>` reads")
def chosen_in_one_expression(mesh: DeviceMesh) -> Report:
    factor = 1 if dist.get_rank() and mesh.ndim else 0
    return asked(lambda: Scaled(factor))


def _chosen() -> int:
    if dist.get_rank() == 0:
        return 0
    return 1


@kept("`factor`, which `<lambda>` reads")
def chosen_by_another_function(mesh: DeviceMesh) -> Report:
    factor = _chosen()
    return asked(lambda: Scaled(factor))


@kept("`numbers`, which `<lambda>` reads")
def put_into_a_container(mesh: DeviceMesh) -> Report:
    numbers: list[int] = []
    numbers.append(dist.get_rank())
    return asked(lambda: Scaled(numbers[0]))


@kept("a default of `make`")
def default(mesh: DeviceMesh) -> Report:
    def make(number: int = dist.get_rank()) -> Scaled:
        return Scaled(number)

    return asked(make)


@kept("an argument of a partial application of `Scaled`")
def partial_application(mesh: DeviceMesh) -> Report:
    return asked(functools.partial(Scaled, dist.get_rank()))


@kept("`rank`, which `<lambda>` reads")
def environment(mesh: DeviceMesh) -> Report:
    os.environ["RANK"] = "0"
    rank = int(os.environ["RANK"])
    return asked(lambda: Scaled(rank))


@kept("`model`, which `<lambda>` reads")
def model_made_before(mesh: DeviceMesh) -> Report:
    model = Scaled(dist.get_rank())
    return asked(lambda: copy.deepcopy(model))


@kept("the cache of `number`")
def cached_function(mesh: DeviceMesh) -> Report:
    @functools.lru_cache
    def number() -> int:
        return dist.get_rank()

    return asked(lambda: Scaled(number()))


@kept("the cache of `Asking`")
def cached_build(mesh: DeviceMesh) -> Report:
    class Asking(Scaled):
        def __init__(self) -> None:
            super().__init__(dist.get_rank())

    return asked(functools.cache(Asking))


def _held() -> int:
    if "number" not in HELD:
        HELD["number"] = dist.get_rank()
    return HELD["number"]


@kept("`HELD`, which `_held` reads")
def dictionary_filled_once(mesh: DeviceMesh) -> Report:
    HELD.clear()
    return asked(lambda: Scaled(_held()))


def _global() -> int:
    global number_of_all  # noqa: PLW0603 - as users do
    if number_of_all is None:
        number_of_all = dist.get_rank()
    return number_of_all


@kept("`number_of_all`, which `_global` reads")
def global_set_once(mesh: DeviceMesh) -> Report:
    global number_of_all  # noqa: PLW0603 - as users do
    number_of_all = None
    return asked(lambda: Scaled(_global()), Scaled(_global()))


def _by_name() -> int:
    if globals()["number_of_all"] is None:
        globals().update(number_of_all=dist.get_rank())
    return globals()["number_of_all"]


@kept("what the first call of `build` set, such as a cache, for the next one as this rank did not ask again")
def global_set_by_name(mesh: DeviceMesh) -> Report:
    globals().update(number_of_all=None)
    return asked(lambda: Scaled(_by_name()))


class Place:
    """What a job knows of itself, made once."""

    only: Place | None = None

    def __init__(self) -> None:
        self.number = dist.get_rank()

    @classmethod
    def get(cls) -> Place:
        if cls.only is None:
            cls.only = cls()
        return cls.only


@kept("`number`, which `<lambda>` reads")
def one_object(mesh: DeviceMesh) -> Report:
    Place.only = None
    return asked(lambda: Scaled(Place.get().number))


def _told_by_one(*told: object) -> None:
    if dist.get_rank() == 0:
        LOG.info(told)


class Trainer:
    def __init__(self, number: int) -> None:
        self.rank = dist.get_rank()
        self.is_first = self.rank == 0
        self.number = number

    def set_up(self) -> None:
        self.hold(dist.get_rank())

    def hold(self, number: int) -> None:
        self.number = number

    def build(self) -> Scaled:
        return Scaled(self.number)

    def build_by_rank(self) -> Scaled:
        return Scaled(1 - self.is_first)


@kept("`is_first`, which `build_by_rank` reads")
def attribute_of_what_builds(mesh: DeviceMesh) -> Report:
    return asked(Trainer(0).build_by_rank)


@kept("`number`, which `<lambda>` reads")
def body_of_a_class(mesh: DeviceMesh) -> Report:
    class Settings:
        number = dist.get_rank()

    return asked(lambda: Scaled(Settings.number))


@kept("`number`, which `<lambda>` reads")
def variable_of_the_function_around(mesh: DeviceMesh) -> Report:
    number = 0

    def ask() -> None:
        nonlocal number
        number = dist.get_rank()

    ask()
    return asked(lambda: Scaled(number))


@kept("`number`, which `<lambda>` reads")
def generator(mesh: DeviceMesh) -> Report:
    def numbers() -> Iterator[int]:
        yield dist.get_rank()

    number = next(numbers())
    return asked(lambda: Scaled(number))


def _hold(number: int) -> None:
    HELD["number"] = number


@kept("`HELD`, which `<lambda>` reads")
def container_of_another_function(mesh: DeviceMesh) -> Report:
    _hold(dist.get_rank())
    return asked(lambda: Scaled(HELD["number"]))


@kept("`number`, which `build` reads")
def attribute_that_a_method_sets(mesh: DeviceMesh) -> Report:
    trainer = Trainer(0)
    trainer.set_up()
    return asked(trainer.build)


@pytest.mark.parametrize("name", KEPT)
def test_an_answer_that_is_kept_is_named(name: str) -> None:
    ask, holder = KEPT[name]
    with fake_mesh_world((2,), ("tp",)) as mesh:
        report = ask(mesh)
    assert report.verdict is Verdict.UNPROVED, str(report)
    (finding,) = report.findings
    assert finding.code == "VC207"
    assert "asked for its rank before `build` was called, or once for several calls of it: " in finding.message
    assert f" kept in {holder}. What `build` makes as another rank may hold this rank's number." in finding.message


# ------------------------------------------------------------------------------------------------ right twins


def asked_for_other_reasons(mesh: DeviceMesh) -> Report:
    rank = dist.get_rank()
    world = 2
    LOG.info("%s of %s", rank, world)
    _told_by_one("of", world)
    part = torch.ones(4, 3).chunk(world)[mesh.get_local_rank()]
    model = Scaled(mesh.get_local_rank() // world)

    class Settings:
        held = dist.get_rank()
        first = 0

    def numbers() -> Iterator[int]:
        yield dist.get_rank()

    assert [*numbers(), Settings.held] == [rank, rank]
    assert part.shape == (2, 3)
    return asked(lambda: Scaled(mesh.get_local_rank() // world + Settings.first), model)


def asked_in_each_call(mesh: DeviceMesh) -> Report:
    def build() -> Scaled:
        HELD["number"] = dist.get_rank()
        return Scaled(HELD["number"] // 2)

    return asked(build, build())


def global_set_by_name_anew(mesh: DeviceMesh) -> Report:
    def build() -> Scaled:
        globals().update(number_of_all=None)
        return Scaled(_by_name() // 2)

    return asked(build)


def another_attribute_of_what_builds(mesh: DeviceMesh) -> Report:
    return asked(Trainer(0).build)


ANEW = (asked_in_each_call, global_set_by_name_anew)


@pytest.mark.parametrize("ask", [asked_for_other_reasons, *ANEW, another_attribute_of_what_builds])
def test_what_asks_anew_or_for_other_reasons_is_verified(ask: Callable[[DeviceMesh], Report]) -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        report = ask(mesh)
    assert report.verdict is Verdict.VERIFIED, str(report)
    listed = "what `build` makes holds no answer about the rank that was given before it was called: "
    assert any(text.startswith(listed) for text in report.assumptions) == (ask not in ANEW)
    anew = "a call of `build` makes its model of nothing that an earlier call left"
    assert (anew in report.assumptions) == (ask is not another_attribute_of_what_builds)


PRIVATE: dict[str, Callable[[DeviceMesh], int]] = {
    "mesh": lambda mesh: mesh._rank,
    "coordinate": lambda mesh: (mesh._coordinate_on_dim or ())[0],
    "computed coordinate": lambda mesh: (mesh._compute_coordinate_on_dim() or ())[0],
    "backend": lambda mesh: mesh.get_group()._get_backend(torch.device("cpu")).rank(),
}


@pytest.mark.parametrize("ask", PRIVATE.values(), ids=PRIVATE)
def test_private_ways_to_ask_answer_for_the_rank_that_is_built(ask: Callable[[DeviceMesh], int]) -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        assert asked(lambda: Scaled(ask(mesh) - dist.get_rank())).verdict is Verdict.VERIFIED
        assert asked(lambda: Scaled(ask(mesh))).verdict is Verdict.REFUTED
