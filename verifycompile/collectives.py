"""What each collective gives to the ranks of a group, said once for every kind of value that they may hold.

A collective is a row of ``COLLECTIVES``: a function of a carrier, which can join, cut and reduce values, of the value
that each rank of the group passes, and of the arguments of each rank by their names in torch's schema. Graphs
(``capture/ranks/merged_collectives.py``) and tensors (``witness/collectives.py``) are carriers. Values that are
stacked over a mesh are none: for them the degree is a size, and a collective a relabelling
(``rewrites/operators/collective.py``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

Value = TypeVar("Value")
Arguments = Sequence[Mapping[str, Any]]
"""The arguments of one collective, by name of its schema: one mapping a rank of the group."""


class CollectiveError(Exception):
    """Arguments under which a collective gives no value. The message says which."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Carrier(Protocol[Value]):
    """What collectives do with values. Any of these may raise an error of the carrier's own."""

    def shape(self, value: Value) -> Sequence[int]: ...

    def as_row(self, value: Value) -> Value:
        """A value without dimensions as one with one position."""
        ...

    def join(self, values: Sequence[Value], dim: int) -> Value: ...

    def part(self, value: Value, dim: int, start: int, length: int) -> Value: ...

    def reduce(self, values: Sequence[Value], operation: str) -> Value: ...


def _all_reduce(carrier: Carrier[Value], values: Sequence[Value], arguments: Arguments) -> list[Value]:
    return [carrier.reduce(values, arguments[0]["reduce_op"])] * len(values)


def _all_gather(carrier: Carrier[Value], values: Sequence[Value], arguments: Arguments) -> list[Value]:
    _check_size(values, arguments)
    rows = [value if carrier.shape(value) else carrier.as_row(value) for value in values]
    return [carrier.join(rows, 0)] * len(values)


def _reduce_scatter(carrier: Carrier[Value], values: Sequence[Value], arguments: Arguments) -> list[Value]:
    _check_size(values, arguments)
    return _chunks(carrier, carrier.reduce(values, arguments[0]["reduce_op"]), 0, len(values))


def _all_to_all(carrier: Carrier[Value], values: Sequence[Value], arguments: Arguments) -> list[Value]:
    sent = [
        _pieces(carrier, value, row["input_split_sizes"], len(values))
        for value, row in zip(values, arguments, strict=True)
    ]
    received: list[Value] = []
    for rank, row in enumerate(arguments):
        pieces = [pieces[rank] for pieces in sent]
        rows = [carrier.shape(piece)[0] for piece in pieces]
        expected = list(row["output_split_sizes"])
        if expected and all(isinstance(size, int) for size in expected) and expected != rows:
            raise CollectiveError(f"all_to_all_single: {rows} rows are received, and {expected} are expected")
        filled = [piece for piece, count in zip(pieces, rows, strict=True) if count]
        received.append(carrier.join(filled or pieces[:1], 0))
    return received


def _broadcast(_: Carrier[Value], values: Sequence[Value], arguments: Arguments) -> list[Value]:
    source = arguments[0]["src"]
    if not isinstance(source, int) or any(row["src"] != source for row in arguments):
        raise CollectiveError("broadcast: the ranks of a group name different sources")
    return [values[source]] * len(values)


def _shard_dim_all_to_all(carrier: Carrier[Value], values: Sequence[Value], arguments: Arguments) -> list[Value]:
    gather, shard = arguments[0]["gather_dim"], arguments[0]["shard_dim"]
    sent = [_chunks(carrier, value, shard, len(values)) for value in values]
    return [carrier.join([pieces[rank] for pieces in sent], gather) for rank in range(len(values))]


COLLECTIVES: Mapping[str, Callable[[Carrier[Any], Sequence[Any], Arguments], list[Any]]] = {
    "all_reduce": _all_reduce,
    "all_gather_into_tensor": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
    "all_to_all_single": _all_to_all,
    "broadcast": _broadcast,
    "shard_dim_alltoall": _shard_dim_all_to_all,
}


def _check_size(values: Sequence[object], arguments: Arguments) -> None:
    if any(row["group_size"] != len(values) for row in arguments):
        raise CollectiveError(f"group_size={arguments[0]['group_size']} for a group of {len(values)} ranks")


def _chunks(carrier: Carrier[Value], value: Value, dim: int, count: int) -> list[Value]:
    size = carrier.shape(value)[dim]
    length, rest = divmod(size, count)
    if rest:
        raise CollectiveError(f"a dimension of {size} that {count} ranks divide unevenly")
    return [carrier.part(value, dim, index * length, length) for index in range(count)]


def _pieces(carrier: Carrier[Value], value: Value, sizes: Sequence[Any], count: int) -> list[Value]:
    if not sizes:
        return _chunks(carrier, value, 0, count)
    if not all(isinstance(size, int) for size in sizes) or len(sizes) != count or sum(sizes) != carrier.shape(value)[0]:
        raise CollectiveError(f"all_to_all_single with the split sizes {list(sizes)}")
    starts = itertools.accumulate([0, *sizes])
    return [carrier.part(value, 0, start, size) for start, size in zip(starts, sizes, strict=False)]
