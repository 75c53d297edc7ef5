"""Functional collectives on the values that the ranks of one group hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from verifycompile.witness.error import EvaluationError
from verifycompile.witness.layout import reduce

Values = list[torch.Tensor]
Arguments = Sequence[Mapping[str, object]]
"""The arguments of one collective, by name of its schema: one mapping a rank of the group."""


def is_collective(name: str) -> bool:
    """Whether the operator's value on a rank depends on the other ranks, as far as torch's operators do."""
    namespace = name.partition(".")[0]
    return namespace in ("_c10d_functional", "_c10d_functional_autograd", "c10d", "symm_mem") or name.startswith(
        "_dtensor.shard_dim_alltoall"
    )


def is_wait(name: str) -> bool:
    """Whether the operator returns its argument."""
    return name in ("_c10d_functional.wait_tensor.default", "_c10d_functional._wrap_tensor_autograd.default")


def evaluate(name: str, arguments: Arguments) -> Sequence[object]:
    """One result a rank of the group. Raises :class:`EvaluationError` for a collective without an interpretation."""
    operator = name.split(".")[1]
    coalesced = operator.removesuffix("_").removesuffix("_coalesced")
    if operator.removesuffix("_").endswith("_coalesced") and coalesced in _COLLECTIVES:
        return _coalesced(_COLLECTIVES[coalesced], arguments)
    collective = _COLLECTIVES.get(operator.removesuffix("_"))
    if collective is None:
        raise EvaluationError(f"no interpretation of the collective {name}")
    return collective(arguments)


def _coalesced(collective: Callable[[Arguments], Values], arguments: Arguments) -> list[list[torch.Tensor]]:
    count = len(_tensors(arguments[0]["inputs"]))
    columns = [
        collective([{**rank, "input": _tensors(rank["inputs"])[position]} for rank in arguments])
        for position in range(count)
    ]
    return [[column[rank] for column in columns] for rank in range(len(arguments))]


def _all_reduce(arguments: Arguments) -> Values:
    return [reduce(_inputs(arguments), _string(arguments, "reduce_op"))] * len(arguments)


def _all_gather(arguments: Arguments) -> Values:
    _check_group_size(arguments)
    inputs = [value.reshape(1) if value.dim() == 0 else value for value in _inputs(arguments)]
    return [torch.cat(inputs)] * len(arguments)


def _reduce_scatter(arguments: Arguments) -> Values:
    _check_group_size(arguments)
    whole = reduce(_inputs(arguments), _string(arguments, "reduce_op"))
    return _chunks(whole, len(arguments), 0)


def _all_to_all(arguments: Arguments) -> Values:
    ranks = len(arguments)
    sent = [
        _split(value, _integers(rank["input_split_sizes"]), ranks)
        for value, rank in zip(_inputs(arguments), arguments, strict=True)
    ]
    received = [torch.cat([pieces[rank] for pieces in sent]) for rank in range(ranks)]
    for value, rank in zip(received, arguments, strict=True):
        sizes = _integers(rank["output_split_sizes"])
        if sizes and sum(sizes) != value.shape[0]:
            raise EvaluationError(f"all_to_all_single: {value.shape[0]} rows received, {sum(sizes)} expected")
    return received


def _broadcast(arguments: Arguments) -> Values:
    source = arguments[0]["src"]
    if not isinstance(source, int) or any(rank["src"] != source for rank in arguments):
        raise EvaluationError("broadcast: the ranks of a group name different sources")
    return [_inputs(arguments)[source]] * len(arguments)


def _shard_dim_alltoall(arguments: Arguments) -> Values:
    ranks = len(arguments)
    gather, shard = arguments[0]["gather_dim"], arguments[0]["shard_dim"]
    if not isinstance(gather, int) or not isinstance(shard, int):
        raise EvaluationError("shard_dim_alltoall: dimensions are not integers")
    sent = [_chunks(value, ranks, shard) for value in _inputs(arguments)]
    return [torch.cat([pieces[rank] for pieces in sent], gather) for rank in range(ranks)]


_COLLECTIVES: Mapping[str, Callable[[Arguments], Values]] = {
    "all_reduce": _all_reduce,
    "all_gather_into_tensor": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
    "all_to_all_single": _all_to_all,
    "broadcast": _broadcast,
    "shard_dim_alltoall": _shard_dim_alltoall,
}


def _inputs(arguments: Arguments) -> Values:
    inputs = [rank["input"] for rank in arguments]
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    if len(tensors) != len(inputs) or len({tuple(value.shape[1:]) for value in tensors}) != 1:
        raise EvaluationError("the ranks of a group pass values that do not fit each other")
    return tensors


def _tensors(value: object) -> Sequence[torch.Tensor]:
    if not isinstance(value, (list, tuple)):
        raise EvaluationError("a coalesced collective without a list of tensors")
    return value


def _integers(value: object) -> Sequence[int]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(size, int) for size in value):
        raise EvaluationError("split sizes are not integers")
    return value


def _string(arguments: Arguments, name: str) -> str:
    value = arguments[0][name]
    if not isinstance(value, str):
        raise EvaluationError(f"{name} is not a string")
    return value.lower()


def _check_group_size(arguments: Arguments) -> None:
    size = arguments[0]["group_size"]
    if size != len(arguments):
        raise EvaluationError(f"group size {size} for a group of {len(arguments)} ranks")


def _chunks(value: torch.Tensor, count: int, dim: int) -> Values:
    if value.shape[dim] % count != 0:
        raise EvaluationError(f"shape {tuple(value.shape)} cannot be divided over {count} ranks")
    return [chunk.clone() for chunk in value.chunk(count, dim)]


def _split(value: torch.Tensor, sizes: Sequence[int], ranks: int) -> Sequence[torch.Tensor]:
    if not sizes:
        return _chunks(value, ranks, 0)
    if len(sizes) != ranks or sum(sizes) != value.shape[0]:
        raise EvaluationError(f"all_to_all_single: split sizes {tuple(sizes)} for {value.shape[0]} rows")
    return value.split(list(sizes))
