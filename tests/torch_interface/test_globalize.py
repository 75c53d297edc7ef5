"""Copies without torch.distributed."""

from __future__ import annotations

import collections
import functools
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.utils import parametrizations, parametrize

from tests.support import fake_mesh_world
from verifycompile.torch_interface.dtensor.globalize import Globalizer, is_of_torch_distributed


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape) if isinstance(tensor, DTensor) else tensor


class Gather(nn.Module):
    def forward(self, weight: DTensor) -> torch.Tensor:
        return weight.redistribute(placements=[Replicate()]).to_local()


class Pair(NamedTuple):
    first: Any
    second: Any


def test_parallel_modules_become_single_device_modules() -> None:
    with fake_mesh_world((4,), ("tp",)) as mesh:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        seen: list[str] = []
        model[0].register_forward_hook(lambda module, args, output: seen.append("called"))
        parallelize_module(model, mesh, {"0": ColwiseParallel()})
        before = dict(model[0]._parameters), dict(model[0]._forward_hooks), dict(model[0]._forward_pre_hooks)
        copy = Globalizer(whole)(model)
        assert tuple(copy[0].weight.shape) == (16, 8)
        assert type(copy[0].weight) is not DTensor
        assert copy(torch.ones(2, 8)).shape == (2, 16)
        assert seen == ["called"]
        assert before == (model[0]._parameters, model[0]._forward_hooks, model[0]._forward_pre_hooks)
        assert isinstance(model[0].weight, DTensor)


def test_tied_parameters_stay_tied() -> None:
    with fake_mesh_world((4,), ("tp",)) as mesh:
        model = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        shared = nn.Parameter(distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)]))
        for layer in model:
            layer.weight = shared  # type: ignore[assignment]
        copy = Globalizer(whole)(model)
        assert copy[0].weight is copy[1].weight


def test_containers_functions_and_objects() -> None:
    with fake_mesh_world((4,), ("tp",)) as mesh:
        tensor = distribute_tensor(torch.ones(8), mesh, [Shard(0)])

        class Holder:
            def __init__(self) -> None:
                self.tensor = tensor

            def get(self) -> torch.Tensor:
                return self.tensor

        def closure() -> torch.Tensor:
            return tensor

        globalizer = Globalizer(whole)
        for value in (
            [tensor],
            Pair(1, tensor),
            {"a": (tensor, 2)},
            functools.partial(lambda x: x, tensor),
            Holder().get,
            closure,
        ):
            copy = globalizer(value)
            assert copy is not value
            assert type(copy) is type(value)
        assert not isinstance(globalizer(closure)(), DTensor)
        assert not isinstance(globalizer(Holder().get)(), DTensor)
        assert not isinstance(globalizer([tensor])[0], DTensor)
        assert globalizer([tensor])[0] is globalizer(tensor)


class Fields(collections.OrderedDict[str, Any]):
    """A mapping whose entries are attributes too, as outputs of some packages are."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("entries are set one by one")


def test_mappings_of_other_kinds() -> None:
    with fake_mesh_world((4,), ("tp",)) as mesh:
        fields = Fields()
        fields["tensor"] = distribute_tensor(torch.ones(8), mesh, [Shard(0)])
        copy = Globalizer(whole)(fields)
        assert type(copy) is Fields
        assert copy is not fields
        assert copy.tensor is copy["tensor"]
        assert not isinstance(copy["tensor"], DTensor)


def test_what_does_not_change_is_shared() -> None:
    values: list[Any] = [[1, 2], {"a": torch.ones(2)}, whole, object(), torch.relu, nn.Linear, "text"]
    globalizer = Globalizer(whole)
    assert all(globalizer(value) is value for value in values)


def test_parametrizations_that_move_data_are_removed() -> None:
    with fake_mesh_world((4,), ("tp",)) as mesh:
        layer = nn.Linear(8, 8, bias=False)
        layer.weight = nn.Parameter(distribute_tensor(layer.weight, mesh, [Shard(0)]))
        parametrize.register_parametrization(layer, "weight", Gather(), unsafe=True)
        globalizer = Globalizer(whole)
        copy = globalizer(layer)
        assert type(copy) is nn.Linear
        assert list(copy._parameters) == ["bias", "weight"]
        assert globalizer.assumptions == [
            "parametrization Gather of `weight` in Linear only moves data; the spec is without it"
        ]


def test_properties_that_move_data_are_removed() -> None:
    with fake_mesh_world((4,), ("tp",)) as mesh:
        layer, gather = nn.Linear(8, 8), Gather()
        for name in ("weight", "bias"):
            layer.register_parameter(name, nn.Parameter(distribute_tensor(getattr(layer, name), mesh, [Shard(0)])))
        getters = {n: property(lambda self, n=n: gather(self._parameters[n])) for n in ("weight", "bias")}
        layer.__class__ = type("GatheredLinear", (nn.Linear,), getters)
        globalizer = Globalizer(whole)
        copy = globalizer(layer)
        assert type(copy) is nn.Linear
        assert type(copy.weight) is nn.Parameter or type(copy.weight) is torch.Tensor
        assert globalizer.assumptions == [
            f"parametrization Gather of `{name}` in Linear only moves data; the spec is without it"
            for name in ("weight", "bias")
        ]


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


class DoublingLinear(nn.Linear):
    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        return 2 * self._parameters["weight"]


def test_parametrizations_that_compute_stay() -> None:
    with fake_mesh_world((4,), ("tp",)) as mesh:
        layer = nn.Linear(8, 8, bias=False)
        layer.weight = nn.Parameter(distribute_tensor(layer.weight, mesh, [Shard(0)]))
        parametrize.register_parametrization(layer, "weight", Gather(), unsafe=True)
        parametrize.register_parametrization(layer, "weight", Doubled(), unsafe=True)
        globalizer = Globalizer(lambda tensor: torch.ones(tensor.shape) if isinstance(tensor, DTensor) else tensor)
        copy = globalizer(layer)
        assert torch.equal(copy.weight, 2 * torch.ones(8, 8))
        assert len(globalizer.assumptions) == 1
        plain = nn.Linear(8, 8)
        plain.__class__ = DoublingLinear
        assert type(Globalizer(whole)(plain)) is DoublingLinear


def test_parametrizations_of_torch_stay() -> None:
    layer = parametrizations.weight_norm(nn.Linear(8, 8))
    globalizer = Globalizer(whole)
    copy = globalizer(layer)
    assert type(copy) is type(layer)
    assert "parametrizations" in copy._modules
    assert globalizer.assumptions == []


def test_compiled_modules_are_unwrapped() -> None:
    model = nn.Linear(2, 2)
    assert type(Globalizer(whole)(torch.compile(model))) is nn.Linear


def test_code_of_torch_distributed() -> None:
    assert is_of_torch_distributed(ColwiseParallel._prepare_input_fn)
    assert is_of_torch_distributed(functools.partial(ColwiseParallel._prepare_input_fn))
    assert not is_of_torch_distributed(whole)
