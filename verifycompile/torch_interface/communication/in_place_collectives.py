"""The in-place collectives of ``c10d``, which ``torch.distributed`` calls, by functional ones.

A form writes the outputs of a call, by the functions of ``collective_calls``, and gives what the operator returns
beside its work. Captured graphs are traced through the forms, and ranks that are threads of one process meet in them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.fx
from torch.utils._pytree import tree_leaves

from verifycompile.torch_interface.communication import collective_calls as calls
from verifycompile.torch_interface.operators.calls import by_name

_REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
_KEY = "ranks:"
Ranks = tuple[int, ...]


class UnsupportedCollectiveError(NotImplementedError):
    """A collective without a functional form. The message names it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def key_of(ranks: Ranks) -> str:
    """The name under which prepared graphs mention a group: its members."""
    return _KEY + ",".join(map(str, ranks))


def is_key(name: str) -> bool:
    """Whether a name is one of ``key_of``."""
    return name.startswith(_KEY)


def ranks_of(key: str) -> Ranks:
    """The members behind ``key_of``."""
    return tuple(int(rank) for rank in key.removeprefix(_KEY).split(","))


@dataclasses.dataclass(frozen=True)
class InPlaceCall:
    """A call of ``c10d``, its arguments by their names in the schema."""

    arguments: Mapping[str, Any]
    group: dist.ProcessGroup

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def reduction(self) -> str:
        """The name under which functional collectives know the reduction."""
        number = int(self["reduce_op"].op())
        if not 0 <= number < len(_REDUCTIONS):
            raise UnsupportedCollectiveError(f"the reduction number {number} has no functional form")
        return _REDUCTIONS[number]


def _all_reduce(call: InPlaceCall) -> Any:
    if call.arguments.get("sparse_indices") is not None:
        raise UnsupportedCollectiveError("an all-reduce of sparse tensors has no functional form")
    for tensor in call["tensors"]:
        calls.all_reduce(tensor, call.reduction, call.group)
    return call["tensors"]


def _broadcast(call: InPlaceCall) -> Any:
    for tensor in call["tensors"]:
        calls.broadcast(tensor, group=call.group, group_src=call["root_rank"])
    return call["tensors"]


_OPERANDS = (
    ("output_tensors", "input_tensors"),
    ("outputs", "inputs"),
    ("output_lists", "input_list"),
    ("output_tensor", "input_tensor"),
)
"""What the operators call their outputs and inputs; the last one has one of each."""


def _each(function: Callable[..., Any]) -> Callable[[InPlaceCall], Any]:
    """``function`` of each output and its input."""

    def form(call: InPlaceCall) -> Any:
        outputs, inputs = next((call[o], call[i]) for o, i in _OPERANDS if o in call.arguments)
        pairs = [(outputs, inputs)] if "output_tensor" in call.arguments else zip(outputs, inputs, strict=True)
        reduction = {"op": call.reduction} if "reduce_op" in call.arguments else {}
        for output, source in pairs:
            function(output, source, group=call.group, **reduction)
        return outputs

    return form


def _all_to_all(call: InPlaceCall) -> Any:
    calls.all_to_all(call["output_tensors"], call["input_tensors"], call.group)
    return call["output_tensors"]


def _all_to_all_flat(call: InPlaceCall) -> Any:
    calls.all_to_all_single(
        call["output"], call["input"], call["output_split_sizes"], call["input_split_sizes"], call.group
    )
    return [call["output"]]


FORMS: Mapping[str, Callable[[InPlaceCall], Any]] = {
    "allreduce_": _all_reduce,
    "allreduce_coalesced_": _all_reduce,
    "broadcast_": _broadcast,
    "_allgather_base_": _each(calls.all_gather_into_tensor),
    "allgather_into_tensor_coalesced_": _each(calls.all_gather_into_tensor),
    "allgather_": _each(calls.all_gather),
    "allgather_coalesced_": _each(calls.all_gather),
    "_reduce_scatter_base_": _each(calls.reduce_scatter_tensor),
    "reduce_scatter_tensor_coalesced_": _each(calls.reduce_scatter_tensor),
    "reduce_scatter_": _each(calls.reduce_scatter),
    "alltoall_": _all_to_all,
    "alltoall_base_": _all_to_all_flat,
}


# ------------------------------------------------------------------------------------------------ in captured graphs


class _KnownGroup(dist.ProcessGroup):
    """A process group of which no more than its members is known."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(0, len(ranks))  # pyright: ignore[reportCallIssue]  # torch's stubs ask for a store
        self.ranks = ranks

    @property
    def group_name(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's can be written
        return key_of(self.ranks)


def _barrier(call: InPlaceCall) -> Any:
    calls.barrier(call.group)


def _send(call: InPlaceCall) -> Any:
    key = call["process_group"]
    for tensor in call["tensors"]:
        _messages.isend(tensor, ranks_of(key)[call["dst"]], call["tag"], key)


def _receive(call: InPlaceCall) -> Any:
    key = call["process_group"]
    for tensor in call["tensors"]:
        value = _messages.irecv(tensor, ranks_of(key)[call["src"]], call["tag"], key)
        tensor.copy_(_messages.wait_tensor(value))


_messages = torch.ops._c10d_functional
_IN_GRAPHS = {**FORMS, "barrier": _barrier, "send": _send, "recv_": _receive}
_OF_ONE_SIZE = ("allgather_", "allgather_coalesced_", "reduce_scatter_")
"""Of several sizes the form depends on the rank, which a graph does not say."""


class FormsInterpreter(torch.fx.Interpreter):
    """Runs a graph whose in-place collectives name their group by ``key_of``: each is its form.

    Raises UnsupportedCollectiveError.
    """

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if getattr(target, "namespace", "") != "c10d":
            return super().call_function(target, args, kwargs)
        form, arguments = _IN_GRAPHS.get(target._opname), by_name(target, args, kwargs)
        sizes = {value.shape for value in tree_leaves(arguments) if isinstance(value, torch.Tensor)}
        if form is None or (target._opname in _OF_ONE_SIZE and len(sizes) > 1):
            of_sizes = "" if form is None else " of tensors of several sizes"
            raise UnsupportedCollectiveError(f"the collective `{target}`{of_sizes} has no functional form")
        results = form(InPlaceCall(arguments, _KnownGroup(ranks_of(arguments["process_group"]))))
        return (results, None) if len(target._schema.returns) == 2 else None
