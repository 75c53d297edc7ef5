"""Operators that only Dynamo writes into graphs, registered by the module that is imported here."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import inductor_prims

FUSED_MULTIPLY_ADD: Any = inductor_prims.fma
"""``a * b + c`` in one rounding: what Dynamo makes of ``addcmul_`` and ``addcdiv_`` with a value."""
READ_NUMBER: Any = torch.ops.aten._local_scalar_dense.default
"""`tensor.item()`: the only element of a tensor, as a number."""
