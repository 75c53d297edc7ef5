"""Operators that only Dynamo writes into graphs, registered by the module that is imported here."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch._inductor import inductor_prims

FUSED_MULTIPLY_ADD: Any = inductor_prims.fma
"""``a * b + c`` in one rounding: what Dynamo makes of ``addcmul_`` and ``addcdiv_`` with a value."""
READ_NUMBER: Any = torch.ops.aten._local_scalar_dense.default
"""`tensor.item()`: the only element of a tensor, as a number."""


def reads_real_number(node: torch.fx.Node) -> bool:
    """Whether a node reads a real number from a tensor: an attribute that Dynamo saw change between calls."""
    return node.target is READ_NUMBER and isinstance(node.meta.get("val"), torch.SymFloat)
