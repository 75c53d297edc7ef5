"""Whether the spec leaves out a part of an input of which the ranks together read all.

A number that counts a rank's own samples, as the length of a micro-batch that is written down, is no attribute of which
a record could say what it was. In the recovered spec it cuts the whole batch, and what it leaves shows it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch.distributed.tensor.placement_types import Shard

from verifycompile.capture.ranks.merged_collectives import span_of
from verifycompile.program import Blocker, Program, Role

aten = torch.ops.aten


def doubting_unread(spec: Program, implementation: Program) -> Program:
    """A recovered spec, whose ``doubt`` also asks whether it leaves out what the ranks read."""
    before = spec.doubt

    def doubt() -> Blocker | None:
        found = None if before is None else before()
        return found or _doubt_of_unread(spec, implementation)

    return dataclasses.replace(spec, doubt=doubt)


def _doubt_of_unread(spec: Program, implementation: Program) -> Blocker | None:
    inputs = {item.name: item for item in spec.inputs}
    for own in implementation.inputs:
        whole = inputs.get(own.name)
        if own.role is not Role.INPUT or whole is None:
            continue
        for dim in sorted({item.dim for item in own.placements or () if isinstance(item, Shard)}):
            unread = _unread(whole.node, dim)
            if unread and not _unread(own.node, dim):
                return _doubt(own.name, dim, unread)
    return None


def _doubt(name: str, dim: int, unread: Sequence[int]) -> Blocker:
    return Blocker(
        None,
        "VC209",
        f"the spec as it was recovered does not read positions {unread[0]} to {unread[-1]} of dimension {dim} of "
        f"`{name}`, of which each rank reads all that it has: a number in the program may count what one rank has. "
        "Compute it from the size of the input, or pass the single-device program as the option `spec`.",
    )


def _unread(node: torch.fx.Node, dim: int) -> list[int]:
    """The positions along a dimension that nothing reads; none where anything but a cut along it does."""
    value = node.meta.get("val")
    size = value.shape[dim] if isinstance(value, torch.Tensor) else None
    if not isinstance(size, int):
        return []
    found = set(range(size))
    for user in node.users:
        found -= _positions(user, dim, size)
    return sorted(found)


def _positions(user: torch.fx.Node, dim: int, size: int) -> set[int]:
    along, start = (*user.args[1:3], 0, 0)[:2]
    if along == dim and user.target is aten.slice.Tensor and (span := span_of(user)) is not None:
        return set(range(span[1], span[1] + span[2]))
    if along == dim and user.target is aten.select.int and isinstance(start, int):
        return {start % size}
    return set(range(size))
