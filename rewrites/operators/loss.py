"""Losses: negative log likelihood (the second half of cross entropy), squared error, and those point by point."""

from __future__ import annotations

import torch

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import require_real
from verifycompile.rewrites.operators.indexing import one_hot
from verifycompile.rewrites.registry import operator

aten = torch.ops.aten

NONE, MEAN, SUM = 0, 1, 2
"""torch's codes of ``reduction``."""


def _row_weights(b: Builder, classes: View, target: View, weight: View | None, ignore_index: int) -> View:
    """Weight of every row: zero where its target is ``ignore_index``."""
    source = f"the classes of a negative log likelihood are {ignore_index} or within [0, {b.shape(classes)[-1]})"
    b.assume_index(target, b.shape(classes)[-1], ignore_index, Assumption(source, AssumptionKind.VALUES))
    valid = b.negate(b.equal(target, ignore_index))
    if weight is None:
        return valid
    return b.mul(valid, b.contraction("*b v, v -> *b", classes, weight))


@operator(aten.nll_loss_forward.default)
def nll_loss_forward(
    b: Builder, self: View, target: View, weight: View | None, reduction: int, ignore_index: int
) -> tuple[View, View]:
    """Loss and the total weight, by which the mean divides."""
    require_real(b, "self", "weight")
    classes = one_hot(b, target, b.shape(self)[-1])
    rows = _row_weights(b, classes, target, weight, ignore_index)
    picked = b.scale(b.mul(rows, b.sum(b.mul(classes, self), [-1])), -1)
    if reduction == NONE:
        # torch sums no weights then; of a single row it returns the weight.
        return picked, rows if b.rank(self) == 1 else b.full(0, ())
    total = b.sum(rows, None)
    loss = b.sum(picked, None)
    return (b.divide(loss, total) if reduction == MEAN else loss), total


@operator(aten.nll_loss_backward.default)
def nll_loss_backward(
    b: Builder,
    grad_output: View,
    self: View,
    target: View,
    weight: View | None,
    reduction: int,
    ignore_index: int,
    total_weight: View,
) -> View:
    require_real(b, "grad_output", "self", "weight", "total_weight")
    classes = one_hot(b, target, b.shape(self)[-1])
    rows = _row_weights(b, classes, target, weight, ignore_index)
    spread = b.unsqueeze(rows, b.rank(rows))
    grad = b.unsqueeze(grad_output, b.rank(grad_output)) if reduction == NONE else grad_output
    if reduction == MEAN:
        grad = b.divide(grad, total_weight)
    return b.scale(b.mul(classes, spread, grad), -1)
