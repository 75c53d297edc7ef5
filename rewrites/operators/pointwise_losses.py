"""Losses that are a function of each element, and functions that stand in them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verifycompile.ir.exponential import is_positive
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operators.elementwise import require_real
from verifycompile.rewrites.operators.loss import MEAN, NONE, SUM
from verifycompile.rewrites.registry import UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten


BINARY_CROSS_ENTROPY_DERIVATIVE = Operation("binary_cross_entropy_derivative")
XLOGY = Operation("xlogy")
ENTROPY = Operation("entropy")


@operator(aten.mse_loss.default)
def mse_loss(b: Builder, self: View, target: View, reduction: int) -> View:
    require_real(b, "self", "target")
    squares = b.power(b.sub(self, target), 2)
    if reduction == NONE:
        return squares
    return b.mean(squares, None) if reduction == MEAN else b.sum(squares, None)


@operator(aten.mse_loss_backward.default)
def mse_loss_backward(b: Builder, grad_output: View, self: View, target: View, reduction: int) -> View:
    require_real(b, "grad_output", "self", "target")
    difference = b.sub(self, target)
    gradient = b.scale(b.mul(difference, grad_output), 2)
    return b.divide(gradient, b.count(self, None)) if reduction == MEAN else gradient  # torch counts no repeated ones


def reduced(b: Builder, view: View, reduction: int) -> View:
    _require_reduction(reduction)
    if reduction == NONE:
        return view
    return b.mean(view, None) if reduction == MEAN else b.sum(view, None)


def _require_reduction(reduction: int) -> None:
    """Of other codes every operator makes something else."""
    if reduction not in (NONE, MEAN, SUM):
        raise UnsupportedError(UNSUPPORTED, f"a loss with reduction={reduction}")


def spread(b: Builder, grad_output: View, slope: View, reduction: int) -> View:
    """The gradient of every element of a loss; of a mean each has its share."""
    _require_reduction(reduction)
    gradient = b.mul(grad_output, slope)
    return b.divide(gradient, b.count(slope, None)) if reduction == MEAN else gradient


@operator(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    b: Builder, grad_output: View, self: View, target: View, weight: View | None, reduction: int
) -> View:
    require_real(b, "grad_output", "self", "target", "weight")
    slope = b.pointwise(BINARY_CROSS_ENTROPY_DERIVATIVE, self, target)
    return spread(b, grad_output, slope if weight is None else b.mul(slope, weight), reduction)


@operator(aten.xlogy.Tensor, aten.xlogy.Scalar_Other, aten.xlogy.Scalar_Self)
def xlogy(b: Builder, self: View | Number, other: View | Number) -> View:
    """``x log(y)``, zero where x is zero."""
    require_real(b, "self", "other")
    if isinstance(other, View) and is_positive(other):
        return b.mul(self, b.log(other))
    return b.pointwise(XLOGY, self, other)


@operator(aten.special_entr.default)
def entr(b: Builder, self: View) -> View:
    """``- x log(x)`` of what is greater than zero; zero at zero, minus infinity below."""
    require_real(b, "self")
    return b.scale(b.mul(self, b.log(self)), -1) if is_positive(self) else b.pointwise(ENTROPY, self)


def ignored_by_mean(target: object, arguments: Sequence[object]) -> object | None:
    """The class that a call leaves out of the number by which its mean divides; None where it divides by a size.

    Ranks may leave out different numbers of targets, so the mean of their means need not be the mean.
    """
    counts = target in (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
    return arguments[4] if counts and len(arguments) > 4 and arguments[3] == MEAN else None
