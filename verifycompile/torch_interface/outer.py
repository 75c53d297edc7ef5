"""Data-parallel wrappers that communicate outside of the graph: DDP, ``replicate``, ``fully_shard``.

Their hooks gather parameters before the compiled code runs and reduce gradients after it; Dynamo skips them. What they
do to each gradient is read from their state at the time of the call: which parameters they manage, over which ranks
they reduce, by what they divide, whether this step reduces at all. The proof assumes it, and the report lists it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _composable_state
from torch.distributed._composable.contract import STATE_KEY, _get_registry
from torch.distributed._composable.replicate import _ReplicateState, replicate
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.mixed_precision_hooks import _reducer_allreduce_and_upcast_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.nn.parallel import DistributedDataParallel

from verifycompile.errors import UsageError
from verifycompile.torch_interface.gradient_hooks import GradientHook, registered_hooks
from verifycompile.torch_interface.wrappers import holds_mesh


@dataclasses.dataclass(frozen=True)
class OuterReduction:
    """What ``wrapper`` makes of a gradient: its ``reduction`` ("avg" or "sum") over dimensions of a mesh.

    ``kept``: those of the dimensions over which this step leaves the gradient as each rank's own, since ``setting``
    switched its reduction off; a later step reduces what was accumulated. ``casts``: what the wrapper does in a dtype
    of its own, and which. ``unknown``: why nothing can be said of the gradient, empty where the contract is understood.
    ``gathers``: the wrapper holds the parameters in shards and gathers them before use. ``of_group``: ``mesh`` was made
    here, over the process group that the wrapper was given. ``hooks``: what is called once the gradient is reduced.
    ``makes_equal``: the ranks' parameters may differ now, the wrapper makes them equal before they are used.
    ``awaits_all``: it reduces nothing of what it sends together before each of these parameters has a gradient.
    ``exchanged``: by what the wrapper decides what it sends of the parameter, in which order and dtype. Ranks of which
    one has other settings wait for each other without end, or take one tensor's bytes for another's.
    """

    wrapper: str
    mesh: DeviceMesh
    dimensions: tuple[int, ...]
    reduction: str
    kept: tuple[int, ...] = ()
    setting: str = ""
    casts: tuple[tuple[str, torch.dtype], ...] = ()
    unknown: str = ""
    gathers: bool = False
    of_group: bool = False
    hooks: tuple[str, ...] = ()
    makes_equal: bool = False
    awaits_all: bool = False
    exchanged: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @property
    def ranks(self) -> int:
        """The number of ranks whose gradients are reduced together."""
        return math.prod(self.mesh.size(dimension) for dimension in self.dimensions)

    @property
    def casts_said(self) -> tuple[str, ...]:
        return tuple(f"{what} {dtype}" for what, dtype in self.casts)


@dataclasses.dataclass(frozen=True)
class Outer:
    """The wrappers of a program. ``reductions``: identity of a parameter -> what becomes of its gradient outside.

    ``around``: contracts of the wrappers in whose forward the program runs, whether or not it reads their parameters.
    ``whole``: inputs that are the same on all ranks, found by what runs on one device.
    """

    reductions: dict[int, OuterReduction] = dataclasses.field(default_factory=dict[int, OuterReduction])
    around: tuple[OuterReduction, ...] = ()
    whole: frozenset[str] = frozenset()

    def joined(self, other: Outer) -> Outer:
        """Both; ``other`` decides where they differ."""
        return Outer({**self.reductions, **other.reductions}, tuple(dict.fromkeys((*self.around, *other.around))))

    @property
    def contracts(self) -> tuple[OuterReduction, ...]:
        """Each once."""
        return tuple(dict.fromkeys((*self.reductions.values(), *self.around)))

    @property
    def meshes(self) -> tuple[DeviceMesh, ...]:
        """The meshes that the user gave the wrappers."""
        return tuple(dict.fromkeys(contract.mesh for contract in self.contracts if not contract.of_group))

    @property
    def is_parallel(self) -> bool:
        """Whether gradients of several ranks are reduced together."""
        return any(contract.ranks > 1 for contract in self.contracts)


def outer_of(parameters: Sequence[Any]) -> Outer:
    """The wrappers that manage ``parameters`` or whose forward runs, as they are set right now."""
    wanted = {id(value) for value in parameters if isinstance(value, nn.Parameter)}
    found: dict[int, OuterReduction] = {}
    around: list[OuterReduction] = []
    for state in fully_shard_states():
        for held in of_fully_shard(state):
            if id(held.parameter) in wanted:
                found[id(held.parameter)] = held.reduction
    for state in states_in_forward():
        around.extend(contracts_of_state(state))
    active = active_ddp()
    if active is not None:
        contract = contract_of_ddp(active, ddp_name(active))
        around.append(contract)
        found.update(of_each(managed_by_ddp(active), contract))
    return Outer(found, tuple(dict.fromkeys(around)))


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
    called = {id(value) for value in _on_the_stack()}
    return [state for state in states if any(id(module) in called for module in state._modules)]


def _on_the_stack() -> Iterator[Any]:
    """The objects whose methods are being called."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        yield frame.f_locals.get("self")
        frame = frame.f_back


