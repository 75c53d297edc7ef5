"""Moments and norms along dimensions: variance, standard deviation, vector norms, log-sum-exp.

All are written in sums, so that a sum over a sharded dimension is the sum of its shards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from verifycompile.ir.scalar import ONE, divide
from verifycompile.ir.sign import is_nonnegative
from verifycompile.ir.size import Size
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operators.elementwise import FUNCTIONS, cast, require_real, truth
from verifycompile.rewrites.operators.reduction import extreme
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError, operator

aten = torch.ops.aten

Dims = Sequence[int] | int | None


def _variance(b: Builder, view: View, dims: Dims, correction: Number, keepdim: bool) -> View:
    """Sum of squared deviations from the mean, divided by ``count - correction``."""
    require_real(b, "self")
    count: Size = b.count(view, dims)
    freedom = count - correction
    if isinstance(freedom, (int, float)) and freedom <= 0:
        raise UnsupportedError(UNREPRESENTABLE, f"the variance of {count} elements with correction={correction}")
    centered = b.sub(view, b.mean(view, dims, keepdim=True))
    return b.divide(b.sum(b.power(centered, 2), dims, keepdim), freedom)


@operator(aten.var.correction)
def var(b: Builder, self: View, dim: Dims, correction: Number | None, keepdim: bool) -> View:
    return _variance(b, self, dim, 1 if correction is None else correction, keepdim)


@operator(aten.var.dim, aten.var.default)
def var_unbiased(b: Builder, self: View, unbiased: bool, dim: Dims = None, keepdim: bool = False) -> View:
    return _variance(b, self, dim, int(unbiased), keepdim)


@operator(aten.var_mean.correction)
def var_mean(b: Builder, self: View, dim: Dims, correction: Number | None, keepdim: bool) -> tuple[View, View]:
    return _variance(b, self, dim, 1 if correction is None else correction, keepdim), b.mean(self, dim, keepdim)


@operator(aten.linalg_vector_norm.default)
def vector_norm(b: Builder, self: View, ord: Number, dim: Dims, keepdim: bool, dtype: torch.dtype | None) -> View:
    require_real(b, "self")
    return norm_of(b, cast(b, self, b.dtype_of("self"), dtype), ord, dim, keepdim)


def norm_of(b: Builder, value: View, ord: Number, dim: Dims, keepdim: bool) -> View:
    """``(sum |x| ** ord) ** (1 / ord)``; for infinities the largest or smallest ``|x|``, for 0 how many are not 0."""
    if ord == 2:
        from verifycompile.ir.squares import note_sum_of_squares  # here, because few programs take norms

        squares = b.sum(b.power(value, 2), dim, keepdim)
        note_sum_of_squares(b.pool, squares)
        return b.power(squares, 0.5)
    absolute = absolute_value(b, value)
    if ord == 1:
        return b.sum(absolute, dim, keepdim)
    if ord == math.inf:
        return extreme(b, absolute, dim, keepdim, "max")
    if ord == -math.inf:
        return extreme(b, absolute, dim, keepdim, "min")
    if ord == 0:
        return b.sum(b.negate(b.equal(value, 0)), dim, keepdim)
    return b.power(b.sum(b.power(absolute, ord), dim, keepdim), divide(ONE, b.scalar(ord)))


def absolute_value(b: Builder, value: View) -> View:
    """``|x|``: what is not negative is its own."""
    return value if is_nonnegative(value) else b.pointwise(FUNCTIONS["abs"], value)


@operator(aten.logsumexp.default)
def logsumexp(b: Builder, self: View, dim: Dims, keepdim: bool) -> View:
    require_real(b, "self")
    return b.log(b.sum(b.exp(self), dim, keepdim))


@operator(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(b: Builder, self: View, dim: Dims) -> View:
    return b.sum(truth(b, self), dim)
