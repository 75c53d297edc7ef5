"""Wrappers around ``module.forward`` that communicate, and hooks that do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tests.support import fake_mesh_world
from verifycompile.torch_interface.communication.wrappers import holds_mesh, module_behind, moves_data, wrapped_forward
from verifycompile.torch_interface.dtensor.globalize import Globalizer


class Scaled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # another name of the argument
        return 2 * super().forward(x)


def wrapped(module: nn.Module, mesh: Any) -> Callable[..., Any]:
    original = module.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        x = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
        return original(x).redistribute(placements=[Replicate()]).to_local()

    return forward


def plain(module: nn.Module) -> Callable[..., Any]:
    original = module.forward
    return lambda x: original(x) + 1


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return torch.ones(tensor.shape) if isinstance(tensor, DTensor) else tensor


def test_a_wrapper_with_a_mesh_is_removed_and_named() -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        module = Scaled(4, 4, bias=False)
        module.weight = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
        module.forward = wrapped(module, mesh)
        globalizer = Globalizer(whole)
        copy = globalizer(nn.Sequential(module))
        assert "forward" not in vars(copy[0])
        assert torch.equal(copy(torch.ones(1, 4)), torch.full((1, 4), 8.0))
        assert globalizer.assumptions == [
            "wrapper `wrapped.<locals>.forward` around Scaled communicates and moves data only; the spec is without it"
        ]
        assert "forward" in vars(module)


def test_a_wrapper_without_a_mesh_stays_inside_of_one_that_is_removed() -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        module = Scaled(4, 4, bias=False)
        module.weight = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
        module.forward = plain(module)
        module.forward = wrapped(module, mesh)
        copy = Globalizer(whole)(module)
        assert torch.equal(copy(torch.ones(1, 4)), torch.full((1, 4), 9.0))


def test_only_wrappers_of_the_own_forward_are_removed() -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        module, other = Scaled(4, 4), Scaled(4, 4)
        own = plain(module)
        assert wrapped_forward(module, own) is own
        assert wrapped_forward(module, wrapped(other, mesh)) is None
        first, second = module.forward, functools.partial(module.forward)
        assert wrapped_forward(module, lambda x: first(x) + second(x) + mesh.size()) is None
        assert wrapped_forward(module, functools.partial(wrapped(module, mesh))) == module.forward


def test_the_module_behind_the_code_of_a_wrapper() -> None:
    def behind(function: Any) -> nn.Module | None:
        return module_behind(function.__code__, function.__closure__ or ())

    with fake_mesh_world((2,), ("tp",)) as mesh:
        module, other = Scaled(4, 4), Scaled(4, 4)
        wrapper = wrapped(module, mesh)
        assert behind(wrapper) is None  # nobody calls it
        module.forward = wrapper
        assert behind(wrapper) is module
        assert behind(wrapped(other, mesh)) is None  # the same code around another module
        other.forward = plain(other)
        assert behind(other.forward) is None  # it holds no mesh
        assert behind(Scaled.forward) is None


def test_what_holds_a_mesh() -> None:
    class Style:
        def __init__(self, mesh: Any) -> None:
            self.mesh = mesh

        def hook(self, module: nn.Module, inputs: Any) -> None: ...

    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = nn.Linear(2, 2)
        model.mesh = mesh
        assert holds_mesh(lambda: mesh)
        assert holds_mesh(functools.partial(print, mesh))
        assert holds_mesh(Style(mesh).hook)
        group = mesh.get_group()
        assert holds_mesh(lambda group=group: group)
        assert not holds_mesh(lambda: model)
        assert not holds_mesh(print)


def test_what_moves_data() -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        assert moves_data(lambda _module, _inputs, output: output.to_local())
        assert moves_data(lambda _module, _inputs, output: output * mesh.size())
        assert not moves_data(lambda _module, _inputs, output: output * 2)
        assert not moves_data(print)


def test_hooks_that_hold_a_mesh_are_removed_and_named() -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        module = Scaled(4, 4)
        module.register_forward_pre_hook(lambda module, inputs: (inputs[0] * mesh.size(),))
        module.weight = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
        globalizer = Globalizer(whole)
        copy = globalizer(module)
        assert not copy._forward_pre_hooks
        assert len(module._forward_pre_hooks) == 1
        (assumption,) = globalizer.assumptions
        assert assumption.startswith(
            "hook `test_hooks_that_hold_a_mesh_are_removed_and_named.<locals>.<lambda>` around"
        )
