"""Layer normalization and softmax, with their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verifycompile.ir.size import Size
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import require_one_shape, require_real
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten


Gradients = tuple[View | None, View | None, View | None]


def normalized_over(b: Builder, view: View, dims: Sequence[int], eps: float) -> tuple[View, View, View]:
    """``(x - mean) * rstd``, the mean and the reciprocal standard deviation, which keep ``dims`` with size 1."""
    mean = b.mean(view, dims, keepdim=True)
    centered = b.sub(view, mean)
    rstd = b.power(b.add(b.mean(b.power(centered, 2), dims, keepdim=True), eps), -0.5)
    return b.mul(centered, rstd), mean, rstd


def input_gradient(b: Builder, scaled: View, normalized: View, rstd: View, dims: Sequence[int]) -> View:
    """Through a normalization over ``dims``: ``scaled`` is the gradient of the normalized values."""
    along = b.mul(normalized, b.mean(b.mul(scaled, normalized), dims, keepdim=True))
    inner = b.combination((1, scaled), (-1, b.mean(scaled, dims, keepdim=True)), (-1, along))
    return b.mul(inner, rstd)


def wanted_gradients(gradients: Sequence[View], mask: Sequence[bool]) -> Gradients:
    kept = [g if wanted else None for g, wanted in zip(gradients, mask, strict=True)]
    return kept[0], kept[1], kept[2]


# ------------------------------------------------------------------------------------------------ layer norm


def _normalized_dims(
    b: Builder, view: View, normalized_shape: Sequence[Size], *vectors: View | None
) -> list[int]:
    """The last dimensions of ``view``, which are those of weight and bias: the gradients' kernels do not check that."""
    shapes = [b.shape(vector) for vector in vectors if vector is not None]
    if any(shape != tuple(normalized_shape) for shape in (b.shape(view)[-len(normalized_shape) :], *shapes)):
        raise UnsupportedError(UNREPRESENTABLE, f"a normalization of another shape than {list(normalized_shape)}")
    return list(range(b.rank(view) - len(normalized_shape), b.rank(view)))


def _check_statistics(b: Builder, view: View, dims: Sequence[int], *statistics: View) -> None:
    """Statistics of the forward operator have size 1 along the normalized dimensions."""
    shape = tuple(1 if d in dims else size for d, size in enumerate(b.shape(view)))
    if not dims or any(b.shape(s) != shape for s in statistics):
        raise UnsupportedError(UNREPRESENTABLE, f"statistics of another shape than {list(shape)}")


@operator(aten.native_layer_norm.default)
def native_layer_norm(
    b: Builder, input: View, normalized_shape: Sequence[Size], weight: View | None, bias: View | None, eps: float
) -> tuple[View, View, View]:
    """``(input - mean) * rstd * weight + bias``; mean and rstd keep the normalized dimensions with size 1."""
    require_real(b, "input", "weight", "bias")
    dims = _normalized_dims(b, input, normalized_shape, weight, bias)
    output, mean, rstd = normalized_over(b, input, dims, eps)
    if weight is not None:
        output = b.mul(output, weight)
    if bias is not None:
        output = b.add(output, bias)
    return output, mean, rstd


@operator(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    b: Builder,
    grad_out: View,
    input: View,
    normalized_shape: Sequence[Size],
    mean: View,
    rstd: View,
    weight: View | None,
    bias: View | None,
    output_mask: Sequence[bool],
) -> Gradients:
    """Gradients of input, weight and bias."""
    require_real(b, "grad_out", "input", "mean", "rstd", "weight")
    dims = _normalized_dims(b, input, normalized_shape, weight)
    _check_statistics(b, input, dims, mean, rstd)
    require_one_shape(b, grad_out, input)
    rows = [d for d in range(b.rank(input)) if d not in dims]
    normalized = b.mul(b.sub(input, mean), rstd)
    scaled = grad_out if weight is None else b.mul(grad_out, weight)
    grad_input = input_gradient(b, scaled, normalized, rstd, dims)
    grad_weight = _sum_rows(b, b.mul(grad_out, normalized), rows)
    return wanted_gradients((grad_input, grad_weight, _sum_rows(b, grad_out, rows)), output_mask)


def _sum_rows(b: Builder, view: View, rows: list[int]) -> View:
    return b.sum(view, rows) if rows else view


@operator(aten._fused_rms_norm.default)
def fused_rms_norm(
    b: Builder, input: View, normalized_shape: Sequence[Size], weight: View | None, eps: float | None
) -> tuple[View, View]:
    """``input * rstd * weight`` with ``rstd = (mean(input**2) + eps) ** -0.5``."""
    require_real(b, "input", "weight")
    if eps is None:
        raise UnsupportedError(UNSUPPORTED, "rms_norm with an epsilon that depends on the dtype")
    dims = _normalized_dims(b, input, normalized_shape, weight)
    rstd = b.power(b.add(b.mean(b.power(input, 2), dims, keepdim=True), eps), -0.5)
    output = b.mul(input, rstd)
    return (output if weight is None else b.mul(output, weight)), rstd


@operator(aten._fused_rms_norm_backward.default)
def fused_rms_norm_backward(
    b: Builder,
    grad_out: View,
    input: View,
    normalized_shape: Sequence[Size],
    rstd: View,
    weight: View | None,
    output_mask: Sequence[bool],
) -> tuple[View | None, View | None]:
    """Gradients of input and weight."""
    require_real(b, "grad_out", "input", "rstd", "weight")
    dims = _normalized_dims(b, input, normalized_shape, weight)
    _check_statistics(b, input, dims, rstd)
    require_one_shape(b, grad_out, input)
    rows = [d for d in range(b.rank(input)) if d not in dims]
    normalized = b.mul(input, rstd)
    scaled = grad_out if weight is None else b.mul(grad_out, weight)
    along = b.mul(normalized, b.mean(b.mul(scaled, normalized), dims, keepdim=True))
    grad_input = b.mul(b.sub(scaled, along), rstd)
    grad_weight = _sum_rows(b, b.mul(grad_out, normalized), rows)
    return (grad_input if output_mask[0] else None), (grad_weight if output_mask[1] else None)


@operator(aten._weight_norm_interface_backward.default)
def weight_norm_backward(
    b: Builder, grad_w: View, saved_v: View, saved_g: View, saved_norms: View, dim: int
) -> tuple[View, View]:
    """Of ``v * (g / norms)``, where ``norms`` are those of ``v`` over all dimensions but ``dim``."""
    require_real(b, "grad_w", "saved_v", "saved_g", "saved_norms")
    rank = b.rank(saved_v)
    dims = [d for d in range(rank) if d != dim % rank]
    _check_statistics(b, saved_v, dims, saved_g, saved_norms)
    require_one_shape(b, grad_w, saved_v)
    inverse = b.power(saved_norms, -1)
    normalized = b.mul(saved_v, inverse)
    grad_g = b.sum(b.mul(grad_w, normalized), dims, keepdim=True)
    grad_v = b.mul(saved_g, inverse, b.sub(grad_w, b.mul(normalized, grad_g)))
    return grad_v, grad_g
