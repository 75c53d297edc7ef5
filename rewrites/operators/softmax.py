"""Softmax and its logarithm, along one dimension."""

from __future__ import annotations

import torch

from verifycompile.ir.exponential import may_be_lowest
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import cast, require_one_shape
from verifycompile.rewrites.registry import operator

aten = torch.ops.aten
SAFE_SOFTMAX = Operation("safe_softmax")


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


@operator(aten._safe_softmax.default)
def safe_softmax(b: Builder, self: View, dim: int, dtype: torch.dtype | None) -> View:
    """Softmax whose wholly masked rows are zero; where no row is masked wholly, softmax."""
    scores = cast(b, self, b.dtype_of("self"), dtype)
    from verifycompile.rewrites.operators.reduction import extreme  # here, because few programs have this softmax

    if not b.rank(self):
        return b.select(safe_softmax(b, b.unsqueeze(self, 0), 0, dtype), 0, 0)
    may_be_masked = may_be_lowest(extreme(b, scores, [dim], True, "max"))
    return b.along(SAFE_SOFTMAX, (), scores, dim) if may_be_masked else softmax_of(b, scores, dim)
