"""Equal elements among which an operator may choose: torch specifies no order, so that neither choice is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from verifycompile.torch_interface.operators.calls import by_name

_ALONG_A_DIMENSION = {
    "topk": -1,
    "sort": -1,
    "argsort": -1,
    "kthvalue": -1,
    "median": None,
    "nanmedian": None,
    "mode": -1,
    "cummax": -1,
    "cummin": -1,
}
"""Operator -> the dimension that it works along unless told otherwise; None where that is all of them."""
_IN_WINDOWS = ("max_pool", "adaptive_max_pool", "fractional_max_pool")


def are_unspecified(target: object, name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether ``target`` may have chosen among equal floating elements of its operand.

    Integers are often sorted for their order alone (tokens by expert), whichever of the equal ones comes first.
    """
    if not name.startswith("aten."):
        return False
    operator = name.split(".")[1]
    windows = operator.startswith(_IN_WINDOWS) and "backward" not in operator
    if operator not in _ALONG_A_DIMENSION and not windows:
        return False
    arguments = by_name(target, args, kwargs)
    operand = arguments.get("self")
    if not isinstance(operand, torch.Tensor) or not operand.is_floating_point() or operand.dim() == 0:
        return False
    if arguments.get("stable") is True:
        return False
    dim = None if windows else arguments.get("dim", _ALONG_A_DIMENSION[operator])
    return _repeats(operand.flatten() if not isinstance(dim, int) else operand.movedim(dim, -1))


def _repeats(values: torch.Tensor) -> bool:
    """Whether a row of the last dimension holds an element twice."""
    if values.shape[-1] < 2:
        return False
    ordered = values.sort(-1).values
    return bool((ordered[..., 1:] == ordered[..., :-1]).any())
