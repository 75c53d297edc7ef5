"""Fused attention operators of any device, computed from their definition in the precision of their operands.

The text of this module may become part of a script (see ``reproduction``), so it needs torch alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

# --8<-- what is below is part of the scripts

_FORWARD = frozenset(
    f"aten._scaled_dot_product_{kind}_attention{suffix}.default"
    for kind, suffix in (("flash", "_for_cpu"), ("flash", ""), ("efficient", ""), ("cudnn", ""))
)
_BACKWARD = frozenset(name.replace(".default", "_backward.default") for name in _FORWARD)


def is_attention(name: str) -> bool:
    """Whether :func:`attention_of` computes this operator."""
    return name in _FORWARD or name in _BACKWARD


def attention_of(name: str, arguments: Mapping[str, object]) -> tuple[object, ...]:
    """The operator's results. Those that carry no value of the computation (seeds, debug masks) are None."""
    if arguments.get("dropout_p", 0.0) != 0.0:
        raise ValueError(f"{name} draws random numbers")
    if name in _FORWARD:
        return _forward(name, arguments)
    return _backward(name, arguments)


def _forward(name: str, arguments: Mapping[str, object]) -> tuple[object, ...]:
    query, key, value = (_tensor(arguments, part) for part in ("query", "key", "value"))
    weights, logsumexp = _softmax(_scores(query, key, arguments))
    results = (weights @ _repeat_heads(value, query), logsumexp)
    if "_for_cpu" in name:
        return results
    if "_efficient_" in name:
        return (results[0], _with_infinity_behind(logsumexp), None, None)
    if "_cudnn_" in name:
        # Of a row without a key it keeps the logarithm of zero.
        results = (results[0], (logsumexp + torch.where(weights.sum(-1) == 0, -math.inf, 0.0)).unsqueeze(-1))
    return (*results, None, None, query.shape[-2], key.shape[-2], None, None, None)


def _with_infinity_behind(logsumexp: torch.Tensor) -> torch.Tensor:
    """As the memory-efficient kernel keeps it: 32 rows together."""
    behind = -logsumexp.shape[-1] % 32
    if not behind:
        return logsumexp
    infinity = torch.full((*logsumexp.shape[:-1], behind), math.inf, dtype=torch.float64)
    return torch.cat([logsumexp, infinity], -1)


def _backward(name: str, arguments: Mapping[str, object]) -> tuple[object, ...]:
    query, key, value = (_tensor(arguments, part) for part in ("query", "key", "value"))
    gradient = _tensor(arguments, "grad_out_" if "grad_out_" in arguments else "grad_out")
    scale = _scale(query, arguments)
    scores, given = _scores(query, key, arguments), arguments.get("logsumexp")
    keys, values = _repeat_heads(key, query), _repeat_heads(value, query)
    through_weights = gradient @ values.transpose(-2, -1)
    if type(given) is torch.Tensor:  # another one than that of these keys where they are some of several ranks' keys
        of_rows = given.reshape(*given.shape[:3], -1)[:, :, : scores.shape[-2], :1]
        weights = (scores - of_rows.masked_fill(of_rows == -math.inf, 0.0)).exp()
        along = (gradient * _tensor(arguments, "out")).sum(-1, keepdim=True)
    else:
        weights, _ = _softmax(scores)
        along = (through_weights * weights).sum(-1, keepdim=True)
    through_scores = weights * (through_weights - along)
    results = (
        scale * (through_scores @ keys),
        _sum_heads(scale * (through_scores.transpose(-2, -1) @ query), key),
        _sum_heads(weights.transpose(-2, -1) @ gradient, value),
    )
    if "_efficient_" not in name:
        return results
    bias, wanted = arguments.get("attn_bias"), arguments.get("grad_input_mask")
    if not isinstance(bias, torch.Tensor) or not isinstance(wanted, (list, tuple)) or not wanted[3]:
        return (*results, None)
    if bias.shape != through_scores.shape:
        raise ValueError(f"{name}: gradient of an attention bias of shape {list(bias.shape)}")
    return (*results, through_scores)


def _scores(query: torch.Tensor, key: torch.Tensor, arguments: Mapping[str, object]) -> torch.Tensor:
    scores = (_scale(query, arguments) * query) @ _repeat_heads(key, query).transpose(-2, -1)
    bias = arguments.get("attn_mask", arguments.get("attn_bias"))
    if isinstance(bias, torch.Tensor) and bias.numel() > 0:
        scores = scores.masked_fill(~bias, -math.inf) if bias.dtype == torch.bool else scores + bias
    if arguments.get("is_causal", False):
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return scores


def _softmax(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The softmax, and the logarithm of its denominator; torch's kernel has 0 for both in rows without a key."""
    largest = scores.amax(-1, keepdim=True)
    empty = largest == -math.inf
    largest = largest.masked_fill(empty, 0.0)
    # Nothing else of an evaluation is as large, so its memory is used again; expressions have none.
    has_memory = type(scores) is torch.Tensor
    weights = scores.sub_(largest).exp_() if has_memory else (scores - largest).exp()
    total = weights.sum(-1, keepdim=True).masked_fill(empty, 1.0)
    return weights.div_(total) if has_memory else weights / total, (largest + total.log()).squeeze(-1)


def _scale(query: torch.Tensor, arguments: Mapping[str, object]) -> float:
    scale = arguments.get("scale")
    return scale if isinstance(scale, float) else 1.0 / math.sqrt(query.shape[-1])


def _repeat_heads(tensor: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    if tensor.shape[-3] == query.shape[-3]:
        return tensor
    return tensor.repeat_interleave(query.shape[-3] // tensor.shape[-3], -3)


def _sum_heads(gradient: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:
    if gradient.shape == operand.shape:
        return gradient
    heads = operand.shape[-3]
    return gradient.unflatten(-3, (heads, gradient.shape[-3] // heads)).sum(-3)


def _tensor(arguments: Mapping[str, object], name: str) -> torch.Tensor:
    value = arguments.get(name)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"attention without the operand {name}")
    return value
