"""Tolerances that are estimated: how far the spec's own tensors move when every operation errs by a machine epsilon.

TTrace (section 4.5) perturbs the input of the reference and takes the response of each tensor as what rounding may do
to it. Here the results of all operators are perturbed as well, forward and backward, since a network may damp what
enters it and still round everywhere. A program that is right is off from the real values by its own rounding, and so is
the spec: the tolerance is the sum of the responses at both machine epsilons, and at least the rounding of the tensor
itself. No constant is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch


def epsilon_of(dtypes: Iterable[torch.dtype]) -> float:
    """The machine epsilon of a program with parameters and inputs of these dtypes: the coarsest one's; 0 for none."""
    return max((torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point), default=0.0)


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """The Frobenius norm of the difference; infinite where shapes differ, or one alone is not finite."""
    if one.shape != other.shape:
        return math.inf
    if not one.is_floating_point() or not other.is_floating_point():
        return 0.0 if torch.equal(one.cpu().double(), other.cpu().double()) else math.inf
    first, second = one.detach().cpu().double(), other.detach().cpu().double()
    difference = first - second
    # The same infinities and the same NaN are no difference.
    alike = (first == second) | (first.isnan() & second.isnan())
    norm = float(torch.linalg.vector_norm(difference.masked_fill_(alike, 0.0)))
    return math.inf if math.isnan(norm) else norm


def norm_of(value: torch.Tensor) -> float:
    """The Frobenius norm."""
    return float(torch.linalg.vector_norm(value.detach().cpu().double())) if value.numel() else 0.0


class Responses:
    """The largest response of each tensor over the perturbed runs at one epsilon."""

    def __init__(self, reference: Mapping[str, torch.Tensor]) -> None:
        self._reference = reference
        self.largest: dict[str, float] = {}

    def take(self, name: str, value: torch.Tensor) -> None:
        """One tensor of a perturbed run."""
        reference = self._reference.get(name)
        if reference is None:
            return
        self.largest[name] = max(self.largest.get(name, 0.0), distance(value, reference))


def ratio_to(error: float, threshold: float) -> float:
    """How many times the threshold an error is; 0 for no error, infinite where none is tolerated."""
    if error == 0.0:
        return 0.0
    return error / threshold if threshold > 0.0 else math.inf
