"""Data-parallel wrappers that communicate outside of the graph: the contract is assumed, listed, and checked against."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import DataParallelMeshDims, FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import verifycompile
from tests.programs import mlp
from tests.programs.data_parallel import Regression, pairs
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict
from verifycompile.torch_interface.data_parallel.outer import Outer, outer_of
from verifycompile.torch_interface.data_parallel.unwrapped import without_outer_wrappers

BATCH = {"x": (Shard(0),), "y": (Shard(0),)}


class Total(mlp.MLP):
    """The sum over a rank's samples."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(super().forward(x), y, reduction="sum")


def nested(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for layer in (model.up, model.down, model):
        fully_shard(layer, mesh=mesh)
    return model


def summing(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    fully_shard(model, mesh=mesh)
    assert isinstance(model, FSDPModule)
    model.set_gradient_divide_factor(1.0)
    return model


Wrap = Callable[[nn.Module, DeviceMesh], nn.Module]
WRAPPERS: dict[str, Wrap] = {
    "ddp": lambda model, mesh: DistributedDataParallel(model, device_mesh=mesh),
    "ddp of all ranks": lambda model, mesh: DistributedDataParallel(model),
    "replicate": lambda model, mesh: replicate(model, device_mesh=mesh),
    "fully_shard": lambda model, mesh: fully_shard(model, mesh=mesh),
    "nested fully_shard": nested,
}


def report(kind: type[nn.Module], wrap: Wrap, *, inputs: int = 2) -> Report:
    with fake_mesh_world((4,), ("dp",)) as mesh:
        placements = dict(list(BATCH.items())[:inputs])
        return verifycompile.verify(wrap(kind(), mesh), pairs()[:inputs], in_placements=placements)


@pytest.mark.parametrize("name", WRAPPERS)
def test_means_of_means(name: str) -> None:
    found = report(Regression, WRAPPERS[name])
    assert found.verdict is Verdict.VERIFIED, str(found)
    is_ddp = name.startswith("ddp")
    wrapper = "DistributedDataParallel" if is_ddp else name.removeprefix("nested ")
    gathers = ", and gathers the parameters before" if wrapper == "fully_shard" else ""
    over = "data_parallel" if name == "ddp of all ranks" else "dp"
    expected = f"outside of the graph, `{wrapper}` takes the mean of the gradients of 4 parameters over {over}{gathers}"
    assert f"{expected}; a loss outside of it is the mean over the ranks too" in found.assumptions


@pytest.mark.parametrize("name", ["ddp", "fully_shard"])
def test_a_loss_outside_of_the_graph(name: str) -> None:
    found = report(mlp.MLP, WRAPPERS[name], inputs=1)
    assert found.verdict is Verdict.VERIFIED, str(found)


class WithSamples(mlp.MLP):
    """A loss beside the samples that it is of, through which gradients flow as well, and a value without gradients."""

    reduction = "mean"

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = super().forward(x)
        return found, F.mse_loss(found, y, reduction=self.reduction), found.detach().abs()


class WithSamplesInAll(WithSamples):
    reduction = "sum"


@pytest.mark.parametrize("name", ["ddp", "fully_shard"])
def test_a_loss_and_what_it_is_of(name: str) -> None:
    found = report(WithSamples, WRAPPERS[name])
    assert found.verdict is Verdict.VERIFIED, str(found)
    assert str(found.placements["grad.up.weight"]) == "(Partial(avg),)"
    assert found.certificate is not None
    assert verifycompile.check_certificate(found.certificate)
    wrong = report(WithSamplesInAll, WRAPPERS[name])
    assert wrong.verdict is Verdict.UNPROVED
    assert wrong.findings[0].code == "VC103"


class Few(nn.Module):
    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.layer, self.reduction = nn.Linear(2, 1), reduction

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.layer(x)
        return found, found.mean() if self.reduction == "mean" else found.sum()


def test_a_loss_and_what_it_is_of_element_by_element() -> None:
    for reduction, verdict in (("mean", Verdict.VERIFIED), ("sum", Verdict.REFUTED)):
        with fake_mesh_world((2,), ("dp",)) as mesh:
            model = DistributedDataParallel(Few(reduction), device_mesh=mesh)
            found = verifycompile.cross_check(model, (torch.randn(2, 2),), per_rank_numbers=[])
        assert found.verdict is verdict, str(found)


@pytest.mark.parametrize("name", ["ddp", "replicate", "nested fully_shard"])
def test_the_mean_of_sums_is_not_proved(name: str) -> None:
    found = report(Total, WRAPPERS[name])
    assert found.verdict is Verdict.UNPROVED
    assert found.findings[0].code == "VC103"
    expected = "`grad.up.weight` is averaged over dp, though the ranks hold parts of a sum"
    assert found.findings[0].message == expected


class Weighted(Total):
    """A sum that the caller's count of samples divides, as trainers do that count tokens."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, count: torch.Tensor, ranks: int = 1) -> torch.Tensor:
        return super().forward(x, y) / count * ranks


@pytest.mark.parametrize("ranks", [4, 1, 2])
def test_a_sum_divided_by_the_count_of_all_ranks(ranks: int) -> None:
    class Trained(Weighted):
        def forward(self, x: torch.Tensor, y: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
            return super().forward(x, y, count, ranks)

    with fake_mesh_world((4,), ("dp",)) as mesh:
        model, arguments = fully_shard(Trained(), mesh=mesh), (*pairs(), torch.tensor(8))
        found = verifycompile.verify(model, arguments, spec=Weighted(), in_placements=BATCH)
    assert found.verdict is (Verdict.VERIFIED if ranks == 4 else Verdict.UNPROVED if ranks == 1 else Verdict.REFUTED), (
        str(found)
    )


def test_fully_shard_that_sums() -> None:
    assert report(Total, summing).verdict is Verdict.VERIFIED
    assert report(Regression, summing).verdict is Verdict.REFUTED
    assert report(mlp.MLP, summing, inputs=1).verdict is Verdict.VERIFIED


@pytest.mark.parametrize("sums", [True, False])
def test_over_an_axis_of_the_parameters_own_mesh(sums: bool) -> None:
    class Squares(nn.Module):
        """A distributed loss: it is that of all samples, so the mean over the ranks of its gradients is too small."""

        def __init__(self, mesh: DeviceMesh) -> None:
            super().__init__()
            self.rows = nn.Parameter(distribute_tensor(torch.randn(6, 4), mesh, [Replicate()]))
            self.up = nn.Parameter(distribute_tensor(torch.randn(3, 4), mesh, [Replicate()]))

        def forward(self, index: torch.Tensor) -> torch.Tensor:
            return F.linear(F.embedding(index, self.rows), self.up).square().sum()

    with fake_mesh_world((2,), ("dp",)) as mesh:
        model = fully_shard(Squares(mesh), mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard="dp"))
        if sums:
            model.set_gradient_divide_factor(1.0)
        index = DTensor.from_local(torch.tensor([0, 3, 3, 5]), mesh, [Shard(0)])
        found = verifycompile.verify(model, (index,))
    assert found.verdict is (Verdict.VERIFIED if sums else Verdict.REFUTED), str(found)


def test_a_method_that_is_registered_as_a_forward() -> None:
    class Encoder(mlp.MLP):
        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.mse_loss(self.encode(x), y)

    def registered(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        register_fsdp_forward_method(fully_shard(model, mesh=mesh), "encode")
        return model

    found = report(Encoder, registered)
    assert found.verdict is Verdict.VERIFIED, str(found)


class Step(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.wrapped = inner

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.wrapped(x, y)


wrapped: nn.Module = nn.Identity()
"""A variable of the script, of the name of an attribute, as ``model`` is in many."""


def test_a_variable_of_the_script_with_the_name_of_an_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_mesh_world((4,), ("dp",)) as mesh:
        model = fully_shard(Regression(), mesh=mesh)
        monkeypatch.setitem(globals(), "wrapped", model)
        found = verifycompile.verify(Step(model), pairs(), in_placements=BATCH)
    assert found.verdict is Verdict.VERIFIED, str(found)


@pytest.mark.parametrize("right", [True, False])
def test_around_tensor_parallelism(right: bool) -> None:
    with fake_mesh_world((2, 2), ("dp", "tp")) as mesh:
        plan = mlp.plan() if right else {**mlp.plan(), "down": RowwiseParallel(output_layouts=Partial())}
        model = parallelize_module(Regression(), mesh["tp"], dict(plan))
        fully_shard(model, mesh=mesh["dp"])
        placements = {name: (Shard(0), Replicate()) for name in BATCH}
        found = verifycompile.verify(model, pairs(), in_placements=placements)
    assert found.verdict is (Verdict.VERIFIED if right else Verdict.REFUTED), str(found)


def test_under_compilation() -> None:
    with fake_mesh_world((4,), ("dp",)) as mesh:
        options = {"in_placements": BATCH, "mesh": mesh, "inner": "eager"}
        for wrap in (WRAPPERS["ddp"], WRAPPERS["fully_shard"]):
            torch._dynamo.reset()
            torch.compile(wrap(Regression(), mesh), backend="verify", options=options)(*pairs())
            torch._dynamo.reset()
            with pytest.raises(verifycompile.RefinementError):
                torch.compile(wrap(Total(), mesh), backend="verify", options=options)(*pairs())


def test_the_model_is_left_as_it_was() -> None:
    with fake_mesh_world((2, 2), ("dp", "tp")) as mesh:
        model = parallelize_module(mlp.MLP(), mesh["tp"], dict(mlp.plan()))
        fully_shard(model, mesh=mesh["dp"])
        before = dict(model.named_parameters()), type(model), dict(model._forward_pre_hooks)
        copy, outer = without_outer_wrappers(model)
        assert (dict(model.named_parameters()), type(model), dict(model._forward_pre_hooks)) == before
        assert type(copy) is mlp.MLP
        assert isinstance(copy.up.weight, DTensor)
        assert copy.up.weight.placements == (Shard(0),)
        assert copy.up.weight.shape == (32, 16)
        assert {item.dimensions for item in outer.reductions.values()} == {(0,)}
        assert set(outer.reductions) == {id(value) for value in copy.parameters()}
        assert set(outer_of(list(model.parameters())).reductions) == {id(value) for value in model.parameters()}
        plain = nn.Linear(2, 2)
        assert without_outer_wrappers(plain) == (plain, Outer())


@pytest.mark.parametrize("is_divided", [True, False])
def test_what_a_wrapper_holds_was_constructed_as_without(is_divided: bool) -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n_heads, self.up = 4, nn.Linear(8, 16, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.up(x).view(len(x), self.n_heads, -1).sum(-1)

    with fake_mesh_world((2, 2), ("dp", "tp")) as mesh:
        model = parallelize_module(Heads().requires_grad_(False), mesh["tp"], {"up": ColwiseParallel()})
        if is_divided:
            model.n_heads //= 2
        report = verifycompile.verify(fully_shard(model, mesh=mesh["dp"]), (torch.randn(2, 8),))
    assert report.verdict is (Verdict.VERIFIED if is_divided else Verdict.REFUTED), str(report)
