"""``fully_shard`` inside of a traced training step: its hooks run, and its communication is written out.

The hooks move parameters through flat buffers whose memory they free and take again, which a trace does not follow.
Their own code decides, as always, when parameters are gathered, gradients are kept, accumulated or reduced. What it
calls for the communication is replaced: here each parameter is gathered, and each gradient reduced, by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.fsdp._fully_shard._fsdp_collectives import AllGatherResult, _get_gradient_divide_factors
from torch.distributed.fsdp._fully_shard._fsdp_common import _from_local_no_grad
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.torch_interface.data_parallel.outer_fully_shard import (
    contract_of_group,
    fully_shard_states,
    replaced_communication,
)
from verifycompile.torch_interface.data_parallel.outer_reduction import OuterReduction
from verifycompile.torch_interface.dtensor.tensors import arrived
from verifycompile.torch_interface.operators.contents import own_part
from verifycompile.torch_interface.replaced import replaced


class WrapperError(Exception):
    """What a wrapper does cannot be written out, in one sentence."""


@dataclasses.dataclass
class ShardedGroups:
    """The groups of parameters of a model that are communicated together. ``names``: of each sharded parameter."""

    states: list[FSDPState]
    names: dict[int, str]
    meshes: dict[int, tuple[DeviceMesh | None, DeviceMesh | None]] = dataclasses.field(
        default_factory=dict[int, tuple[DeviceMesh | None, DeviceMesh | None]]
    )

    @property
    def groups(self) -> list[FSDPParamGroup]:
        return [group for state in self.states for group in state._fsdp_param_groups]

    @property
    def assumptions(self) -> list[str]:
        """What is written in the place of each wrapper's communication."""
        return list(dict.fromkeys(_described(contract_of_group(group)) for group in self.groups))

    def finish(self) -> None:
        """A call of the step ends here. Raises ``WrapperError`` where a wrapper keeps something for the next one."""
        for group in self.groups:
            left = [record for record in group.fsdp_params if _is_unreduced(record)]
            if left or group._partial_reduce_output is not None:
                setting = contract_of_group(group).setting
                why = f", which `{setting}` switched off" if setting else ""
                name = self.names[id((left or group.fsdp_params)[0].sharded_param)]
                raise WrapperError(f"the step ends before `fully_shard` has reduced the gradient of `{name}`{why}")
            if not group.is_sharded:
                name = self.names[id(group.fsdp_params[0].sharded_param)]
                raise WrapperError(
                    f"the step ends while `{name}` is gathered, and the next one would begin with what is gathered "
                    "now: call `reshard()` after a forward that no backward follows"
                )
            for record in group.fsdp_params:
                vars(record).pop("_unsharded_param", None)


def _described(contract: OuterReduction) -> Assumption:
    text = f"{contract.wrapper} gathers parameters and reduces gradients one by one, over its {contract.ranks} ranks"
    return Assumption(text, AssumptionKind.WRAPPER)


def _is_unreduced(record: FSDPParam) -> bool:
    gathered = vars(record).get("_unsharded_param")
    return record.unsharded_accumulated_grad is not None or (gathered is not None and gathered.grad is not None)


@contextlib.contextmanager
def fully_shard_in_step(model: nn.Module) -> Generator[ShardedGroups]:
    """While entered, hooks of ``fully_shard`` communicate by functional collectives, on tensors without memory.

    Raises ``WrapperError`` for communication that cannot be written out. The state of the hooks is in the end what it
    was.
    """
    found = ShardedGroups(_states_of(model), {})
    for group in found.groups:
        _refuse_unknown(group)
        group._to_sharded()
        found.meshes[id(group)] = _meshes_of(group)
    found.names |= {id(value): name for name, value in model.named_parameters()}
    with _restored(found), _replaced(found):
        for group in found.groups:
            for record in group.fsdp_params:
                vars(record).pop("_unsharded_param", None)
        yield found


def groups_of_model(model: nn.Module) -> list[FSDPParamGroup]:
    """The groups of parameters that ``fully_shard`` communicates together."""
    return ShardedGroups(_states_of(model), {}).groups


def _states_of(model: nn.Module) -> list[FSDPState]:
    own = {id(module) for module in model.modules()}
    return [state for state in fully_shard_states() if any(id(module) in own for module in state._modules)]


