"""Random operators. Only what draws no number is declared: two random streams are never assumed to be equal.

Nothing in a graph says which numbers a generator gives. Ranks with one seed drop the same elements of different
shards, ranks with different seeds drop different elements of a replicated tensor; what torch's random number tracker
for DTensors promises, it promises for devices whose generators have an offset, and not for the CPU's.
"""

from __future__ import annotations

import torch

from verifycompile.ir.scalar import ONE
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.registry import RandomError, operator

aten = torch.ops.aten


@operator(aten.native_dropout.default)
def native_dropout(b: Builder, input: View, p: float, train: bool | None) -> tuple[View, View]:
    """Output and mask of a dropout that keeps everything, or nothing."""
    if p == 1.0 and train is not False:
        return b.pool.zero(input.shape), b.pool.zero(input.shape)
    if p != 0.0 and train is not False:
        raise RandomError(f"dropout with p={p}")
    return input, b.pool.constant(ONE, input.shape)
