"""Passes of the parallel program, of forward and backward, and each of them compared with the spec's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.distributed.tensor.placement_types import Partial, Replicate

from verifycompile.comparison.differences import FINAL, Comparing, doubtful_scales, scales_of
from verifycompile.comparison.judge import Judged
from verifycompile.comparison.layout import part_of
from verifycompile.comparison.reference import pass_name
from verifycompile.comparison.trace import Kind
from verifycompile.comparison.worker import Ran, Training

_FORWARD = frozenset({Kind.INPUT, Kind.ACTIVATION, Kind.OUTPUT})
_BACKWARD = frozenset({Kind.ACTIVATION_GRADIENT, Kind.GRADIENT, Kind.BUFFER})
_STEP = frozenset({Kind.CLIPPED, Kind.PARAMETER, Kind.STATE})


def run(comparing: Comparing, training: Training, *, batches: int, seed: int) -> tuple[int, bool]:
    """All passes and steps of training, until one departs; which one, and whether random numbers were drawn."""
    ranks, drew = comparing.ranks, False
    ranks.call("begin", seed)
    for step in range(training.all_passes):
        if batches > 1:
            ranks.call("turn", step)
        drew = one_pass(comparing, step) or drew
        if training.steps_after(step):
            comparing.take(ranks.call("step"), _STEP, step)
        if any(item.exceeds and item.kind in FINAL for item in comparing.found.judged):
            return step, drew
    return 0, drew


def one_pass(
    comparing: Comparing,
    step: int,
    *,
    rewritten: Mapping[int, tuple[dict[str, torch.Tensor]]] | None = None,
    outputs: Sequence[Judged] | None = None,
) -> bool:
    """Forward and backward; whether random numbers were drawn.

    ``rewritten``: parts that tensors of modules hold once they are traced. ``outputs``: how the outputs lie, where an
    earlier pass has told.
    """
    ranks = comparing.ranks
    ran: dict[int, Ran] = ranks.call("forward", each=rewritten)
    comparing.take(ran, _FORWARD, step)
    if outputs is None:
        outputs = comparing.outputs()
        comparing.scales = scales_of(outputs, comparing.mesh)
        comparing.doubtful = doubtful_scales(outputs, comparing.layouts, comparing.mesh)
    back: dict[int, Ran] = ranks.call("backward", each=_cotangents(ran, comparing, outputs, step))
    comparing.take(back, _BACKWARD, step)
    comparing.settle()
    return any(one.drew for one in (*ran.values(), *back.values()))


def _cotangents(
    ran: Mapping[int, Ran], comparing: Comparing, outputs: Sequence[Judged], step: int
) -> dict[int, tuple[dict[int, torch.Tensor]]]:
    """Each rank's parts: the shard where an output is sharded, all of it where it is replicated or partial."""
    judged = {item.name: item for item in outputs}
    each: dict[int, tuple[dict[int, torch.Tensor]]] = {}
    for rank, one in ran.items():
        own: dict[int, torch.Tensor] = {}
        held = {entry.name for entry in one.entries} | set(one.aliases)
        for index, cotangent in comparing.reference.cotangents[step].items():
            item = judged.get(pass_name(step, f"output.{index}"))
            if item is None or item.layout is None or f"output.{index}" not in held:
                continue
            layout = tuple(Replicate() if isinstance(p, Partial) else p for p in item.layout)
            own[index] = part_of(cotangent, layout, rank, comparing.mesh).contiguous()
        each[rank] = (own,)
    return each
