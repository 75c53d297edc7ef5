"""Losses over classes with margins, and the negative log likelihood of images."""

from __future__ import annotations

import torch

from verifycompile.ir.exponential import MAXIMUM
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operators.bounds import require_within
from verifycompile.rewrites.operators.elementwise import require_real
from verifycompile.rewrites.operators.indexing import one_hot
from verifycompile.rewrites.operators.loss import MEAN, NONE, nll_loss_backward, nll_loss_forward
from verifycompile.rewrites.operators.pointwise_losses import reduced, spread
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten

MULTILABEL_MARGIN = Operation("multilabel_margin")
MULTILABEL_TARGETS = Operation("multilabel_targets", indicator=True)
MULTILABEL_SLOPE = Operation("multilabel_margin_slope")


# ------------------------------------------------------------------------------------------------ images


def _classes_last(b: Builder, view: View) -> View:
    return b.permute(view, [0, *range(2, b.rank(view)), 1])


@operator(aten.nll_loss2d_forward.default)
def nll_loss2d_forward(
    b: Builder, self: View, target: View, weight: View | None, reduction: int, ignore_index: int
) -> tuple[View, View]:
    """As of rows, of every pixel. Without a reduction torch sums no weights."""
    loss, total = nll_loss_forward(b, _classes_last(b, self), target, weight, reduction, ignore_index)
    return loss, b.full(0, ()) if reduction == NONE else total


@operator(aten.nll_loss2d_backward.default)
def nll_loss2d_backward(
    b: Builder,
    grad_output: View,
    self: View,
    target: View,
    weight: View | None,
    reduction: int,
    ignore_index: int,
    total_weight: View,
) -> View:
    gradient = nll_loss_backward(
        b, grad_output, _classes_last(b, self), target, weight, reduction, ignore_index, total_weight
    )
    return b.permute(gradient, [0, b.rank(gradient) - 1, *range(1, b.rank(gradient) - 1)])


# ------------------------------------------------------------------------------------------------ one class


def _margins(
    b: Builder, view: View, target: View, p: Number, margin: Number, weight: View | None
) -> tuple[View, View, View]:
    """One-hot targets, by how much other classes come too near, and the factor of every row, as wide as the rows."""
    if p not in (1, 2) or b.rank(view) - 1 != b.rank(target):
        raise UnsupportedError(UNSUPPORTED, f"a margin loss with p={p} of a tensor of {b.rank(view)} dimensions")
    classes = b.shape(view)[-1]
    require_within(b, target, classes)
    lookup = one_hot(b, target, classes)
    own = b.sum(b.mul(lookup, view), [-1], keepdim=True)
    excess = b.mul(b.negate(lookup), b.pointwise(MAXIMUM, b.add(b.sub(view, own), b.number(margin)), 0))
    factor = b.full(1, [1] * b.rank(view))
    if weight is not None:
        factor = b.unsqueeze(b.contraction("*b v, v -> *b", lookup, weight), -1)
    return lookup, excess, b.divide(factor, classes)


@operator(aten.multi_margin_loss.default)
def multi_margin_loss(
    b: Builder, self: View, target: View, p: Number, margin: Number, weight: View | None, reduction: int
) -> View:
    """``sum of max(0, margin - x[y] + x[i]) ** p`` over the other classes, by the number of classes."""
    require_real(b, "self", "weight")
    _, excess, factor = _margins(b, self, target, p, margin, weight)
    return reduced(b, b.sum(b.mul(factor, b.power(excess, p)), [-1]), reduction)


@operator(aten.multi_margin_loss_backward.default)
def multi_margin_loss_backward(
    b: Builder, grad_output: View, self: View, target: View, p: Number, margin: Number, weight: View | None,
    reduction: int,
) -> View:  # fmt: skip
    require_real(b, "grad_output", "self", "weight")
    lookup, excess, factor = _margins(b, self, target, p, margin, weight)
    slope = b.mul(factor, b.less(0, excess) if p == 1 else b.scale(excess, 2))
    own = b.mul(lookup, b.sum(slope, [-1], keepdim=True))
    return _over_rows(b, grad_output, b.sub(slope, own), reduction)


def _over_rows(b: Builder, grad_output: View, slope: View, reduction: int) -> View:
    """The gradient of every element where a row has one loss."""
    grad = b.unsqueeze(grad_output, -1) if reduction == NONE else grad_output
    result = spread(b, grad, slope, NONE if reduction == MEAN else reduction)
    rows = b.count(slope, list(range(b.rank(slope) - 1))) if b.rank(slope) > 1 else 1
    return b.divide(result, rows) if reduction == MEAN else result


# ------------------------------------------------------------------------------------------------ several classes


def _require_rows(b: Builder, view: View, *others: View) -> None:
    if b.rank(view) not in (1, 2) or any(b.shape(other) != b.shape(view) for other in others):
        raise UnsupportedError(UNREPRESENTABLE, "a margin loss of tensors of several shapes")


@operator(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss_forward(b: Builder, self: View, target: View, reduction: int) -> tuple[View, View]:
    """Classes are listed up to the first -1 of a row. The second result says which classes are listed."""
    require_real(b, "self")
    _require_rows(b, self, target)
    rows = b.core(MULTILABEL_MARGIN, (), "*n c, *n t -> *n", self, target, cores="c t")
    size = b.shape(self)[-1]
    listed = b.core(MULTILABEL_TARGETS, (), "*n t -> *n k", target, cores="t", fresh={"k": size})
    return reduced(b, rows, reduction), listed


@operator(aten.multilabel_margin_loss_backward.default)
def multilabel_margin_loss_backward(
    b: Builder, grad_output: View, self: View, target: View, reduction: int, is_target: View
) -> View:
    require_real(b, "grad_output", "self", "is_target")
    _require_rows(b, self, target, is_target)
    operands = (self, target, is_target)
    text = "*n c, *n t, *n u -> *n k"
    slope = b.core(MULTILABEL_SLOPE, (), text, *operands, cores="c t u", fresh={"k": b.shape(self)[-1]})
    return _over_rows(b, grad_output, slope, reduction)
