"""Collectives among the threads of one process, one thread a rank: what each gives, and what each gets."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import (
    PythonCallbackWork,
    _create_work_from_future,  # pyright: ignore[reportAttributeAccessIssue]  # torch's stubs leave it out
)
from torch._guards import TracingContext
from torch.distributed import distributed_c10d
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.distributed_c10d import ProcessGroup, Work
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from verifycompile.torch_interface.communication.in_place_collectives import FORMS, InPlaceCall
from verifycompile.torch_interface.operators.calls import by_name

Parts = list[Any]
"""What every member of a group brought, in the order of their numbers in the group."""


class Place(Protocol):
    """Where the ranks of a job meet; ``rank`` is that of the thread that speaks."""

    rank: int

    def meet(self, members: tuple[int, ...], what: str, given: Any, combine: Callable[[Parts], Any]) -> Any:
        """Wait for all ``members``; ``combine`` makes of what they gave what all of them get."""
        ...

    def send(self, key: tuple[Any, ...], value: torch.Tensor) -> None: ...

    def receive(self, key: tuple[Any, ...]) -> torch.Tensor: ...


class Communication(TorchDispatchMode):
    """While entered by the thread of a rank, collectives meet those of the other ranks' threads.

    Everything is done when the call returns, whether or not it is asynchronous; a receive is done when it is waited
    for.
    """

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What is compiled communicates once it runs."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # In the forward of DDP, Dynamo traces with this mode still on.
        if TracingContext.try_get() is not None:
            return func(*args, **(kwargs or {}))
        # A DTensor communicates in its own dispatch, which must run with this mode still on.
        if any(issubclass(kind, (DTensor, AsyncCollectiveTensor)) for kind in types):
            return NotImplemented
        namespace, _, name = func._schema.name.partition("::")
        table = _TABLES.get(namespace)
        if table is None or name in _LOCAL or (namespace == "_dtensor" and name not in table):
            return func(*args, **(kwargs or {}))
        group = _Group(self._place, by_name(func, args, kwargs or {}))
        if namespace == "c10d" and name in FORMS:
            with self, torch.no_grad():  # its functional collectives meet
                found = FORMS[name](InPlaceCall(_multiplied(group.arguments), group.held))
        elif name in table:
            found = table[name](group)
        else:
            raise NotImplementedError(f"`{namespace}.{name}` does not run on threads of one process")
        if namespace == "c10d" and name != "recv_" and func._schema.returns:
            return (found, _done(found)) if len(func._schema.returns) == 2 else _done(found)
        return found


def reduced(parts: Sequence[torch.Tensor], operation: str) -> torch.Tensor:
    """The reduction of the parts, one after the other, in their own dtype."""
    if operation in ("sum", "avg"):
        total = functools.reduce(torch.add, parts[1:], parts[0].clone())
        return total / len(parts) if operation == "avg" else total
    pairwise = {
        "min": torch.minimum, "max": torch.maximum, "product": torch.mul,
        "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor,
    }  # fmt: skip
    if operation not in pairwise:
        raise NotImplementedError(f"the reduction `{operation}` does not run on threads of one process")
    return functools.reduce(pairwise[operation], parts[1:], parts[0].clone())


class _Factor(threading.local):
    """By what the ``PREMUL_SUM`` of a thread's next collective multiplies, which operators cannot read."""

    value: Any = None


_PREMUL_SUM = 8
"""The number of that reduction."""
_factor = _Factor()


def _telling(kind: Any) -> Any:
    """Options of a collective, which tell the factor of the reduction that they are given."""

    class Telling(kind):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "reduceOp":
                held = self.reduceOp
                _factor.value = held.factor if int(held.op) == _PREMUL_SUM else None

    return Telling


FACTORS_TOLD = tuple(
    (distributed_c10d, name, _telling(getattr(distributed_c10d, name)))
    for name in ("AllreduceOptions", "ReduceScatterOptions")
)
"""For ``replaced``: what the functions of ``torch.distributed`` pass on to a process group."""


class _Sum:
    def op(self) -> int:
        return 0


