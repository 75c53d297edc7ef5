"""Each module alone: the program runs again with the spec's own tensors, so that one fault makes no other (TTrace).

Wherever a tensor of a module was compared, the ranks now hold their parts of the spec's value, and of its gradient.
What is off in such a run is off by its own code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence

import torch
from torch.distributed.tensor.placement_types import Partial

from verifycompile.comparison.differences import Comparing, Differences
from verifycompile.comparison.judge import Judged
from verifycompile.comparison.layout import part_of
from verifycompile.comparison.passes import one_pass
from verifycompile.comparison.reference import pass_name, pass_of
from verifycompile.comparison.trace import Kind

_FORWARD = frozenset({Kind.ACTIVATION, Kind.OUTPUT})
_BACKWARD = frozenset({Kind.ACTIVATION_GRADIENT, Kind.GRADIENT})


def off_alone(comparing: Comparing, seed: int, step: int) -> list[Judged]:
    """What is off in the pass ``step`` where every module has the spec's own inputs. Raises ``RankFailedError``."""
    rewritten = _parts_of_the_spec(comparing, step, gradients=not comparing.scales)
    alone = dataclasses.replace(comparing, found=Differences())
    comparing.ranks.call("begin", seed)
    comparing.ranks.call("replay", step)
    one_pass(alone, step, rewritten=rewritten, outputs=comparing.outputs())
    return _faults(alone.found.judged)


def _parts_of_the_spec(
    comparing: Comparing, step: int, *, gradients: bool
) -> dict[int, tuple[dict[str, torch.Tensor]]]:
    """For each rank its parts of the spec's tensors by name; of a sum over ranks there is no part that is the spec's.

    ``gradients``: whether those of activations are among them: not where the ranks' are multiples of the spec's.
    """
    kinds = {Kind.ACTIVATION, Kind.ACTIVATION_GRADIENT} if gradients else {Kind.ACTIVATION}
    reference, ranks = comparing.reference, comparing.ranks.ranks
    each: dict[int, tuple[dict[str, torch.Tensor]]] = {rank: ({},) for rank in ranks}
    for item in comparing.found.judged:
        if item.kind not in kinds or pass_of(item.name) != step or item.layout is None:
            continue
        if any(isinstance(p, Partial) for p in item.layout):
            continue
        name = item.name.removeprefix(pass_name(step, ""))
        whole = reference.values[reference.aliases.get(item.name, item.name)]
        for rank in ranks:
            each[rank][0][name] = part_of(whole, item.layout, rank, comparing.mesh).contiguous()
    return each


def _faults(judged: Sequence[Judged]) -> list[Judged]:
    """The first tensor that is off of each module, in forward, or in backward where nothing is off in forward."""
    forward = list(_by_themselves(judged, _FORWARD))
    found: dict[str, Judged] = {}
    for item in forward or _by_themselves(judged, _BACKWARD):
        found.setdefault(item.module, item)
    return list(found.values())


def _by_themselves(judged: Sequence[Judged], kinds: Collection[Kind]) -> Iterator[Judged]:
    """What is off, but for what follows at once from a sum over ranks that is: no part of it is the spec's."""
    follows = False
    for item in judged:
        if item.kind not in kinds:
            continue
        if item.exceeds and not follows:
            yield item
        follows = item.exceeds and (follows or any(isinstance(p, Partial) for p in item.layout or ()))
