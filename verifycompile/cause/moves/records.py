"""What a DTensor that leaves a program records of itself, mended: the shape and the strides of the spec's value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from verifycompile import bounds
from verifycompile.cause.findings import CHECKED
from verifycompile.cause.moves.boundary import shown_layout
from verifycompile.program import Program
from verifycompile.refinement.mismatch import Mismatch

_SECONDS = 4.0
"""For the proof of the programs with the other record."""


def right_record(
    misread: Mismatch, spec: Program, programs: Sequence[Program], proves: Callable[[Sequence[Program]], bool]
) -> str | None:
    """How to make the DTensor that ``misread`` is about, where all is proved once it records the spec's shape.

    ``programs``: that of all ranks, or one for each.
    """
    value = next(output.node for output in spec.outputs if output.name == misread.output).meta["val"]
    held = [item for program in programs for item in program.outputs if item.name == misread.output]
    shape, stride, layout = tuple(value.shape), tuple(value.stride()), held[0].placements
    is_partly = any(item.placements != layout or item.global_shape is None or item.open_axes for item in held)
    if layout is None or is_partly or not misread.certain or not all(isinstance(size, int) for size in shape):
        return None
    recorded = {item.node: dataclasses.replace(item, global_shape=shape, global_stride=stride) for item in held}
    mended = [
        dataclasses.replace(program, outputs=tuple(recorded.get(item.node, item) for item in program.outputs))
        for program in programs
    ]
    proof = bounds.attempt("the proof with another record", lambda: proves(mended), own_seconds=_SECONDS)
    shown = f"{shown_layout(layout)}, shape=torch.Size({shape}), stride={stride}"
    text = f"record the shape of the whole: `DTensor.from_local(result.to_local(), mesh, {shown})` {CHECKED}"
    return text if proof is True else None
