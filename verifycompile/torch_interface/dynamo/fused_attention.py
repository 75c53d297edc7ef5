"""Attention that torch keeps as one operator, written out with operators whose meaning is declared.

``flex_attention``: its functions of scores and positions are graphs of their own. What it computes is said by torch's
own reference, which traces to plain operators, forward and backward. That reads the mask's function, never the lists of
blocks that a kernel skips: these are made from the function by ``create_block_mask``.

``varlen_attn``: rows of several sequences one behind the other, of which each attends to its own sequence
(https://docs.pytorch.org/docs/stable/nn.attention.varlen.html). It has kernels for GPUs alone, and no reference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.fx
from torch._higher_order_ops.flex_attention import math_attention
from torch.nn.attention import flex_attention, varlen

_FLEX: Any = torch.ops.higher_order.flex_attention
_PACKED: Any = varlen._varlen_attn._opoverload.overloadpacket


def gradients_on_any_device() -> contextlib.AbstractContextManager[Any]:
    """While entered, ``flex_attention`` traces with gradients on a CPU too, which has no kernel for them: none runs."""
    return mock.patch.object(flex_attention, "_validate_device", _accept)


def _accept(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """In the place of torch's refusal."""


def with_attention_written_out(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A Dynamo graph in which plain operators take the place of attention; ``module`` is left as it was."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        node.target = _reference(node) or node.target
    copied = torch.fx.GraphModule(module, graph)
    for name, region in _regions(copied):
        if said_of_attention(region):
            setattr(copied, name, with_attention_written_out(region))
    copied.meta.update(module.meta)
    return copied


def said_of_attention(module: torch.fx.GraphModule) -> tuple[str, ...]:
    """What is taken for granted of the attention in a Dynamo graph, in a region of it perhaps; () without any."""
    own = [_SAID[reference] for node in module.graph.nodes if (reference := _reference(node)) is not None]
    within = [text for _, region in _regions(module) for text in said_of_attention(region)]
    return tuple(dict.fromkeys((*own, *within)))


def _regions(module: torch.fx.GraphModule) -> list[tuple[str, torch.fx.GraphModule]]:
    return [(name, child) for name, child in module.named_children() if isinstance(child, torch.fx.GraphModule)]


def _reference(node: torch.fx.Node) -> Callable[..., Any] | None:
    """What computes the same as a call of attention; None for other nodes, and for attention to a cache in pages."""
    if node.op != "call_function":
        return None
    if node.target is _FLEX:
        return _scored
    return _packed if node.target is _PACKED and _is_of_own_rows(node) else None


def _is_of_own_rows(node: torch.fx.Node) -> bool:
    """Whether queries and keys are of the same sequences, as ``varlen_attn`` calls its operator: with all arguments."""
    if node.kwargs or len(node.args) != 14:
        return False
    _, _, _, bounds, bounds_of_keys, *_, used, pages, _ = node.args
    return bounds is bounds_of_keys and used is None and pages is None


def _scored(*operands: Any, **named: Any) -> Any:
    return math_attention(*operands, **named)


def _packed(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bounds: torch.Tensor, *others: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``query`` (rows, heads, size); ``bounds``: where a sequence begins, and where the last one ends.

    Returns the attention, the logarithms of its sums (heads, rows), and the state of a generator that is not used.
    """
    _, _, _, is_causal, scale, window, *_ = others
    place = torch.arange(query.shape[0], device=query.device)
    sequence = (bounds <= place[:, None]).sum(-1)
    seen = sequence[:, None] == sequence
    before = place[:, None] - place
    left, right = window or (-1, -1)
    if left >= 0:
        seen = seen & (before <= left)
    if is_causal or right >= 0:
        seen = seen & (before >= (0 if is_causal else -right))
    heads = query.shape[1] // key.shape[1]
    keys, values = (one.repeat_interleave(heads, 1).transpose(0, 1) for one in (key, value))
    scores = query.transpose(0, 1) @ keys.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores.masked_fill(~seen, -float("inf")).float()
    attention = (scores.softmax(-1).to(value.dtype) @ values).transpose(0, 1)
    return attention, scores.logsumexp(-1), torch.zeros(2, dtype=torch.uint64, device=query.device)


_SAID: dict[Callable[..., Any], str] = {
    _scored: "the blocks that a mask of `flex_attention` lists are those in which its function holds somewhere",
    _packed: "every row of `varlen_attn` is of a sequence that its boundaries list, and none is longer than it is told",
}
