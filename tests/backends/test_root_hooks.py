"""Hooks of torch.distributed on the module that is compiled are part of what is checked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import PrepareModuleInput, parallelize_module

from tests.support import fake_mesh_world
from verifycompile import RefinementError, Verdict
from verifycompile.torch_interface.data_parallel.root_hooks import lays_out

Change = Callable[[Any], Any]


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def same(x: Any) -> Any:
    return x


def distributed(mesh: DeviceMesh, before: Change = same, after: Change = same) -> nn.Module:
    """Each rank computes its part of the batch."""

    def place(_name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for name, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, nn.Parameter(distribute_tensor(parameter, mesh, [Replicate()])))

    def enter(_module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
        return (DTensor.from_local(before(inputs[0]), mesh, [Shard(0)], run_check=False),)

    def leave(_module: nn.Module, outputs: Any, _mesh: DeviceMesh) -> Any:
        return after(outputs).to_local()

    return distribute_module(Perceptron(), mesh, place, enter, leave)


def compile_and_call(module: nn.Module) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="verify", options={"inner": "eager"})
    compiled(torch.randn(2, 8)).sum().backward()


def test_a_distributed_module() -> None:
    with fake_mesh_world((2,), ("dp",)) as mesh:
        compile_and_call(distributed(mesh))


@pytest.mark.parametrize(
    ("before", "after"),
    [(lambda x: x * 2, same), (lambda x: x.flip(0), same), (same, lambda y: y + 1), (same, lambda y: y.flip(0))],
)
def test_hooks_that_change_values(before: Change, after: Change) -> None:
    with fake_mesh_world((2,), ("dp",)) as mesh, pytest.raises(RefinementError) as refused:
        compile_and_call(distributed(mesh, before, after))
    assert refused.value.report.verdict is Verdict.REFUTED


@pytest.mark.parametrize("after", [same, lambda y: y.flip(0)])
def test_a_module_that_is_compiled_by_its_own_method(after: Change) -> None:
    torch._dynamo.reset()
    with fake_mesh_world((2,), ("dp",)) as mesh:
        module = distributed(mesh, after=after)
        module.compile(backend="verify", options={"inner": "eager"})
        with contextlib.nullcontext() if after is same else pytest.raises(RefinementError):
            module(torch.randn(2, 8)).sum().backward()


def test_inputs_that_a_style_prepares() -> None:
    """The parameters are whole: of a part of the positions their gradients are sums over a part."""
    prepare = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(0),), use_local_output=True)
    with fake_mesh_world((2,), ("tp",)) as mesh, pytest.raises(RefinementError) as refused:
        compile_and_call(parallelize_module(Perceptron(), mesh, prepare))
    report = refused.value.report
    assert (report.verdict, report.findings[0].code) == (Verdict.REFUTED, "VC101")


def test_which_modules_are_compiled_with_their_hooks() -> None:
    module = Perceptron()
    module.register_forward_pre_hook(lambda _module, inputs: inputs)
    assert not lays_out(module)
    with fake_mesh_world((2,), ("tp",)) as mesh:
        assert lays_out(distributed(mesh))
