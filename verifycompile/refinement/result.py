"""What relation inference returns: relations, or the first mismatch, with everything a report needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import torch.fx
from torch.distributed.tensor.placement_types import Placement

from verifycompile.refinement.mismatch import Mismatch

if TYPE_CHECKING:
    from verifycompile.refinement.stages import StageCost


Means = Literal["ring", "egraph", "solver"]
"""What proved an equality that the normal form had left open."""


@dataclasses.dataclass(frozen=True)
class NodeCounts:
    """How many spec nodes were related by which means.

    ``memo``: as another part of the program that is equal. ``ring``, ``egraph``: an equality of the node's own value
    was proved. ``solver``: the normal form, in which z3 proved a guard. ``normal_form``: the normal form alone.
    """

    memo: int = 0
    normal_form: int = 0
    ring: int = 0
    egraph: int = 0
    solver: int = 0
    unrelated: int = 0


@dataclasses.dataclass(frozen=True)
class PartEnd:
    """How many nodes of the spec and of the implementation are before the end of a part. ``alike``: what is proved of
    the part holds for any values at its boundary.
    """

    spec: int
    implementation: int
    alike: bool


@dataclasses.dataclass(frozen=True)
class PartsFound:
    """Where both programs were cut: in which order their nodes were read, and the ends of parts of both phases."""

    spec: tuple[torch.fx.Node, ...]
    implementation: tuple[torch.fx.Node, ...]
    forward: tuple[PartEnd, ...]
    backward: tuple[PartEnd, ...]


@dataclasses.dataclass(frozen=True)
class RefinementResult:
    """``mismatch`` is None exactly when every output of the spec has a relation that meets its requirement."""

    relations: Mapping[str, str]
    mismatch: Mismatch | None
    assumptions: tuple[str, ...] = ()
    counts: NodeCounts = NodeCounts()
    spec_nodes: int = 0
    impl_nodes: int = 0
    seconds: float = 0.0
    stages: Mapping[str, StageCost] = dataclasses.field(default_factory=dict)
    steps: tuple[object, ...] = ()
    """Proof steps: see ``verifycompile.refinement.proof``."""
    exhausted: tuple[str, ...] = ()
    """Budgets of the searches that ran out, where there is a mismatch."""
    placements: Mapping[str, tuple[Placement, ...]] = dataclasses.field(
        default_factory=dict[str, tuple[Placement, ...]]
    )
    """How the implementation holds the outputs that are tensors; empty for one without a mesh."""
    parts: PartsFound | None = None
    """The parts that were proved one by one, where they repeat themselves."""
