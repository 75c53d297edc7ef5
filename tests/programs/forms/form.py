"""One program of a user: what every rank runs, its single-device form, and the mistakes that he could have made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard

R = Replicate()
P = Partial()
S0, S1, S2 = Shard(0), Shard(1), Shard(2)


@dataclasses.dataclass(frozen=True)
class Form:
    """``program(mesh, mistake)`` builds what one rank runs; the mistake is ``""`` for the right program.

    ``mesh``: axes as name -> size, outermost first. ``args``: what one rank passes. ``options``: those of ``verify``.
    """

    name: str
    mesh: Mapping[str, int]
    spec: Callable[[], Callable[..., Any]]
    program: Callable[[DeviceMesh, str], Callable[..., Any]]
    args: Callable[[], tuple[Any, ...]]
    options: Mapping[str, Any]
    mistakes: tuple[str, ...]

    @property
    def world_size(self) -> int:
        return math.prod(self.mesh.values())
