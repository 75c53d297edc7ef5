# ruff: noqa: A002, ARG001, ARG002, PLR0917  # torch's own signatures
"""Calls of ``torch.distributed`` that Dynamo does not trace, written with functional collectives that it does.

Dynamo inlines these functions in place of torch's (``collective_tracing``). They have the arguments of the function of
the same name, but that ``op`` is a string. What a call with ``async_op=True`` writes is unknown until ``wait()``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d

from verifycompile.torch_interface.communication.in_flight import in_flight, landed, taken

_operators = torch.ops._c10d_functional
Tensors = list[torch.Tensor]


class PendingWork:
    """What a call returns that does not wait: ``torch.distributed.Work`` as far as programs use it.

    ``results``: ``(buffer, raw result of a functional collective, mark that the buffer holds)``; ``read``: tensors that
    must stay as they are until the result lands, with marks of what they were.
    """

    def __init__(self, results: list[Any], read: list[Any], handles: Tensors) -> None:
        self.results = results
        self.read = read
        self.handles = handles
        self.is_done = False

    def wait(self, timeout: Any = None) -> bool:
        if self.is_done:
            return True
        self.is_done = True
        before = [mark for _, mark in self.read] + [mark for _, _, mark in self.results]
        after = [tensor for tensor, _ in self.read] + [buffer for buffer, _, _ in self.results]
        waited = [
            landed(_operators.wait_tensor(value), before, after).reshape(buffer.shape)
            for buffer, value, _ in self.results
        ]
        for handle in self.handles:
            _operators.wait_tensor(landed(handle, before, after))
        for (buffer, _, _), value in zip(self.results, waited):  # noqa: B905 - inlined by Dynamo
            buffer.copy_(value)
        return True


def _work(results: list[Any], read: Tensors, async_op: bool, handles: Any = ()) -> Any:
    """Write ``results``, pairs of a buffer and its raw value: now, or where the caller waits for what this returns."""
    if async_op or _coalescing:
        marked: list[Any] = []
        sources = [(tensor, taken(tensor)) for tensor in read]
        for buffer, value in results:
            buffer.copy_(in_flight(buffer))
            # What the buffer holds from here on, read again where it is waited for.
            marked.append((buffer, value, taken(buffer)))
        work = PendingWork(marked, sources, list(handles))
        if not _coalescing:
            return work
        _coalescing[-1].append(work)
        return None
    for handle in handles:
        _operators.wait_tensor(handle)
    values = [_operators.wait_tensor(value).reshape(buffer.shape) for buffer, value in results]
    for (buffer, _), value in zip(results, values):  # noqa: B905 - inlined by Dynamo
        buffer.copy_(value)
    return None


def _check(name: str, replacement: str, *tensors: torch.Tensor) -> None:
    """Torch's in-place collectives have no gradient; eager and compiled programs would differ in silence."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        torch._dynamo.graph_break(
            msg=f"torch.distributed.{name} has no gradient and is called on a tensor that requires one. "
            f"Call it inside of a torch.autograd.Function, or use {replacement}."
        )


def _name(group: Any) -> Any:
    return functional._resolve_group_name(_group(group))


def _group(group: Any) -> Any:
    return dist.group.WORLD if group is None else group


def _place(rank: Any, place: Any, group: Any) -> int:
    """Number within the group of the global ``rank``, or ``place`` itself."""
    if place is not None:
        return place
    return distributed_c10d.get_process_group_ranks(group).index(0 if rank is None else rank)


def _global(rank: Any, place: Any, group: Any) -> int:
    return rank if place is None else distributed_c10d.get_process_group_ranks(group)[place]


# ------------------------------------------------------------------------------------------------ to and from one rank


def broadcast(
    tensor: torch.Tensor, src: Any = None, group: Any = None, async_op: bool = False, group_src: Any = None
) -> Any:
    _check("broadcast", "torch.distributed._functional_collectives.broadcast", tensor)
    group = _group(group)
    value = _operators.broadcast(tensor, _place(src, group_src, group), _name(group))
    return _work([(tensor, value)], [], async_op)


