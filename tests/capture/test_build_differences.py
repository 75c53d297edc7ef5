"""What a constructor may choose by rank, built for each rank: proved of what the ranks hold, or not proved."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

import verifycompile
from tests.support import fake_mesh_world, fake_world
from verifycompile import UsageError, Verdict, verify

WORLD = 2
Choose = Callable[[], int]
"""The number by which a model chooses: the rank in wrong models, 0 in right ones."""


class Reduce(torch.autograd.Function):
    """The sum over a group, whose gradient every rank has already."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        return functional.all_reduce(x, "sum", group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(8, 4))
        self.down = nn.Parameter(torch.randn(4, 8))

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x @ self.up.t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.hidden(x) @ self.down.t()


class Part(Whole):
    """Each rank has half of the hidden units; ``choose`` is asked in the constructor."""

    def __init__(self, choose: Choose) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, 4))
        self.down = nn.Parameter(torch.randn(4, 4))
        self.choice = None
        self.choose_by(choose())

    def choose_by(self, number: int) -> None:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        group: Any = dist.group.WORLD
        return Reduce.apply(super().forward(x), group)


class Activation(Part):
    def choose_by(self, number: int) -> None:
        self.activation = [F.gelu, F.relu][number]

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(x @ self.up.t())


class Submodule(Part):
    def choose_by(self, number: int) -> None:
        self.activation = nn.GELU() if number == 0 else nn.ReLU()

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(x @ self.up.t())


class Layers(Part):
    def choose_by(self, number: int) -> None:
        self.activations = nn.ModuleList([nn.GELU()] * (1 + number))

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ self.up.t()
        for activation in self.activations:
            x = activation(x)
        return x


class Kind(enum.Enum):
    GELU = 0
    RELU = 1


class Enumerated(Part):
    def choose_by(self, number: int) -> None:
        self.kind = Kind(number)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        x = x @ self.up.t()
        return F.gelu(x) if self.kind is Kind.GELU else F.relu(x)


class Text(Part):
    def choose_by(self, number: int) -> None:
        self.approximate = ("none", "tanh")[number]

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x @ self.up.t(), approximate=self.approximate)


class Added(Part):
    def choose_by(self, number: int) -> None:
        self.eps = 0.0 if number == 0 else 1e-3

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return super().hidden(x) + self.eps


class Evaluating(Part):
    def choose_by(self, number: int) -> None:
        self.train(number == 0)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        x = super().hidden(x)
        return x if self.training else x * 2


class Frozen(Part):
    def choose_by(self, number: int) -> None:
        self.up.requires_grad_(number == 0)


class Buffer(Part):
    scale: torch.Tensor

    def choose_by(self, number: int) -> None:
        self.register_buffer("scale", torch.full((4,), 1.0 + number))

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return super().hidden(x) + (self.scale - 1)


class PlainTensor(Part):
    def choose_by(self, number: int) -> None:
        self.mask = torch.full((4,), number, dtype=torch.bool)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return super().hidden(x).masked_fill(self.mask, 0.0)


class GradientHook(Part):
    def choose_by(self, number: int) -> None:
        self.up.register_hook(lambda grad: grad * (1 + number))


class ReadingHook(Part):
    """The hook asks for the rank itself, long after the constructor."""

    def choose_by(self, number: int) -> None:
        wrong = number >= 0 and number != 7
        self.up.register_hook(lambda grad: grad * (1 + dist.get_rank() * self.factor))
        self.factor = number if wrong else 0


MODELS: list[type[Part]] = [
    Activation, Submodule, Layers, Enumerated, Text, Added, Evaluating, Frozen, GradientHook, ReadingHook,
]  # fmt: skip
OPTIONS: dict[str, Any] = {"param_placements": {"up": (Shard(0),), "down": (Shard(1),)}}


def report_on(build: Callable[[], Any], model: Any = None, **options: Any) -> verifycompile.Report:
    return verify(model, (torch.randn(3, 4),), spec=Whole(), build=build, **OPTIONS, **options)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("kind", MODELS)
