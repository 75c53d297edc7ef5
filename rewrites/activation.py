"""Activation functions and their gradients. A gradient is the incoming one times the function's derivative."""

from __future__ import annotations

import math

import torch

from verifycompile.ir.scalar import as_scalar, multiply
from verifycompile.ir.size import exact_quotient
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder, Number
from verifycompile.rewrites.elementwise import FUNCTIONS, MAXIMUM, MINIMUM, require_real, require_same_on_ranks
from verifycompile.rewrites.log_weights import odds
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError, operator

aten = torch.ops.aten

GELU = Operation("gelu")
GELU_DERIVATIVE = Operation("gelu_derivative")
SOFTPLUS = Operation("softplus")
SOFTPLUS_DERIVATIVE = Operation("softplus_derivative")
ELU = Operation("elu")
ELU_DERIVATIVE = Operation("elu_derivative")
CELU = Operation("celu")
HARDSIGMOID_DERIVATIVE = Operation("hardsigmoid_derivative")
HARDSWISH = Operation("hardswish")
HARDSWISH_DERIVATIVE = Operation("hardswish_derivative")
MISH = Operation("mish")
MISH_DERIVATIVE = Operation("mish_derivative")
LOG_SIGMOID = Operation("log_sigmoid")
LOG_SIGMOID_BUFFER = Operation("log_sigmoid_buffer")
LOG_SIGMOID_DERIVATIVE = Operation("log_sigmoid_derivative")

_GELU_FACTOR = math.sqrt(2 / math.pi)
_GELU_CUBE = 0.044715


@operator(aten.relu.default)
def relu(b: Builder, self: View) -> View:
    return b.pointwise(MAXIMUM, self, 0)


@operator(aten.threshold_backward.default)
def threshold_backward(b: Builder, grad_output: View, self: View, threshold: Number) -> View:
    require_real(b, "grad_output")
    return b.mul(grad_output, b.less(threshold, self))


@operator(aten.gelu.default)
def gelu(b: Builder, self: View, approximate: str) -> View:
    """``0.5 x (1 + tanh(inner))`` where it is approximated, as programs write it that do so by hand."""
    if approximate == "tanh":
        return b.scale(b.mul(self, b.add(1, _gelu_tanh(b, self))), 0.5)
    return b.pointwise(GELU, self, attributes=(approximate,))


@operator(aten.gelu_backward.default)
def gelu_backward(b: Builder, grad_output: View, self: View, approximate: str) -> View:
    require_real(b, "grad_output")
    if approximate != "tanh":
        return b.mul(grad_output, b.pointwise(GELU_DERIVATIVE, self, attributes=(approximate,)))
    tanh = _gelu_tanh(b, self)
    slope = b.scale(b.add(1, b.scale(b.power(self, 2), multiply(as_scalar(3), b.scalar(_GELU_CUBE)))), _GELU_FACTOR)
    half = b.scale(b.add(1, tanh), 0.5)
    return b.mul(grad_output, b.add(half, b.scale(b.mul(self, b.sub(1, b.power(tanh, 2)), slope), 0.5)))


def _gelu_tanh(b: Builder, x: View) -> View:
    inner = b.add(x, b.scale(b.power(x, 3), _GELU_CUBE))
    return b.pointwise(FUNCTIONS["tanh"], b.scale(inner, _GELU_FACTOR))


@operator(aten.silu.default)
def silu(b: Builder, self: View) -> View:
    return b.mul(self, b.pointwise(FUNCTIONS["sigmoid"], self))


@operator(aten.silu_backward.default)
def silu_backward(b: Builder, grad_output: View, self: View) -> View:
    """With s the sigmoid of x: ``s (1 + x (1 - s))``."""
    require_real(b, "grad_output", "self")
    opened = b.pointwise(FUNCTIONS["sigmoid"], self)
    return b.mul(grad_output, opened, b.add(1, b.mul(self, b.sub(1, opened))))


@operator(aten.sigmoid.default)
def sigmoid(b: Builder, self: View) -> View:
    known = odds(b, self)
    return b.pointwise(FUNCTIONS["sigmoid"], self) if known is None else known.weight


@operator(aten.sigmoid_backward.default)
def sigmoid_backward(b: Builder, grad_output: View, output: View) -> View:
    require_real(b, "grad_output", "output")
    return b.mul(grad_output, output, b.sub(1, output))


@operator(aten.tanh_backward.default)
def tanh_backward(b: Builder, grad_output: View, output: View) -> View:
    require_real(b, "grad_output", "output")
    return b.mul(grad_output, b.sub(1, b.power(output, 2)))


@operator(aten.softplus.default)
def softplus(b: Builder, self: View, beta: Number, threshold: Number) -> View:
    require_same_on_ranks(b, beta=beta, threshold=threshold)
    return b.pointwise(SOFTPLUS, self, attributes=(beta, threshold))


@operator(aten.softplus_backward.default)
def softplus_backward(b: Builder, grad_output: View, self: View, beta: Number, threshold: Number) -> View:
    require_real(b, "grad_output", "self")
    require_same_on_ranks(b, beta=beta, threshold=threshold)
    return b.mul(grad_output, b.pointwise(SOFTPLUS_DERIVATIVE, self, attributes=(beta, threshold)))


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


