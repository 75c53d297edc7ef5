"""What a data-parallel wrapper makes of a gradient outside of the graph, and what all wrappers are asked."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from verifycompile.errors import UsageError


@dataclasses.dataclass(frozen=True)
class OuterReduction:
    """What ``wrapper`` makes of a gradient: its ``reduction`` ("avg" or "sum") over dimensions of a mesh.

    ``kept``: those of the dimensions over which this step leaves the gradient as each rank's own, since ``setting``
    switched its reduction off; a later step reduces what was accumulated. ``casts``: what the wrapper does in a dtype
    of its own, and which. ``unknown``: why nothing can be said of the gradient, empty where the contract is understood.
    ``gathers``: the wrapper holds the parameters in shards and gathers them before use. ``of_group``: ``mesh`` was made
    here, over the process group that the wrapper was given. ``hooks``: what is called once the gradient is reduced.
    ``makes_equal``: the ranks' parameters may differ now, the wrapper makes them equal before they are used.
    ``awaits_all``: it reduces nothing of what it sends together before each of these parameters has a gradient.
    ``exchanged``: by what the wrapper decides what it sends of the parameter, in which order and dtype. Ranks of which
    one has other settings wait for each other without end, or take one tensor's bytes for another's.
    """

    wrapper: str
    mesh: DeviceMesh
    dimensions: tuple[int, ...]
    reduction: str
    kept: tuple[int, ...] = ()
    setting: str = ""
    casts: tuple[tuple[str, torch.dtype], ...] = ()
    unknown: str = ""
    gathers: bool = False
    of_group: bool = False
    hooks: tuple[str, ...] = ()
    makes_equal: bool = False
    awaits_all: bool = False
    exchanged: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @property
    def ranks(self) -> int:
        """The number of ranks whose gradients are reduced together."""
        return math.prod(self.mesh.size(dimension) for dimension in self.dimensions)

    @property
    def casts_said(self) -> tuple[str, ...]:
        return tuple(f"{what} {dtype}" for what, dtype in self.casts)


_REAL = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def casts_of(wrapper: str, **dtypes: torch.dtype | None) -> list[tuple[str, torch.dtype]]:
    """What the wrapper does in a dtype of its own. Raises ``UsageError`` VC310 where that does more than round."""
    casts = [(f"{what.replace('_', ' ')} in", dtype) for what, dtype in dtypes.items() if dtype is not None]
    for what, dtype in casts:
        if dtype not in _REAL:
            raise UsageError("VC310", f"`{wrapper}` {what} {dtype} by its mixed precision, which is no rounding.")
    return casts


def place_among(number: int, count: int) -> str:
    return f"place {number + 1} of {count}"


def of_each(managed: Sequence[nn.Parameter], contract: OuterReduction) -> dict[int, OuterReduction]:
    """``contract`` of each parameter that a wrapper sends, by identity, with its place among them."""
    return {
        id(value): dataclasses.replace(contract, exchanged=(*contract.exchanged, place_among(number, len(managed))))
        for number, value in enumerate(managed)
    }


@functools.lru_cache(maxsize=8)
def mesh_of(group: dist.ProcessGroup) -> DeviceMesh:
    """A mesh over an existing group; nothing is communicated."""
    return DeviceMesh.from_group(group, "cpu", mesh_dim_names=("data_parallel",))


def on_the_stack() -> Iterator[Any]:
    """The objects whose methods are being called."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        yield frame.f_locals.get("self")
        frame = frame.f_back
