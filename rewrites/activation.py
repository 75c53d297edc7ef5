"""Activation functions and their gradients. A gradient is the incoming one times the function's derivative."""

from __future__ import annotations

import torch

from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder, Number
from verifycompile.rewrites.elementwise import MAXIMUM, require_real, require_same_on_ranks
from verifycompile.rewrites.registry import operator

aten = torch.ops.aten

GELU = Operation("gelu")
GELU_DERIVATIVE = Operation("gelu_derivative")
SILU = Operation("silu")
SILU_DERIVATIVE = Operation("silu_derivative")
SOFTPLUS = Operation("softplus")
SOFTPLUS_DERIVATIVE = Operation("softplus_derivative")


@operator(aten.relu.default)
def relu(b: Builder, self: View) -> View:
    return b.pointwise(MAXIMUM, self, 0)


@operator(aten.threshold_backward.default)
def threshold_backward(b: Builder, grad_output: View, self: View, threshold: Number) -> View:
    require_real(b, "grad_output")
    return b.mul(grad_output, b.less(threshold, self))


@operator(aten.gelu.default)
def gelu(b: Builder, self: View, approximate: str) -> View:
    return b.pointwise(GELU, self, attributes=(approximate,))


@operator(aten.gelu_backward.default)
def gelu_backward(b: Builder, grad_output: View, self: View, approximate: str) -> View:
    require_real(b, "grad_output")
    return b.mul(grad_output, b.pointwise(GELU_DERIVATIVE, self, attributes=(approximate,)))


@operator(aten.silu.default)
def silu(b: Builder, self: View) -> View:
    return b.pointwise(SILU, self)


@operator(aten.silu_backward.default)
def silu_backward(b: Builder, grad_output: View, self: View) -> View:
    require_real(b, "grad_output", "self")
    return b.mul(grad_output, b.pointwise(SILU_DERIVATIVE, self))


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
