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

Parts = list[Any]
"""What every member of a group brought, in the order of their numbers in the group."""


class Place(Protocol):
    """Where the ranks of a job meet; ``rank`` is that of the thread that speaks."""

    rank: int

    def meet(self, members: tuple[int, ...], what: str, given: Any, combine: Callable[[Parts], Parts]) -> Any:
        """Wait for all ``members``; ``combine`` makes of what they gave what each of them gets."""
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
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False))
        return handler(self._place, {**named, **(kwargs or {})})


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


def _operation(value: Any) -> str:
    if isinstance(value, str):
        return value.lower()
    return _NAMES[int(value.op())]


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


def _all_same(parts: Parts, value: Any) -> Parts:
    return [value] * len(parts)


# In place: torch.distributed's own calls.


def _all_reduce_in_place(place: Place, a: dict[str, Any]) -> Any:
    operation = _operation(a["reduce_op"])

    def combine(parts: Parts) -> Parts:
        for column in zip(*parts, strict=True):
            _into(column, [reduced(column, operation)] * len(column))
        return _all_same(parts, None)

    place.meet(_members(a["process_group"]), f"all_reduce({operation})", a["tensors"], combine)
    return a["tensors"], _done(a["tensors"])


def _all_reduce_coalesced(place: Place, a: dict[str, Any]) -> Any:
    return _all_reduce_in_place(place, a)[1]


def _reduce_to_root(place: Place, a: dict[str, Any]) -> Any:
    operation, root = _operation(a["reduce_op"]), a["root_rank"]

    def combine(parts: Parts) -> Parts:
        for column in zip(*parts, strict=True):
            column[root].copy_(reduced(column, operation))
        return _all_same(parts, None)

    place.meet(_members(a["process_group"]), f"reduce({operation}, {root})", a["tensors"], combine)
    return _done(a["tensors"])


def _broadcast_in_place(place: Place, a: dict[str, Any]) -> Any:
    root = a["root_rank"]

    def combine(parts: Parts) -> Parts:
        for part in parts:
            if part is not parts[root]:
                _into(part, parts[root])
        return _all_same(parts, None)

    place.meet(_members(a["process_group"]), f"broadcast({root})", a["tensors"], combine)
    return a["tensors"], _done(a["tensors"])


def _all_gather_to_lists(place: Place, a: dict[str, Any]) -> Any:
    def combine(parts: Parts) -> Parts:
        for outputs, _ in parts:
            for number, (_, inputs) in enumerate(parts):
                _into([listed[number] for listed in outputs], inputs)
        return _all_same(parts, None)

    outputs = a["output_tensors"] if "output_tensors" in a else a["output_lists"]
    inputs = a["input_tensors"] if "input_tensors" in a else a["input_list"]
    place.meet(_members(a["process_group"]), "all_gather", (outputs, inputs), combine)
    return outputs, _done(outputs)


def _all_gather_flat(place: Place, a: dict[str, Any]) -> Any:
    outputs = a["outputs"] if "outputs" in a else [a["output_tensor"]]
    inputs = a["inputs"] if "inputs" in a else [a["input_tensor"]]

    def combine(parts: Parts) -> Parts:
        gathered = [torch.cat([x.flatten() for x in column]) for column in zip(*(i for _, i in parts), strict=True)]
        for own, _ in parts:
            _into(own, gathered)
        return _all_same(parts, None)

    place.meet(_members(a["process_group"]), "all_gather_into_tensor", (outputs, inputs), combine)
    return (outputs, _done(outputs)) if "outputs" in a else (a["output_tensor"], _done(a["output_tensor"]))


def _reduce_scatter_flat(place: Place, a: dict[str, Any]) -> Any:
    operation = _operation(a["reduce_op"])
    outputs = a["outputs"] if "outputs" in a else [a["output_tensor"]]
    inputs = a["inputs"] if "inputs" in a else [a["input_tensor"]]

    def combine(parts: Parts) -> Parts:
        for index, column in enumerate(zip(*(i for _, i in parts), strict=True)):
            pieces = reduced([x.flatten() for x in column], operation).chunk(len(parts))
            for (own, _), piece in zip(parts, pieces, strict=True):
                _into([own[index]], [piece])
        return _all_same(parts, None)

    place.meet(_members(a["process_group"]), f"reduce_scatter_tensor({operation})", (outputs, inputs), combine)
    return (outputs, _done(outputs)) if "outputs" in a else (a["output_tensor"], _done(a["output_tensor"]))


def _reduce_scatter_from_lists(place: Place, a: dict[str, Any]) -> Any:
    operation = _operation(a["reduce_op"])

    def combine(parts: Parts) -> Parts:
        for number, (outputs, _) in enumerate(parts):
            values = [reduced([i[index][number] for _, i in parts], operation) for index in range(len(outputs))]
            _into(outputs, values)
        return _all_same(parts, None)

    given = (a["output_tensors"], a["input_tensors"])
    place.meet(_members(a["process_group"]), f"reduce_scatter({operation})", given, combine)
    return a["output_tensors"], _done(a["output_tensors"])


