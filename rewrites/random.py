"""Random operators. Only what draws no number is declared: two random streams are never assumed to be equal."""

from __future__ import annotations

import torch

from verifycompile.ir.scalar import ONE
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.elementwise import require_real
from verifycompile.rewrites.registry import UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten


@operator(aten.native_dropout.default)
def native_dropout(b: Builder, input: View, p: float, train: bool | None) -> tuple[View, View]:
    """Output and mask of a dropout that keeps everything."""
    if p != 0.0 and train is not False:
        raise UnsupportedError(UNSUPPORTED, f"dropout with p={p}: the random stream is not modelled")
    return input, b.pool.constant(ONE, input.shape)


@operator(aten.native_dropout_backward.default)
def native_dropout_backward(b: Builder, grad_output: View, mask: View, scale: float) -> View:
    require_real(b, "grad_output")
    return b.scale(b.mul(grad_output, mask), scale)
