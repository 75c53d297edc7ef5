"""Convolution, forward and backward, and the windows of ``unfold``.

A convolution relates three tensors by windows: the tensor over the windows (``small``, the output), the tensor that
they slide over (``large``, the input) and the kernel, indexed by the place in a window. Each is the contraction of
the two others with one window a dimension. Transposed, input and output change places. Groups are a batch dimension.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from verifycompile.ir.size import Size, exact_quotient, normalize_size, product
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.constant_matrix import names, per_dimension, window
from verifycompile.rewrites.operators.elementwise import require_real
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class _Windows:
    """How the windows lie: per dimension of space, for both directions of a convolution."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int

    def matrices(self, b: Builder, small: Sequence[Size], kernel: Sequence[Size], large: Sequence[Size]) -> list[View]:
        return [
            window(b, step, edge, spread, *sizes)
            for (step, edge, spread), *sizes in zip(self._numbers(len(kernel)), small, kernel, large, strict=True)
        ]

    def shorter(self, large: Sequence[Size], kernel: Sequence[Size]) -> list[Size]:
        """How many windows there are. Raises ``UnsupportedError`` where that is a rounded number of symbols."""
        found: list[Size] = []
        for (step, edge, spread), line, reach in zip(self._numbers(len(kernel)), large, kernel, strict=True):
            room = normalize_size(line + 2 * edge - spread * (reach - 1) - 1)
            steps = room // step if isinstance(room, int) else exact_quotient(room, step)
            if steps is None:
                raise UnsupportedError(UNREPRESENTABLE, f"windows at every {step} elements on a line of {line}")
            found.append(normalize_size(steps + 1))
        return found

    def longer(self, small: Sequence[Size], kernel: Sequence[Size], more: Sequence[int]) -> list[Size]:
        """How long a line is that the windows fill, with so many elements ``more``."""
        lines = zip(self._numbers(len(kernel)), small, kernel, per_dimension(more, len(kernel)), strict=True)
        return [
            normalize_size((count - 1) * step - 2 * edge + spread * (reach - 1) + 1 + rest)
            for (step, edge, spread), count, reach, rest in lines
        ]

    def _numbers(self, space: int) -> list[tuple[int, ...]]:
        """Stride, padding and dilation of each dimension."""
        numbers = (per_dimension(v, space) for v in (self.stride, self.padding, self.dilation))
        return list(zip(*numbers, strict=True))


def _labels(space: int) -> dict[str, str]:
    x, k, o = names("x", space), names("k", space), names("o", space)
    windows = ", ".join(f"o{d} k{d} x{d}" for d in range(space))
    return {"small": f"n g s {o}", "large": f"n g l {x}", "kernel": f"g s l {k}", "windows": windows}


def _grouped(b: Builder, view: View, groups: int, dim: int) -> View:
    """``dim`` split into ``groups`` and the channels of one."""
    shape = b.shape(view)
    each = exact_quotient(shape[dim], groups)
    if each is None:
        raise UnsupportedError(UNREPRESENTABLE, f"{shape[dim]} channels in {groups} groups")
    return b.reshape(view, [*shape[:dim], groups, each, *shape[dim + 1 :]])


def _ungrouped(b: Builder, view: View, dim: int) -> View:
    shape = b.shape(view)
    return b.reshape(view, [*shape[:dim], product(shape[dim : dim + 2]), *shape[dim + 2 :]])


def _space(b: Builder, view: View, weight: View) -> int:
    """The number of space dimensions. torch also takes a sample without a batch dimension."""
    space = b.rank(weight) - 2
    if b.rank(view) != space + 2 or space < 1:
        raise UnsupportedError(UNSUPPORTED, "a convolution without a batch dimension")
    return space