def _gather_to_root(place: Place, a: dict[str, Any]) -> Any:
    root = a["root_rank"]

    def combine(parts: Parts) -> Parts:
        outputs = parts[root][0]
        for number, (_, inputs) in enumerate(parts):
            _into([listed[number] for listed in outputs], inputs)
        return _all_same(parts, None)

    place.meet(_members(a["process_group"]), f"gather({root})", (a["output_tensors"], a["input_tensors"]), combine)
    return _done(a["input_tensors"])


def _scatter_from_root(place: Place, a: dict[str, Any]) -> Any:
    root = a["root_rank"]

    def combine(parts: Parts) -> Parts:
        lists = parts[root][1]
        for number, (outputs, _) in enumerate(parts):
            _into(outputs, [listed[number] for listed in lists])
        return _all_same(parts, None)

    place.meet(_members(a["process_group"]), f"scatter({root})", (a["output_tensors"], a["input_tensors"]), combine)
    return a["output_tensors"], _done(a["output_tensors"])


def _all_to_all_lists(place: Place, a: dict[str, Any]) -> Any:
    def combine(parts: Parts) -> Parts:
        for number, (outputs, _) in enumerate(parts):
            _into(outputs, [inputs[number] for _, inputs in parts])
        return _all_same(parts, None)

    place.meet(_members(a["process_group"]), "all_to_all", (a["output_tensors"], a["input_tensors"]), combine)
    return a["output_tensors"], _done(a["output_tensors"])


def _pieces(value: torch.Tensor, sizes: Sequence[int], count: int) -> Sequence[torch.Tensor]:
    return value.split([int(size) for size in sizes]) if sizes else value.chunk(count)


def _all_to_all_flat(place: Place, a: dict[str, Any]) -> Any:
    def combine(parts: Parts) -> Parts:
        pieces = [_pieces(given, sizes, len(parts)) for _, given, sizes in parts]
        for number, (output, _, _) in enumerate(parts):
            _into([output], [torch.cat([row[number] for row in pieces])])
        return _all_same(parts, None)

    given = (a["output"], a["input"], a["input_split_sizes"])
    place.meet(_members(a["process_group"]), "all_to_all_single", given, combine)
    return _done([a["output"]])


def _barrier(place: Place, a: dict[str, Any]) -> Any:
    place.meet(_members(a["process_group"]), "barrier", None, lambda parts: _all_same(parts, None))
    return _done(None)


def _send(place: Place, a: dict[str, Any]) -> Any:
    members = _members(a["process_group"])
    for index, tensor in enumerate(a["tensors"]):
        place.send((place.rank, members[a["dst"]], a["tag"], index), tensor.clone())
    return _done(a["tensors"])


def _receive(place: Place, a: dict[str, Any]) -> Any:
    source, own = _members(a["process_group"])[a["src"]], place.rank
    pending = list(enumerate(a["tensors"]))

    def wait(_: object) -> bool:
        while pending:
            index, tensor = pending.pop(0)
            with torch.no_grad():
                tensor.copy_(place.receive((source, own, a["tag"], index)))
        return True

    return Work.boxed(PythonCallbackWork(wait))


# Functional: new tensors are returned.


def _coalesced(one: Callable[[Place, dict[str, Any]], Any]) -> Callable[[Place, dict[str, Any]], Any]:
    def each(place: Place, a: dict[str, Any]) -> Any:
        return [one(place, {**a, "input": value}) for value in a["inputs"]]

    return each


def _all_reduce(place: Place, a: dict[str, Any]) -> Any:
    operation = _operation(a["reduce_op"])

    def combine(parts: Parts) -> Parts:
        whole = reduced(parts, operation)
        return [whole.clone() for _ in parts]

    return place.meet(_members(a["group_name"]), f"all_reduce({operation})", a["input"], combine)


def _all_reduce_into(place: Place, a: dict[str, Any]) -> Any:
    return a["input"].copy_(_all_reduce(place, a))


def _broadcast(place: Place, a: dict[str, Any]) -> Any:
    def combine(parts: Parts) -> Parts:
        return [parts[a["src"]].clone() for _ in parts]

    return place.meet(_members(a["group_name"]), f"broadcast({a['src']})", a["input"], combine)


def _broadcast_into(place: Place, a: dict[str, Any]) -> Any:
    return a["input"].copy_(_broadcast(place, a))


def _all_gather(place: Place, a: dict[str, Any]) -> Any:
    def combine(parts: Parts) -> Parts:
        return [torch.cat([torch.atleast_1d(part) for part in parts]) for _ in parts]

    found = place.meet(_members(a["group_name"]), "all_gather_into_tensor", a["input"], combine)
    return found if a.get("out") is None else a["out"].copy_(found)


