"""How a script runs a program on all ranks in one process: each rank is a thread, and the threads meet at collectives.

The text of this module becomes part of the scripts, so it needs torch and the standard library alone.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate

# --8<-- what is below is part of the scripts


SECONDS_TO_WAIT = 30
"""For the other ranks of a group; then they do not call the same collectives."""


class Ranks:
    """The ranks of a mesh, by position (row-major). ``axes``: name of each axis and its number of ranks."""

    def __init__(self, axes: Mapping[str, int]) -> None:
        self.axes = dict(axes)
        self.coordinates = list(itertools.product(*(range(size) for size in axes.values())))
        self._lock = threading.Lock()
        self._meetings: dict[tuple[int, ...], tuple[threading.Barrier, dict[int, Any]]] = {}

    def group(self, position: int, axes: Sequence[str]) -> tuple[int, ...]:
        """The ranks that differ from the one at ``position`` along ``axes`` alone, in the order of ``axes``."""
        names, own = list(self.axes), self.coordinates[position]
        members = [
            other
            for other, place in enumerate(self.coordinates)
            if all(name in axes or place[axis] == own[axis] for axis, name in enumerate(names))
        ]
        order = [names.index(axis) for axis in axes]
        return tuple(sorted(members, key=lambda other: [self.coordinates[other][axis] for axis in order]))

    def meet(self, position: int, group: tuple[int, ...], call: str, value: Any) -> list[Any]:
        """What the ranks of a group bring to one collective, in the order of the group."""
        with self._lock:
            barrier, brought = self._meetings.setdefault(group, (threading.Barrier(len(group)), {}))
        brought[position] = (call, value)
        barrier.wait(SECONDS_TO_WAIT)
        everything = [brought[rank] for rank in group]
        barrier.wait(SECONDS_TO_WAIT)
        if any(name != call for name, _ in everything):
            raise RuntimeError(f"the ranks {group} call different collectives: {[name for name, _ in everything]}")
        return [item for _, item in everything]

    def run(self, program: Callable[..., Any], arguments: Mapping[str, Sequence[Any]]) -> list[Any]:
        """``program(me, ...)`` on every rank. ``arguments``: one value a rank for each argument."""
        results: list[Any] = [None] * len(self.coordinates)
        failures: list[BaseException] = []

        def on_rank(position: int) -> None:
            try:
                own = {name: values[position] for name, values in arguments.items()}
                results[position] = program(Rank(self, position), **own)
            except threading.BrokenBarrierError:
                failures.append(RuntimeError("ranks wait for others that do not call the same collective"))
            except Exception as error:  # noqa: BLE001 - raised again behind the threads
                failures.append(error)
                for barrier, _ in list(self._meetings.values()):
                    barrier.abort()

        threads = [threading.Thread(target=on_rank, args=(rank,), daemon=True) for rank in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return results


class Rank:
    """One rank, as its program sees it. ``axes`` of a collective: the mesh axes that its group spans."""

    def __init__(self, ranks: Ranks, position: int) -> None:
        self._ranks, self._position = ranks, position

    def coordinate(self, axis: str) -> int:
        """This rank's index along a mesh axis."""
        return self._ranks.coordinates[self._position][list(self._ranks.axes).index(axis)]

    def _meet(self, call: str, value: Any, axes: Sequence[str]) -> tuple[int, list[Any]]:
        group = self._ranks.group(self._position, axes)
        return group.index(self._position), self._ranks.meet(self._position, group, call, value)

    def all_reduce(self, value: torch.Tensor, operation: str, *axes: str) -> torch.Tensor:
        return reduced(self._meet(f"all_reduce({operation})", value, axes)[1], operation)

    def all_gather(self, value: torch.Tensor, *axes: str) -> torch.Tensor:
        values = self._meet("all_gather", value, axes)[1]
        return torch.cat([item.reshape(1) if item.dim() == 0 else item for item in values])

    def reduce_scatter(self, value: torch.Tensor, operation: str, *axes: str) -> torch.Tensor:
        own, values = self._meet(f"reduce_scatter({operation})", value, axes)
        return equal_parts(reduced(values, operation), len(values), 0)[own]

    def all_to_all(self, value: torch.Tensor, received: Sequence[int], sent: Sequence[int], *axes: str) -> torch.Tensor:
        """``received`` and ``sent``: how many rows come from and go to each rank; empty where all get equal parts."""
        count = len(self._ranks.group(self._position, axes))
        parts = value.split(list(sent)) if sent else equal_parts(value, count, 0)
        own, values = self._meet("all_to_all", parts, axes)
        result = torch.cat([pieces[own] for pieces in values])
        if received and sum(received) != result.shape[0]:
            raise RuntimeError(f"all_to_all: {result.shape[0]} rows received, {sum(received)} expected")
        return result

    def broadcast(self, value: torch.Tensor, source: int, *axes: str) -> torch.Tensor:
        """``source``: position in the group of the rank whose value all get."""
        return self._meet("broadcast", value, axes)[1][source]

    def shard_dim_alltoall(self, value: torch.Tensor, gather: int, shard: int, *axes: str) -> torch.Tensor:
        """From sharded along the dimension ``gather`` to sharded along the dimension ``shard``."""
        own, values = self._meet("shard_dim_alltoall", value, axes)
        return torch.cat([equal_parts(item, len(values), shard)[own] for item in values], gather)