def active_ddp() -> DistributedDataParallel | None:
    """The ``DistributedDataParallel`` whose forward runs, that inside of ``replicate`` included."""
    active = DistributedDataParallel._get_active_ddp_module()
    if active is None or ddp_name(active) != "replicate":
        return active
    # An exception leaves that of `replicate` behind: its module must be one that the Python stack holds.
    states = (replicate_state(value) for value in _on_the_stack() if isinstance(value, nn.Module))
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


def of_each(managed: Sequence[nn.Parameter], contract: OuterReduction) -> dict[int, OuterReduction]:
    """``contract`` of each parameter that a wrapper sends, by identity, with its place among them."""
    return {
        id(value): dataclasses.replace(contract, exchanged=(*contract.exchanged, _place(number, len(managed))))
        for number, value in enumerate(managed)
    }


def _place(number: int, count: int) -> str:
    return f"place {number + 1} of {count}"


_REAL = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _casts(wrapper: str, **dtypes: torch.dtype | None) -> list[tuple[str, torch.dtype]]:
    """What the wrapper does in a dtype of its own. Raises ``UsageError`` VC310 where that does more than round."""
    casts = [(f"{what.replace('_', ' ')} in", dtype) for what, dtype in dtypes.items() if dtype is not None]
    for what, dtype in casts:
        if dtype not in _REAL:
            raise UsageError("VC310", f"`{wrapper}` {what} {dtype} by its mixed precision, which is no rounding.")
    return casts


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
        casts = _casts(name, computes=precision.param_dtype, reduces=precision.reduce_dtype, holds_buffers=buffers)
    unknown = _not_reduced_as_usual(wrapper)
    for hook, state in getattr(wrapper, "_comm_hooks", ()):
        casts += _casts(name, reduces=_COMPRESSING.get(hook))
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


@functools.lru_cache(maxsize=8)
def mesh_of(group: dist.ProcessGroup) -> DeviceMesh:
    """A mesh over an existing group; nothing is communicated."""
    return DeviceMesh.from_group(group, "cpu", mesh_dim_names=("data_parallel",))


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
                yield Held(held, record, group, (*settings, cut, _place(number, len(group.fsdp_params))))


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
    return _casts(wrapper, **dtypes)


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


FIRST_FSDP = (
    "`FullyShardedDataParallel` (FSDP1) is not understood: its parameters are parts of flat tensors that it gathers "
    "and reduces by itself. Use `torch.distributed.fsdp.fully_shard`."
)


def holds_first_fsdp(model: nn.Module) -> bool:
    """Whether a module of ``model`` is wrapped in the first ``FullyShardedDataParallel``."""
    return any(isinstance(module, FullyShardedDataParallel) for module in model.modules())


def runs_in_first_fsdp() -> bool:
    """Whether the forward of a first ``FullyShardedDataParallel`` runs."""
    return any(isinstance(value, FullyShardedDataParallel) for value in _on_the_stack())


def is_buffer_of_wrapped(value: torch.Tensor) -> bool:
    """Whether the tensor lies in the memory of a buffer of a model whose wrapper's forward runs."""
    memory = _memory(value)
    return memory is not None and any(_memory(buffer) == memory for buffer in _buffers_of_wrapped())


def _buffers_of_wrapped() -> Iterator[torch.Tensor]:
    active = active_ddp()
    if active is not None:
        yield from active.module.buffers()
    for state in states_in_forward():
        for module in state._modules:
            yield from module.buffers()


def _memory(value: torch.Tensor) -> int | None:
    try:
        return value.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):
        return None  # A tensor without memory of its own, as fake ones are.
