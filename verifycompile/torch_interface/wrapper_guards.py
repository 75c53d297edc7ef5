"""A frame is compiled, and so verified, again once its data-parallel wrappers are set otherwise.

Dynamo skips the wrappers and guards on nothing of theirs: without this, a graph that was verified under one divide
factor would run under another, and one that was compiled before its model was wrapped would run in a job that nobody
asked about. Steps that accumulate need no second look: what is proved of a gradient holds whichever step reduces it.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch.fx
from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.nn.parallel import DistributedDataParallel

from verifycompile.torch_interface.dynamo import source_name
from verifycompile.torch_interface.frame_guards import Check, verify_again_unless
from verifycompile.torch_interface.outer import active_ddp, fully_shard_states, of_fully_shard, states_in_forward


def verify_again_where_wrappers_change(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """Adds a guard to the frame under compilation. Call it inside a Dynamo backend."""
    checks: list[Check] = [_of_ddp(active_ddp()), *_of_managed(graph, example_inputs)]
    if len(checks) == 1:
        checks.append(_of_surrounding())
    verify_again_unless(checks, "the data-parallel wrappers are set as they were when the frame was verified")


def _of_ddp(wrapper: DistributedDataParallel | None) -> Check:
    if wrapper is None:
        return lambda _: active_ddp() is None
    known, settings = weakref.ref(wrapper), _ddp_settings(wrapper)
    return lambda _: known() is not None and active_ddp() is known() and _ddp_settings(active_ddp()) == settings


def _ddp_settings(wrapper: Any) -> tuple[Any, ...]:
    hooks = tuple(hook for hook, _ in getattr(wrapper, "_comm_hooks", ()))
    return wrapper.process_group, hooks, wrapper.mixed_precision, wrapper._join_config.enable


def _of_managed(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Iterator[Check]:
    """For each group of ``fully_shard`` that one of the inputs belongs to, by one parameter of it."""
    placeholders = dict(zip(graph.graph.find_nodes(op="placeholder"), example_inputs, strict=False))
    sources = {id(value): source_name(node) for node, value in placeholders.items() if isinstance(value, nn.Parameter)}
    for state in fully_shard_states():
        for group in state._fsdp_param_groups:
            names = [(held.record, sources.get(id(held.parameter), "")) for held in of_fully_shard(state)]
            found = next(((record, name) for record, name in names if name and record in group.fsdp_params), None)
            if found is not None:
                yield _of_group(group, *found)


def _of_group(group: FSDPParamGroup, record: Any, name: str) -> Check:
    settings, known, known_group = _group_settings(group), weakref.ref(record), weakref.ref(group)
    code: types.CodeType = compile(name, "<parameter>", "eval")

    def check(local_values: dict[str, Any]) -> bool:
        record, group = known(), known_group()
        if record is None or group is None or _group_settings(group) != settings:
            return False
        try:
            value = eval(code, {"L": local_values})  # noqa: S307 - Dynamo's own expression for the parameter
        except (LookupError, AttributeError, NameError):
            return False
        return value is getattr(record, "_unsharded_param", None) or value is record.sharded_param

    return check


def _group_settings(group: FSDPParamGroup) -> tuple[Any, ...]:
    comms = type(group._reduce_scatter_comm), type(group._all_gather_comm)
    return group.gradient_divide_factor, group._all_reduce_hook, group.force_sum_reduction_for_comms, *comms


def _of_surrounding() -> Check:
    """For a frame without parameters of a wrapper: the wrappers in whose forward it runs, or none."""
    known = _surrounding()
    return lambda _: _surrounding() == known


def _surrounding() -> list[tuple[Any, ...]]:
    return [_group_settings(group) for state in states_in_forward() for group in state._fsdp_param_groups]
