"""Pooling. Averages are contractions with a constant matrix a dimension; the largest of a window is taken as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from verifycompile.ir.size import Size, exact_quotient, product
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.bounds import require_within
from verifycompile.rewrites.operators.constant_matrix import (
    RESAMPLING,
    constant_matrix,
    names,
    per_dimension,
    resample,
    resample_gradient,
    tiles,
    window,
)
from verifycompile.rewrites.operators.convolution import window_count
from verifycompile.rewrites.operators.elementwise import require_real
from verifycompile.rewrites.operators.indexing import one_hot
from verifycompile.rewrites.registry import UNREPRESENTABLE, Handler, UnsupportedError, operator, with_arguments

aten = torch.ops.aten

MAX_POOL = Operation("max_pool_values"), Operation("max_pool_indices")
ADAPTIVE_MAX_POOL = Operation("adaptive_max_pool_values"), Operation("adaptive_max_pool_indices")


# ------------------------------------------------------------------------------------------------ averages


def _average_matrices(
    b: Builder,
    line: Sequence[Size],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> list[View]:
    """One matrix a dimension. The number of elements by which torch divides is the product over the dimensions."""
    space = len(line)
    reaches = per_dimension(kernel_size, space)
    steps = per_dimension(stride, space) if stride else reaches
    matrices: list[View] = []
    for size, reach, step, edge in zip(line, reaches, steps, per_dimension(padding, space), strict=True):
        count = window_count(size, reach, step, edge, 1, ceil_mode)
        tiled = tiles(b, count, reach, size) if step == reach and edge == 0 else None
        if tiled is not None:
            matrices.append(b.divide(tiled, reach) if divisor_override is None else tiled)
        elif divisor_override is None:
            attributes = ("average", reach, step, edge, ceil_mode, count_include_pad)
            matrices.append(constant_matrix(b, RESAMPLING, attributes, (count, size)))
        else:
            matrices.append(b.sum(window(b, step, edge, 1, count, reach, size), [1]))
    if divisor_override is not None:
        matrices[0] = b.divide(matrices[0], divisor_override)
    return matrices


_OPTIONS = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")


def _average_pool(space: int) -> tuple[Handler, Handler]:
    """The operator and its gradient, on so many dimensions of space."""

    def forward(b: Builder, self: View, **options: Any) -> View:
        require_real(b, "self")
        return resample(b, self, _average_matrices(b, b.shape(self)[-space:], **options))

    def backward(b: Builder, grad_output: View, self: View, **options: Any) -> View:
        require_real(b, "grad_output", "self")
        return resample_gradient(b, grad_output, _average_matrices(b, b.shape(self)[-space:], **options))

    return with_arguments(forward, ("self", *_OPTIONS)), with_arguments(backward, ("grad_output", "self", *_OPTIONS))


def _adaptive_matrices(b: Builder, windows: Sequence[Size], line: Sequence[Size]) -> list[View]:
    matrices: list[View] = []
    for count, size in zip(windows, line, strict=True):
        reach = exact_quotient(size, count) if count else None
        tiled = tiles(b, count, reach, size) if isinstance(reach, int) else None
        if tiled is None or reach is None:
            matrices.append(constant_matrix(b, RESAMPLING, ("adaptive_average",), (count, size)))
        else:
            matrices.append(b.divide(tiled, reach))
    return matrices


def _adaptive_average_pool(space: int) -> tuple[Handler, Handler]:
    def forward(b: Builder, self: View, output_size: Sequence[Size]) -> View:
        require_real(b, "self")
        return resample(b, self, _adaptive_matrices(b, output_size, b.shape(self)[-space:]))

    def backward(b: Builder, grad_output: View, self: View) -> View:
        require_real(b, "grad_output", "self")
        matrices = _adaptive_matrices(b, b.shape(grad_output)[-space:], b.shape(self)[-space:])
        return resample_gradient(b, grad_output, matrices)

    return forward, backward


# ------------------------------------------------------------------------------------------------ largest elements


def _largest(
    b: Builder, operations: Sequence[Operation], attributes: tuple[object, ...], view: View, sizes: Sequence[Size]
) -> tuple[View, View]:
    """Values and places of the largest elements of windows, which read all of space."""
    space = len(sizes)
    if any(size == 0 for size in (*sizes, *b.shape(view)[-space:])):
        raise UnsupportedError(UNREPRESENTABLE, "pooling of nothing")
    x, o = names("x", space), names("o", space)
    fresh = {f"o{k}": size for k, size in enumerate(sizes)}
    values, places = (
        b.core(operation, attributes, f"*n {x} -> *n {o}", view, cores=x, fresh=fresh) for operation in operations
    )
    return values, places


def _at_places(b: Builder, gradient: View, places: View, line: Sequence[Size]) -> View:
    """``gradient`` added up at the places that it came from, which count the elements of all of space."""
    space = len(line)
    count = product(line)
    require_within(b, places, count)
    o = names("o", space)
    flat = b.contraction(f"*n {o}, *n {o} v -> *n v", gradient, one_hot(b, places, count))
    return b.reshape(flat, [*b.shape(flat)[:-1], *line])


_WINDOWS = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")


def _max_pool(space: int) -> tuple[Handler, Handler]:
    def forward(
        b: Builder,
        self: View,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
    ) -> tuple[View, View]:
        require_real(b, "self")
        reaches = per_dimension(kernel_size, space)
        steps = per_dimension(stride, space) if stride else reaches
        edges, spreads = per_dimension(padding, space), per_dimension(dilation, space)
        sizes = [
            window_count(*numbers, ceil_mode)
            for numbers in zip(b.shape(self)[-space:], reaches, steps, edges, spreads, strict=True)
        ]
        return _largest(b, MAX_POOL, (reaches, steps, edges, spreads, ceil_mode), self, sizes)

    return forward, with_arguments(_gradient_of_largest(space), ("grad_output", "self", *_WINDOWS, "indices"))


def _adaptive_max_pool(space: int) -> tuple[Handler, Handler]:
    def forward(b: Builder, self: View, output_size: Sequence[Size]) -> tuple[View, View]:
        require_real(b, "self")
        return _largest(b, ADAPTIVE_MAX_POOL, (), self, output_size)

    return forward, with_arguments(_gradient_of_largest(space), ("grad_output", "self", "indices"))


def _gradient_of_largest(space: int) -> Handler:
    """The places say all; how the windows lay that found them is checked by torch and changes nothing."""

    def backward(b: Builder, grad_output: View, self: View, indices: View, **_: Any) -> View:
        require_real(b, "grad_output", "self")
        return _at_places(b, grad_output, indices, b.shape(self)[-space:])

    return backward


for _space in (2, 3):
    for _name, _pool in (
        (f"avg_pool{_space}d", _average_pool),
        (f"_adaptive_avg_pool{_space}d", _adaptive_average_pool),
        (f"max_pool{_space}d_with_indices", _max_pool),
        (f"adaptive_max_pool{_space}d", _adaptive_max_pool),
    ):
        _forward, _backward = _pool(_space)
        operator(getattr(aten, _name).default)(_forward)
        operator(getattr(aten, f"{_name}_backward").default)(_backward)
