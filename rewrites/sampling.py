"""Images read at places that a grid gives, and largest elements put back where they came from.

What a place reads is linear in the image: a contraction with weights that the grid alone determines. So samples,
channels and places may be sharded, and a gradient is a contraction with the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verifycompile.ir.size import Size, product
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.constant_matrix import names
from verifycompile.rewrites.elementwise import require_real
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, Handler, UnsupportedError, operator
from verifycompile.rewrites.scatter import SCATTER

aten = torch.ops.aten

GRID_WEIGHTS = Operation("grid_weights")
"""Of a place (core: its coordinates) the weight of every pixel. Attributes: interpolation, padding, corners."""
GRID_SLOPES = Operation("grid_slopes")
"""Derivatives of these weights by every coordinate."""


def _fresh(image: Sequence[Size]) -> dict[str, Size]:
    return {f"x{k}": size for k, size in enumerate(image)}


def _require_known(interpolation_mode: int, padding_mode: int, space: int) -> None:
    """Other codes mean something else to every kernel; cubic interpolation is for planes."""
    if interpolation_mode not in range(3 if space == 2 else 2) or padding_mode not in range(3):
        raise UnsupportedError(
            UNSUPPORTED, f"places with interpolation_mode={interpolation_mode}, padding_mode={padding_mode}"
        )


def _image(b: Builder, input: View, grid: View, space: int) -> tuple[Size, ...]:
    if 0 in (*b.shape(input), *b.shape(grid)):
        raise UnsupportedError(UNREPRESENTABLE, "places in an image without pixels")
    return b.shape(input)[-space:]


def _sampler(space: int) -> Handler:
    x, o = names("x", space), names("o", space)

    def sampler(
        b: Builder, input: View, grid: View, interpolation_mode: int, padding_mode: int, align_corners: bool
    ) -> View:
        require_real(b, "input", "grid")
        _require_known(interpolation_mode, padding_mode, space)
        image = _image(b, input, grid, space)
        attributes = (interpolation_mode, padding_mode, align_corners)
        weights = b.core(GRID_WEIGHTS, attributes, f"n {o} p -> n {o} {x}", grid, cores="p", fresh=_fresh(image))
        return b.contraction(f"n c {x}, n {o} {x} -> n c {o}", input, weights)

    return sampler


def _sampler_gradient(space: int) -> Handler:
    x, o = names("x", space), names("o", space)

    def sampler_gradient(
        b: Builder,
        grad_output: View,
        input: View,
        grid: View,
        interpolation_mode: int,
        padding_mode: int,
        align_corners: bool,
        output_mask: Sequence[bool],
    ) -> tuple[View | None, View]:
        require_real(b, "grad_output", "input", "grid")
        _require_known(interpolation_mode, padding_mode, space)
        image = _image(b, input, grid, space)
        attributes = (interpolation_mode, padding_mode, align_corners)
        weights = b.core(GRID_WEIGHTS, attributes, f"n {o} p -> n {o} {x}", grid, cores="p", fresh=_fresh(image))
        slopes = b.core(
            GRID_SLOPES, attributes, f"n {o} p -> n {o} q {x}", grid, cores="p", fresh={"q": space, **_fresh(image)}
        )
        of_grid = b.contraction(f"n c {o}, n c {x}, n {o} q {x} -> n {o} q", grad_output, input, slopes)
        if not output_mask[0]:
            return None, of_grid
        return b.contraction(f"n c {o}, n {o} {x} -> n c {x}", grad_output, weights), of_grid

    return sampler_gradient


operator(aten.grid_sampler_2d.default)(_sampler(2))
operator(aten.grid_sampler_3d.default)(_sampler(3))
operator(aten.grid_sampler_2d_backward.default)(_sampler_gradient(2))
operator(aten.grid_sampler_3d_backward.default)(_sampler_gradient(3))


def _unpooled(b: Builder, view: View, indices: View, output_size: Sequence[Size]) -> View:
    """Zeros but for the elements of ``view`` at ``indices``, which count the elements of all of space."""
    space = len(output_size)
    batch = b.shape(view)[: b.rank(view) - space]
    if 0 in (*b.shape(view), *output_size):
        raise UnsupportedError(UNREPRESENTABLE, "pooling of nothing")
    count = product(b.shape(view)[b.rank(view) - space :])
    flat, places = (b.reshape(v, [*batch, count]) for v in (view, indices))
    size = product(output_size)
    zeros = b.full(0, [*batch, size])
    result = b.core(SCATTER, (), "*b v, *b i, *b i -> *b w", zeros, places, flat, cores="v i", fresh={"w": size})
    return b.reshape(result, [*batch, *output_size])


@operator(aten.max_unpool2d.default)
def max_unpool2d(b: Builder, self: View, indices: View, output_size: Sequence[Size]) -> View:
    return _unpooled(b, self, indices, output_size)


@operator(aten.max_unpool3d.default)
def max_unpool3d(
    b: Builder, self: View, indices: View, output_size: Sequence[Size], stride: Sequence[int], padding: Sequence[int]
) -> View:
    """``stride`` and ``padding`` only have to be positive, and not negative."""
    return _unpooled(b, self, indices, output_size)