def reduce(
    tensor: torch.Tensor,
    dst: Any = None,
    op: str = "sum",
    group: Any = None,
    async_op: bool = False,
    group_dst: Any = None,
) -> Any:
    """The sum is written on ``dst``; what the others hold afterwards depends on the backend."""
    _check("reduce", "torch.distributed._functional_collectives.all_reduce", tensor)
    group = _group(group)
    value = _operators.all_reduce(tensor, op, _name(group))
    if dist.get_rank(group) == _place(dst, group_dst, group):
        return _work([(tensor, value)], [], async_op)
    tensor.copy_(in_flight(tensor))
    return _work([], [], async_op, [value])


def gather(
    tensor: torch.Tensor,
    gather_list: Any = None,
    dst: Any = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: Any = None,
) -> Any:
    _check("gather", "torch.distributed._functional_collectives.all_gather_single", tensor)
    group = _group(group)
    rows = _operators.all_gather_into_tensor(tensor.unsqueeze(0), dist.get_world_size(group), _name(group))
    if dist.get_rank(group) == _place(dst, group_dst, group):
        return _list_work(gather_list, rows, [tensor], async_op)
    return _work([], [tensor], async_op, [rows])


def scatter(
    tensor: torch.Tensor,
    scatter_list: Any = None,
    src: Any = None,
    group: Any = None,
    async_op: bool = False,
    group_src: Any = None,
) -> Any:
    group = _group(group)
    rank, place = dist.get_rank(group), _place(src, group_src, group)
    if rank == place:
        _check("scatter", "torch.distributed._functional_collectives.broadcast", *scatter_list)
        rows = torch.stack(scatter_list)
    else:
        rows = tensor.new_zeros((dist.get_world_size(group), *tensor.shape))
    rows = _operators.wait_tensor(_operators.broadcast(rows, place, _name(group)))
    return _work([(tensor, rows[rank])], [], async_op)


# ------------------------------------------------------------------------------------------------ among all ranks


def all_reduce(tensor: torch.Tensor, op: str = "sum", group: Any = None, async_op: bool = False) -> Any:
    _check("all_reduce", "torch.distributed._functional_collectives.all_reduce", tensor)
    return _work([(tensor, _operators.all_reduce(tensor, op, _name(group)))], [], async_op)


def all_reduce_coalesced(tensors: Tensors, op: str = "sum", group: Any = None, async_op: bool = False) -> Any:
    _check("all_reduce_coalesced", "torch.distributed._functional_collectives.all_reduce_coalesced", *tensors)
    name = _name(group)
    return _work([(tensor, _operators.all_reduce(tensor, op, name)) for tensor in tensors], [], async_op)


def all_gather_into_tensor(
    output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any = None, async_op: bool = False
) -> Any:
    _check("all_gather_into_tensor", "torch.distributed._functional_collectives.all_gather_single", input_tensor)
    group = _group(group)
    value = _operators.all_gather_into_tensor(input_tensor, dist.get_world_size(group), _name(group))
    return _work([(output_tensor, value)], [input_tensor], async_op)


def all_gather(tensor_list: Tensors, tensor: torch.Tensor, group: Any = None, async_op: bool = False) -> Any:
    _check("all_gather", "torch.distributed._functional_collectives.all_gather_single", tensor)
    group = _group(group)
    if all(output.shape == tensor.shape for output in tensor_list):
        rows = _operators.all_gather_into_tensor(tensor.unsqueeze(0), len(tensor_list), _name(group))
        return _list_work(tensor_list, rows, [tensor], async_op)
    # Parts of different sizes: every rank sends its own to all.
    rank, name = dist.get_rank(group), _name(group)
    sources = [tensor if place == rank else torch.zeros_like(output) for place, output in enumerate(tensor_list)]
    values = [_operators.broadcast(source, place, name) for place, source in enumerate(sources)]
    return _work(list(zip(tensor_list, values)), [tensor], async_op)  # noqa: B905 - inlined by Dynamo