def test_choices(kind: type[Part]) -> None:
    with fake_world(WORLD):
        right = report_on(lambda: kind(lambda: 0))
        wrong = report_on(lambda: kind(dist.get_rank))
    assert right.verdict is Verdict.VERIFIED, str(right)
    assert right.question.describe().endswith("2 ranks compared")
    assert wrong.verdict is not Verdict.VERIFIED, str(wrong)


def test_masks_that_differ() -> None:
    with fake_world(WORLD):
        report = report_on(lambda: PlainTensor(dist.get_rank))
    assert report.verdict is Verdict.REFUTED, str(report)


@pytest.mark.parametrize(("kind", "name"), [(Buffer, "scale")])
def test_tensors_that_differ(kind: type[Part], name: str) -> None:
    with fake_world(WORLD):
        report = report_on(lambda: kind(dist.get_rank))
    assert report.verdict is Verdict.UNPROVED, str(report)
    (finding,) = (item for item in report.findings if item.code == "VC207")
    assert f"{name}` holds other values on rank " in finding.message
    assert "is taken to be replicated over `world`" in finding.message


def test_a_build_that_makes_another_model_each_time() -> None:
    numbers = iter(range(100))
    with fake_world(WORLD), pytest.raises(UsageError) as wrong:
        report_on(lambda: Added(lambda: next(numbers)))
    assert wrong.value.code == "VC306"
    assert "option `build` does not make the same model for this rank each time: " in str(wrong.value)


def test_a_build_that_makes_another_model_than_the_one_given() -> None:
    with fake_world(WORLD), pytest.raises(UsageError) as wrong:
        report_on(lambda: Activation(lambda: 1), Activation(lambda: 0))
    assert "option `build` does not make the same model for this rank each time: " in str(wrong.value)


def test_a_build_that_fails() -> None:
    def build() -> nn.Module:
        raise RuntimeError("no such file")

    with fake_world(WORLD), pytest.raises(UsageError) as wrong:
        report_on(build)
    assert str(wrong.value) == (
        "error[VC306]: option `build` failed when it was called for this rank: RuntimeError: no such file"
    )


def test_a_build_that_reads_a_variable_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    with fake_world(WORLD), pytest.raises(UsageError) as wrong:
        report_on(lambda: Activation(lambda: int(os.environ["SLURM_PROCID"])))
    assert "whose value on other ranks is not known here: ask for the rank instead." in str(wrong.value)
    assert "option `build` reads `os.environ['SLURM_PROCID']` in `<lambda>` (test_build_differences.py:" in str(
        wrong.value
    )


def test_a_build_that_makes_no_model() -> None:
    with fake_world(WORLD), pytest.raises(UsageError) as wrong:
        report_on(lambda: 3)
    assert str(wrong.value) == (
        "error[VC306]: option `build` must make the parallel model; it made a value of type `int` for this rank."
    )
    with fake_world(WORLD), pytest.raises(UsageError) as wrong:
        verify(None, (torch.randn(3, 4),))
    assert str(wrong.value) == (
        "error[VC306]: there is nothing to verify: pass a model, or the option `build` that makes it."
    )
    with fake_world(WORLD), pytest.raises(UsageError) as wrong:
        verify(None, (torch.randn(3, 4),), build=3)
    assert str(wrong.value) == (
        "error[VC306]: option `build` must be a callable without arguments that makes the model."
    )


class Grouped(Part):
    """Makes its mesh and its groups itself, as every rank of a job does."""

    def choose_by(self, number: int) -> None:
        self.mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        mine = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
        self.group = mine[dist.get_rank() // 2]
        self.wrong = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        group = self.mesh.get_group("dp") if self.wrong else self.group
        return Reduce.apply(Whole.forward(self, x), group)


def test_meshes_and_groups_that_a_build_makes_are_forgotten() -> None:
    placements = {"up": (Shard(0),), "down": (Shard(1),)}
    with fake_mesh_world((2, 2), ("dp", "tp"), rank=1) as mesh:
        world = dist.distributed_c10d._world
        before = dict(world.pg_names), world.group_count, dist.get_rank()
        whole = {name: (Replicate(), *item) for name, item in placements.items()}
        for number, verdict in ((0, Verdict.VERIFIED), (1, Verdict.REFUTED)):
            report = verify(
                None,
                (torch.randn(3, 4),),
                spec=Whole(),
                mesh=mesh,
                build=lambda number=number: Grouped(lambda: number),
                param_placements=whole,
                out_placements={"output.0": (Replicate(), Replicate())},
            )
            assert report.verdict is verdict, str(report)
        assert (dict(world.pg_names), world.group_count, dist.get_rank()) == before


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.start = dist.get_rank() * 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))) + self.start