def _reduce_scatter(place: Place, a: dict[str, Any]) -> Any:
    operation = _operation(a["reduce_op"])

    def combine(parts: Parts) -> Parts:
        return [piece.clone() for piece in reduced(parts, operation).chunk(len(parts))]

    found = place.meet(_members(a["group_name"]), f"reduce_scatter_tensor({operation})", a["input"], combine)
    return found if a.get("out") is None else a["out"].copy_(found)


def _all_to_all(place: Place, a: dict[str, Any]) -> Any:
    def combine(parts: Parts) -> Parts:
        pieces = [_pieces(given, sizes, len(parts)) for given, sizes in parts]
        return [torch.cat([row[number] for row in pieces]) for number in range(len(parts))]

    given = (a["input"], a["input_split_sizes"])
    return place.meet(_members(a["group_name"]), "all_to_all_single", given, combine)


def _shard_dim_all_to_all(place: Place, a: dict[str, Any]) -> Any:
    def combine(parts: Parts) -> Parts:
        whole = torch.cat(parts, a["gather_dim"])
        return [piece.contiguous() for piece in whole.chunk(len(parts), a["shard_dim"])]

    return place.meet(_members(a["group_name"]), "shard_dim_alltoall", a["input"], combine)


def _send_functional(place: Place, a: dict[str, Any]) -> Any:
    members = _members(a["group_name"])
    place.send((place.rank, members[a["dst"]], a["tag"], 0), a["tensor"].clone())
    return a["tensor"]


def _receive_functional(place: Place, a: dict[str, Any]) -> Any:
    source = _members(a["group_name"])[a["src"]]
    return a["tensor"].copy_(place.receive((source, place.rank, a["tag"], 0)))


def _messages_functional(place: Place, a: dict[str, Any]) -> Any:
    calls = list(zip(a["op_list"], a["peer_list"], a["tag_list"], a["tensors"], strict=True))
    for kind, peer, tag, tensor in calls:
        if kind == "isend":
            _send_functional(place, {"group_name": a["group_name"], "dst": peer, "tag": tag, "tensor": tensor})
    for kind, peer, tag, tensor in calls:
        if kind != "isend":
            _receive_functional(place, {"group_name": a["group_name"], "src": peer, "tag": tag, "tensor": tensor})
    return a["tensors"]


def _wait(place: Place, a: dict[str, Any]) -> Any:  # noqa: ARG001 - called as the other handlers are
    return a["tensor"]


_IN_PLACE: dict[str, Callable[[Place, dict[str, Any]], Any]] = {
    "allreduce_": _all_reduce_in_place,
    "allreduce_coalesced_": _all_reduce_coalesced,
    "reduce_": _reduce_to_root,
    "broadcast_": _broadcast_in_place,
    "allgather_": _all_gather_to_lists,
    "_allgather_base_": _all_gather_flat,
    "allgather_into_tensor_coalesced_": lambda place, a: _all_gather_flat(place, a)[1],
    "allgather_coalesced_": lambda place, a: _all_gather_to_lists(place, a)[1],
    "_reduce_scatter_base_": _reduce_scatter_flat,
    "reduce_scatter_tensor_coalesced_": lambda place, a: _reduce_scatter_flat(place, a)[1],
    "reduce_scatter_": _reduce_scatter_from_lists,
    "gather_": _gather_to_root,
    "scatter_": _scatter_from_root,
    "alltoall_": _all_to_all_lists,
    "alltoall_base_": _all_to_all_flat,
    "barrier": _barrier,
    "monitored_barrier_": lambda place, a: _barrier(place, a) and None,
    "send": _send,
    "recv_": _receive,
}
_FUNCTIONAL: dict[str, Callable[[Place, dict[str, Any]], Any]] = {
    "all_reduce": _all_reduce,
    "all_reduce_": _all_reduce_into,
    "all_reduce_coalesced": _coalesced(_all_reduce),
    "all_reduce_coalesced_": _coalesced(_all_reduce_into),
    "broadcast": _broadcast,
    "broadcast_": _broadcast_into,
    "all_gather_into_tensor": _all_gather,
    "all_gather_into_tensor_out": _all_gather,
    "all_gather_into_tensor_coalesced": _coalesced(_all_gather),
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_tensor_out": _reduce_scatter,
    "reduce_scatter_tensor_coalesced": _coalesced(_reduce_scatter),
    "all_to_all_single": _all_to_all,
    "isend": _send_functional,
    "irecv": _receive_functional,
    "batch_p2p_ops": _messages_functional,
    "wait_tensor": _wait,
}
_LOCAL = frozenset({"_wrap_tensor_autograd", "check_for_nan"})
"""Operators of these libraries that communicate nothing."""
_TABLES = {
    "c10d": _IN_PLACE,
    "_c10d_functional": _FUNCTIONAL,
    "_dtensor": {"shard_dim_alltoall": _shard_dim_all_to_all},
}
