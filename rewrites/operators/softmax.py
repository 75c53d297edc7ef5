"""Softmax and its logarithm, along one dimension."""

from __future__ import annotations

import torch

from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import require_one_shape
from verifycompile.rewrites.registry import operator

aten = torch.ops.aten


def softmax_of(b: Builder, view: View, dim: int) -> View:
    """``exp(x) / sum(exp(x))``. The shift by the maximum that torch computes cancels over the reals."""
    power = b.exp(view)
    return b.divide(power, b.sum(power, [dim], keepdim=True))


def log_softmax_of(b: Builder, view: View, dim: int) -> View:
    """``x - log(sum(exp(x)))``."""
    return b.sub(view, b.log(b.sum(b.exp(view), [dim], keepdim=True)))


@operator(aten._softmax.default)
def softmax(b: Builder, self: View, dim: int, half_to_float: bool) -> View:
    return softmax_of(b, self, dim)


@operator(aten._log_softmax.default)
def log_softmax(b: Builder, self: View, dim: int, half_to_float: bool) -> View:
    return log_softmax_of(b, self, dim)


@operator(aten._softmax_backward_data.default)
def softmax_backward(b: Builder, grad_output: View, output: View, dim: int, input_dtype: torch.dtype) -> View:
    require_one_shape(b, grad_output, output)
    product = b.mul(grad_output, output)
    return b.sub(product, b.mul(output, b.sum(product, [dim], keepdim=True)))


@operator(aten._log_softmax_backward_data.default)
def log_softmax_backward(b: Builder, grad_output: View, output: View, dim: int, input_dtype: torch.dtype) -> View:
    require_one_shape(b, grad_output, output)
    return b.sub(grad_output, b.mul(b.exp(output), b.sum(grad_output, [dim], keepdim=True)))
