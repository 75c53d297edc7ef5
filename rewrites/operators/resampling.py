"""Interpolation, and padding by reflection or repetition."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from verifycompile.ir.size import Size, exact_quotient
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.constant_matrix import (
    RESAMPLING,
    constant_matrix,
    resample,
    resample_gradient,
    tiles,
)
from verifycompile.rewrites.operators.elementwise import require_real
from verifycompile.rewrites.registry import (
    UNSUPPORTED,
    Handler,
    UnsupportedError,
    operator,
    with_arguments,
)

aten = torch.ops.aten


# ------------------------------------------------------------------------------------------------ interpolation


def _interpolation(
    b: Builder, kind: Sequence[Hashable], output: Sequence[Size], line: Sequence[Size], scales: Sequence[float | None]
) -> list[View]:
    """One matrix a dimension: all kinds of interpolation are separable."""
    if any(scale is None for scale in scales) and any(scale is not None for scale in scales):
        # torch's kernels differ in what they make of it.
        raise UnsupportedError(UNSUPPORTED, f"an interpolation with the scales {list(scales)}")
    for scale, size, length in zip(scales, output, line, strict=True):
        if kind[0] == "nearest" and scale is not None and size in (length, 2 * length) and size != scale * length:
            # The kernel for CPUs alone takes no notice of the scale where it gives each element once, or twice.
            raise UnsupportedError(UNSUPPORTED, f"{size} elements of {length} with the scale {scale}")
    return [
        _repeated(b, kind, scale, *sizes) or constant_matrix(b, RESAMPLING, (*kind, scale), sizes)
        for scale, *sizes in zip(scales, output, line, strict=True)
    ]


def _repeated(b: Builder, kind: Sequence[Hashable], scale: float | None, output: Size, line: Size) -> View | None:
    """``[o, x]`` where each element is repeated in its place; only powers of two are exact in torch's arithmetic."""
    times = exact_quotient(output, line) if line else None
    if kind[0] not in ("nearest", "nearest_exact") or not isinstance(times, int) or times < 1 or times & (times - 1):
        return None
    tiled = tiles(b, line, times, output) if scale in (None, times) else None
    return None if tiled is None else b.permute(tiled, (1, 0))


SCALES = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}
"""Arguments for the scales, in the order of the dimensions of space."""


def _interpolate(kind: str, space: int, aligns: bool) -> tuple[Handler, Handler]:
    """``aligns``: whether the operator has the argument ``align_corners``."""

    def forward(b: Builder, self: View, output_size: Sequence[Size], **options: float | None) -> View:
        require_real(b, "self")
        factors = [options[name] for name in SCALES[space]]
        attributes = (kind, options.get("align_corners", False))
        return resample(b, self, _interpolation(b, attributes, output_size, b.shape(self)[-space:], factors))

    def backward(
        b: Builder,
        grad_output: View,
        output_size: Sequence[Size],
        input_size: Sequence[Size],
        **options: float | None,
    ) -> View:
        require_real(b, "grad_output")
        factors = [options[name] for name in SCALES[space]]
        if space == 3 and len(set(factors)) > 1:
            # torch's kernel is not the gradient of its forward operator then.
            raise UnsupportedError(UNSUPPORTED, f"the gradient of an interpolation with the scales {factors}")
        attributes = (kind, options.get("align_corners", False))
        matrices = _interpolation(b, attributes, output_size, input_size[-space:], factors)
        return resample_gradient(b, grad_output, matrices)

    named = (*(("align_corners",) if aligns else ()), *SCALES[space])
    return (
        with_arguments(forward, ("self", "output_size", *named)),
        with_arguments(backward, ("grad_output", "output_size", "input_size", *named)),
    )


for _kind, _space, _name in (
    ("nearest", 1, "upsample_nearest1d"),
    ("nearest", 2, "upsample_nearest2d"),
    ("nearest", 3, "upsample_nearest3d"),
    ("nearest_exact", 1, "_upsample_nearest_exact1d"),
    ("nearest_exact", 2, "_upsample_nearest_exact2d"),
    ("nearest_exact", 3, "_upsample_nearest_exact3d"),
    ("linear", 1, "upsample_linear1d"),
    ("linear", 2, "upsample_bilinear2d"),
    ("linear", 3, "upsample_trilinear3d"),
    ("cubic", 2, "upsample_bicubic2d"),
    ("linear_smoothed", 2, "_upsample_bilinear2d_aa"),
    ("cubic_smoothed", 2, "_upsample_bicubic2d_aa"),
):
    _forward, _backward = _interpolate(_kind, _space, aligns=not _kind.startswith("nearest"))
    operator(getattr(aten, _name).default)(_forward)
    operator(getattr(aten, f"{_name}_backward").default)(_backward)


# ------------------------------------------------------------------------------------------------ padding


def _padding_matrices(b: Builder, kind: str, padding: Sequence[Size], line: Sequence[Size]) -> list[View]:
    """``padding`` lists the last dimension first, as torch does."""
    space = len(line)
    matrices: list[View] = []
    for k, size in enumerate(line):
        before, after = padding[2 * (space - 1 - k) : 2 * (space - k)]
        matrices.append(constant_matrix(b, RESAMPLING, (kind, before, after), (before + size + after, size)))
    return matrices


def _pad(kind: str) -> tuple[Handler, Handler]:
    def forward(b: Builder, self: View, padding: Sequence[Size]) -> View:
        return resample(b, self, _padding_matrices(b, kind, padding, b.shape(self)[-(len(padding) // 2) :]))

    def backward(b: Builder, grad_output: View, self: View, padding: Sequence[Size]) -> View:
        require_real(b, "grad_output", "self")
        line = b.shape(self)[-(len(padding) // 2) :]
        return resample_gradient(b, grad_output, _padding_matrices(b, kind, padding, line))

    return forward, backward


for _kind, _name in (("reflect", "reflection_pad"), ("repeat", "replication_pad")):
    _forward, _backward = _pad(_kind)
    for _space in (1, 2, 3):
        operator(getattr(aten, f"{_name}{_space}d").default)(_forward)
        operator(getattr(aten, f"{_name}{_space}d_backward").default)(_backward)
