"""Fused scaled-dot-product attention, forward and backward.

torch chooses the operator by device; all of them mean the same function. Query heads in excess of key/value heads
are grouped: heads h*g .. h*g+g-1 of the query attend to head h.

It is written in products, sums and exponentials, as a program without the fused operator writes it. So any of its
dimensions may be sharded: rows of the query under context parallelism, with the keys gathered, and even keys, where
what each rank computes is combined by the log-sum-exp. A row that sees no key is zero.
"""

from __future__ import annotations

from fractions import Fraction

import torch

from verifycompile.ir import relabel
from verifycompile.ir.scalar import inverse_root
from verifycompile.ir.size import Size, exact_quotient
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.masked_rows import inverse_or_zero, log_or_zero
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, RandomError, UnsupportedError, operator

aten = torch.ops.aten


def _scale(query: View, scale: float | None) -> float | Fraction:
    if scale is not None:
        if scale <= 0:
            # torch scales masked scores too: minus infinity would change its sign.
            raise UnsupportedError(UNSUPPORTED, f"attention with scale={scale}")
        return scale
    width = query.shape[-1]
    if not isinstance(width, int):
        raise UnsupportedError(UNREPRESENTABLE, f"attention with a head dimension of symbolic size {width}")
    return inverse_root(width)


def _refuse_dropout(dropout_p: float) -> None:
    if dropout_p != 0.0:
        raise RandomError(f"attention with dropout_p={dropout_p}")


def _group_heads(b: Builder, view: View, groups: Size) -> View:
    """Repeat every key/value head for its group of query heads."""
    if groups == 1:
        return view
    batch, heads, *rest = b.shape(view)
    return b.reshape(relabel.insert_dim(view, b.lead + 2, groups), [batch, heads * groups, *rest])


def _groups(b: Builder, query: View, key: View) -> Size:
    groups = exact_quotient(b.shape(query)[1], b.shape(key)[1])
    if groups is None:
        raise UnsupportedError(UNREPRESENTABLE, "query heads are no multiple of the key heads")
    return groups


def _weights(
    b: Builder, query: View, key: View, is_causal: bool, mask: View | None, scale: float | Fraction
) -> tuple[View, View]:
    """Exponentials of the scores with the mask added, zero where masked, and their sums over the keys."""
    exponential = b.exp(b.scale(b.contraction("b h q e, b h k e -> b h q k", query, key), scale))
    if mask is not None:
        wide = mask
        while b.rank(wide) < 4:
            wide = b.unsqueeze(wide, 0)
        exponential = b.mul(exponential, b.exp(wide))
    if is_causal:
        rows, columns = b.shape(query)[2], b.shape(key)[2]
        exponential = b.mul(exponential, b.less_equal(b.iota(columns), b.unsqueeze(b.iota(rows), 1)))
    return exponential, b.sum(exponential, [3])


def _output(b: Builder, exponential: View, total: View, value: View) -> View:
    return b.contraction("b h q k, b h q, b h k v -> b h q v", exponential, inverse_or_zero(b, total), value)


@operator(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(
    b: Builder,
    query: View,
    key: View,
    value: View,
    dropout_p: float,
    is_causal: bool,
    attn_mask: View | None,
    scale: float | None,
) -> tuple[View, View]:
    """Attention output and the log-sum-exp of its scores."""
    _refuse_dropout(dropout_p)
    groups = _groups(b, query, key)
    key, value = _group_heads(b, key, groups), _group_heads(b, value, groups)
    exponential, total = _weights(b, query, key, is_causal, attn_mask, _scale(query, scale))
    return _output(b, exponential, total, value), log_or_zero(b, total)


@operator(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def attention_backward(
    b: Builder,
    grad_out: View,
    query: View,
    key: View,
    value: View,
    out: View,
    logsumexp: View,
    dropout_p: float,
    is_causal: bool,
    attn_mask: View | None,
    scale: float | None,
) -> tuple[View, View, View, View]:
    """Gradients of query, key and value, those of grouped heads summed over their group, and of the mask."""
    _refuse_dropout(dropout_p)
    groups = _groups(b, query, key)
    wide_key, wide_value = _group_heads(b, key, groups), _group_heads(b, value, groups)
    factor = _scale(query, scale)
    exponential, total = _weights(b, query, wide_key, is_causal, attn_mask, factor)
    towards = b.contraction("b h q v, b h k v -> b h q k", grad_out, wide_value)
    if logsumexp == log_or_zero(b, total) and out == _output(b, exponential, total, wide_value):
        probability = b.mul(exponential, b.unsqueeze(inverse_or_zero(b, total), 3))
        along = b.sum(b.mul(probability, towards), [3], keepdim=True)
    else:
        # They are those of the forward operator, except in a program that calls this one itself.
        probability = b.mul(exponential, b.unsqueeze(b.exp(b.scale(logsumexp, -1)), 3))
        along = b.unsqueeze(b.contraction("b h q v, b h q v -> b h q", grad_out, out), 3)
    of_masked = b.sub(b.mul(probability, towards), b.mul(probability, along))
    of_scores = b.scale(of_masked, factor)
    of_query = b.contraction("b h q k, b h k e -> b h q e", of_scores, wide_key)
    of_key = b.contraction("b h q k, b h q e -> b h k e", of_scores, query)
    of_value = b.contraction("b h q k, b h q v -> b h k v", probability, grad_out)
    heads = b.shape(key)[1]
    return of_query, _sum_groups(b, of_key, heads, groups), _sum_groups(b, of_value, heads, groups), of_masked


def _sum_groups(b: Builder, view: View, heads: Size, groups: Size) -> View:
    return view if groups == 1 else b.sum(relabel.split_dim(view, b.lead + 1, heads, groups), [2])
