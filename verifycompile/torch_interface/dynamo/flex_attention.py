"""``flex_attention`` written out as torch defines it: scores, the user's function of them, the mask, a softmax.

torch keeps the call as one operator, whose functions of scores and positions are graphs of their own. What it computes
is said by torch's own reference, which traces to plain operators, forward and backward. That reads the mask's function,
never the lists of blocks that a kernel skips: these are made from the function by ``create_block_mask``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch
import torch.fx
import torch.nn.attention.flex_attention as torchs_module
from torch._higher_order_ops.flex_attention import math_attention


@contextlib.contextmanager
def gradients_on_any_device() -> Generator[None]:
    """While entered, the operator traces with gradients on a CPU too, for which torch has no kernel: none runs."""
    refuse: Any = torchs_module._validate_device
    torchs_module._validate_device = _accept
    try:
        yield
    finally:
        torchs_module._validate_device = refuse


def _accept(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """In the place of torch's refusal."""


def with_attention_written_out(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A Dynamo graph in which torch's reference takes the place of the operator; ``module`` is left as it was."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        if _is_attention(node):
            node.target = _reference
    copied = torch.fx.GraphModule(module, graph)
    for name, region in _regions(copied):
        if has_flex_attention(region):
            setattr(copied, name, with_attention_written_out(region))
    copied.meta.update(module.meta)
    return copied


def has_flex_attention(module: torch.fx.GraphModule) -> bool:
    """Whether a Dynamo graph calls the operator, in a region of it perhaps."""
    return any(map(_is_attention, module.graph.nodes)) or any(has_flex_attention(r) for _, r in _regions(module))


def _reference(*operands: Any, **named: Any) -> Any:
    return math_attention(*operands, **named)


def _regions(module: torch.fx.GraphModule) -> list[tuple[str, torch.fx.GraphModule]]:
    return [(name, child) for name, child in module.named_children() if isinstance(child, torch.fx.GraphModule)]


def _is_attention(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and node.target is torch.ops.higher_order.flex_attention