@operator(aten.convolution.default)
def convolution(
    b: Builder,
    input: View,
    weight: View,
    bias: View | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> View:
    """``output_padding`` makes the result of a transposed convolution longer."""
    require_real(b, "input", "weight", "bias")
    space = _space(b, input, weight)
    windows = _Windows(stride, padding, dilation, groups)
    given, kernel = b.shape(input)[2:], b.shape(weight)[2:]
    made = windows.longer(given, kernel, output_padding) if transposed else windows.shorter(given, kernel)
    small, large = (given, made) if transposed else (made, given)
    matrices = windows.matrices(b, small, kernel, large)
    labels = _labels(space)
    source, target = ("small", "large") if transposed else ("large", "small")
    result = b.contraction(
        f"{labels[source]}, {labels['kernel']}, {labels['windows']} -> {labels[target]}",
        _grouped(b, input, groups, 1),
        _grouped(b, weight, groups, 0),
        *matrices,
    )
    result = _ungrouped(b, result, 1)
    if bias is None:
        return result
    return b.add(result, b.reshape(bias, [*b.shape(bias), *(1 for _ in range(space))]))


@operator(aten.convolution_backward.default)
def convolution_backward(
    b: Builder,
    grad_output: View,
    input: View,
    weight: View,
    bias_sizes: Sequence[Size] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[View | None, View | None, View | None]:
    """Gradients of input, weight and bias. ``output_padding`` shows in the shape of ``grad_output``."""
    require_real(b, "grad_output", "input", "weight")
    space = _space(b, input, weight)
    windows = _Windows(stride, padding, dilation, groups)
    small, large = (input, grad_output) if transposed else (grad_output, input)
    matrices = windows.matrices(b, b.shape(small)[2:], b.shape(weight)[2:], b.shape(large)[2:])
    labels = _labels(space)
    own, other = ("small", "large") if transposed else ("large", "small")
    gradient, kernel = _grouped(b, grad_output, groups, 1), _grouped(b, weight, groups, 0)
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        grad_input = b.contraction(
            f"{labels[other]}, {labels['kernel']}, {labels['windows']} -> {labels[own]}", gradient, kernel, *matrices
        )
        grad_input = _ungrouped(b, grad_input, 1)
    if output_mask[1]:
        grad_weight = b.contraction(
            f"{labels[other]}, {labels[own]}, {labels['windows']} -> {labels['kernel']}",
            gradient,
            _grouped(b, input, groups, 1),
            *matrices,
        )
        grad_weight = _ungrouped(b, grad_weight, 0)
    if output_mask[2]:
        grad_bias = b.sum(grad_output, [0, *range(2, space + 2)])
    return grad_input, grad_weight, grad_bias


# ------------------------------------------------------------------------------------------------ windows as such


def _window_matrices(
    b: Builder,
    line: Sequence[Size],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> list[View]:
    sizes: list[View] = []
    for size, reach, spread, edge, step in zip(
        line, *(per_dimension(v, 2) for v in (kernel_size, dilation, padding, stride)), strict=True
    ):
        count = window_count(size, reach, step, edge, spread)
        sizes.append(window(b, step, edge, spread, count, reach, size))
    return sizes


def window_count(size: Size, reach: int, stride: int, padding: int, dilation: int, ceil_mode: bool = False) -> int:
    """How many windows of ``reach`` elements a line of ``size`` elements holds, as torch counts them."""
    if not isinstance(size, int):
        raise UnsupportedError(UNREPRESENTABLE, f"windows on a line of symbolic size {size}")
    room = size + 2 * padding - dilation * (reach - 1) - 1
    steps = -(-room // stride) if ceil_mode else room // stride
    # The last window must begin inside of the line or the padding before it.
    if ceil_mode and steps * stride >= size + padding:
        steps -= 1
    return steps + 1


_WINDOWS = "o0 k0 x0, o1 k1 x1"


@operator(aten.im2col.default)
def im2col(
    b: Builder,
    self: View,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> View:
    """The elements of every window: ``(..., channels * window, windows)``."""
    require_real(b, "self")
    matrices = _window_matrices(b, b.shape(self)[-2:], kernel_size, dilation, padding, stride)
    opened = b.contraction(f"*n c x0 x1, {_WINDOWS} -> *n c k0 k1 o0 o1", self, *matrices)
    *samples, channels, k0, k1, o0, o1 = b.shape(opened)
    return b.reshape(opened, [*samples, product((channels, k0, k1)), product((o0, o1))])


@operator(aten.col2im.default)
def col2im(
    b: Builder,
    self: View,
    output_size: Sequence[Size],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> View:
    """Windows added up where they overlap: the gradient of ``im2col``."""
    require_real(b, "self")
    matrices = _window_matrices(b, output_size, kernel_size, dilation, padding, stride)
    (o0, k0, _), (o1, k1, _) = (b.shape(m) for m in matrices)
    *samples, columns, _ = b.shape(self)
    channels = exact_quotient(columns, product((k0, k1)))
    if channels is None:
        raise UnsupportedError(UNREPRESENTABLE, f"{columns} columns of windows of {k0} by {k1}")
    opened = b.reshape(self, [*samples, channels, k0, k1, o0, o1])
    return b.contraction(f"*n c k0 k1 o0 o1, {_WINDOWS} -> *n c x0 x1", opened, *matrices)


@operator(aten.unfold.default, aten.unfold_copy.default)
def unfold(b: Builder, self: View, dimension: int, size: Size, step: int) -> View:
    """Windows along one dimension, their elements last."""
    if b.rank(self) == 0:
        return b.unsqueeze(self, 0)
    position = dimension % b.rank(self)
    matrix = _windows_along(b, b.shape(self)[position], size, step)
    moved = _moved(b, self, position, b.rank(self) - 1)
    opened = b.contraction("*n x, o k x -> *n o k", moved, matrix)
    return _moved(b, opened, b.rank(self) - 1, position)


@operator(aten.unfold_backward.default)
def unfold_backward(b: Builder, grad_in: View, input_sizes: Sequence[Size], dim: int, size: Size, step: int) -> View:
    require_real(b, "grad_in")
    if not input_sizes:
        return b.squeeze(grad_in, [0])
    position = dim % len(input_sizes)
    matrix = _windows_along(b, input_sizes[position], size, step)
    moved = _moved(b, grad_in, position, len(input_sizes) - 1)
    return _moved(b, b.contraction("*n o k, o k x -> *n x", moved, matrix), len(input_sizes) - 1, position)


def _windows_along(b: Builder, line: Size, size: Size, step: int) -> View:
    if not isinstance(size, int):
        raise UnsupportedError(UNREPRESENTABLE, f"windows of symbolic size {size}")
    return window(b, step, 0, 1, window_count(line, size, step, 0, 1), size, line)


def _moved(b: Builder, view: View, source: int, target: int) -> View:
    order = list(range(b.rank(view)))
    order.insert(target, order.pop(source))
    return b.permute(view, order)
