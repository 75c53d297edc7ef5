"""Exponentials and logarithms."""

from __future__ import annotations

import torch

from verifycompile.ir.scalar import LOGARITHM_OF_TEN, LOGARITHM_OF_TWO
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import require_real
from verifycompile.rewrites.registry import operator

aten = torch.ops.aten

_EXP, _LOG = (Operation(f"{name} of complex numbers") for name in ("exp", "log"))


@operator(aten.exp.default)
def exp(b: Builder, self: View) -> View:
    return b.pointwise(_EXP, self) if _is_complex(b) else b.exp(self)


@operator(aten.expm1.default)
def expm1(b: Builder, self: View) -> View:
    return b.sub(exp(b, self), 1)


@operator(aten.log.default)
def log(b: Builder, self: View) -> View:
    return b.pointwise(_LOG, self) if _is_complex(b) else b.log(self)


@operator(aten.exp2.default)
def exp2(b: Builder, self: View) -> View:
    require_real(b, "self")
    return b.exp(b.scale(self, LOGARITHM_OF_TWO))


@operator(aten.log2.default)
def log2(b: Builder, self: View) -> View:
    require_real(b, "self")
    return b.scale(b.log(self), 1 / LOGARITHM_OF_TWO)


@operator(aten.log10.default)
def log10(b: Builder, self: View) -> View:
    require_real(b, "self")
    return b.scale(b.log(self), 1 / LOGARITHM_OF_TEN)


def _is_complex(b: Builder) -> bool:
    """Exponentials are known to be positive, which holds for real ones only."""
    return b.call.dtype is not None and b.call.dtype.is_complex
