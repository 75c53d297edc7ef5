"""``DistributedDataParallel``, and the ``replicate`` built on it: what they do to gradients, as they are set now."""

from __future__ import annotations

import dataclasses
import functools
import gc
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.contract import STATE_KEY, _get_registry
from torch.distributed._composable.replicate import _ReplicateState, replicate
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.mixed_precision_hooks import _reducer_allreduce_and_upcast_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from verifycompile.torch_interface.data_parallel.outer_reduction import OuterReduction, casts_of, mesh_of, on_the_stack


def active_ddp() -> DistributedDataParallel | None:
    """The ``DistributedDataParallel`` whose forward runs, that inside of ``replicate`` included."""
    active = DistributedDataParallel._get_active_ddp_module()
    if active is None or ddp_name(active) != "replicate":
        return active
    # An exception leaves that of `replicate` behind: its module must be one that the Python stack holds.
    states = (replicate_state(value) for value in on_the_stack() if isinstance(value, nn.Module))
    return active if any(state is not None and vars(state).get("_ddp") is active for state in states) else None


def sent_by_ddp(buffer: torch.Tensor) -> bool:
    """Whether the active ``DistributedDataParallel`` has sent the buffer to all ranks before its forward."""
    wrapper = active_ddp()
    if wrapper is None or not wrapper.will_sync_module_buffers():
        return False
    return any(buffer is sent for sent in wrapper.modules_buffers)


def ddp_name(wrapper: DistributedDataParallel) -> str:
    """``replicate`` wraps a list of the parameters that it manages."""
    return "replicate" if isinstance(wrapper.module, nn.ParameterList) else "DistributedDataParallel"


def managed_by_ddp(wrapper: DistributedDataParallel) -> list[nn.Parameter]:
    """The parameters that it reduces: those it found when it was made, without those it was told to ignore."""
    return [value for value in wrapper._module_parameters if value.requires_grad]


def ranks_of_ddp() -> dict[int, tuple[int, ...]]:
    """The ranks whose gradients a ``DistributedDataParallel`` reduces together, by the identity of the parameter and
    of its gradient.
    """
    found: dict[int, tuple[int, ...]] = {}
    for wrapper in list(_wrappers()):
        ranks = _ranks_of_wrapper(wrapper)
        managed = managed_by_ddp(wrapper) if len(ranks) > 1 else []
        found.update((id(value), ranks) for parameter in managed for value in (parameter, parameter.grad))
    return found


