"""Tolerances that are estimated: how far the spec's own tensors move when every operation errs by a machine epsilon.

TTrace (section 4.5) perturbs the input of the reference and takes the response of each tensor as what rounding may do
to it. Here the results of all operators are perturbed as well, forward and backward, since a network may damp what
enters it and still round everywhere. A program that is right is off from the real values by its own rounding, and so is
the spec: the tolerance is the sum of the responses at both machine epsilons, and at least the response to
an error of the tensor itself. No constant is chosen.
"""

from __future__ import annotations

import math

import torch

_SMALL = 1e-12
"""Norms beyond this and its inverse are computed in double precision: the squares are no normal floats."""


def comparable(value: torch.Tensor) -> torch.Tensor:
    """The same numbers, in float32 where they are 8-bit floats, which torch does not compare."""
    return value.float() if value.is_floating_point() and value.dtype.itemsize == 1 else value


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """The Frobenius norm of the difference; infinite where shapes differ, or one alone is not finite."""
    if one.shape != other.shape:
        return math.inf
    if not one.is_floating_point() or not other.is_floating_point():
        return 0.0 if torch.equal(one.cpu().double(), other.cpu().double()) else math.inf
    first, second = one.detach().cpu(), other.detach().cpu()
    if first.dtype is not second.dtype or first.dtype.itemsize < 4:
        wide = torch.float64 if torch.float64 in (first.dtype, second.dtype) else torch.float32
        first, second = first.to(wide), second.to(wide)
    # The difference of close numbers is exact; its squares may be too small or too large for its own dtype.
    near = float(torch.linalg.vector_norm(first - second))
    if _SMALL < near < 1 / _SMALL:
        return near
    if torch.equal(first, second):
        return 0.0
    first, second = first.double(), second.double()
    difference = first - second
    # The same infinities and the same NaN are no difference.
    alike = (first == second) | (first.isnan() & second.isnan())
    norm = float(torch.linalg.vector_norm(difference.masked_fill_(alike, 0.0)))
    return math.inf if math.isnan(norm) else norm


def norm_of(value: torch.Tensor) -> float:
    """The Frobenius norm."""
    if not value.numel():
        return 0.0
    held = value.detach().cpu()
    held = held if held.is_floating_point() and held.dtype.itemsize >= 4 else held.double()
    norm = float(torch.linalg.vector_norm(held))
    return norm if _SMALL < norm < 1 / _SMALL else float(torch.linalg.vector_norm(held.double()))


def ratio_to(error: float, threshold: float) -> float:
    """How many times the threshold an error is; 0 for no error, infinite where none is tolerated."""
    if error == 0.0:
        return 0.0
    return error / threshold if threshold > 0.0 else math.inf