@operator(aten._prelu_kernel.default)
def prelu(b: Builder, self: View, weight: View) -> View:
    require_real(b, "self", "weight")
    return b.add(b.pointwise(MAXIMUM, self, 0), b.mul(weight, b.pointwise(MINIMUM, self, 0)))


@operator(aten._prelu_kernel_backward.default)
def prelu_backward(b: Builder, grad_output: View, self: View, weight: View) -> tuple[View, View]:
    """Gradients of input and weight, both of the input's shape."""
    require_real(b, "grad_output", "self", "weight")
    positive = b.less(0, self)
    gradient = b.mul(grad_output, b.add(positive, b.mul(weight, b.negate(positive))))
    return gradient, b.mul(grad_output, b.pointwise(MINIMUM, self, 0))


@operator(aten.hardtanh.default)
def hardtanh(b: Builder, self: View, min_val: Number, max_val: Number) -> View:
    require_real(b, "self")
    return b.pointwise(MINIMUM, b.pointwise(MAXIMUM, self, min_val), max_val)


@operator(aten.hardtanh_backward.default)
def hardtanh_backward(b: Builder, grad_output: View, self: View, min_val: Number, max_val: Number) -> View:
    require_real(b, "grad_output", "self")
    return b.mul(grad_output, b.less(min_val, self), b.less(self, max_val))


@operator(aten.hardsigmoid.default)
def hardsigmoid(b: Builder, self: View) -> View:
    """``clamp(x + 3, 0, 6) / 6``."""
    require_real(b, "self")
    return b.divide(b.pointwise(MINIMUM, b.pointwise(MAXIMUM, b.add(self, 3), 0), 6), 6)


@operator(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(b: Builder, grad_output: View, self: View) -> View:
    require_real(b, "grad_output", "self")
    return b.mul(grad_output, b.pointwise(HARDSIGMOID_DERIVATIVE, self))


# ------------------------------------------------------------------------------------------------ taken as they are


@operator(aten.hardswish.default)
def hardswish(b: Builder, self: View) -> View:
    require_real(b, "self")
    return b.pointwise(HARDSWISH, self)


@operator(aten.hardswish_backward.default)
def hardswish_backward(b: Builder, grad_output: View, self: View) -> View:
    require_real(b, "grad_output", "self")
    return b.mul(grad_output, b.pointwise(HARDSWISH_DERIVATIVE, self))


@operator(aten.mish.default)
def mish(b: Builder, self: View) -> View:
    require_real(b, "self")
    return b.pointwise(MISH, self)


@operator(aten.mish_backward.default)
def mish_backward(b: Builder, grad_output: View, self: View) -> View:
    require_real(b, "grad_output", "self")
    return b.mul(grad_output, b.pointwise(MISH_DERIVATIVE, self))


@operator(aten.elu.default)
def elu(b: Builder, self: View, alpha: Number, scale: Number, input_scale: Number) -> View:
    require_real(b, "self")
    return b.pointwise(ELU, self, attributes=(alpha, scale, input_scale))


@operator(aten.elu_backward.default)
def elu_backward(
    b: Builder,
    grad_output: View,
    alpha: Number,
    scale: Number,
    input_scale: Number,
    is_result: bool,
    self_or_result: View,
) -> View:
    require_real(b, "grad_output", "self_or_result")
    attributes = (alpha, scale, input_scale, is_result)
    return b.mul(grad_output, b.pointwise(ELU_DERIVATIVE, self_or_result, attributes=attributes))


@operator(aten.celu.default)
def celu(b: Builder, self: View, alpha: Number) -> View:
    require_real(b, "self")
    return b.pointwise(CELU, self, attributes=(alpha,))


@operator(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(b: Builder, self: View) -> tuple[View, View]:
    """The result, and what its gradient reads besides."""
    require_real(b, "self")
    known = odds(b, self)
    value = b.pointwise(LOG_SIGMOID, self) if known is None else known.log_weight
    return value, b.pointwise(LOG_SIGMOID_BUFFER, self)


@operator(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(b: Builder, grad_output: View, self: View, buffer: View) -> View:
    require_real(b, "grad_output", "self")
    known = odds(b, self)
    return b.mul(grad_output, b.pointwise(LOG_SIGMOID_DERIVATIVE, self, buffer) if known is None else known.rest)


# ------------------------------------------------------------------------------------------------ gated


def _halves(b: Builder, view: View, dim: int) -> tuple[View, View]:
    half = exact_quotient(b.shape(view)[dim % b.rank(view)], 2)
    if half is None:
        raise UnsupportedError(UNREPRESENTABLE, "halves of a dimension of odd size")
    return b.narrow(view, dim, 0, half), b.narrow(view, dim, half, half)


@operator(aten.glu.default)
def glu(b: Builder, self: View, dim: int) -> View:
    require_real(b, "self")
    value, gate = _halves(b, self, dim)
    return b.mul(value, b.pointwise(FUNCTIONS["sigmoid"], gate))


@operator(aten.glu_backward.default)
def glu_backward(b: Builder, grad_output: View, self: View, dim: int) -> View:
    require_real(b, "grad_output", "self")
    value, gate = _halves(b, self, dim)
    opened = b.pointwise(FUNCTIONS["sigmoid"], gate)
    slope = b.mul(opened, b.sub(1, opened))
    return b.concatenate([b.mul(grad_output, opened), b.mul(grad_output, value, slope)], dim)