def reduced(values: Sequence[torch.Tensor], operation: str) -> torch.Tensor:
    stacked = torch.stack(tuple(values))
    if operation in ("sum", "avg"):
        return stacked.sum(0, dtype=stacked.dtype) if operation == "sum" else stacked.mean(0)
    if operation in ("product", "prod"):
        return stacked.prod(0, dtype=stacked.dtype)
    if operation in ("max", "min"):
        return stacked.amax(0) if operation == "max" else stacked.amin(0)
    raise ValueError(f"the reduction {operation}")


def equal_parts(value: torch.Tensor, count: int, dim: int) -> list[torch.Tensor]:
    if value.shape[dim] % count:
        raise ValueError(f"shape {tuple(value.shape)} cannot be divided over {count} ranks")
    return [part.clone() for part in value.chunk(count, dim)]


def parts_of(value: torch.Tensor, ranks: Ranks, placements: Sequence[Any], seed: int = 2) -> list[torch.Tensor]:
    """Each rank's part of a whole tensor; of partial values, random ones that make it up, whole where it is."""
    generator = torch.Generator().manual_seed(seed)
    parts = [value]
    for placement, size in zip(placements, ranks.axes.values(), strict=True):
        parts = [piece for part in parts for piece in _divided(part, placement, size, generator)]
    return parts


def _divided(value: torch.Tensor, placement: Any, size: int, generator: torch.Generator) -> list[torch.Tensor]:
    if isinstance(placement, Replicate) or (isinstance(placement, Partial) and placement.reduce_op in ("max", "min")):
        return [value] * size
    if isinstance(placement, Partial):
        whole = value * size if placement.reduce_op == "avg" else value
        others = [_noise(value, generator, whole=torch.equal(value, value.round())) for _ in range(size - 1)]
        return [*others, whole - sum(others)]
    blocks = getattr(placement, "split_factor", 1)
    grid = [equal_parts(block, size, placement.dim) for block in equal_parts(value, blocks, placement.dim)]
    return [torch.cat([row[part] for row in grid], placement.dim) for part in range(size)]


def _noise(value: torch.Tensor, generator: torch.Generator, *, whole: bool) -> torch.Tensor:
    if whole:
        return torch.randint(-3, 4, value.shape, generator=generator).to(value.dtype)
    # Of few bits, so that their sum is exact.
    return (torch.randn(value.shape, generator=generator, dtype=value.dtype) * 2.0**20).round() / 2.0**20


def whole_of(parts: Sequence[torch.Tensor], ranks: Ranks, placements: Sequence[Any]) -> list[torch.Tensor]:
    """The whole tensors that the ranks' parts are: one for each rank along the axes that hold them replicated."""
    level = [[part] for part in parts]
    for placement, size in reversed(list(zip(placements, ranks.axes.values(), strict=True))):
        groups = [level[start : start + size] for start in range(0, len(level), size)]
        if isinstance(placement, Replicate):
            level = [[value for values in group for value in values] for group in groups]
        else:
            level = [[_joined(column, placement) for column in zip(*group, strict=True)] for group in groups]
    return level[0]


def _joined(values: Sequence[torch.Tensor], placement: Any) -> torch.Tensor:
    if isinstance(placement, Partial):
        return reduced(values, placement.reduce_op)
    blocks = getattr(placement, "split_factor", 1)
    grid = [equal_parts(value, blocks, placement.dim) for value in values]
    return torch.cat([column[block] for block in range(blocks) for column in grid], placement.dim)


def difference(
    parts: Sequence[torch.Tensor], expected: torch.Tensor, ranks: Ranks, placements: Sequence[Any]
) -> tuple[float, str]:
    """The largest difference between ``expected`` and the whole tensors that the ranks' parts are, and where it is."""
    try:
        wholes = whole_of(parts, ranks, placements)
    except (IndexError, RuntimeError, ValueError) as error:
        return math.inf, f"cannot be assembled from the ranks' parts: {error}"
    return max((_gap(whole, expected) for whole in wholes), key=lambda found: found[0])


def _gap(found: torch.Tensor, expected: torch.Tensor) -> tuple[float, str]:
    if found.shape != expected.shape:
        return math.inf, f"has the shape {list(found.shape)}, in the spec {list(expected.shape)}"
    if not found.numel():
        return 0.0, "has no elements"
    distance = (found - expected).abs() if found.is_complex() else (found.double() - expected.double()).abs()
    distance = distance.nan_to_num(nan=math.inf, posinf=math.inf)
    place = [int(index) for index in torch.unravel_index(distance.argmax(), distance.shape)]
    one, other = (value[tuple(place)].item() for value in (expected, found))
    return float(distance.max()), f"at {place} is {one:.6g} in the spec, {other:.6g} in the implementation"


def unset(value: torch.Tensor) -> torch.Tensor:
    """Memory that nothing has written yet, filled so that what reads it is found out."""
    return torch.full_like(value, math.nan) if value.is_floating_point() else torch.zeros_like(value)


def with_strides(value: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """``value`` in another memory layout."""
    return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)


def decomposed(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator without a CPU kernel, by torch's reference decomposition."""
    from torch._decomp import decomposition_table

    return decomposition_table[operator](*args, **kwargs)
