"""Numbers written over a tensor where a mask says so."""

from __future__ import annotations

import torch

from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operators.elementwise import boolean, cast, choose, require_exact
from verifycompile.rewrites.registry import UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten


def filled(b: Builder, mask: View, value: Number, otherwise: View) -> View:
    """``where(mask, value, otherwise)`` in the dtype of the result, a boolean one included."""
    if b.call.dtype is not torch.bool:
        require_exact(b, value=value)
        return choose(b, mask, value, otherwise)
    if not isinstance(value, (int, float)):
        raise UnsupportedError(UNSUPPORTED, f"`value={value}` as a boolean")
    # What is written is the truth of the value.
    return b.either(mask, boolean(otherwise)) if value else b.mul(b.negate(mask), boolean(otherwise))


@operator(aten.masked_fill.Scalar)
def masked_fill_scalar(b: Builder, self: View, mask: View, value: Number) -> View:
    return filled(b, mask, value, self)


@operator(aten.masked_fill.Tensor)
def masked_fill(b: Builder, self: View, mask: View, value: View) -> View:
    """The result has the dtype of ``self``, to which ``value`` is cast."""
    return choose(b, mask, cast(b, value, b.dtype_of("value"), b.dtype_of("self")), self)
