"""Sums and means of the rows of bags of indices: an embedding and a reduction.

Where all bags have one length, which bag an index is in is known. Else it is the bag that begins last up to the index.
"""

from __future__ import annotations

import torch

from verifycompile.ir.exponential import MAXIMUM
from verifycompile.ir.size import Size, exact_quotient
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.bounds import require_within
from verifycompile.rewrites.operators.elementwise import require_real
from verifycompile.rewrites.operators.indexing import one_hot
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten

SUM, MEAN = 0, 1
"""torch's codes of ``mode``; the others take the largest element."""
SHORT_CUT = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""Weights of which the CPU's kernel sums bags without noting the bag of each index."""


BAG_OF = Operation("bag_of_place", whole=True)
"""How many bags begin at a place or before it, less one. Of bags that do not begin in ascending order torch says no
more than this, or raises an error.
"""


def _length(b: Builder, indices: View, offsets: View) -> Size | None:
    """The length of all bags, where it is known that they have one."""
    if b.rank(indices) != 1 or b.rank(offsets) != 1 or 0 in (*b.shape(indices), *b.shape(offsets)):
        raise UnsupportedError(UNREPRESENTABLE, "bags without indices, or indices of several dimensions")
    bags = b.shape(offsets)[0]
    length = exact_quotient(b.shape(indices)[0], bags)
    return length if length is not None and offsets == b.iota(bags, 0, length) else None


def _bag_of(b: Builder, count: Size, offsets: View) -> View:
    return b.core(BAG_OF, (), "i, n -> i", b.iota(count), offsets, cores="n")


def _sizes(b: Builder, count: Size, offsets: View) -> View:
    """How many places each bag has."""
    return b.contraction("i n -> n", one_hot(b, _bag_of(b, count, offsets), b.shape(offsets)[0]))


def _weights(
    b: Builder, indices: View, offsets: View, rows: Size, mode: int, weights: View | None, padding_idx: int
) -> View:
    """``[bag, place, row]``: how much of a row of the table a place adds to its bag."""
    length = _length(b, indices, offsets)
    bags, count = b.shape(offsets)[0], b.shape(indices)[0]
    if mode not in (SUM, MEAN) or (mode == MEAN and weights is not None):
        raise UnsupportedError(UNSUPPORTED, f"bags reduced by mode={mode}")
    if padding_idx >= 0 and mode == MEAN:
        # Padding does not count: the number of the others is that of the bag's content.
        raise UnsupportedError(UNSUPPORTED, f"the mean of bags with padding_idx={padding_idx}")
    require_within(b, indices, rows)
    shape = [count] if length is None else [bags, length]
    lookup = one_hot(b, b.reshape(indices, shape), rows)
    if weights is not None:
        lookup = b.mul(lookup, b.unsqueeze(b.reshape(weights, shape), -1))
    if length is None:
        lookup = b.contraction("i n, i v -> n i v", one_hot(b, _bag_of(b, count, offsets), bags), lookup)
    if mode == MEAN:
        if length is not None:
            return b.divide(lookup, length)
        number = b.pointwise(MAXIMUM, _sizes(b, count, offsets), 1)
        return b.divide(lookup, b.unsqueeze(b.unsqueeze(number, -1), -1))
    return lookup if padding_idx < 0 else b.mul(lookup, b.negate(b.equal(b.iota(rows), padding_idx)))


def _kept(b: Builder, dtype: torch.dtype, indices: View, offsets: View, mode: int, padding_idx: int) -> list[View]:
    """What the kernel keeps for the gradient: the bag of each index, how many a bag holds, and that once more."""
    length, bags, count = _length(b, indices, offsets), b.shape(offsets)[0], b.shape(indices)[0]
    if mode == SUM and padding_idx < 0 and dtype in SHORT_CUT:
        bag_of_index = b.full(0, (0,))
    elif length is None:
        bag_of_index = _bag_of(b, count, offsets)
    else:
        bag_of_index = b.reshape(b.expand(b.unsqueeze(b.iota(bags), 1), [bags, length]), [count])
    if mode != MEAN:
        held = b.full(0, (bags,))
    else:
        held = _sizes(b, count, offsets) if length is None else b.full(length, (bags,))
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
    return output, *_kept(b, b.dtype_of("weight"), indices, offsets, mode, padding_idx)


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
    kept = _kept(b, b.dtype_of("grad"), indices, offsets, mode, padding_idx)
    if [offset2bag, bag_size, maximum_indices] != kept:
        raise UnsupportedError(UNSUPPORTED, "a gradient of bags from other notes than the forward operator's")
    amounts = _weights(b, indices, offsets, num_weights, mode, per_sample_weights, padding_idx)
    return b.contraction("n l v, n d -> v d", amounts, grad)


@operator(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_weights_backward(
    b: Builder, grad: View, weight: View, indices: View, offsets: View, offset2bag: View, mode: int, padding_idx: int
) -> View:
    require_real(b, "grad", "weight")
    if mode != SUM:
        raise UnsupportedError(UNSUPPORTED, f"a gradient of the weights of bags reduced by mode={mode}")
    if offset2bag != _kept(b, b.dtype_of("weight"), indices, offsets, mode, padding_idx)[0]:
        raise UnsupportedError(UNSUPPORTED, "a gradient of bags from other notes than the forward operator's")
    lookup = _weights(b, indices, offsets, b.shape(weight)[0], mode, None, padding_idx)
    products = b.contraction("n l d, n d -> n l", b.contraction("n l v, v d -> n l d", lookup, weight), grad)
    if _length(b, indices, offsets) is None:
        return b.contraction("n i -> i", products)
    return b.reshape(products, b.shape(indices))
