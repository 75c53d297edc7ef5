"""A model as its compiled code sees it: without the hooks of data-parallel wrappers, and with whole parameters."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import torch
from torch import nn
from torch.distributed import _composable_state
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel._data_parallel_utils import _unflatten_tensor
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.nn.parallel import DistributedDataParallel

from verifycompile.errors import UsageError
from verifycompile.torch_interface.data_parallel.outer import FIRST_FSDP, Outer, holds_first_fsdp
from verifycompile.torch_interface.data_parallel.outer_ddp import (
    contract_of_ddp,
    managed_by_ddp,
    of_replicate,
    replicate_state,
)
from verifycompile.torch_interface.data_parallel.outer_fully_shard import Held, contracts_of_state, of_fully_shard
from verifycompile.torch_interface.data_parallel.outer_reduction import OuterReduction, of_each
from verifycompile.torch_interface.dtensor.globalize import Relocator, file_of_code
from verifycompile.torch_interface.dynamo.closures import globals_named

_CODE = (
    "/torch/distributed/tensor/parallel/ddp.py",
    "/torch/distributed/fsdp/",
    "/torch/distributed/_composable/",
    "/torch/nn/parallel/",
)


def without_outer_wrappers(model: Any) -> tuple[Any, Outer]:
    """``model`` as its compiled code sees it, with whole parameters and without the wrappers' hooks, and the wrappers.

    ``model`` itself where it has no such wrapper. It is never modified. Raises ``UsageError`` VC310 for a wrapper that
    is not understood.
    """
    if not isinstance(model, nn.Module):
        return model, Outer()
    if holds_first_fsdp(model):
        raise UsageError("VC310", FIRST_FSDP)
    if not any(_is_wrapper(module) for module in model.modules()):
        return model, Outer()
    unwrapper = _Unwrapper(model)
    unwrapped = unwrapper(model)
    _check_hooks(model, unwrapper)
    return unwrapped, Outer(unwrapper.reductions, tuple(dict.fromkeys(unwrapper.contracts)))


def _check_hooks(model: nn.Module, unwrapper: _Unwrapper) -> None:
    """Raises ``UsageError`` VC310 for a hook that would be called with copies and may tell them from the modules.

    That of all modules, and one that reads from a global variable what has modules or tensors of its own here.
    """
    tables = [table for module in model.modules() for table in (module._forward_pre_hooks, module._forward_hooks)]
    found = [*_global_forward_pre_hooks.values(), *_global_forward_hooks.values()]
    for hook in (hook for table in tables for hook in table.values()):
        is_function = isinstance(hook, types.FunctionType) and not unwrapper.is_left_out(hook)
        if is_function and any(unwrapper(held) is not held for held in globals_named(hook)):
            found.append(hook)
    if found:
        name = getattr(found[0], "__qualname__", repr(found[0]))
        raise UsageError(
            "VC310",
            f"the hook `{name}` is one of all modules, or reads modules from a global variable, and is called with "
            "copies of the modules here, of which the data-parallel wrappers are taken off. Register it on one module, "
            "without such a variable, or compile the wrapped model with the backend `verify`.",
        )


def _is_wrapper(module: nn.Module) -> bool:
    is_sharded = isinstance(_composable_state._get_module_state(module), FSDPState)
    return is_sharded or isinstance(module, DistributedDataParallel) or replicate_state(module) is not None


_GATHERED = "_verifycompile_gathered"


def is_without_contents(tensor: torch.Tensor) -> bool:
    """Whether it stands for a parameter that ``fully_shard`` gathers, which holds nothing before that."""
    return _GATHERED in vars(tensor)


class _Unwrapper(Relocator):
    """Copies without data-parallel wrappers; what other parallelism put into the modules stays."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(self._unsharded)
        self.reductions: dict[int, OuterReduction] = {}
        self.contracts: list[OuterReduction] = []
        self._sharded: dict[int, Held] = {}
        for module in model.modules():
            state = _composable_state._get_module_state(module)
            if isinstance(state, FSDPState):
                self._sharded.update((id(held.parameter), held) for held in of_fully_shard(state))
                self.contracts.extend(contracts_of_state(state))
            elif isinstance(module, DistributedDataParallel):
                self._manage(managed_by_ddp(module), contract_of_ddp(module))
            elif (replicated := replicate_state(module)) is not None:
                self._manage(*of_replicate(module, replicated))

    def _manage(self, parameters: list[nn.Parameter], contract: OuterReduction) -> None:
        self.reductions.update(of_each(parameters, contract))
        self.contracts.append(contract)

    def _module(self, module: nn.Module) -> nn.Module:
        if isinstance(module, DistributedDataParallel):
            self.replace(module, self(module.module))
            return self(module)
        return super()._module(module)

    def _unsharded(self, tensor: torch.Tensor) -> torch.Tensor:
        held = self._sharded.get(id(tensor))
        if held is not None:
            return self._gathered(tensor, held)
        localized = getattr(tensor, "_st_info", None)
        if localized is None:
            return tensor
        # DDP around tensor parallelism keeps the local tensors of DTensors, which it makes again before each forward.
        parameter = nn.Parameter(_unflatten_tensor(tensor.detach(), localized), requires_grad=tensor.requires_grad)
        if id(tensor) in self.reductions:
            self.reductions[id(parameter)] = self.reductions.pop(id(tensor))
        return parameter

    def _gathered(self, tensor: torch.Tensor, held: Held) -> nn.Parameter:
        whole = torch.empty(held.record._orig_size, dtype=tensor.dtype, device=tensor.device)
        inner = held.record._unsharded_dtensor_spec
        if inner is not None:
            whole = DTensor.from_local(
                whole, inner.mesh, inner.placements, run_check=False, shape=tensor.shape, stride=inner.stride
            )
        parameter = nn.Parameter(whole, requires_grad=tensor.requires_grad)
        vars(parameter)[_GATHERED] = True
        self.reductions[id(parameter)] = dataclasses.replace(held.reduction, makes_equal=True)
        return parameter

    def _is_left_out(self, module: nn.Module, hook: Any) -> bool:  # noqa: ARG002 - of the base class
        return self.is_left_out(hook)

    def is_left_out(self, hook: Any) -> bool:
        """Whether it is a hook of a data-parallel wrapper."""
        file = file_of_code(hook)
        return file is not None and any(part in file for part in _CODE)

    def _unwrap_forward(self, module: nn.Module, attributes: dict[str, Any]) -> None:  # noqa: ARG002 - as the base class
        """Without the methods that ``register_fsdp_forward_method`` puts in the place of the module's own."""
        for name, value in attributes.items():
            if isinstance(value, types.MethodType) and self.is_left_out(value):
                attributes[name] = vars(value.__func__).get("__wrapped__", value)

    def _class_without_wrappers(self, module: nn.Module) -> type[nn.Module]:
        kind = type(module)
        while len(kind.__bases__) == 2 and kind.__bases__[0].__module__.startswith("torch.distributed"):
            kind = kind.__bases__[1]
        return kind