def _multiplied(arguments: dict[str, Any]) -> dict[str, Any]:
    """The sum of multiplied parts in the place of ``PREMUL_SUM``."""
    factor = _factor.value
    if "reduce_op" not in arguments or int(arguments["reduce_op"].op()) != _PREMUL_SUM or factor is None:
        return arguments
    for tensor in arguments.get("tensors", ()):
        tensor.mul_(factor)
    inputs = {name: value for name, value in arguments.items() if name.startswith("input")}
    multiplied = {name: tree_map_only(torch.Tensor, lambda t: t * factor, value) for name, value in inputs.items()}
    return {**arguments, **multiplied, "reduce_op": _Sum()}


class _Group:
    """The process group of a call, and the call's arguments by their names in the schema."""

    def __init__(self, place: Place, arguments: dict[str, Any]) -> None:
        self.place, self.arguments = place, arguments

    @functools.cached_property
    def held(self) -> ProcessGroup:
        group = self.arguments.get("process_group", self.arguments.get("group_name"))
        if isinstance(group, torch.ScriptObject):
            return ProcessGroup.unbox(group)
        if isinstance(group, str):
            return distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]  # torch resolves names too
        return group  # type: ignore[return-value]  # a group as it is

    @functools.cached_property
    def members(self) -> tuple[int, ...]:
        known = distributed_c10d._world.pg_group_ranks
        ranks = known[self.held] if self.held in known else {index: index for index in range(self.held.size())}
        return tuple(sorted(ranks, key=ranks.__getitem__))

    @property
    def number(self) -> int:
        """That of the rank that speaks, among the members."""
        return self.members.index(self.place.rank)

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def operation(self) -> str:
        """The reduction that the call asks for."""
        held = self["reduce_op"]
        return held.lower() if isinstance(held, str) else InPlaceCall(self.arguments, self.held).reduction

    def gathered(self, what: str, value: Any) -> Parts:
        """What every member brings, copied, for all of them to read: a tensor, or a list of them."""
        return self.place.meet(self.members, what, value, lambda parts: tree_map_only(torch.Tensor, torch.clone, parts))

    def reduced(self, what: str, value: torch.Tensor) -> torch.Tensor:
        """The reduction of what the members bring, for all of them to read."""
        operation = self.operation
        return self.place.meet(self.members, f"{what}({operation})", value, lambda parts: reduced(parts, operation))

    def exchanged(self, what: str, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The piece for this rank of each member, which brings one for each."""
        return [row[self.number] for row in self.gathered(what, list(pieces))]


def _done(result: Any) -> Any:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return Work.boxed(_create_work_from_future(future))


def _into(outputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for output, value in zip(outputs, values, strict=True):
        output.copy_(value.reshape(output.shape))


# In place, and with a root, or a message. Each gives what it has written.


def _reduce_to_root(group: _Group) -> Any:
    operation, root = group.operation, group["root_rank"]
    for tensor in group["tensors"]:
        parts = group.gathered(f"reduce({operation}, {root})", tensor)
        if group.number == root:
            tensor.copy_(reduced(parts, operation))
    return group["tensors"]


def _gather_to_root(group: _Group) -> Any:
    root = group["root_rank"]
    for index, value in enumerate(group["input_tensors"]):
        parts = group.gathered(f"gather({root})", value)
        if group.number == root:
            _into(group["output_tensors"][index], parts)
    return group["input_tensors"]


def _scatter_from_root(group: _Group) -> Any:
    root = group["root_rank"]
    rows = group.gathered(f"scatter({root})", group["input_tensors"])[root]
    _into(group["output_tensors"], [listed[group.number] for listed in rows])
    return group["output_tensors"]


def _barrier(group: _Group) -> Any:
    group.gathered("barrier", None)


def _send(group: _Group) -> Any:
    for index, tensor in enumerate(group["tensors"]):
        group.place.send((group.place.rank, group.members[group["dst"]], group["tag"], index), tensor.clone())
    return group["tensors"]


def _receive(group: _Group) -> Any:
    source, place = group.members[group["src"]], group.place
    pending = list(enumerate(group["tensors"]))

    def wait(_: object) -> bool:
        while pending:
            index, tensor = pending.pop(0)
            with torch.no_grad():
                tensor.copy_(place.receive((source, place.rank, group["tag"], index)))
        return True

    return Work.boxed(PythonCallbackWork(wait))


# Functional: new tensors are returned.


def _coalesced(one: Callable[[_Group], Any]) -> Callable[[_Group], Any]:
    return lambda group: [one(_Group(group.place, {**group.arguments, "input": value})) for value in group["inputs"]]


def _returned(one: Callable[[_Group], torch.Tensor], name: str) -> Callable[[_Group], torch.Tensor]:
    """The same, written into the argument of that name where there is one."""

    def written(group: _Group) -> torch.Tensor:
        found, output = one(group), group.arguments.get(name)
        return found if output is None else output.copy_(found)

    return written


def _all_reduce(group: _Group) -> torch.Tensor:
    return group.reduced("all_reduce", group["input"]).clone()


def _broadcast(group: _Group) -> torch.Tensor:
    return group.gathered(f"broadcast({group['src']})", group["input"])[group["src"]].clone()


def _all_gather(group: _Group) -> torch.Tensor:
    return torch.cat([torch.atleast_1d(part) for part in group.gathered("all_gather_into_tensor", group["input"])])


def _reduce_scatter(group: _Group) -> torch.Tensor:
    whole = group.reduced("reduce_scatter_tensor", group["input"])
    return whole.chunk(len(group.members))[group.number].clone()


def _all_to_all(group: _Group) -> torch.Tensor:
    sizes = [int(size) for size in group["input_split_sizes"]]
    pieces = group["input"].split(sizes) if sizes else group["input"].chunk(len(group.members))
    return torch.cat(group.exchanged("all_to_all_single", pieces))


def _shard_dim_all_to_all(group: _Group) -> torch.Tensor:
    whole = torch.cat(group.gathered("shard_dim_alltoall", group["input"]), group["gather_dim"])
    return whole.chunk(len(group.members), group["shard_dim"])[group.number].contiguous()


def _send_functional(group: _Group) -> Any:
    group.place.send((group.place.rank, group.members[group["dst"]], group["tag"], 0), group["tensor"].clone())
    return group["tensor"]


def _receive_functional(group: _Group) -> Any:
    source = group.members[group["src"]]
    return group["tensor"].copy_(group.place.receive((source, group.place.rank, group["tag"], 0)))


def _messages_functional(group: _Group) -> Any:
    calls = list(zip(group["op_list"], group["peer_list"], group["tag_list"], group["tensors"], strict=True))
    # All that is sent goes first.
    for kind, peer, tag, tensor in sorted(calls, key=lambda call: call[0] != "isend"):
        one = _Group(group.place, {**group.arguments, "dst": peer, "src": peer, "tag": tag, "tensor": tensor})
        (_send_functional if kind == "isend" else _receive_functional)(one)
    return group["tensors"]


_IN_PLACE: dict[str, Callable[[_Group], Any]] = {
    "reduce_": _reduce_to_root,
    "gather_": _gather_to_root,
    "scatter_": _scatter_from_root,
    "barrier": _barrier,
    "monitored_barrier_": _barrier,
    "send": _send,
    "recv_": _receive,
}
"""Of ``c10d``: what has no functional form, and messages, which are done when they are waited for."""
_FUNCTIONAL: dict[str, Callable[[_Group], Any]] = {
    "all_reduce": _all_reduce,
    "all_reduce_": _returned(_all_reduce, "input"),
    "all_reduce_coalesced": _coalesced(_all_reduce),
    "all_reduce_coalesced_": _coalesced(_returned(_all_reduce, "input")),
    "broadcast": _broadcast,
    "broadcast_": _returned(_broadcast, "input"),
    "all_gather_into_tensor": _all_gather,
    "all_gather_into_tensor_out": _returned(_all_gather, "out"),
    "all_gather_into_tensor_coalesced": _coalesced(_all_gather),
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_tensor_out": _returned(_reduce_scatter, "out"),
    "reduce_scatter_tensor_coalesced": _coalesced(_reduce_scatter),
    "all_to_all_single": _all_to_all,
    "isend": _send_functional,
    "irecv": _receive_functional,
    "batch_p2p_ops": _messages_functional,
    "wait_tensor": lambda group: group["tensor"],
}
_LOCAL = frozenset({"_wrap_tensor_autograd", "check_for_nan"})
"""Operators of these libraries that communicate nothing."""
_TABLES: dict[str, dict[str, Callable[[_Group], Any]]] = {
    "c10d": _IN_PLACE,
    "_c10d_functional": _FUNCTIONAL,
    "_dtensor": {"shard_dim_alltoall": _shard_dim_all_to_all},
}
