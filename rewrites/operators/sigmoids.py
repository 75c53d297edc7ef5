"""The sigmoid, its logarithm, and their gradients."""

from __future__ import annotations

import torch

from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import FUNCTIONS, require_real
from verifycompile.rewrites.operators.log_weights import odds
from verifycompile.rewrites.registry import operator

aten = torch.ops.aten


HARDSIGMOID_DERIVATIVE = Operation("hardsigmoid_derivative")
LOG_SIGMOID = Operation("log_sigmoid")
LOG_SIGMOID_BUFFER = Operation("log_sigmoid_buffer")
LOG_SIGMOID_DERIVATIVE = Operation("log_sigmoid_derivative")


@operator(aten.sigmoid.default)
def sigmoid(b: Builder, self: View) -> View:
    known = odds(b, self)
    return b.pointwise(FUNCTIONS["sigmoid"], self) if known is None else known.weight


@operator(aten.sigmoid_backward.default)
def sigmoid_backward(b: Builder, grad_output: View, output: View) -> View:
    require_real(b, "grad_output", "output")
    return b.mul(grad_output, output, b.sub(1, output))


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
    if buffer != b.pointwise(LOG_SIGMOID_BUFFER, self):
        return b.mul(grad_output, b.pointwise(LOG_SIGMOID_DERIVATIVE, self, buffer))
    known = odds(b, self)
    return b.mul(grad_output, b.sub(1, b.pointwise(FUNCTIONS["sigmoid"], self)) if known is None else known.rest)


@operator(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(b: Builder, grad_output: View, self: View) -> View:
    require_real(b, "grad_output", "self")
    return b.mul(grad_output, b.pointwise(HARDSIGMOID_DERIVATIVE, self))