def test_a_model_of_dtensors_built_on_a_mesh_from_outside() -> None:
    with fake_mesh_world((2,), ("tp",), rank=1) as mesh:

        def build() -> nn.Module:
            plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            return parallelize_module(Perceptron(), mesh, plan)

        report = verify(None, (torch.randn(3, 4),), build=build)
        assert report.verdict is Verdict.VERIFIED, str(report)
        own = verify(build(), (torch.randn(3, 4),))
        assert own.verdict is Verdict.UNPROVED, str(own)
        assert own.findings[0].code == "VC207"


def test_the_report_says_for_whom_one_object_stands() -> None:
    class Quiet(Perceptron):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.up, self.down, self.start = nn.Linear(4, 8), nn.Linear(8, 4), 0

    with fake_mesh_world((2,), ("tp",), rank=1) as mesh:
        plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        report = verify(parallelize_module(Quiet(), mesh, plan), (torch.randn(3, 4),))
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert "the model object is the one that rank 1 built, and stands for all 2 ranks" in report.assumptions


@pytest.mark.sampled(every=2, of=("number",))
@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_compiled(around: bool, number: int) -> None:
    def build() -> nn.Module:
        return Activation(lambda: number * dist.get_rank())

    with fake_world(WORLD):
        model = build()

        def step(x: torch.Tensor) -> torch.Tensor:
            return model(x)

        options = {"spec": Whole(), "build": build, "inner": "eager", **OPTIONS}
        compiled: Any = torch.compile(step if around else model, backend="verify", options=options)
        if number == 0:
            compiled(torch.randn(3, 4))
            return
        with pytest.raises(verifycompile.RefinementError) as refused:
            compiled(torch.randn(3, 4))
    assert refused.value.report.verdict is Verdict.REFUTED, str(refused.value)


def test_compiled_function_without_the_model_that_is_built() -> None:
    with fake_world(WORLD):
        model = Activation(lambda: 0)

        def step(x: torch.Tensor) -> torch.Tensor:
            return model(x)

        options = {"spec": Whole(), "build": lambda: nn.Linear(4, 4), "inner": "eager", **OPTIONS}
        with pytest.raises(UsageError) as wrong:
            torch.compile(step, backend="verify", options=options)(torch.randn(3, 4))
    line = step.__code__.co_firstlineno
    assert str(wrong.value).startswith(
        "error[VC306]: option `build` makes `Linear`, of which the compiled function `step` "
        f"(test_build_differences.py:{line}) holds none: it must be the compiled model itself, or the one model of "
        "its class among the function's arguments and variables."
    )


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(*sizes, bias=False) for sizes in ((4, 8), (4, 8), (8, 4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def gated(mesh: DeviceMesh) -> nn.Module:
    columns = {name: ColwiseParallel() for name in ("gate", "up")}
    return parallelize_module(Gated(), mesh, {**columns, "down": RowwiseParallel()})


def test_meshes_that_torch_kept_of_an_earlier_job() -> None:
    """They equal those of this job, and torch hands on either where operators are sharded alike."""
    for builds in (False, True):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
        mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("tp",))
        options: Any = {"build": lambda mesh=mesh: gated(mesh)} if builds else {}
        report = verify(gated(mesh), (torch.randn(2, 4, requires_grad=True),), spec=Gated(), **options)
        dist.destroy_process_group()
        assert report.verdict is Verdict.VERIFIED, str(report)
