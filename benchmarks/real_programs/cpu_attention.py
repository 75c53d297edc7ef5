"""DTensor's rule for the CPU's fused attention, which torch has for the kernels of GPUs alone.

Registered through torch's public interface, as a program would that runs on DTensors on a CPU: batch and heads may be
sharded, or everything is replicated.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

aten = torch.ops.aten
_NAME = "_scaled_dot_product_flash_attention_for_cpu"
Rule = tuple[list[Placement], list[Placement | None]]


@functools.cache
def shard_attention_on_the_cpu() -> None:
    """Register the rules of the forward and of the backward operator, once a process."""
    register_sharding(getattr(aten, _NAME).default)(_forward)
    register_sharding(getattr(aten, f"{_NAME}_backward").default)(_backward)


PLACEMENTS: tuple[Placement, ...] = (Replicate(), Shard(0), Shard(1))


def _forward(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> list[Rule]:
    del query, key, value, dropout_p, is_causal, scale
    mask: list[Placement | None] = [] if attn_mask is None else [Replicate()]
    return [([placed, placed], [placed] * 3 + [None, None, *mask]) for placed in PLACEMENTS]


def _backward(  # noqa: PLR0917 - as the operator has them
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> list[Rule]:
    del grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, scale
    mask: list[Placement | None] = [] if attn_mask is None else [Replicate()]
    return [([placed] * 3, [placed] * 6 + [None, None, *mask]) for placed in PLACEMENTS]
