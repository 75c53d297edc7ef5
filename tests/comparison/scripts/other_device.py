"""A program whose tensors are on a device that is not the CPU; prints the verdicts on it, right and wrong.

The device is one of Python: its tensors hold others of the CPU, and no operator takes tensors of both.
"""

# ruff: noqa: T201 - a script prints

from __future__ import annotations

import functools
from typing import Any, Self

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

import verifycompile
from tests.comparison.further import SPLIT, Mlp
from tests.support import fake_mesh_world


class Streams(_DummyBackendModule):
    def get_rng_state(self) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor) -> None:
        assert state.device.type == "cpu"


_setup_privateuseone_for_python_backend("toy", backend_module=Streams())


class Toy(torch.Tensor):
    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: type[Self], held: torch.Tensor) -> Self:
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), dtype=held.dtype, device="toy:0"
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, device = func._schema.name, (kwargs or {}).get("device")
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor) and value.dim()]
        if not all(isinstance(value, Toy) for value in given) and name != "aten::copy_":
            raise RuntimeError(f"{name} of tensors on two devices")
        named: Any = {**(kwargs or {}), **({} if device is None else {"device": "cpu"})}
        held, named = tree_map(lambda value: value.held if isinstance(value, Toy) else value, (args, named))
        result = func(*held, **named)
        if name == "aten::copy_" or (device is not None and torch.device(device).type == "cpu"):
            return args[0] if name == "aten::copy_" else result
        own = {id(value.held): value for value in tree_leaves(args) if isinstance(value, Toy)}
        return tree_map(lambda v: own.get(id(v), Toy(v)) if isinstance(v, torch.Tensor) else v, result)


library = torch.library.Library("_", "IMPL")
library.fallback(lambda func, *args, **kwargs: Toy.__torch_dispatch__(func, (), args, kwargs), "PrivateUse1")


def build(mesh: DeviceMesh, *, wrong: bool) -> nn.Module:
    torch.manual_seed(0)
    model = Mlp(mesh, wrong)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(Toy(parameter.detach())))
    return model


if __name__ == "__main__":
    for wrong in (False, True):
        torch.manual_seed(0)
        with fake_mesh_world((2,), ("tp",)) as mesh:
            found = verifycompile.compare(
                args=(Toy(torch.randn(4, 8)),), build=functools.partial(build, mesh, wrong=wrong), mesh=mesh, spec=Mlp(),
                param_placements=SPLIT, optimizer=torch.optim.SGD, clip=lambda p: nn.utils.clip_grad_value_(p, 0.1),
            )  # fmt: skip
        print(found.verdict.value, *(finding.output for finding in found.findings))
