"""Sample calls of the fused attention of kernels that run on a GPU, and what stands in for these kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from tests.operators.call import REFERENCES
from tests.operators.samples import add, real, refuse
from verifycompile.torch_interface.operators.calls import by_name

aten = torch.ops.aten
Tensor = torch.Tensor
FLASH = aten._scaled_dot_product_flash_attention.default
FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_backward.default
CUDNN = aten._scaled_dot_product_cudnn_attention.default
CUDNN_BACKWARD = aten._scaled_dot_product_cudnn_attention_backward.default
EFFICIENT = aten._scaled_dot_product_efficient_attention.default
EFFICIENT_BACKWARD = aten._scaled_dot_product_efficient_attention_backward.default


def scores_of(call: Mapping[str, Any]) -> Tensor:
    query, key, scale = call["query"], call["key"], call["scale"]
    wide = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query @ wide.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if call.get("attn_bias") is not None:
        scores = scores + call["attn_bias"]
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -math.inf) if call["is_causal"] else scores


def _require_reference(call: Mapping[str, Any]) -> None:
    tensors = [value for value in call.values() if isinstance(value, Tensor)]
    lengths = (call.get("max_q"), call.get("max_k"))
    as_shaped = lengths in ((None, None), (call["query"].shape[2], call["key"].shape[2]))
    has_heads = call["key"].shape[1] > 0 and call["value"].shape[1] > 0  # those of queries are a multiple of them
    if call["dropout_p"] or call.get("return_debug_mask") or not as_shaped or not has_heads:
        raise RuntimeError("no reference")
    if len(call.get("grad_input_mask", ())) not in (0, 4) or {t.dtype for t in tensors} != {torch.float64}:
        raise RuntimeError("no reference")


def forward(call: Mapping[str, Any]) -> list[Tensor]:
    """Output, by torch's own definition, and log-sum-exp."""
    _require_reference(call)
    operands = call["query"], call["key"], call["value"], call.get("attn_bias"), 0.0, call["is_causal"]
    grouped = call["key"].shape[1] != call["query"].shape[1]
    output, _ = aten._scaled_dot_product_attention_math(*operands, scale=call["scale"], enable_gqa=grouped)
    return [output, scores_of(call).logsumexp(-1)]


def backward(call: Mapping[str, Any], logsumexp: Tensor) -> list[Tensor]:
    """Gradients of query, key, value and mask, with the weights that a log-sum-exp makes of the scores."""
    _require_reference(call)
    gradient = call["grad_out_"] if "grad_out_" in call else call["grad_out"]
    query, key, value = (call[name].detach().requires_grad_() for name in ("query", "key", "value"))
    scores = scores_of({**call, "query": query, "key": key})
    wide = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    weights = (scores - logsumexp[..., None]).exp().detach()
    towards = (gradient @ wide.transpose(-1, -2)).detach()
    of_scores = weights * (towards - (gradient * call["out"]).sum(-1, keepdim=True))
    through_scores = torch.autograd.grad(scores, (query, key), of_scores)
    return [*through_scores, *torch.autograd.grad(weights @ wide, value, gradient), of_scores]


def _flash(call: Mapping[str, Any]) -> list[Any]:
    return [*forward(call), *[None] * 7]


def _flash_backward(call: Mapping[str, Any]) -> list[Any]:
    return backward(call, call["logsumexp"])[:3]


def _cudnn(call: Mapping[str, Any]) -> list[Any]:
    output, logsumexp = forward(call)
    return [output, logsumexp[..., None] if call["compute_log_sumexp"] else None, *[None] * 7]


def _cudnn_backward(call: Mapping[str, Any]) -> list[Any]:
    return backward(call, call["logsumexp"][..., 0])[:3]


def _efficient(call: Mapping[str, Any]) -> list[Any]:
    output, logsumexp = forward(call)
    padded = F.pad(logsumexp, (0, -logsumexp.shape[-1] % 32), value=math.inf)
    return [output, padded if call["compute_log_sumexp"] else logsumexp[..., :0], None, None]


def _efficient_backward(call: Mapping[str, Any]) -> list[Any]:
    found = backward(call, call["logsumexp"][..., : call["query"].shape[2]])
    masks = [*call["grad_input_mask"][:3], call["grad_input_mask"][3] and call["attn_bias"] is not None]
    return [gradient if wanted else None for gradient, wanted in zip(found, masks, strict=True)]


def _reference(target: Any, kernel: Callable[[Mapping[str, Any]], list[Any]]) -> Callable[..., tuple[Any, ...]]:
    defaults = {a.name: a.default_value for a in target._schema.arguments if a.has_default_value()}
    return lambda *args, **kwargs: tuple(kernel({**defaults, **by_name(target, args, kwargs)}))


KERNELS: dict[Any, Callable[[Mapping[str, Any]], list[Any]]] = {
    FLASH: _flash, FLASH_BACKWARD: _flash_backward, CUDNN: _cudnn, CUDNN_BACKWARD: _cudnn_backward,
    EFFICIENT: _efficient, EFFICIENT_BACKWARD: _efficient_backward,
}  # fmt: skip
REFERENCES.update({target: _reference(target, kernel) for target, kernel in KERNELS.items()})

for _groups, _causal, _scale, _masked in ((1, True, None, False), (2, False, 0.3, False), (1, False, None, True)):
    _query, _gradient = real(2, 2, 5, 4), real(2, 2, 5, 4)
    _key, _value = real(2, 2 // _groups, 5, 4), real(2, 2 // _groups, 5, 4)
    _operands = _query, _key, _value
    _mask = real(2, 2, 5, 5) if _masked else None
    _call = dict(zip(("query", "key", "value", "attn_bias"), (*_operands, _mask), strict=True))
    _out, _lse = forward({**_call, "dropout_p": 0.0, "is_causal": _causal, "scale": _scale})
    add(CUDNN, *_operands, _mask, True, 0.0, _causal, scale=_scale)
    for _saved in ((_out, _lse), (real(2, 2, 5, 4), real(2, 2, 5).abs() + 3)):
        _rest = None, None, _mask, None, None, 5, 5, 0.0, _causal
        add(CUDNN_BACKWARD, _gradient, *_operands, _saved[0], _saved[1][..., None], *_rest, scale=_scale)
    if not _masked:
        add(FLASH, *_operands, 0.0, _causal, scale=_scale)
        add(FLASH_BACKWARD, _gradient, *_operands, _out, _lse, None, None, 5, 5, 0.0, _causal, None, None, scale=_scale)
    if _groups == 1:
        add(EFFICIENT, *_operands, _mask, True, 0.0, _causal, scale=_scale)
        _padded, _wanted = F.pad(_lse, (0, 27), value=math.inf), [True, True, True, _masked]
        _saved = _mask, _out, _padded, None, None
        add(EFFICIENT_BACKWARD, _gradient, *_operands, *_saved, 0.0, _wanted, _causal, scale=_scale)

_operands = real(2, 2, 3, 4), real(2, 2, 5, 4), real(2, 2, 5, 4)
refuse("VC202 causal attention of 3 rows to 5 keys by a kernel of a GPU", FLASH, *_operands, 0.0, True)
