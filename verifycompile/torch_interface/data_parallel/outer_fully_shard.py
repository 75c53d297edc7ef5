"""``fully_shard``, and the ``replicate`` built on it: what they do to gradients, as they are set now."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed import _composable_state
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

from verifycompile.torch_interface.communication.wrappers import holds_mesh
from verifycompile.torch_interface.data_parallel.outer_reduction import (
    OuterReduction,
    casts_of,
    on_the_stack,
    place_among,
)
from verifycompile.torch_interface.training_step.gradient_hooks import GradientHook, registered_hooks


def fully_shard_states() -> Iterator[FSDPState]:
    """The states of all modules that ``fully_shard`` or the ``replicate`` built on it was called on, each once."""
    seen: set[int] = set()
    for module in list(_composable_state._module_state_mapping):
        state = _composable_state._get_module_state(module)
        if isinstance(state, FSDPState) and id(state) not in seen:
            seen.add(id(state))
            yield state


def states_in_forward() -> list[FSDPState]:
    """Those in whose forward the code that calls this runs.

    A state that was left by an exception still says so: its module must be one that the Python stack holds.
    """
    states = [state for state in fully_shard_states() if state._training_state is TrainingState.FORWARD]
    if not states:
        return []
    called = {id(value) for value in on_the_stack()}
    return [state for state in states if any(id(module) in called for module in state._modules)]


@dataclasses.dataclass(frozen=True)
class Held:
    """The parameter that a module holds now, FSDP's ``record`` of it, and the group that it is communicated with."""

    parameter: nn.Parameter
    record: Any
    group: FSDPParamGroup
    exchanged: tuple[str, ...]

    @property
    def reduction(self) -> OuterReduction:
        """What becomes of its gradient."""
        contract = dataclasses.replace(contract_of_group(self.group), exchanged=self.exchanged)
        return _with_hooks(contract, registered_hooks(self.record.sharded_param))


def of_fully_shard(state: FSDPState) -> Iterator[Held]:
    """The parameters that ``fully_shard`` manages in this state."""
    for group in state._fsdp_param_groups:
        settings = _exchanged_by_group(group, state)
        for number, record in enumerate(group.fsdp_params):
            held = record._module_info.module._parameters.get(record._module_info.param_name)
            if held is not None:
                cut = f"cut by {record.fsdp_placement}"
                yield Held(held, record, group, (*settings, cut, place_among(number, len(group.fsdp_params))))


def _exchanged_by_group(group: FSDPParamGroup, state: FSDPState) -> tuple[str, ...]:
    after = group.post_forward_mesh_info
    settings = {
        "param_dtype": group.mp_policy.param_dtype,
        "reduce_dtype": group.mp_policy.reduce_dtype,
        "reshard_after_forward": getattr(after, "shard_mesh_size", False),
        "set_reshard_after_backward": group.reshard_after_backward,
        "set_unshard_in_backward": group.unshard_in_backward,
        "set_gradient_divide_factor": group.gradient_divide_factor,
        "set_force_sum_reduction_for_comms": group.force_sum_reduction_for_comms,
        "reduce_scatter_unused_params": group.reduce_scatter_unused_params,
        "set_modules_to_forward_prefetch": _prefetched(state._states_to_forward_prefetch),
        "set_modules_to_backward_prefetch": _prefetched(state._states_to_backward_prefetch),
        "communication": [type(comm).__qualname__ for comm in (group._all_gather_comm, group._reduce_scatter_comm)],
    }
    return tuple(f"{name} {value}" for name, value in settings.items())


def _prefetched(states: Sequence[FSDPState]) -> list[str | None]:
    return [group._module_fqn for state in states for group in state._fsdp_param_groups]


