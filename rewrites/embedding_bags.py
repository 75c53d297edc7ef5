"""Sums and means of the rows of bags of indices, where all bags have one length: an embedding and a reduction."""

from __future__ import annotations

import torch

from verifycompile.ir.size import Size, exact_quotient
from verifycompile.ir.term import View
from verifycompile.rewrites.bounds import require_within
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.elementwise import require_real
from verifycompile.rewrites.indexing import one_hot
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten

SUM, MEAN = 0, 1
"""torch's codes of ``mode``; the others take the largest element."""
SHORT_CUT = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""Weights of which the CPU's kernel sums bags without noting the bag of each index."""


def _weights(
    b: Builder, indices: View, offsets: View, rows: Size, mode: int, weights: View | None, padding_idx: int
) -> View:
    """``[bag, place, row]``: how much of a row of the table a place adds to its bag."""
    if b.rank(indices) != 1 or b.rank(offsets) != 1 or 0 in (*b.shape(indices), *b.shape(offsets)):
        raise UnsupportedError(UNREPRESENTABLE, "bags without indices, or indices of several dimensions")
    bags = b.shape(offsets)[0]
    length = exact_quotient(b.shape(indices)[0], bags)
    if length is None or offsets != b.iota(bags, 0, length):
        raise UnsupportedError(UNSUPPORTED, "bags that are not known to have one length")
    if mode not in (SUM, MEAN) or (mode == MEAN and weights is not None):
        raise UnsupportedError(UNSUPPORTED, f"bags reduced by mode={mode}")
    require_within(b, indices, rows)
    bagged = b.reshape(indices, [bags, length])
    lookup = one_hot(b, bagged, rows)
    if weights is not None:
        lookup = b.mul(lookup, b.unsqueeze(b.reshape(weights, [bags, length]), 2))
    if padding_idx < 0:
        return b.divide(lookup, length) if mode == MEAN else lookup
    if mode == MEAN:
        # Padding does not count: the number of the others is that of the bag's content.
        raise UnsupportedError(UNSUPPORTED, f"the mean of bags with padding_idx={padding_idx}")
    return b.mul(lookup, b.negate(b.equal(b.iota(rows), padding_idx)))


def _kept(b: Builder, dtype: torch.dtype, count: Size, offsets: View, mode: int, padding_idx: int) -> list[View]:
    """What the kernel keeps for the gradient: the bag of each index, how many a bag holds, and that once more."""
    bags = b.shape(offsets)[0]
    length = exact_quotient(count, bags) or 1
    if mode == SUM and padding_idx < 0 and dtype in SHORT_CUT:
        bag_of_index = b.full(0, (0,))
    else:
        bag_of_index = b.reshape(b.expand(b.unsqueeze(b.iota(bags), 1), [bags, length]), [count])
    held = b.full(length if mode == MEAN else 0, (bags,))
    return [bag_of_index, held, held]


@operator(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    b: Builder,
    weight: View,
    indices: View,
    offsets: View,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: View | None,
    padding_idx: int,
) -> tuple[View, ...]:
    """``scale_grad_by_freq`` and ``sparse`` change the gradient only."""
    require_real(b, "weight", "per_sample_weights")
    amounts = _weights(b, indices, offsets, b.shape(weight)[0], mode, per_sample_weights, padding_idx)
    output = b.contraction("n l v, v d -> n d", amounts, weight)
    return output, *_kept(b, b.dtype_of("weight"), b.shape(indices)[0], offsets, mode, padding_idx)


@operator(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    b: Builder,
    grad: View,
    indices: View,
    offsets: View,
    offset2bag: View,
    bag_size: View,
    maximum_indices: View,
    num_weights: Size,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: View | None,
    padding_idx: int,
) -> View:
    require_real(b, "grad", "per_sample_weights")
    if scale_grad_by_freq or sparse:
        raise UnsupportedError(UNSUPPORTED, "a gradient of bags that is scaled by frequency, or sparse")
    kept = _kept(b, b.dtype_of("grad"), b.shape(indices)[0], offsets, mode, padding_idx)
    if [offset2bag, bag_size, maximum_indices] != kept:
        raise UnsupportedError(UNSUPPORTED, "a gradient of bags from other notes than the forward operator's")
    amounts = _weights(b, indices, offsets, num_weights, mode, per_sample_weights, padding_idx)
    return b.contraction("n l v, n d -> v d", amounts, grad)
