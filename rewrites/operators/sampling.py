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
from verifycompile.rewrites.operators.constant_matrix import names
from verifycompile.rewrites.operators.elementwise import require_real
from verifycompile.rewrites.operators.scatter import SCATTER
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, Handler, UnsupportedError, operator

aten = torch.ops.aten

GRID_WEIGHTS = Operation("grid_weights")
"""Of a place (core: its coordinates) the weight of every pixel. Attributes: interpolation, padding, corners."""
GRID_SLOPES = Operation("grid_slopes")
"""Derivatives of these weights by every coordinate."""


def _samplers(space: int) -> tuple[Handler, Handler]:
    """The operator on images of so many dimensions, and its gradient."""
    x, o = names("x", space), names("o", space)

    def of_places(b: Builder, operation: Operation, input: View, grid: View, attributes: tuple[int, int, bool]) -> View:
        """A weight, or its derivatives, of every place and pixel."""
        interpolation_mode, padding_mode, _ = attributes
        # Other codes mean something else to every kernel; cubic interpolation is for planes.
        if interpolation_mode not in range(3 if space == 2 else 2) or padding_mode not in range(3):
            raise UnsupportedError(UNSUPPORTED, f"places with {interpolation_mode=}, {padding_mode=}")
        if 0 in (*b.shape(input), *b.shape(grid)):
            raise UnsupportedError(UNREPRESENTABLE, "places in an image without pixels")
        fresh: dict[str, Size] = {f"x{k}": size for k, size in enumerate(b.shape(input)[-space:])}
        fresh |= {"q": space} if operation is GRID_SLOPES else {}
        made = f"{'q ' if operation is GRID_SLOPES else ''}{x}"
        return b.core(operation, attributes, f"n {o} p -> n {o} {made}", grid, cores="p", fresh=fresh)

    def forward(
        b: Builder, input: View, grid: View, interpolation_mode: int, padding_mode: int, align_corners: bool
    ) -> View:
        require_real(b, "input", "grid")
        weights = of_places(b, GRID_WEIGHTS, input, grid, (interpolation_mode, padding_mode, align_corners))
        return b.contraction(f"n c {x}, n {o} {x} -> n c {o}", input, weights)

    def backward(
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
        attributes = (interpolation_mode, padding_mode, align_corners)
        weights, slopes = (of_places(b, kind, input, grid, attributes) for kind in (GRID_WEIGHTS, GRID_SLOPES))
        of_grid = b.contraction(f"n c {o}, n c {x}, n {o} q {x} -> n {o} q", grad_output, input, slopes)
        if not output_mask[0]:
            return None, of_grid
        return b.contraction(f"n c {o}, n {o} {x} -> n c {x}", grad_output, weights), of_grid

    return forward, backward


for _space in (2, 3):
    _forward, _backward = _samplers(_space)
    operator(getattr(aten, f"grid_sampler_{_space}d").default)(_forward)
    operator(getattr(aten, f"grid_sampler_{_space}d_backward").default)(_backward)


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