def _with_hooks(contract: OuterReduction, hooks: Sequence[GradientHook]) -> OuterReduction:
    """``contract`` of a parameter with the hooks that ``fully_shard`` calls after it has reduced the gradient."""
    names = tuple(f"`{hook.name}`" for hook in hooks if hook.after)
    if not names:
        return contract
    if any(hook.after and holds_mesh(hook.function) for hook in hooks):
        unknown = f"its hooks {', '.join(names)} communicate"
        contract = dataclasses.replace(contract, unknown=contract.unknown or unknown)
    return dataclasses.replace(contract, hooks=names)


def contracts_of_state(state: FSDPState) -> list[OuterReduction]:
    """Of its groups of parameters; a module without parameters of its own still casts what it returns."""
    _casts_of_policy("fully_shard", state._mp_policy)
    return [contract_of_group(group) for group in state._fsdp_param_groups]


def _casts_of_policy(wrapper: str, policy: MixedPrecisionPolicy) -> list[tuple[str, torch.dtype]]:
    dtypes = {"computes": policy.param_dtype, "reduces": policy.reduce_dtype, "returns": policy.output_dtype}
    return casts_of(wrapper, **dtypes)


def contract_of_group(group: FSDPParamGroup) -> OuterReduction:
    """What becomes of the gradients of a group of parameters that are communicated together, as it is set now."""
    info = group.mesh_info
    dimensions = tuple(dim for dim in (info.replicate_mesh_dim, info.shard_mesh_dim) if dim is not None)
    kept: tuple[int, ...] = ()
    setting = ""
    if not group.reduce_grads:
        kept, setting = dimensions, "set_requires_gradient_sync(False)"
    elif not group.all_reduce_grads and info.replicate_mesh_dim is not None:
        kept, setting = (info.replicate_mesh_dim,), "set_requires_all_reduce(False)"
    name = "fully_shard" if info.shard_mesh_dim is not None else "replicate"
    casts = _casts_of_policy(name, group.mp_policy)
    found = OuterReduction(
        name, info.mesh, dimensions, "avg", kept, setting, tuple(casts), gathers=info.shard_mesh_dim is not None
    )
    factor = group.gradient_divide_factor
    if factor == 1 and found.ranks > 1:
        found = dataclasses.replace(found, reduction="sum")
    return dataclasses.replace(found, unknown=_beyond_division(group, found))


def _beyond_division(group: FSDPParamGroup, contract: OuterReduction) -> str:
    """What about the group makes that its gradients are neither summed nor averaged."""
    if replaced := replaced_communication(group):
        return replaced
    factor = group.gradient_divide_factor
    if factor not in (None, 1, contract.ranks):
        return f"`set_gradient_divide_factor({factor:g})` divides neither by 1 nor by its {contract.ranks} ranks"
    if factor not in (None, 1) and _divides_twice(group):
        return "torch divides by `set_gradient_divide_factor` twice on an axis of one shard in this setting"
    return ""


def replaced_communication(group: FSDPParamGroup) -> str:
    """What the user put in the place of torch's communication of the group, in a sentence, or ""."""
    if group._all_reduce_hook is not None:
        return "its hook of `set_all_reduce_hook` may do anything with the gradients"
    for comm in (group._reduce_scatter_comm, group._all_gather_comm):
        # Torch's own communicators differ in where they take memory from; a class made from one may do anything.
        if not type(comm).__module__.startswith("torch.distributed."):
            return f"its communication is done by `{type(comm).__qualname__}`, which may do anything"
    return ""


def _divides_twice(group: FSDPParamGroup) -> bool:
    """Where nothing is scattered torch divides while it copies, and after the reduction if that is a plain sum."""
    dimension = group.mesh_info.shard_mesh_dim
    shards = 1 if dimension is None else group.mesh_info.mesh.size(dimension)
    given = group.mp_policy.reduce_dtype
    dtypes = {record.sharded_param.dtype for record in group.fsdp_params} if given is None else {given}
    is_plain_sum = group.force_sum_reduction_for_comms or not dtypes <= {torch.float32, torch.bfloat16}
    return shards == 1 and is_plain_sum
