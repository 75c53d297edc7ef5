"""Softmax as attention that is written out takes it: wholly masked rows are zero."""

from __future__ import annotations

import torch

from verifycompile.ir.exponential import may_be_lowest
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import cast
from verifycompile.rewrites.operators.reduction import extreme
from verifycompile.rewrites.operators.softmax import softmax_of
from verifycompile.rewrites.registry import operator

aten = torch.ops.aten
SAFE_SOFTMAX = Operation("safe_softmax")


@operator(aten._safe_softmax.default)
def safe_softmax(b: Builder, self: View, dim: int, dtype: torch.dtype | None) -> View:
    """Softmax whose wholly masked rows are zero; where no row is masked wholly, softmax."""
    scores = cast(b, self, b.dtype_of("self"), dtype)
    if not b.rank(self):
        return b.select(safe_softmax(b, b.unsqueeze(self, 0), 0, dtype), 0, 0)
    may_be_masked = may_be_lowest(extreme(b, scores, [dim], True, "max"))
    return b.along(SAFE_SOFTMAX, (), scores, dim) if may_be_masked else softmax_of(b, scores, dim)
