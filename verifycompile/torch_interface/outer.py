"""Data-parallel wrappers that communicate outside of the graph: DDP, ``replicate``, ``fully_shard``.

Their hooks gather parameters before the compiled code runs and reduce gradients after it; Dynamo skips them. What they
do to each gradient is a contract that the proof assumes and the report lists.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _composable_state
from torch.distributed._composable.contract import STATE_KEY, _get_registry
from torch.distributed._composable.replicate import _ReplicateState, replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from verifycompile.torch_interface.globalize import Globalizer

_CODE = (
    "/torch/distributed/tensor/parallel/ddp.py",
    "/torch/distributed/fsdp/",
    "/torch/distributed/_composable/",
    "/torch/nn/parallel/",
)


@dataclasses.dataclass(frozen=True)
class OuterReduction:
    """What ``wrapper`` makes of a gradient: its ``reduction`` ("avg" or "sum") over dimensions of a mesh."""

    wrapper: str
    mesh: DeviceMesh
    dimensions: tuple[int, ...]
    reduction: str


Reductions = dict[int, OuterReduction]
"""Identity of a parameter -> what becomes of its gradient outside of the graph."""


def outer_reductions(parameters: Sequence[Any]) -> Reductions:
    """The contracts of those of ``parameters`` that a wrapper manages right now, wrapped by whatever module."""
    wanted = {id(value) for value in parameters if isinstance(value, nn.Parameter)}
    if not wanted:
        return {}
    found: Reductions = {}
    for managed, reduction in _all_managed():
        for parameter in managed:
            if id(parameter) in wanted:
                found[id(parameter)] = reduction
    return found


def _all_managed() -> Iterator[tuple[Sequence[nn.Parameter], OuterReduction]]:
    for module in list(_composable_state._module_state_mapping):
        state = _composable_state._get_module_state(module)
        if isinstance(state, FSDPState):
            yield from (([held.parameter], held.reduction) for held in _of_fully_shard(state))
    active = DistributedDataParallel._get_active_ddp_module()
    if active is not None:
        yield from _of_ddp(active)


def _of_ddp(
    wrapper: DistributedDataParallel, name: str = "DistributedDataParallel"
) -> Iterator[tuple[Sequence[nn.Parameter], OuterReduction]]:
    if wrapper._comm_hooks:
        return  # A communication hook may do anything.
    ignored = wrapper.parameters_to_ignore
    managed = [value for key, value in wrapper.module.named_parameters() if key not in ignored]
    yield managed, OuterReduction(name, _mesh_of(wrapper.process_group), (0,), "avg")


@functools.lru_cache(maxsize=8)
def _mesh_of(group: dist.ProcessGroup) -> DeviceMesh:
    """A mesh over an existing group; nothing is communicated."""
    return DeviceMesh.from_group(group, "cpu", mesh_dim_names=("data_parallel",))


@dataclasses.dataclass(frozen=True)
class _Held:
    """The parameter that a module holds now, FSDP's ``record`` of it, and in what dtype it is gathered."""

    parameter: nn.Parameter
    record: Any
    dtype: torch.dtype | None
    reduction: OuterReduction


def _of_fully_shard(state: FSDPState) -> Iterator[_Held]:
    for group in state._fsdp_param_groups:
        mesh = group.mesh_info
        dimensions = tuple(dim for dim in (mesh.replicate_mesh_dim, mesh.shard_mesh_dim) if dim is not None)
        ranks = 1
        for dim in dimensions:
            ranks *= mesh.mesh.size(dim)
        factor = group.gradient_divide_factor
        if factor not in (None, 1, ranks):
            continue  # Neither a sum nor a mean.
        reduction = "sum" if factor == 1 and ranks > 1 else "avg"
        contract = OuterReduction("fully_shard", mesh.mesh, dimensions, reduction)
        for record in group.fsdp_params:
            held = record._module_info.module._parameters.get(record._module_info.param_name)
            if held is not None:
                yield _Held(held, record, group.mp_policy.param_dtype, contract)


