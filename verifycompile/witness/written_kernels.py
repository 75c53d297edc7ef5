"""Operators that a GPU computes and torch's kernels for the CPU do not, or not in float64.

The text of this module may become part of a script (see ``reproduction``), so it needs torch alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

# --8<-- what is below is part of the scripts


def grouped_product(arguments: Mapping[str, object]) -> object:
    """``torch._grouped_mm``, one matrix a group: torch's kernels take no float64.

    Behind the last group nothing is written: no number is there.
    """
    left, right, ends = (arguments.get(name) for name in ("self", "mat2", "offs"))
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor) or arguments.get("bias") is not None:
        raise TypeError("_grouped_mm without two tensors, or with a bias")
    if not isinstance(ends, torch.Tensor):
        return left @ right
    stops = ends.tolist()
    parts = [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]
    if left.dim() == right.dim() == 2:
        return torch.stack([left[:, part] @ right[part] for part in parts])
    size = left.shape[0] if left.dim() == 2 else right.shape[1]
    if not stops or stops[-1] > size or any(part.stop < part.start for part in parts):
        raise ValueError(f"_grouped_mm: groups that end at {stops} of {size} rows")
    behind = size - stops[-1]
    if left.dim() == 2:
        products = [left[part] @ right[number] for number, part in enumerate(parts)]
        return torch.cat([*products, left.new_full((behind, right.shape[2]), float("nan"))])
    products = [left[number] @ right[:, part] for number, part in enumerate(parts)]
    return torch.cat([*products, left.new_full((left.shape[1], behind), float("nan"))], 1)


def histogram(arguments: Mapping[str, object]) -> object:
    """``torch.histc``, of whole numbers too."""
    counted, bins, low, high = (arguments.get(name) for name in ("self", "bins", "min", "max"))
    if not isinstance(counted, torch.Tensor) or not isinstance(bins, int):
        raise TypeError("histc without a tensor or a number of bins")
    if not isinstance(low, (int, float)) or not isinstance(high, (int, float)):
        raise TypeError("histc without ends")
    return torch.histc(counted.double(), bins, low, high).to(counted.dtype)


WRITTEN = {"aten._grouped_mm.default": grouped_product, "aten.histc.default": histogram}
