"""Data-parallel wrappers inside of a traced training step: their communication is written out.

``DistributedDataParallel`` reduces gradients from hooks that live outside of Python, on the memory of the parameters
that it was made with. In a trace its module is called itself, and what its state says it does is called in its place.
``fully_shard``: see ``fully_shard_step``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.torch_interface.data_parallel.fully_shard_step import (
    ShardedGroups,
    WrapperError,
    fully_shard_in_step,
    groups_of_model,
)
from verifycompile.torch_interface.data_parallel.outer_ddp import (
    contract_of_ddp,
    ddp_name,
    managed_by_ddp,
    replicate_state,
)
from verifycompile.torch_interface.data_parallel.outer_fully_shard import contract_of_group
from verifycompile.torch_interface.data_parallel.outer_reduction import OuterReduction
from verifycompile.torch_interface.training_step.gradient_marks import mark_gradients, mark_written_out


@dataclasses.dataclass
class Wrappers:
    """``armed``: wrappers whose forward ran since the last reduction, with gradients to be reduced."""

    armed: list[DistributedDataParallel]
    assumptions: dict[str, None]
    sharded: ShardedGroups

    def finish(self) -> None:
        """A call of the step ends here. Raises ``WrapperError`` where a wrapper keeps something for the next one."""
        self.sharded.finish()


@contextlib.contextmanager
def wrappers_in_step(model: nn.Module) -> Generator[Wrappers]:
    """While entered, forwards of wrappers call their modules, and backward reduces what they manage.

    Raises ``WrapperError`` for a wrapper whose communication cannot be written out.
    """
    _refuse_others(model)
    found = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
    backward, names = torch.autograd.backward, without_wrappers(model)
    with fully_shard_in_step(model) as sharded:
        wrappers = Wrappers([], dict.fromkeys(sharded.assumptions), sharded)

        def backward_then_reduce(*args: Any, **kwargs: Any) -> None:
            backward(*args, **kwargs)
            mark_gradients(model, names)
            armed, wrappers.armed[:] = list(wrappers.armed), []
            for wrapper in armed:
                _reduce(wrapper)

        for wrapper in found:
            contract = contract_of_ddp(wrapper)
            if contract.unknown:
                raise WrapperError(contract.unknown)
            vars(wrapper)["forward"] = _Forward(wrapper, wrappers)
            casts = "".join(f", and {cast}" for cast in contract.casts_said)
            name, ranks = ddp_name(wrapper), contract.ranks
            text = f"{name} takes the mean of its gradients over its {ranks} ranks after backward{casts}"
            wrappers.assumptions[Assumption(text, AssumptionKind.WRAPPER)] = None
        torch.autograd.backward = backward_then_reduce
        try:
            yield wrappers
        finally:
            torch.autograd.backward = backward
            for wrapper in found:
                vars(wrapper).pop("forward", None)


class _Forward:
    """The forward of a wrapper: its module's, after the buffers of the first rank were sent to all."""

    def __init__(self, wrapper: DistributedDataParallel, wrappers: Wrappers) -> None:
        self._wrapper, self._wrappers = wrapper, wrappers

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        wrapper = self._wrapper
        if wrapper.will_sync_module_buffers():
            source = dist.get_process_group_ranks(wrapper.process_group)[0]
            for buffer in wrapper.modules_buffers:
                dist.broadcast(buffer, source, group=wrapper.process_group)
        if torch.is_grad_enabled() and wrapper.require_backward_grad_sync and wrapper not in self._wrappers.armed:
            self._wrappers.armed.append(wrapper)
        return wrapper.module(*args, **kwargs)


def _reduce(wrapper: DistributedDataParallel) -> None:
    for parameter in managed_by_ddp(wrapper):
        if parameter.grad is None:
            name = next((name for name, own in wrapper.module.named_parameters() if own is parameter), "")
            raise WrapperError(f"`{name}` has no gradient after backward, which DistributedDataParallel waits for")
        dist.all_reduce(parameter.grad, group=wrapper.process_group)
        parameter.grad.div_(dist.get_world_size(wrapper.process_group))
        mark_written_out(parameter.grad)


def data_parallel_contract(model: nn.Module) -> OuterReduction | None:
    """What the first data-parallel wrapper of the model does to gradients; None without a wrapper."""
    found = next((module for module in model.modules() if isinstance(module, DistributedDataParallel)), None)
    if found is not None:
        return contract_of_ddp(found)
    groups = groups_of_model(model)
    return contract_of_group(groups[0]) if groups else None


def without_wrappers(model: nn.Module) -> Callable[[str], str]:
    """What a parameter's name is where the wrappers around modules are left out."""
    inside = [
        (f"{name}.module." if name else "module.", f"{name}." if name else "")
        for name, module in model.named_modules()
        if isinstance(module, DistributedDataParallel)
    ]

    def plain(name: str) -> str:
        for prefix, replacement in reversed(inside):
            if name.startswith(prefix):
                name = replacement + name[len(prefix) :]
        return name

    return plain


def _refuse_others(model: nn.Module) -> None:
    for name, module in model.named_modules():
        where = f"`{name}`" if name else "the model"
        if replicate_state(module) is not None:
            raise WrapperError(
                f"{where} is wrapped in `replicate`, whose hooks run outside of what is traced; ask with "
                "`DistributedDataParallel`, which reduces alike"
            )
        if type(module).__name__ == "FullyShardedDataParallel":
            raise WrapperError(f"{where} is a FullyShardedDataParallel, whose hooks run outside of what is traced")