def without_outer_wrappers(model: Any) -> tuple[Any, Reductions]:
    """``model`` as its compiled code sees it, with whole parameters and without the wrappers' hooks, and the contracts.

    ``model`` itself where it has no such wrapper. It is never modified.
    """
    if not isinstance(model, nn.Module):
        return model, {}
    if not any(_is_wrapper(module) for module in model.modules()):
        return model, {}
    unwrapper = _Unwrapper(model)
    return unwrapper(model), unwrapper.reductions


def _is_wrapper(module: nn.Module) -> bool:
    is_sharded = isinstance(_composable_state._get_module_state(module), FSDPState)
    return is_sharded or isinstance(module, DistributedDataParallel) or _replicate_state(module) is not None


def _replicate_state(module: nn.Module) -> _ReplicateState | None:
    if STATE_KEY not in vars(module) or "replicate" not in (_get_registry(module) or {}):
        return None
    return replicate.state(module)


class _Unwrapper(Globalizer):
    """Copies without data-parallel wrappers; what other parallelism put into the modules stays."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(self._unsharded)
        self.reductions: Reductions = {}
        self._sharded: dict[int, _Held] = {}
        for module in model.modules():
            state = _composable_state._get_module_state(module)
            if isinstance(state, FSDPState):
                self._sharded.update({id(held.parameter): held for held in _of_fully_shard(state)})
            elif isinstance(module, DistributedDataParallel):
                for managed, reduction in _of_ddp(module):
                    self.reductions.update(dict.fromkeys(map(id, managed), reduction))
            elif (replicated := _replicate_state(module)) is not None:
                self._replicated(module, replicated)

    def _replicated(self, module: nn.Module, state: _ReplicateState) -> None:
        if state.has_initialized:
            mesh, hooked = _mesh_of(state._ddp.process_group), bool(state._ddp._comm_hooks)
        else:
            mesh, hooked = state._init_kwargs.get("device_mesh"), bool(state._comm_hook_args)
            mesh = _mesh_of(dist.distributed_c10d._get_default_group()) if mesh is None else mesh
        if not hooked:
            reduction = OuterReduction("replicate", mesh, (0,), "avg")
            self.reductions.update(dict.fromkeys(map(id, module.parameters()), reduction))

    def _module(self, module: nn.Module) -> nn.Module:
        if isinstance(module, DistributedDataParallel):
            self.replace(module, self(module.module))
            return self(module)
        return super()._module(module)

    def _unsharded(self, tensor: torch.Tensor) -> torch.Tensor:
        held = self._sharded.get(id(tensor))
        if held is None:
            return tensor
        whole = torch.empty(held.record._orig_size, dtype=held.dtype or tensor.dtype, device=tensor.device)
        inner = held.record._unsharded_dtensor_spec
        if inner is not None:
            whole = DTensor.from_local(
                whole, inner.mesh, inner.placements, run_check=False, shape=tensor.shape, stride=inner.stride
            )
        parameter = nn.Parameter(whole, requires_grad=tensor.requires_grad)
        self.reductions[id(parameter)] = held.reduction
        return parameter

    def _is_left_out(self, module: nn.Module, hook: Any) -> bool:  # noqa: ARG002 (of the base class)
        return _is_code_of_wrappers(hook)

    def _unwrap_forward(self, module: nn.Module, attributes: dict[str, Any]) -> None:
        """Forwards stay."""

    def _class_without_wrappers(self, module: nn.Module) -> type[nn.Module]:
        kind = type(module)
        while len(kind.__bases__) == 2 and kind.__bases__[0].__module__.startswith("torch.distributed"):
            kind = kind.__bases__[1]
        return kind

    def _strip_parametrizations(
        self, module: nn.Module, kind: type[nn.Module], parameters: dict[str, Any], children: dict[str, Any]
    ) -> None:
        """Parametrizations stay."""


def _is_code_of_wrappers(function: object) -> bool:
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    code = getattr(function, "__code__", None) or getattr(getattr(function, "__func__", None), "__code__", None)
    return code is not None and any(part in code.co_filename.replace("\\", "/") for part in _CODE)
