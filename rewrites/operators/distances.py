"""Distances between rows, slices scaled down to a norm, and products of vectors in space."""

from __future__ import annotations

import itertools
import math

import torch

from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import LARGEST_CONSTANT, Number
from verifycompile.rewrites.operators.elementwise import require_real
from verifycompile.rewrites.operators.statistics import norm_of
from verifycompile.rewrites.operators.stored_tensors import stored
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten

DISTANCE_SLOPE = Operation("distance_slope")
"""Derivative of a distance by one coordinate: of the difference in that coordinate and the distance."""
RENORM_FACTOR = Operation("renorm_factor")


def _differences(b: Builder, x1: View, x2: View) -> View:
    """``[*n, i, j, m]``: coordinate ``m`` of row ``i`` less that of row ``j``."""
    if 0 in (*b.shape(x1), *b.shape(x2)):
        raise UnsupportedError(UNREPRESENTABLE, "distances of nothing")
    return b.sub(b.unsqueeze(x1, -2), b.unsqueeze(x2, -3))


@operator(aten._cdist_forward.default)
def cdist(b: Builder, x1: View, x2: View, p: float, compute_mode: int | None) -> View:
    """The norm of the difference of every row of one matrix and every row of another.

    ``compute_mode`` says whether the Euclidean one goes by a matrix product.
    """
    require_real(b, "x1", "x2")
    difference = _differences(b, x1, x2)
    if p == 0:
        return b.sum(b.negate(b.equal(difference, 0)), [-1])
    return norm_of(b, difference, p, [-1], False)


def _slope(b: Builder, difference: View, distance: View, p: float) -> View:
    if p < 0 or math.isinf(p):
        # Which coordinate is the largest is a question of rounding there.
        raise UnsupportedError(UNSUPPORTED, f"the gradient of a distance with p={p}")
    return b.pointwise(DISTANCE_SLOPE, difference, distance, attributes=(p,))


@operator(aten._cdist_backward.default)
def cdist_backward(b: Builder, grad: View, x1: View, x2: View, p: float, cdist: View) -> View:
    """The gradient of the first matrix."""
    require_real(b, "grad", "x1", "x2", "cdist")
    (*first, rows, width), (*second, columns, other) = b.shape(x1), b.shape(x2)
    if first != second or width != other or not b.shape(grad) == b.shape(cdist) == (*first, rows, columns):
        raise UnsupportedError(UNSUPPORTED, "the gradient of distances with operands of other shapes than theirs")
    slope = _slope(b, _differences(b, x1, x2), b.unsqueeze(cdist, -1), p)
    return b.sum(b.mul(b.unsqueeze(grad, -1), slope), [-2])


def _pairs(b: Builder, view: View) -> View:
    """``[k, n]``: 1 at the first row of pair ``k`` and -1 at its second."""
    rows, width = b.shape(view)
    if not isinstance(rows, int) or rows < 2 or width == 0 or rows**3 > 2 * LARGEST_CONSTANT:
        raise UnsupportedError(UNREPRESENTABLE, f"distances of {rows} rows")
    pairs = list(itertools.combinations(range(rows), 2))
    content = tuple(float((n == i) - (n == j)) for i, j in pairs for n in range(rows))
    return stored(b, torch.float64, (len(pairs), rows), content)


@operator(aten._pdist_forward.default)
def pdist(b: Builder, self: View, p: float) -> View:
    """Distances of every two rows."""
    require_real(b, "self")
    if p < 0:
        raise UnsupportedError(UNSUPPORTED, f"a distance of order {p}")
    difference = b.contraction("k n, n m -> k m", _pairs(b, self), self)
    if p == 0:
        return b.sum(b.negate(b.equal(difference, 0)), [-1])
    return norm_of(b, difference, p, [-1], False)


@operator(aten._pdist_backward.default)
def pdist_backward(b: Builder, grad: View, self: View, p: float, pdist: View) -> View:
    require_real(b, "grad", "self", "pdist")
    pairs = _pairs(b, self)
    slope = _slope(b, b.contraction("k n, n m -> k m", pairs, self), b.unsqueeze(pdist, -1), p)
    return b.contraction("k n, k, k m -> n m", pairs, grad, slope)


@operator(aten.renorm.default)
def renorm(b: Builder, self: View, p: Number, dim: int, maxnorm: Number) -> View:
    """Slices along ``dim`` whose norm exceeds ``maxnorm``, scaled down to it."""
    require_real(b, "self")
    rank = b.rank(self)
    others = [d for d in range(rank) if d != dim % rank]
    norm = norm_of(b, self, p, others, True)
    return b.mul(self, b.pointwise(RENORM_FACTOR, norm, attributes=(maxnorm,)))