@functools.cache
def _wrappers() -> weakref.WeakSet[DistributedDataParallel]:
    """Of which torch keeps no list: those of now are looked for among all objects, later ones tell of themselves."""
    makes_reducer: Any = DistributedDataParallel._ddp_init_helper
    made = (held for held in gc.get_objects() if issubclass(type(held), DistributedDataParallel))
    found = weakref.WeakSet(held for held in made if "_module_parameters" in vars(held))

    @functools.wraps(makes_reducer)
    def tells(wrapper: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        makes_reducer(wrapper, *args, **kwargs)
        found.add(wrapper)

    DistributedDataParallel._ddp_init_helper = tells  # type: ignore[method-assign]  # torch offers no hook for a new wrapper
    return found


def _ranks_of_wrapper(wrapper: DistributedDataParallel) -> tuple[int, ...]:
    """None where its process group was destroyed."""
    try:
        return tuple(sorted(dist.get_process_group_ranks(wrapper.process_group)))
    except KeyError:
        return ()


def contract_of_ddp(wrapper: DistributedDataParallel, name: str = "DistributedDataParallel") -> OuterReduction:
    """What ``DistributedDataParallel`` does to the gradients that it manages, as it is set right now."""
    held = vars(wrapper).get("device_mesh")
    of_group = not isinstance(held, DeviceMesh)
    mesh = held if isinstance(held, DeviceMesh) else mesh_of(wrapper.process_group)
    is_kept = not wrapper.require_backward_grad_sync
    precision = wrapper.mixed_precision
    casts: list[tuple[str, torch.dtype]] = []
    if precision is not None:
        buffers = precision.buffer_dtype
        casts = casts_of(name, computes=precision.param_dtype, reduces=precision.reduce_dtype, holds_buffers=buffers)
    unknown = _not_reduced_as_usual(wrapper)
    for hook, state in getattr(wrapper, "_comm_hooks", ()):
        casts += casts_of(name, reduces=_COMPRESSING.get(hook))
        if not _takes_the_mean(hook, state, wrapper):
            hook_name = getattr(hook, "__qualname__", type(hook).__qualname__)
            unknown = f"its communication hook `{hook_name}` may do anything with the gradients"
    setting = f"{'set_requires_gradient_sync(False)' if name == 'replicate' else 'no_sync()'}" if is_kept else ""
    kept = (0,) if is_kept else ()
    awaits_all = not (wrapper.find_unused_parameters or wrapper.static_graph)
    return OuterReduction(
        name, mesh, (0,), "avg", kept, setting, tuple(casts), unknown, of_group=of_group, awaits_all=awaits_all,
        exchanged=_exchanged_by_ddp(wrapper),
    )  # fmt: skip


def _exchanged_by_ddp(wrapper: DistributedDataParallel) -> tuple[str, ...]:
    hooks = [getattr(hook, "__qualname__", type(hook).__qualname__) for hook, _ in getattr(wrapper, "_comm_hooks", ())]
    precision = wrapper.mixed_precision
    dtypes = None if precision is None else (precision.param_dtype, precision.reduce_dtype, precision.buffer_dtype)
    settings = {
        "bucket sizes": (wrapper.bucket_bytes_cap, *wrapper.bucket_bytes_cap_list, wrapper.bucket_bytes_cap_default),
        "find_unused_parameters": wrapper.find_unused_parameters,
        "static_graph": wrapper.static_graph,
        "skip_all_reduce_unused_params": wrapper.skip_all_reduce_unused_params,
        "buffers sent": wrapper.will_sync_module_buffers(),
        "communication hooks": hooks,
        "mixed_precision": dtypes,
    }
    return tuple(f"{name} {value}" for name, value in settings.items())


_COMPRESSING = {
    default_hooks.fp16_compress_hook: torch.float16,
    default_hooks.bf16_compress_hook: torch.bfloat16,
}


def _takes_the_mean(hook: Any, state: Any, wrapper: DistributedDataParallel) -> bool:
    """Whether it is one of torch's own hooks that take the mean, over the ranks of the wrapper."""
    if hook is _reducer_allreduce_and_upcast_hook:
        return True
    if hook is not default_hooks.allreduce_hook and hook not in _COMPRESSING:
        return False
    group = dist.distributed_c10d._get_default_group() if state is None else state
    return dist.get_process_group_ranks(group) == dist.get_process_group_ranks(wrapper.process_group)


def _not_reduced_as_usual(wrapper: DistributedDataParallel) -> str:
    """What about the wrapper makes that its reducer does not take the mean of all that it manages."""
    if wrapper._delay_all_reduce_params:
        return "`delay_all_reduce_named_params` reduces some gradients by a hook of another tensor"
    if wrapper._join_config.enable:
        return "inside of `join()` ranks without inputs left take part in the mean"
    reduced = {id(value): value for value in wrapper._module_parameters if value.requires_grad}
    known = wrapper._get_ddp_logging_data().get("num_parameter_tensors")
    if known != len(reduced):
        return f"`requires_grad` changed since it was made: it reduces {known} gradients of {len(reduced)}"
    return ""


def replicate_state(module: nn.Module) -> _ReplicateState | None:
    """What ``torch.distributed._composable.replicate`` keeps of a module that it was called on."""
    if STATE_KEY not in vars(module) or "replicate" not in (_get_registry(module) or {}):
        return None
    return replicate.state(module)


def of_replicate(module: nn.Module, state: _ReplicateState) -> tuple[list[nn.Parameter], OuterReduction]:
    """The parameters that ``replicate`` manages or will manage, and what becomes of their gradients."""
    if state.has_initialized:
        managed, contract = managed_by_ddp(state._ddp), contract_of_ddp(state._ddp, "replicate")
    else:
        managed, contract = _before_its_first_call(module, state)
    if state._comm_hook_args:
        unknown = "its communication hook may do anything with the gradients"
        contract = dataclasses.replace(contract, unknown=unknown)
    kept = ((0,), "set_requires_gradient_sync(False)") if state._no_sync else ((), "")
    return managed, dataclasses.replace(contract, kept=kept[0], setting=kept[1])


def _before_its_first_call(module: nn.Module, state: _ReplicateState) -> tuple[list[nn.Parameter], OuterReduction]:
    ignored: set[nn.Module] = state._init_args[1] if state._init_args else set()
    will_be = _ReplicateState()
    will_be._collect_params(module, ignored, {value for one in ignored for value in one.parameters()})
    settings = dict(state._init_kwargs)
    mesh, group = settings.get("device_mesh"), settings.get("process_group")
    of_group = mesh is None
    if mesh is None:
        mesh = mesh_of(dist.distributed_c10d._get_default_group() if group is None else group)
    not_understood = [name for name in ("mixed_precision", "delay_all_reduce_named_params") if settings.get(name)]
    unknown = f"its argument `{not_understood[0]}` is not understood" if not_understood else ""
    managed = [value for value in will_be._param_list if value.requires_grad]
    awaits_all = not (settings.get("find_unused_parameters") or settings.get("static_graph"))
    exchanged = tuple(f"{name} {settings[name]}" for name in sorted({*settings} - {"device_mesh", "process_group"}))
    return managed, OuterReduction(
        "replicate", mesh, (0,), "avg", unknown=unknown, of_group=of_group, makes_equal=True, awaits_all=awaits_all,
        exchanged=exchanged,
    )  # fmt: skip
