"""A frame is compiled, and so verified, again once its data-parallel wrappers are set otherwise.

Dynamo skips the wrappers and guards on nothing of theirs: without this, a graph that was verified under one divide
factor would run under another, and one that was compiled before its model was wrapped would run in a job that nobody
asked about. Steps that accumulate need no second look: what is proved of a gradient holds whichever step reduces it.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch.fx
from torch import nn
from torch.distributed import _composable_state
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.nn.parallel import DistributedDataParallel

from verifycompile.torch_interface.data_parallel.outer_ddp import active_ddp
from verifycompile.torch_interface.data_parallel.outer_fully_shard import fully_shard_states, states_in_forward
from verifycompile.torch_interface.dynamo.sources import source_name
from verifycompile.torch_interface.guards.frame_guards import Check, verify_again_unless
from verifycompile.torch_interface.guards.function_state import State, is_same_state
from verifycompile.torch_interface.guards.hook_guards import hooks_as_they_are
from verifycompile.torch_interface.operators.contents import own_part

Manager = tuple[Any, FSDPParamGroup]
"""FSDP's record of a parameter, and the group with which it is communicated."""


def verify_again_where_wrappers_change(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """Adds a guard to the frame under compilation. Call it inside a Dynamo backend."""
    placeholders = dict(zip(graph.graph.find_nodes(op="placeholder"), example_inputs, strict=False))
    values = {source_name(node): value for node, value in placeholders.items() if isinstance(value, nn.Parameter)}
    parameters = {name: value for name, value in values.items() if name}
    checks: list[Check] = [_of_ddp(active_ddp(), parameters), *_of_managed(parameters)]
    if len(checks) == 1:
        checks.append(_of_surrounding())
    verify_again_unless(checks, "the data-parallel wrappers are set as they were when the frame was verified")


def reductions_now(values: Sequence[Any]) -> str:
    """How the wrappers are switched that reduce gradients of ``values``, or whose forward runs; "" without one."""
    parameters = (value for value in values if isinstance(value, nn.Parameter))
    managers = map(_manager_of, parameters if _composable_state._module_state_mapping else ())
    groups = {id(manager[1]): manager[1] for manager in managers if manager is not None}
    wrapper = active_ddp()
    of_ddp = [] if wrapper is None else [(wrapper.require_backward_grad_sync, True)]
    switched = [*of_ddp, *((group.reduce_grads, group.all_reduce_grads) for group in groups.values())]
    return ", ".join(dict.fromkeys(_REDUCTIONS[settings] for settings in switched))


_REDUCTIONS = {
    (True, True): "reduced",
    (True, False): "reduced without `all_reduce`",
    (False, True): "left for a later step",
    (False, False): "left for a later step",
}


def _of_ddp(wrapper: DistributedDataParallel | None, parameters: Mapping[str, nn.Parameter]) -> Check:
    """The same wrapper, set alike, that reduces the gradients of the same among the parameters."""
    if wrapper is None:
        return lambda _: active_ddp() is None
    known, settings = weakref.ref(wrapper), _ddp_settings(wrapper)
    # Those that it found when it was made, which it keeps alive: no other has the identity of one of them.
    reduced = {id(value) for value in wrapper._module_parameters}
    names = [(_code_of(name), id(value) in reduced) for name, value in parameters.items()]

    def check(local_values: dict[str, Any]) -> bool:
        if known() is None or active_ddp() is not known() or _ddp_settings(active_ddp()) != settings:
            return False
        return all((id(_valued(code, local_values)) in reduced) is is_reduced for code, is_reduced in names)

    return check


def _code_of(name: str) -> types.CodeType:
    return compile(name, "<parameter>", "eval")


def _valued(code: types.CodeType, local_values: dict[str, Any]) -> Any:
    """None where there is nothing of this name now."""
    try:
        return eval(code, {"L": local_values})  # noqa: S307 - Dynamo's own expression for the parameter
    except (LookupError, AttributeError, NameError):
        return None


def _ddp_settings(wrapper: Any) -> tuple[Any, ...]:
    hooks = tuple(hook for hook, _ in getattr(wrapper, "_comm_hooks", ()))
    awaited = wrapper.find_unused_parameters, wrapper.static_graph
    return wrapper.process_group, hooks, wrapper.mixed_precision, wrapper._join_config.enable, *awaited


def _of_managed(parameters: Mapping[str, nn.Parameter]) -> Iterator[Check]:
    """For each parameter among the inputs that ``fully_shard`` manages: it is managed by a group that is set so.

    Not by this very group: the blocks of a model share one graph, and torch compiles a function a few times alone.
    """
    managers = {name: _manager_of(value) for name, value in parameters.items()}
    if any(manager is not None for manager in managers.values()):
        for name, manager in managers.items():
            yield _of_parameter(name, manager)


def _of_parameter(name: str, known: Manager | None) -> Check:
    """``known``: what manages it; None where nothing does."""
    code = _code_of(name)
    settings, hooks = _settings(known)

    def check(local_values: dict[str, Any]) -> bool:
        value = _valued(code, local_values)
        if value is None:
            return False
        now, hooks_now = _settings(_manager_of(value))
        return now == settings and is_same_state(hooks_now, hooks)

    return check


def _settings(manager: Manager | None) -> tuple[tuple[Any, ...], State]:
    """How gradients are reduced, and the hooks that are called on the shard once that is done."""
    if manager is None:
        return (), ()
    record, group = manager
    return _group_settings(group), hooks_as_they_are(record.sharded_param)


_owners: dict[int, tuple[weakref.ref[Any], weakref.ref[FSDPParamGroup]]] = {}
"""Identity of a parameter that a module held -> FSDP's record of it, and its group. Others may take the identity."""
_others: dict[int, weakref.ref[Any]] = {}
"""Identity of a parameter that no group managed when it was looked for -> what this process holds
of it: torch exchanges the contents of no tensor that is weakly referred to, as ``module.to`` does of DTensors."""
_scanned: list[int] = [-1]
"""How many modules had a state when the parameters were looked through."""


def _manager_of(value: Any) -> Manager | None:
    """What of ``fully_shard`` manages a parameter, gathered or in shards, now."""
    found = _known_manager(value)
    modules = len(_composable_state._module_state_mapping)
    if found is not None or (_scanned[0] == modules and _others.get(id(value), _nothing)() is own_part(value)):
        return found
    _owners.clear()
    _others.clear()
    _scanned[0] = modules
    for state in fully_shard_states():
        for group in state._fsdp_param_groups:
            for record in group.fsdp_params:
                owner = weakref.ref(record), weakref.ref(group)
                _owners.update({id(held): owner for held in _held_by(record)})
    found = _known_manager(value)
    if found is None:
        _others[id(value)] = weakref.ref(own_part(value))
    return found


def _known_manager(value: Any) -> Manager | None:
    record, group = (known() for known in _owners.get(id(value), (_nothing, _nothing)))
    if record is None or group is None or all(value is not held for held in _held_by(record)):
        return None
    return record, group


def _nothing() -> None:
    return None


def _held_by(record: Any) -> tuple[Any, ...]:
    """The parameters that a module holds in turn."""
    return getattr(record, "_unsharded_param", None), record.sharded_param


def _group_settings(group: FSDPParamGroup) -> tuple[Any, ...]:
    comms = type(group._reduce_scatter_comm), type(group._all_gather_comm)
    info = group.mesh_info
    layout = info.mesh, info.replicate_mesh_dim, info.shard_mesh_dim, group.mp_policy
    return group.gradient_divide_factor, group._all_reduce_hook, group.force_sum_reduction_for_comms, *comms, *layout


def _of_surrounding() -> Check:
    """For a frame without parameters of a wrapper: the wrappers in whose forward it runs, or none."""
    known = _surrounding()
    return lambda _: _surrounding() == known


def _surrounding() -> list[tuple[Any, ...]]:
    states = states_in_forward()
    return [(state._mp_policy, *map(_group_settings, state._fsdp_param_groups)) for state in states]
