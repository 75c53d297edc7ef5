"""Fused scaled-dot-product attention of the kernels that run on a GPU: the functions of ``attention``.

Results that carry no value (states of generators, lengths of packed sequences) are not defined. Where the lengths of
query and key differ, kernels do not agree on which keys a causal row sees; and of a row that a mask leaves without keys
cuDNN keeps the logarithm of zero, where the others keep zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from verifycompile.ir import algebra, relabel
from verifycompile.ir.size import Size
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.attention import attention, attention_backward
from verifycompile.rewrites.operators.masked_rows import LOG_OR_ZERO
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten
_ALIGNED = 32
"""Of what the memory-efficient kernel keeps of each row, so many rows lie together; behind the last one is infinity."""
Gradients = tuple[View, View, View]


def _require_square(b: Builder, query: View, key: View, is_causal: bool) -> None:
    rows, columns = b.shape(query)[2], b.shape(key)[2]
    if is_causal and rows != columns:
        raise UnsupportedError(UNSUPPORTED, f"causal attention of {rows} rows to {columns} keys by a kernel of a GPU")


def _require_dense(b: Builder, query: View, key: View, cum_seq_q: object, cum_seq_k: object, *lengths: Size) -> None:
    if cum_seq_q is not None or cum_seq_k is not None or lengths != (b.shape(query)[2], b.shape(key)[2]):
        raise UnsupportedError(UNSUPPORTED, "attention of packed sequences")


# ------------------------------------------------------------------------------------------------ flash attention


@operator(aten._scaled_dot_product_flash_attention.default)
def flash_attention(
    b: Builder, query: View, key: View, value: View, dropout_p: float, is_causal: bool, scale: float | None
) -> tuple[View | Size | None, ...]:
    """Output and log-sum-exp, the lengths, and the state of the generator."""
    _require_square(b, query, key, is_causal)
    output, logsumexp = attention(b, query, key, value, dropout_p, is_causal, None, scale)
    return output, logsumexp, None, None, b.shape(query)[2], b.shape(key)[2], None, None, None


@operator(aten._scaled_dot_product_flash_attention_backward.default)
def flash_attention_backward(
    b: Builder,
    grad_out: View,
    query: View,
    key: View,
    value: View,
    out: View,
    logsumexp: View,
    cum_seq_q: View | None,
    cum_seq_k: View | None,
    max_q: Size,
    max_k: Size,
    dropout_p: float,
    is_causal: bool,
    philox_seed: View | None,
    philox_offset: View | None,
    scale: float | None,
) -> Gradients:
    """Gradients of query, key and value. The state of the generator is that of a dropout which draws nothing."""
    _require_square(b, query, key, is_causal)
    _require_dense(b, query, key, cum_seq_q, cum_seq_k, max_q, max_k)
    return attention_backward(
        b, grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, None, scale
    )[:3]  # fmt: skip


# ------------------------------------------------------------------------------------------------ cuDNN


def _infinite_without_keys(b: Builder, logsumexp: View) -> View:
    if logsumexp.term.operation is not LOG_OR_ZERO:
        return logsumexp
    (total,) = algebra.open_view(logsumexp).operands
    return b.log(total)


@operator(aten._scaled_dot_product_cudnn_attention.default)
def cudnn_attention(
    b: Builder,
    query: View,
    key: View,
    value: View,
    attn_bias: View | None,
    compute_log_sumexp: bool,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[View | Size | None, ...]:
    """As ``flash_attention``, with a mask; the log-sum-exp has one more dimension."""
    _require_square(b, query, key, is_causal)
    output, logsumexp = attention(b, query, key, value, dropout_p, is_causal, attn_bias, scale)
    kept = b.unsqueeze(_infinite_without_keys(b, logsumexp), 3) if compute_log_sumexp else None
    return output, kept, None, None, b.shape(query)[2], b.shape(key)[2], None, None, None


@operator(aten._scaled_dot_product_cudnn_attention_backward.default)
def cudnn_attention_backward(
    b: Builder,
    grad_out: View,
    query: View,
    key: View,
    value: View,
    out: View,
    logsumexp: View,
    philox_seed: View | None,
    philox_offset: View | None,
    attn_bias: View | None,
    cum_seq_q: View | None,
    cum_seq_k: View | None,
    max_q: Size,
    max_k: Size,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Gradients:
    """Gradients of query, key and value."""
    _require_square(b, query, key, is_causal)
    _require_dense(b, query, key, cum_seq_q, cum_seq_k, max_q, max_k)
    if b.rank(logsumexp) != 4:
        raise UnsupportedError(UNREPRESENTABLE, "a log-sum-exp of another shape than the kernel's own")
    of_rows = relabel.remove_dim(logsumexp, b.dim(logsumexp, 3))
    _, own = attention(b, query, key, value, dropout_p, is_causal, attn_bias, scale)
    if of_rows == _infinite_without_keys(b, own):
        of_rows = own
    return attention_backward(
        b, grad_out, query, key, value, out, of_rows, dropout_p, is_causal, attn_bias, scale
    )[:3]  # fmt: skip


# ------------------------------------------------------------------------------------------------ memory-efficient


@operator(aten._scaled_dot_product_efficient_attention.default)
def efficient_attention(
    b: Builder,
    query: View,
    key: View,
    value: View,
    attn_bias: View | None,
    compute_log_sumexp: bool,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[View | None, ...]:
    """Output, log-sum-exp with infinity behind its last row, and the state of the generator."""
    output, logsumexp = attention(b, query, key, value, dropout_p, is_causal, attn_bias, scale)
    batch, heads, rows = b.shape(logsumexp)
    if not compute_log_sumexp:
        return output, b.full(0, (batch, heads, 0)), None, None
    if not isinstance(rows, int):
        return output, None, None, None
    behind = -rows % _ALIGNED
    if behind:
        logsumexp = b.concatenate([logsumexp, b.full(math.inf, (batch, heads, behind))], 2)
    return output, logsumexp, None, None


@operator(aten._scaled_dot_product_efficient_attention_backward.default)
def efficient_attention_backward(
    b: Builder,
    grad_out_: View,
    query: View,
    key: View,
    value: View,
    attn_bias: View | None,
    out: View,
    logsumexp: View,
    philox_seed: View | None,
    philox_offset: View | None,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    is_causal: bool,
    scale: float | None,
) -> tuple[View | None, ...]:
    """Gradients of query, key, value and mask, those that are asked for."""
    of_rows = b.narrow(logsumexp, 2, 0, b.shape(query)[2])
    gradients = attention_backward(
        b, grad_out_, query, key, value, out, of_rows, dropout_p, is_causal, attn_bias, scale
    )  # fmt: skip
    if attn_bias is None:
        return *gradients[:3], None
    return tuple(gradient if wanted else None for gradient, wanted in zip(gradients, grad_input_mask, strict=True))
