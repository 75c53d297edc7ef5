"""Data-parallel wrappers that communicate outside of the graph: DDP, ``replicate``, ``fully_shard``.

Their hooks gather parameters before the compiled code runs and reduce gradients after it; Dynamo skips them. What they
do to each gradient is read from their state at the time of the call: which parameters they manage, over which ranks
they reduce, by what they divide, whether this step reduces at all. The proof assumes it, and the report lists it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel

from verifycompile.torch_interface.data_parallel.outer_ddp import active_ddp, contract_of_ddp, ddp_name, managed_by_ddp
from verifycompile.torch_interface.data_parallel.outer_fully_shard import (
    contracts_of_state,
    fully_shard_states,
    of_fully_shard,
    states_in_forward,
)
from verifycompile.torch_interface.data_parallel.outer_reduction import OuterReduction, of_each, on_the_stack


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


FIRST_FSDP = (
    "`FullyShardedDataParallel` (FSDP1) is not understood: its parameters are parts of flat tensors that it gathers "
    "and reduces by itself. Use `torch.distributed.fsdp.fully_shard`."
)


def holds_first_fsdp(model: nn.Module) -> bool:
    """Whether a module of ``model`` is wrapped in the first ``FullyShardedDataParallel``."""
    return any(isinstance(module, FullyShardedDataParallel) for module in model.modules())


def runs_in_first_fsdp() -> bool:
    """Whether the forward of a first ``FullyShardedDataParallel`` runs."""
    return any(isinstance(value, FullyShardedDataParallel) for value in on_the_stack())


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