def _refuse_unknown(group: FSDPParamGroup) -> None:
    unknown = replaced_communication(group)
    if group.mesh_info.is_spmd_mesh:
        unknown = "its data-parallel axes are part of the parameters' own mesh (`dp_mesh_dims`)"
    if any(hasattr(record._sharded_local_tensor, "fsdp_pre_all_gather") for record in group.fsdp_params):
        unknown = "its parameters gather themselves by `fsdp_pre_all_gather`"
    if unknown:
        raise WrapperError(f"what `fully_shard` does is not understood: {unknown}")


def _meshes_of(group: FSDPParamGroup) -> tuple[DeviceMesh | None, DeviceMesh | None]:
    """The one-dimensional meshes over which parameters are sharded and replicated; None for one rank."""

    def along(dimension: int | None) -> DeviceMesh | None:
        mesh = group.mesh_info.mesh
        if dimension is None or mesh.size(dimension) == 1:
            return None
        return mesh if mesh.ndim == 1 or mesh.mesh_dim_names is None else mesh[mesh.mesh_dim_names[dimension]]

    return along(group.mesh_info.shard_mesh_dim), along(group.mesh_info.replicate_mesh_dim)


@contextlib.contextmanager
def _restored(found: ShardedGroups) -> Generator[None]:
    """What hooks keep of a call is taken back. Hooks that they register once stay, with the record of it."""
    records = [record for group in found.groups for record in group.fsdp_params]
    shared = [held for state in found.states for held in (state._state_ctx, state._comm_ctx)]
    held = [(item, dict(vars(item))) for item in (*found.states, *found.groups, *records, *shared)]
    contents = [(value, value.copy()) for _, kept in held for value in kept.values() if isinstance(value, list | set)]
    try:
        yield
    finally:
        for item, kept in held:
            vars(item).clear()
            vars(item).update(kept)
        for value, before in contents:
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(before)
        for record in records:
            record._setattr_on_modules(record.sharded_param)


class _Reduced:
    """The event that streams of a GPU wait for before a gradient is read: nothing here runs beside anything."""

    def wait(self, stream: object = None) -> None:
        pass


@contextlib.contextmanager
def _replaced(found: ShardedGroups) -> Generator[None]:
    def unshard(group: FSDPParamGroup, async_op: bool = False) -> None:  # noqa: ARG001 - called as torch's is
        is_not_wanted = not group.unshard_in_backward and group._training_state.name == "PRE_BACKWARD"
        if group._all_gather_result is None and not group.is_unsharded and not is_not_wanted:
            values: Any = [_gathered(record, found.meshes[id(group)][0]) for record in group.fsdp_params]
            group._all_gather_result = AllGatherResult(values, None, None, [], [], [])

    def wait_for_unshard(group: FSDPParamGroup) -> None:
        if group._all_gather_result is None:
            return
        for record, value in zip(group.fsdp_params, group._all_gather_result.all_gather_output, strict=True):
            _hold(record, value)
        group._to_unsharded()
        group._all_gather_result = None

    def reduce(records: Sequence[FSDPParam], gradients: list[torch.Tensor], *settings: Any) -> tuple[Any, ...]:
        group = next(group for group in found.groups if records[0] in group.fsdp_params)
        kept = _reduce(records, gradients, found.meshes[id(group)], _Settings(*settings))
        return None, None, None, _Reduced(), None, None, kept

    def nothing(*_: Any) -> None:
        pass

    attributes: tuple[tuple[Any, str, Any], ...] = (
        (FSDPParamGroup, "unshard", unshard),
        (FSDPParamGroup, "wait_for_unshard", wait_for_unshard),
        (FSDPParamGroup, "_wait_for_post_backward", nothing),
        (FSDPParam, "free_unsharded_param", nothing),
        (FSDPParam, "reset_sharded_param", nothing),
        # What is held between forward and backward are the same values, on fewer ranks.
        (FSDPParam, "to_sharded_post_forward", FSDPParam.to_sharded),
        (_fsdp_param_group, "foreach_reduce", reduce),
    )
    with replaced(attributes):
        yield


# ------------------------------------------------------------------------------------------------ communication


