"""Activation functions and their gradients. A gradient is the incoming one times the function's derivative."""

from __future__ import annotations

import math

import torch

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.ir.exponential import MAXIMUM
from verifycompile.ir.scalar import ONE, as_scalar, divide, multiply
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operations import MINIMUM
from verifycompile.rewrites.operators.elementwise import FUNCTIONS, choose, require_real, require_same_on_ranks
from verifycompile.rewrites.operators.log_weights import odds
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError, operator

aten = torch.ops.aten

_GELU_FACTOR = math.sqrt(2 / math.pi)
_GELU_CUBE = 0.044715
_DENSITY = 2 / math.sqrt(math.pi)
"""The slope of the error function at zero."""
_ROUNDS_ABOVE = 25 * math.log(2)
"""Where ``exp(-x)`` is less than half of what single precision tells from one."""


@operator(aten.relu.default)
def relu(b: Builder, self: View) -> View:
    return b.pointwise(MAXIMUM, self, 0)


@operator(aten.threshold_backward.default)
def threshold_backward(b: Builder, grad_output: View, self: View, threshold: Number) -> View:
    require_real(b, "grad_output")
    return b.mul(grad_output, b.less(threshold, self))


@operator(aten.gelu.default)
def gelu(b: Builder, self: View, approximate: str) -> View:
    """``0.5 x (1 + erf(x / sqrt(2)))``, or ``tanh(inner)`` where it is approximated, as programs write it by hand."""
    inner = _gelu_tanh(b, self) if approximate == "tanh" else _gelu_error(b, self)
    return b.scale(b.mul(self, b.add(1, inner)), 0.5)


@operator(aten.gelu_backward.default)
def gelu_backward(b: Builder, grad_output: View, self: View, approximate: str) -> View:
    require_real(b, "grad_output")
    if approximate != "tanh":
        bell = b.scale(b.exp(b.scale(b.power(b.scale(self, math.sqrt(0.5)), 2), -1)), _DENSITY)
        slope = b.scale(b.mul(self, bell), math.sqrt(0.5))
        return b.scale(b.mul(grad_output, b.add(b.add(1, _gelu_error(b, self)), slope)), 0.5)
    tanh = _gelu_tanh(b, self)
    slope = b.scale(b.add(1, b.scale(b.power(self, 2), multiply(as_scalar(3), b.scalar(_GELU_CUBE)))), _GELU_FACTOR)
    half = b.scale(b.add(1, tanh), 0.5)
    return b.mul(grad_output, b.add(half, b.scale(b.mul(self, b.sub(1, b.power(tanh, 2)), slope), 0.5)))


def _gelu_error(b: Builder, x: View) -> View:
    return b.pointwise(FUNCTIONS["erf"], b.scale(x, math.sqrt(0.5)))


def _gelu_tanh(b: Builder, x: View) -> View:
    inner = b.add(x, b.scale(b.power(x, 3), _GELU_CUBE))
    return b.pointwise(FUNCTIONS["tanh"], b.scale(inner, _GELU_FACTOR))


@operator(aten.tanh_backward.default)
def tanh_backward(b: Builder, grad_output: View, output: View) -> View:
    require_real(b, "grad_output", "output")
    return b.mul(grad_output, b.sub(1, b.power(output, 2)))


@operator(aten.softplus.default)
def softplus(b: Builder, self: View, beta: Number, threshold: Number) -> View:
    """``log(1 + exp(x))``, and x itself where it is above the threshold, as torch computes it."""
    require_real(b, "self")
    require_same_on_ranks(b, beta=beta, threshold=threshold)
    if b.scalar(beta) == 0:
        raise UnsupportedError(UNREPRESENTABLE, "softplus divided by zero")
    scaled = b.scale(self, beta)
    smooth = b.scale(b.pointwise(FUNCTIONS["log1p"], b.exp(scaled)), divide(ONE, b.scalar(beta)))
    return smooth if _threshold_rounds(b, threshold) else choose(b, b.less(threshold, scaled), self, smooth)


@operator(aten.softplus_backward.default)
def softplus_backward(b: Builder, grad_output: View, self: View, beta: Number, threshold: Number) -> View:
    require_real(b, "grad_output", "self")
    require_same_on_ranks(b, beta=beta, threshold=threshold)
    scaled = b.scale(self, beta)
    known = odds(b, scaled)
    slope = b.pointwise(FUNCTIONS["sigmoid"], scaled) if known is None else known.weight
    if _threshold_rounds(b, threshold):
        return b.mul(grad_output, slope)
    above = b.less(threshold, scaled)
    return b.add(b.mul(grad_output, above), b.mul(grad_output, b.negate(above), slope))


def _threshold_rounds(b: Builder, threshold: Number) -> bool:
    """Whether softplus and its slope beyond the threshold are what single precision rounds the smooth function to.

    Where functions are written by their definitions it is that function then, with an assumption.
    """
    if not b.pool.definitions or not b.in_single_precision() or not isinstance(threshold, (int, float)):
        return False
    if not threshold > _ROUNDS_ABOVE:
        return False
    text = f"softplus above its threshold of {threshold:g} is rounding: it is read as log(1 + exp(x)) everywhere"
    b.pool.assumptions[Assumption(text, AssumptionKind.PRECISION)] = None
    return True


# ------------------------------------------------------------------------------------------------ piecewise linear


@operator(aten.leaky_relu.default)
def leaky_relu(b: Builder, self: View, negative_slope: Number) -> View:
    require_real(b, "self")
    return b.combination((1, b.pointwise(MAXIMUM, self, 0)), (negative_slope, b.pointwise(MINIMUM, self, 0)))


@operator(aten.leaky_relu_backward.default)
def leaky_relu_backward(
    b: Builder, grad_output: View, self: View, negative_slope: Number, self_is_result: bool
) -> View:
    """``self`` may be the result: torch allows that for slopes that keep its sign."""
    require_real(b, "grad_output", "self")
    positive = b.less(0, self)
    return b.combination((1, b.mul(grad_output, positive)), (negative_slope, b.mul(grad_output, b.negate(positive))))
