"""Placements in words, on the axes that the user gave the mesh."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch.distributed.tensor.placement_types import Partial, Placement

from verifycompile.program import Mesh
from verifycompile.torch_interface.dtensor.placements import outer_blocks, reduction_name, sharded_dimension


def describe_placements(placements: Sequence[Placement], mesh: Mesh) -> str:
    """``Shard(0) over dp, Replicate over tp``.

    An axis that was cut into parts is one axis where all parts are placed alike, which is the same layout.
    """
    parts = [(axis.part_of or axis.name, axis, item) for axis, item in zip(mesh.axes, placements, strict=True)]
    texts: list[tuple[str, str]] = []
    for name, group in itertools.groupby(parts, key=lambda part: part[0]):
        found = list(group)
        if len({_text(item) for _, _, item in found}) == 1:
            texts.append((_text(found[0][2]), name))
            continue
        shape = " x ".join(str(axis.size) for _, axis, _ in found)
        texts.append((", ".join(_text(item) for _, _, item in found), f"{name} as {shape} ranks"))
    together = itertools.groupby(texts, key=lambda text: text[0])
    return ", ".join(f"{placed} over {' and '.join(name for _, name in names)}" for placed, names in together)


def _text(placement: Placement) -> str:
    dim = sharded_dimension(placement)
    if dim is not None:
        blocks = outer_blocks(placement)
        return f"Shard({dim})" if blocks == 1 else f"Shard({dim}) in each of {blocks} blocks"
    return f"Partial({reduction_name(placement)})" if isinstance(placement, Partial) else "Replicate"
