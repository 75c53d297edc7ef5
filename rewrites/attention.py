"""Fused scaled-dot-product attention, forward and backward.

torch chooses the operator by device; all of them mean the same function. Query heads in excess of key/value heads
are grouped: heads h*g .. h*g+g-1 of the query attend to head h.
"""

from __future__ import annotations

import math

import torch

from verifycompile.ir import relabel
from verifycompile.ir.size import Size, exact_quotient
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten

ATTENTION = Operation("attention", linear=frozenset({2}))
ATTENTION_LOGSUMEXP = Operation("attention_logsumexp")
ATTENTION_GRADIENT = {
    name: Operation(f"attention_gradient_{name}", linear=frozenset({0})) for name in ("query", "key", "value")
}


def _scale(query: View, scale: float | None) -> float:
    if scale is not None:
        if scale <= 0:
            # torch scales masked scores too: minus infinity would change its sign.
            raise UnsupportedError(UNSUPPORTED, f"attention with scale={scale}")
        return scale
    width = query.shape[-1]
    if not isinstance(width, int):
        raise UnsupportedError(UNREPRESENTABLE, f"attention with a head dimension of symbolic size {width}")
    return 1 / math.sqrt(width)


def _refuse_dropout(dropout_p: float) -> None:
    if dropout_p != 0.0:
        raise UnsupportedError(UNSUPPORTED, f"attention with dropout_p={dropout_p}: the random stream is not modelled")


def _group_heads(b: Builder, view: View, groups: Size) -> View:
    """Repeat every key/value head for its group of query heads."""
    if groups == 1:
        return view
    heads = b.lead + 1
    size = view.shape[heads]
    wide = relabel.insert_dim(view, heads + 1, groups)
    batch, _, *rest = b.shape(view)
    return b.reshape(wide, [batch, size * groups, *rest])


def _groups(b: Builder, query: View, key: View) -> Size:
    groups = exact_quotient(b.shape(query)[1], b.shape(key)[1])
    if groups is None:
        raise UnsupportedError(UNREPRESENTABLE, "query heads are no multiple of the key heads")
    return groups


@operator(aten._scaled_dot_product_flash_attention_for_cpu.default)
def flash_attention_for_cpu(
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
    attributes = (is_causal, _scale(query, scale))
    groups = _groups(b, query, key)
    key, value = _group_heads(b, key, groups), _group_heads(b, value, groups)
    operands = [query, key, value]
    mask = ""
    if attn_mask is not None:
        operands.append(_full_mask(b, attn_mask))
        mask = ", b h q k"
    width = {"q'": b.shape(query)[2]}
    # Without a causal mask the rows of the query are independent of each other.
    if is_causal:
        rows, cores, fresh = "q'", "q k e", width
    else:
        rows, cores, fresh = "q", "k e", {}
    output = b.core(
        ATTENTION, attributes, f"b h q e, b h k e, b h k v{mask} -> b h {rows} v", *operands, cores=cores, fresh=fresh
    )
    scores = [operands[0], operands[1], *operands[3:]]
    logsumexp = b.core(
        ATTENTION_LOGSUMEXP, attributes, f"b h q e, b h k e{mask} -> b h {rows}", *scores, cores=cores, fresh=fresh
    )
    return output, logsumexp


def _full_mask(b: Builder, mask: View) -> View:
    while b.rank(mask) < 4:
        mask = b.unsqueeze(mask, 0)
    return mask


@operator(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def flash_attention_for_cpu_backward(
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
) -> tuple[View, View, View]:
    """Gradients of query, key and value; those of grouped heads are summed over their group."""
    _refuse_dropout(dropout_p)
    attributes = (is_causal, _scale(query, scale))
    groups = _groups(b, query, key)
    wide_key, wide_value = _group_heads(b, key, groups), _group_heads(b, value, groups)
    operands = [grad_out, query, wide_key, wide_value, out, logsumexp]
    labels = "b h q v, b h q e, b h k e, b h k v, b h q v, b h q"
    if attn_mask is not None:
        operands.append(_full_mask(b, attn_mask))
        labels += ", b h q k"
    rows, keys, width, values = b.shape(query)[2], b.shape(key)[2], b.shape(query)[3], b.shape(value)[3]
    results: dict[str, View] = {}
    for name, output, fresh in (
        ("query", "b h q' e'", {"q'": rows, "e'": width}),
        ("key", "b h k' e'", {"k'": keys, "e'": width}),
        ("value", "b h k' v'", {"k'": keys, "v'": values}),
    ):
        results[name] = b.core(
            ATTENTION_GRADIENT[name], attributes, f"{labels} -> {output}", *operands, cores="q k e v", fresh=fresh
        )
    return results["query"], _sum_groups(b, results["key"], groups), _sum_groups(b, results["value"], groups)


def _sum_groups(b: Builder, view: View, groups: Size) -> View:
    if groups == 1:
        return view
    heads = b.lead + 1
    count = exact_quotient(view.shape[heads], groups)
    if count is None:
        raise UnsupportedError(UNREPRESENTABLE, "query heads are no multiple of the key heads")
    return b.sum(relabel.split_dim(view, heads, count, groups), [2])
