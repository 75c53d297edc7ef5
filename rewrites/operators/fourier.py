"""Discrete Fourier transforms: one dimension after the other, each read wholly. All other dimensions are a batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verifycompile.ir.size import Size
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import require_real
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten

# Linear over the reals, which is where all coefficients lie. Attributes: the normalization, and what is named below.
COMPLEX_TO_COMPLEX = Operation("fourier_complex", linear=frozenset({0}))
"""Also: whether it is the forward transform."""
REAL_TO_COMPLEX = Operation("fourier_of_real", linear=frozenset({0}))
"""Also: whether the half that conjugation repeats is left out."""
COMPLEX_TO_REAL = Operation("fourier_to_real", linear=frozenset({0}))

NORMALIZATIONS = (0, 1, 2)
"""By nothing, by the root of the number of elements, by that number: all of them products over the dimensions."""


def _require(b: Builder, view: View, dim: Sequence[int], normalization: int) -> list[int]:
    dims = list(dim)
    # The kernels take no dimension that counts from the end.
    if not dims or len(set(dims)) < len(dims) or min(dims) < 0 or max(dims) >= b.rank(view) or 0 in b.shape(view):
        raise UnsupportedError(UNREPRESENTABLE, f"a transform of a tensor of shape {list(b.shape(view))} over {dim}")
    if normalization not in NORMALIZATIONS:
        raise UnsupportedError(UNSUPPORTED, f"a transform with normalization={normalization}")
    return dims


def _complex(b: Builder, view: View, dims: Sequence[int], normalization: int, forward: bool) -> View:
    for dim in sorted(dims):
        view = b.along(COMPLEX_TO_COMPLEX, (normalization, forward), view, dim)
    return view


@operator(aten._fft_c2c.default)
def fft_complex(b: Builder, self: View, dim: Sequence[int], normalization: int, forward: bool) -> View:
    return _complex(b, self, _require(b, self, dim, normalization), normalization, forward)


@operator(aten._fft_r2c.default)
def fft_of_real(b: Builder, self: View, dim: Sequence[int], normalization: int, onesided: bool) -> View:
    """The last of the dimensions is transformed first; its results that conjugation repeats are left out, or not."""
    *others, last = _require(b, self, dim, normalization)
    if b.dtype_of("self").is_complex:
        raise UnsupportedError(UNSUPPORTED, "a transform of real numbers of a complex tensor")
    length = b.shape(self)[last]
    count = length // 2 + 1 if onesided else length
    result = b.along(REAL_TO_COMPLEX, (normalization, onesided), self, last, count)
    return _complex(b, result, others, normalization, True)


@operator(aten._fft_c2r.default)
def fft_to_real(b: Builder, self: View, dim: Sequence[int], normalization: int, last_dim_size: Size) -> View:
    """The inverse of a transform of ``last_dim_size`` real numbers along the last of the dimensions."""
    *others, last = _require(b, self, dim, normalization)
    if b.shape(self)[last] != last_dim_size // 2 + 1:
        raise UnsupportedError(UNSUPPORTED, f"a transform to {last_dim_size} numbers of {b.shape(self)[last]}")
    require_real(b)
    inner = _complex(b, self, others, normalization, False)
    return b.along(COMPLEX_TO_REAL, (normalization,), inner, last, last_dim_size)
