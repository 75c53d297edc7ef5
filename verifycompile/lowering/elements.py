"""Calls that take and give lists of tensors, one call for each element."""

from __future__ import annotations

from typing import Any

import torch.fx

from verifycompile.lowering.recorded import dtype_of
from verifycompile.lowering.sizes import Sizes
from verifycompile.rewrites.building.numbers import Call
from verifycompile.torch_interface.operators.schema import names_of


def calls_of_elements(sizes: Sizes, node: torch.fx.Node) -> tuple[Call, ...] | None:
    """The call of each element; None where lists of tensors are not of one length."""
    results: Any = node.meta["val"]
    given = {**dict(zip(names_of(node.target), node.args, strict=False)), **node.kwargs}
    lists = [v for v in given.values() if isinstance(v, (list, tuple)) and all(map(dtype_of, v))]
    if not lists or any(len(v) != len(results) for v in lists):
        return None
    calls: list[Call] = []
    for position, result in enumerate(results):
        own = {name: v[position] if isinstance(v, (list, tuple)) else v for name, v in given.items()}
        dtypes = {name: dtype for name, v in own.items() if (dtype := dtype_of(v)) is not None}
        calls.append(Call(dtypes, sizes.shape(result), result.dtype))
    return tuple(calls)