def all_gather_coalesced(
    output_tensor_lists: list[Tensors], input_tensor_list: Tensors, group: Any = None, async_op: bool = False
) -> Any:
    works = [
        all_gather(outputs, source, group, async_op)
        for outputs, source in zip(output_tensor_lists, input_tensor_list)  # noqa: B905 - inlined by Dynamo
    ]
    return _Works(works) if async_op else None


def reduce_scatter(
    output: torch.Tensor, input_list: Tensors, op: str = "sum", group: Any = None, async_op: bool = False
) -> Any:
    _check("reduce_scatter", "torch.distributed._functional_collectives.reduce_scatter_single", *input_list)
    group = _group(group)
    if all(part.shape == output.shape for part in input_list):
        value = _operators.reduce_scatter_tensor(torch.stack(input_list), op, len(input_list), _name(group))
        return _work([(output, value)], input_list, async_op)
    name = _name(group)
    values = [_operators.all_reduce(part, op, name) for part in input_list]
    rank = dist.get_rank(group)
    others = [value for place, value in enumerate(values) if place != rank]
    return _work([(output, values[rank])], input_list, async_op, others)


def reduce_scatter_tensor(
    output: torch.Tensor, input: torch.Tensor, op: str = "sum", group: Any = None, async_op: bool = False
) -> Any:
    _check("reduce_scatter_tensor", "torch.distributed._functional_collectives.reduce_scatter_single", input)
    group = _group(group)
    count = dist.get_world_size(group)
    rows = input.reshape((count, *output.shape))
    value = _operators.reduce_scatter_tensor(rows, op, count, _name(group))
    return _work([(output, value)], [input], async_op)