@torch.no_grad()
def _gathered(record: FSDPParam, mesh: DeviceMesh | None) -> torch.Tensor:
    own = record._sharded_local_tensor
    own = own if record.param_dtype is None else own.to(record.param_dtype)
    if mesh is None:
        return own.clone()
    whole = torch.Size(record._orig_size), tuple(record._contiguous_orig_stride)
    return _moved(own, mesh, record.fsdp_placement, Replicate(), whole)


@torch.no_grad()
def _hold(record: FSDPParam, value: torch.Tensor) -> None:
    """What is computed with gathered parameters finds its values in the memory that the next gathering writes."""
    held: Any = vars(record).get("_unsharded_param")
    if held is not None:
        memory = own_part(held)
        with torch.autograd._unsafe_preserve_version_counter(memory):
            memory.copy_(value)
        return
    spec = record._unsharded_dtensor_spec
    whole = value if spec is None else _from_local_no_grad(value, record._get_unsharded_dtensor_spec(value))
    record._unsharded_param = nn.Parameter(whole, requires_grad=record.sharded_param.requires_grad)


def _moved(
    value: torch.Tensor,
    mesh: DeviceMesh,
    before: Placement,
    after: Placement,
    whole: tuple[torch.Size | None, tuple[int, ...] | None] = (None, None),
) -> torch.Tensor:
    """``value`` laid out otherwise. ``whole``: shape and strides of all of it, where parts differ in size."""
    shape, stride = whole
    held = DTensor.from_local(value, mesh, [before], run_check=False, shape=shape, stride=stride)
    return arrived(held.redistribute(placements=[after]).to_local())


class _Settings(NamedTuple):
    """What torch's ``foreach_reduce`` is called with after parameters and gradients, in its order."""

    scatter_group: dist.ProcessGroup | None
    stream: object
    communication: object
    orig_dtype: torch.dtype | None
    reduce_dtype: torch.dtype | None
    device: torch.device
    factor: float | None
    all_group: dist.ProcessGroup | None
    other_stream: object
    all_reduces: bool
    kept: list[torch.Tensor] | None
    hook: object
    forces_sum: bool = False


def _reduce(
    records: Sequence[FSDPParam],
    gradients: list[torch.Tensor],
    meshes: tuple[DeviceMesh | None, DeviceMesh | None],
    settings: _Settings,
) -> list[torch.Tensor] | None:
    """Torch's ``foreach_reduce``, one gradient at a time. Returns what waits for the reduction over replicas."""
    shards, replicas = meshes
    factor, dtype = settings.factor, settings.reduce_dtype or gradients[0].dtype
    before, after, scatter, everywhere = _get_gradient_divide_factors(
        settings.scatter_group, settings.all_group, dtype, settings.device.type, factor, settings.forces_sum
    )
    reduced: list[torch.Tensor] = []
    for record, gradient in zip(records, gradients, strict=True):
        value = gradient.to(dtype)
        value = value if before in (None, 1) else value / before
        if shards is None:
            value = value if factor is None else value / factor
        else:
            if scatter not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):  # PREMUL_SUM, of which the factor is not read
                value = value * (1 / (factor or 1))
            value = _moved(value, shards, _partial(scatter), Shard(record.fsdp_placement.dim))
        reduced.append(value)
    gradients.clear()
    if settings.all_group is not None:
        if settings.kept is not None:
            reduced = [value + held for value, held in zip(reduced, settings.kept, strict=True)]
        if not settings.all_reduces:
            return reduced
        if replicas is not None:
            reduced = [_moved(value, replicas, _partial(everywhere), Replicate()) for value in reduced]
    for record, value in zip(records, reduced, strict=True):
        divided = value if after in (None, 1) else value / after
        _accumulate(record.sharded_param, divided.to(settings.orig_dtype or divided.dtype), record)
    return None


def _partial(operation: Any) -> Placement:
    return Partial("avg" if operation == dist.ReduceOp.AVG else "sum")


def _accumulate(parameter: Any, gradient: torch.Tensor, record: FSDPParam) -> None:
    if parameter.grad is not None:
        parameter.grad._local_tensor += gradient
    else:
        parameter.grad = _from_local_no_grad(gradient, record._sharding_spec)
    for hook in (parameter._post_accumulate_grad_hooks or {}).values():
        hook(parameter)
