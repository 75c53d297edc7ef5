"""Collectives among the threads of one process, one thread a rank: what each gives, and what each gets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import (
    PythonCallbackWork,
    _create_work_from_future,  # pyright: ignore[reportAttributeAccessIssue]  # torch's stubs leave it out
)
from torch.distributed import distributed_c10d
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.distributed_c10d import ProcessGroup, Work
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from verifycompile.torch_interface.schema import by_name

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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A DTensor communicates in its own dispatch, which must run with this mode still on.
        if any(issubclass(kind, (DTensor, AsyncCollectiveTensor)) for kind in types):
            return NotImplemented
        namespace, _, name = func._schema.name.partition("::")
        table = _TABLES.get(namespace)
        if table is None or name in _LOCAL or (namespace == "_dtensor" and name not in table):
            return func(*args, **(kwargs or {}))
        handler = table.get(name)
        if handler is None:
            raise NotImplementedError(f"`{namespace}.{name}` does not run on threads of one process")
        found = handler(_Group(self._place, by_name(func, args, kwargs or {})))
        if namespace == "c10d" and name in _WITH_RESULTS:
            return found, _done(found)
        return _done(found) if namespace == "c10d" and name in _WORK_ALONE else found


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


_NAMES = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
"""The reductions of ``ReduceOp``, by number."""


class _Group:
    """The process group of a call, and the call's arguments by their names in the schema."""

    def __init__(self, place: Place, arguments: dict[str, Any]) -> None:
        self.place, self.arguments = place, arguments

    @functools.cached_property
    def members(self) -> tuple[int, ...]:
        return _members(self.either("process_group", "group_name"))

    @property
    def number(self) -> int:
        """That of the rank that speaks, among the members."""
        return self.members.index(self.place.rank)

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def either(self, *names: str) -> Any:
        """The argument that the call has of these."""
        return next(self.arguments[name] for name in names if name in self.arguments)

    @property
    def operation(self) -> str:
        """The reduction that the call asks for."""
        held = self["reduce_op"]
        return held.lower() if isinstance(held, str) else _NAMES[int(held.op())]

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


def _members(group: Any) -> tuple[int, ...]:
    if isinstance(group, torch.ScriptObject):
        group = ProcessGroup.unbox(group)
    elif isinstance(group, str):
        group = distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]  # torch resolves names too
    known = distributed_c10d._world.pg_group_ranks
    ranks = known[group] if group in known else {index: index for index in range(group.size())}
    return tuple(sorted(ranks, key=ranks.__getitem__))


def _done(result: Any) -> Any:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return Work.boxed(_create_work_from_future(future))


def _into(outputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for output, value in zip(outputs, values, strict=True):
        output.copy_(value.reshape(output.shape))


# In place: torch.distributed's own calls. Each gives what it has written; some return that along with the work.


def _all_reduce_in_place(group: _Group) -> Any:
    for tensor in group["tensors"]:
        tensor.copy_(group.reduced("all_reduce", tensor))
    return group["tensors"]


def _reduce_to_root(group: _Group) -> Any:
    operation, root = group.operation, group["root_rank"]
    for tensor in group["tensors"]:
        parts = group.gathered(f"reduce({operation}, {root})", tensor)
        if group.number == root:
            tensor.copy_(reduced(parts, operation))
    return group["tensors"]


def _broadcast_in_place(group: _Group) -> Any:
    root = group["root_rank"]
    for tensor in group["tensors"]:
        _into([tensor], [group.gathered(f"broadcast({root})", tensor)[root]])
    return group["tensors"]


def _all_gather_to_lists(group: _Group) -> Any:
    outputs = group.either("output_tensors", "output_lists")
    for listed, value in zip(outputs, group.either("input_tensors", "input_list"), strict=True):
        _into(listed, group.gathered("all_gather", value))
    return outputs


def _flat(group: _Group) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs and inputs of a call on one tensor, or on several."""
    if "outputs" in group.arguments:
        return group["outputs"], group["inputs"]
    return [group["output_tensor"]], [group["input_tensor"]]


def _all_gather_flat(group: _Group) -> Any:
    for output, value in zip(*_flat(group), strict=True):
        _into([output], [torch.cat(group.gathered("all_gather_into_tensor", value.flatten()))])
    return group.either("outputs", "output_tensor")


def _reduce_scatter_flat(group: _Group) -> Any:
    for output, value in zip(*_flat(group), strict=True):
        whole = group.reduced("reduce_scatter_tensor", value.flatten())
        _into([output], [whole.chunk(len(group.members))[group.number]])
    return group.either("outputs", "output_tensor")


def _reduce_scatter_from_lists(group: _Group) -> Any:
    operation = group.operation
    for output, listed in zip(group["output_tensors"], group["input_tensors"], strict=True):
        parts = group.exchanged(f"reduce_scatter({operation})", listed)
        _into([output], [reduced(parts, operation)])
    return group["output_tensors"]


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


def _all_to_all_lists(group: _Group) -> Any:
    _into(group["output_tensors"], group.exchanged("all_to_all", group["input_tensors"]))
    return group["output_tensors"]


def _all_to_all_flat(group: _Group) -> Any:
    _into([group["output"]], [_all_to_all(group)])
    return [group["output"]]


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


_WITH_RESULTS: dict[str, Callable[[_Group], Any]] = {
    "allreduce_": _all_reduce_in_place,
    "broadcast_": _broadcast_in_place,
    "allgather_": _all_gather_to_lists,
    "_allgather_base_": _all_gather_flat,
    "_reduce_scatter_base_": _reduce_scatter_flat,
    "reduce_scatter_": _reduce_scatter_from_lists,
    "scatter_": _scatter_from_root,
    "alltoall_": _all_to_all_lists,
}
"""Of ``c10d``: what returns its results, and the work."""
_WORK_ALONE: dict[str, Callable[[_Group], Any]] = {
    "allreduce_coalesced_": _all_reduce_in_place,
    "reduce_": _reduce_to_root,
    "allgather_into_tensor_coalesced_": _all_gather_flat,
    "allgather_coalesced_": _all_gather_to_lists,
    "reduce_scatter_tensor_coalesced_": _reduce_scatter_flat,
    "gather_": _gather_to_root,
    "alltoall_base_": _all_to_all_flat,
    "barrier": _barrier,
    "send": _send,
}
_OTHER: dict[str, Callable[[_Group], Any]] = {"monitored_barrier_": _barrier, "recv_": _receive}
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
    "c10d": {**_WITH_RESULTS, **_WORK_ALONE, **_OTHER},
    "_c10d_functional": _FUNCTIONAL,
    "_dtensor": {"shard_dim_alltoall": _shard_dim_all_to_all},
}