def all_to_all(
    output_tensor_list: Tensors, input_tensor_list: Tensors, group: Any = None, async_op: bool = False
) -> Any:
    _check("all_to_all", "torch.distributed._functional_collectives.all_to_all_single", *input_tensor_list)
    same = [tensor.shape == output_tensor_list[0].shape for tensor in (*output_tensor_list, *input_tensor_list)]
    if all(same):
        sizes = [1] * len(input_tensor_list)
        rows = _operators.all_to_all_single(torch.stack(input_tensor_list), sizes, sizes, _name(group))
        return _list_work(output_tensor_list, rows, input_tensor_list, async_op)
    sent = [tensor.numel() for tensor in input_tensor_list]
    received = [tensor.numel() for tensor in output_tensor_list]
    flat = torch.cat([tensor.reshape(-1) for tensor in input_tensor_list])
    row = _operators.wait_tensor(_operators.all_to_all_single(flat, received, sent, _name(group)))
    parts = row.split(received)
    return _work(list(zip(output_tensor_list, parts)), input_tensor_list, async_op)  # noqa: B905 - inlined by Dynamo


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    _check("all_to_all_single", "torch.distributed._functional_collectives.all_to_all_single", input)
    group = _group(group)
    count = dist.get_world_size(group)
    received = list(output_split_sizes) if output_split_sizes else [output.shape[0] // count] * count
    sent = list(input_split_sizes) if input_split_sizes else [input.shape[0] // count] * count
    value = _operators.all_to_all_single(input, received, sent, _name(group))
    return _work([(output, value)], [input], async_op)


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
    """Computes nothing, but all ranks must come to it: kept as a reduction of a number that nobody reads."""
    handle = _operators.all_reduce(torch.zeros(1), "sum", _name(group))
    return _work([], [], async_op, [handle])


def _list_work(outputs: Tensors, rows: torch.Tensor, read: Tensors, async_op: bool) -> Any:
    rows = _operators.wait_tensor(rows)
    return _work([(output, rows[place]) for place, output in enumerate(outputs)], read, async_op)


# ------------------------------------------------------------------------------------------------ messages


def isend(tensor: torch.Tensor, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None) -> Any:
    _check("isend", "a torch.autograd.Function whose backward receives", tensor)
    group = _group(group)
    handle = _operators.isend(tensor, _global(dst, group_dst, group), tag, _name(group))
    return PendingWork([], [(tensor, taken(tensor))], [handle])


def irecv(tensor: torch.Tensor, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None) -> Any:
    _check("irecv", "a torch.autograd.Function whose backward sends", tensor)
    group = _group(group)
    value = _operators.irecv(tensor, _global(src, group_src, group), tag, _name(group))
    tensor.copy_(in_flight(tensor))
    return PendingWork([(tensor, value, taken(tensor))], [], [])


def send(tensor: torch.Tensor, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None) -> None:
    isend(tensor, dst, group, tag, group_dst).wait()


def recv(tensor: torch.Tensor, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None) -> Any:
    irecv(tensor, src, group, tag, group_src).wait()
    return src


def batch_of_messages(
    op_list: list[str], peer_list: list[int], tag_list: list[int], tensors: Tensors, group_name: Any
) -> list[Any]:
    """``batch_isend_irecv``, with its operations taken apart by Dynamo."""
    for tensor in tensors:
        _check("batch_isend_irecv", "a torch.autograd.Function whose backward sends the other way", tensor)
    values = _operators.batch_p2p_ops(op_list, peer_list, tag_list, tensors, _name(group_name))
    works: list[Any] = []
    for kind, tensor, value in zip(op_list, tensors, values):  # noqa: B905 - inlined by Dynamo
        if kind == "isend":
            works.append(PendingWork([], [(tensor, taken(tensor))], [value]))
        else:
            tensor.copy_(in_flight(tensor))
            works.append(PendingWork([(tensor, value, taken(tensor))], [], []))
    return works


# ------------------------------------------------------------------------------------------------ several at once


class _Works:
    def __init__(self, works: list[Any]) -> None:
        self.works = works

    def append(self, work: Any) -> None:
        self.works.append(work)

    def wait(self, timeout: Any = None) -> bool:
        for work in self.works:
            work.wait()
        return True


_coalescing: list[_Works] = []
"""The coalescing managers that the traced program is in."""


class _Coalescing:
    """Collectives inside of the block are launched at its end."""

    def __init__(self, async_ops: bool) -> None:
        self.async_ops = async_ops
        self.works = _Works([])

    def __enter__(self) -> _Works:
        _coalescing.append(self.works)
        return self.works

    def __exit__(self, *exception: object) -> None:
        _coalescing.pop()
        if not self.async_ops:
            self.works.wait()


def _coalescing_manager(group: Any = None, device: Any = None, async_ops: bool = False) -> _Coalescing:
    return _Coalescing(async_ops)


def _of_objects(*args: Any, **kwargs: Any) -> None:
    torch._dynamo.graph_break(
        msg="This call of torch.distributed exchanges Python objects, which a graph does not hold. "
        "Call it outside of the compiled program, or exchange tensors."
    )


_BY_NAME: dict[str, Any] = {
    "broadcast": broadcast,
    "reduce": reduce,
    "gather": gather,
    "scatter": scatter,
    "all_reduce": all_reduce,
    "all_reduce_coalesced": all_reduce_coalesced,
    "all_gather_into_tensor": all_gather_into_tensor,
    "all_gather_single": all_gather_into_tensor,
    "_all_gather_base": all_gather_into_tensor,
    "all_gather": all_gather,
    "all_gather_coalesced": all_gather_coalesced,
    "reduce_scatter": reduce_scatter,
    "reduce_scatter_tensor": reduce_scatter_tensor,
    "reduce_scatter_single": reduce_scatter_tensor,
    "_reduce_scatter_base": reduce_scatter_tensor,
    "all_to_all": all_to_all,
    "all_to_all_single": all_to_all_single,
    "barrier": barrier,
    "isend": isend,
    "irecv": irecv,
    "send": send,
    "recv": recv,
    "batch_isend_irecv": batch_of_messages,
    "_coalescing_manager": _coalescing_manager,
    "all_gather_object": _of_objects,
    "gather_object": _of_objects,
    "broadcast_object_list": _of_objects,
    "scatter_object_list": _of_objects,
    "send_object_list": _of_objects,
    "recv_object_list": _of_objects,
}
REPLACEMENTS: dict[Any, Any] = {
    getattr(distributed_c10d, name): function for name, function in _BY_NAME.items() if hasattr(distributed_c10d, name)
}
"""torch's function -> the one that is traced in its place."""
