"""Group and batch normalization, forward and backward."""

# ruff: noqa: N803 - declarations name the arguments of their schema

from __future__ import annotations

from collections.abc import Sequence

import torch

from verifycompile.ir.size import Size, exact_quotient
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import require_real
from verifycompile.rewrites.operators.normalization import Gradients, input_gradient, normalized_over, wanted_gradients
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten


# ------------------------------------------------------------------------------------------------ groups


def _grouped(b: Builder, view: View, N: Size, C: Size, HxW: Size, group: int) -> View:
    """``(samples, group, channels of a group, space)``."""
    each = exact_quotient(C, group)
    shape = b.shape(view)
    if each is None or len(shape) < 2 or (shape[0], shape[1]) != (N, C):
        raise UnsupportedError(UNREPRESENTABLE, f"{group} groups of {C} channels of a tensor of shape {list(shape)}")
    return b.reshape(view, [N, group, each, HxW])


def _per_channel(b: Builder, view: View, group: int) -> View:
    """A vector over the channels, to be multiplied with what ``_grouped`` gives."""
    each = exact_quotient(b.shape(view)[0], group)
    if each is None:
        raise UnsupportedError(UNREPRESENTABLE, f"{group} groups of {b.shape(view)[0]} channels")
    return b.reshape(view, [1, group, each, 1])


@operator(aten.native_group_norm.default)
def group_norm(
    b: Builder,
    input: View,
    weight: View | None,
    bias: View | None,
    N: Size,
    C: Size,
    HxW: Size,
    group: int,
    eps: float,
) -> tuple[View, View, View]:
    """Layer normalization of every group of channels; statistics are ``(samples, group)``."""
    require_real(b, "input", "weight", "bias")
    grouped = _grouped(b, input, N, C, HxW, group)
    output, mean, rstd = normalized_over(b, grouped, [2, 3], eps)
    if weight is not None:
        output = b.mul(output, _per_channel(b, weight, group))
    if bias is not None:
        output = b.add(output, _per_channel(b, bias, group))
    return b.reshape(output, b.shape(input)), b.squeeze(mean, [2, 3]), b.squeeze(rstd, [2, 3])


@operator(aten.native_group_norm_backward.default)
def group_norm_backward(
    b: Builder,
    grad_out: View,
    input: View,
    mean: View,
    rstd: View,
    weight: View | None,
    N: Size,
    C: Size,
    HxW: Size,
    group: int,
    output_mask: Sequence[bool],
) -> Gradients:
    require_real(b, "grad_out", "input", "mean", "rstd", "weight")
    grad, grouped = (_grouped(b, v, N, C, HxW, group) for v in (grad_out, input))
    center, spread = (b.reshape(v, [N, group, 1, 1]) for v in (mean, rstd))
    normalized = b.mul(b.sub(grouped, center), spread)
    scaled = grad if weight is None else b.mul(grad, _per_channel(b, weight, group))
    gradients = (
        b.reshape(input_gradient(b, scaled, normalized, spread, [2, 3]), b.shape(input)),
        b.reshape(b.sum(b.mul(grad, normalized), [0, 3]), [C]),
        b.reshape(b.sum(grad, [0, 3]), [C]),
    )
    return wanted_gradients(gradients, output_mask)


# ------------------------------------------------------------------------------------------------ batches


def _along_channels(b: Builder, view: View, rank: int) -> View:
    return b.reshape(view, [*b.shape(view), *(1 for _ in range(rank - 2))])


def _others(b: Builder, view: View) -> list[int]:
    """All dimensions but the channels."""
    if b.rank(view) < 2:
        raise UnsupportedError(UNSUPPORTED, "a batch normalization of a tensor without channels")
    return [0, *range(2, b.rank(view))]


def _normalized(b: Builder, view: View, mean: View, rstd: View) -> View:
    rank = b.rank(view)
    return b.mul(b.sub(view, _along_channels(b, mean, rank)), _along_channels(b, rstd, rank))


def _affine(b: Builder, view: View, weight: View | None, bias: View | None) -> View:
    result = view if weight is None else b.mul(view, _along_channels(b, weight, b.rank(view)))
    return result if bias is None else b.add(result, _along_channels(b, bias, b.rank(view)))


@operator(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(
    b: Builder,
    input: View,
    weight: View | None,
    bias: View | None,
    running_mean: View,
    running_var: View,
    momentum: float,
    eps: float,
) -> tuple[View, None, None]:
    """With running statistics, which ``momentum`` leaves as they are. Nothing is saved that a gradient reads."""
    require_real(b, "input", "weight", "bias", "running_mean", "running_var")
    _others(b, input)
    rstd = b.power(b.add(running_var, eps), -0.5)
    output = _affine(b, _normalized(b, input, running_mean, rstd), weight, bias)
    return output, None, None


@operator(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    b: Builder,
    grad_out: View,
    input: View,
    weight: View | None,
    running_mean: View | None,
    running_var: View | None,
    save_mean: View | None,
    save_invstd: View | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Gradients:
    """In training the saved statistics count, otherwise the running ones."""
    require_real(b, "grad_out", "input", "weight", "running_mean", "running_var", "save_mean", "save_invstd")
    dims, rank = _others(b, input), b.rank(input)
    if train:
        mean, rstd = save_mean, save_invstd
    else:
        mean = running_mean
        rstd = None if running_var is None else b.power(b.add(running_var, eps), -0.5)
    if mean is None or rstd is None:
        raise UnsupportedError(UNSUPPORTED, "the gradient of a batch normalization without statistics")
    normalized = _normalized(b, input, mean, rstd)
    scaled = grad_out if weight is None else b.mul(grad_out, _along_channels(b, weight, rank))
    spread = _along_channels(b, rstd, rank)
    grad_input = input_gradient(b, scaled, normalized, spread, dims) if train else b.mul(scaled, spread)
    gradients = (grad_input, b.sum(b.mul(grad_out, normalized), dims), b.sum(grad_out, dims))
    return wanted_gradients(gradients, output_mask)
