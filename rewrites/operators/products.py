"""Products added to a value, products of vectors and of several tensors, which torch has beside those of matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operators.elementwise import require_exact, require_real
from verifycompile.rewrites.registry import UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten


def added_product(b: Builder, self: View, product: View, beta: Number, alpha: Number) -> View:
    """``beta * self + alpha * product``. With ``beta=0`` torch does not read ``self``: memory that nobody wrote."""
    require_exact(b, beta=beta, alpha=alpha)
    return b.scale(product, alpha) if beta == 0 else b.combination((beta, self), (alpha, product))


@operator(aten.addmm.default)
def addmm(b: Builder, self: View, mat1: View, mat2: View, beta: Number, alpha: Number) -> View:
    return added_product(b, self, b.contraction("m k, k n -> m n", mat1, mat2), beta, alpha)


@operator(aten.baddbmm.default)
def baddbmm(b: Builder, self: View, batch1: View, batch2: View, beta: Number, alpha: Number) -> View:
    return added_product(b, self, b.contraction("b m k, b k n -> b m n", batch1, batch2), beta, alpha)


@operator(aten.addbmm.default)
def addbmm(b: Builder, self: View, batch1: View, batch2: View, beta: Number, alpha: Number) -> View:
    return added_product(b, self, b.contraction("b m k, b k n -> m n", batch1, batch2), beta, alpha)


@operator(aten._trilinear.default)
def trilinear(
    b: Builder,
    i1: View,
    i2: View,
    i3: View,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int,
) -> View:
    """The product of three tensors, each with dimensions of size 1 put in, summed. ``unroll_dim`` changes no value."""
    require_real(b, "i1", "i2", "i3")
    factors: list[View] = []
    for view, places in zip((i1, i2, i3), (expand1, expand2, expand3), strict=True):
        wide = view
        for place in sorted(places):
            wide = b.unsqueeze(wide, place)
        factors.append(wide)
    result = b.mul(*factors)
    for wide, places in zip(factors, (expand1, expand2, expand3), strict=True):
        if any(dim not in places and b.shape(wide)[dim] != b.shape(result)[dim] for dim in sumdim):
            raise UnsupportedError(UNSUPPORTED, "a sum over a dimension of size 1 in one of three factors")
    return b.sum(result, list(sumdim)) if sumdim else result
