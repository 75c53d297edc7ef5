"""A value times its sigmoid, as gated feed-forward layers have it, and the gradient."""

from __future__ import annotations

import torch

from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import FUNCTIONS, require_real
from verifycompile.rewrites.registry import operator

aten = torch.ops.aten


@operator(aten.silu.default)
def silu(b: Builder, self: View) -> View:
    return b.mul(self, b.pointwise(FUNCTIONS["sigmoid"], self))


@operator(aten.silu_backward.default)
def silu_backward(b: Builder, grad_output: View, self: View) -> View:
    """With s the sigmoid of x: ``s (1 + x (1 - s))``."""
    require_real(b, "grad_output", "self")
    opened = b.pointwise(FUNCTIONS["sigmoid"], self)
    return b.mul(grad_output, opened, b.add(1, b.mul(self, b.sub(1, opened))))
