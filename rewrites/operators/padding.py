"""Padding and repetition, and gradients that are zero outside of what was read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from verifycompile.ir.size import Size, normalize_size, product
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operations import PAD
from verifycompile.rewrites.operators.elementwise import require_exact, require_same_on_ranks
from verifycompile.rewrites.operators.layout import bound
from verifycompile.rewrites.parts.rank_places import placed_by_coordinate
from verifycompile.rewrites.registry import UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten


@operator(aten.slice_backward.default)
def slice_backward(
    b: Builder, grad_output: View, input_sizes: Sequence[Size], dim: int, start: Number, end: Number, step: Number
) -> View:
    """The gradient at the places that the slice read, zero at the others."""
    total = input_sizes[dim % len(input_sizes)]
    first = bound(total, start)
    length: Any = normalize_size(bound(total, end) - first)  # pyright: ignore[reportArgumentType]  # whole numbers
    read = max(0, -(-length // step)) if isinstance(length, int) else length if step == 1 else -(-length // step)
    if b.rank(grad_output) != len(input_sizes) or read != b.shape(grad_output)[dim]:
        raise UnsupportedError(UNSUPPORTED, "the gradient of a slice has another size than the slice: torch repeats it")
    if b.depends_on_rank(start) and step == 1:
        return b.pad(*placed_by_coordinate(b, grad_output, dim % len(input_sizes), start), total)
    if b.depends_on_rank(start) and total == step * b.shape(grad_output)[dim]:
        position, shape = dim % len(input_sizes), list(b.shape(grad_output))
        shape[position] = total
        placed = placed_by_coordinate(b, b.unsqueeze(grad_output, position + 1), position + 1, start)
        return b.reshape(b.pad(*placed, step), shape)  # pyright: ignore[reportArgumentType]  # a whole number
    if not isinstance(start, int) or not isinstance(step, int):
        raise UnsupportedError(UNSUPPORTED, f"the gradient of a slice with start {start} and step {step}")
    assert isinstance(first, int) or first is total
    if step == 1:
        return b.pad(grad_output, dim, first, total)  # pyright: ignore[reportArgumentType]  # a whole number or the size itself
    position, shape = dim % len(input_sizes), list(b.shape(grad_output))
    if isinstance(first, int) and first < step and total == step * shape[position]:
        # One place of each group of places that the step makes.
        shape[position] = total
        return b.reshape(b.pad(b.unsqueeze(grad_output, position + 1), position + 1, first, step), shape)
    return b.along(PAD, (first, step), grad_output, dim, total)


@operator(aten.select_backward.default)
def select_backward(b: Builder, grad_output: View, input_sizes: Sequence[Size], dim: int, index: int) -> View:
    total = input_sizes[dim % len(input_sizes)]
    position = dim % len(input_sizes)
    if b.rank(grad_output) != len(input_sizes) - 1:
        raise UnsupportedError(UNSUPPORTED, "the gradient of a place has another shape than it: torch repeats it")
    if b.depends_on_rank(index):
        return b.pad(*placed_by_coordinate(b, b.unsqueeze(grad_output, position), position, index), total)
    start = total + index if index < 0 else index
    return b.pad(b.unsqueeze(grad_output, position), position, start, total)


@operator(aten.constant_pad_nd.default)
def constant_pad_nd(b: Builder, self: View, pad: Sequence[int], value: Number) -> View:
    """Zeros around the tensor, plus ``value`` wherever a one padded with zeros is none. A negative width cuts off."""
    require_same_on_ranks(b, value=value)
    inner = _padded(b, self, pad)
    if value == 0 or inner is self:
        return inner
    require_exact(b, value=value)
    if b.pool.piecewise is not None and not any(map(b.depends_on_rank, pad)) and min(pad) >= 0:
        return _padded_with(b, self, pad, value)
    outside = b.sub(1, _padded(b, b.full(1, b.shape(self)), pad))
    return b.combination((1, inner), (value, outside))


def _padded_with(b: Builder, view: View, pad: Sequence[int], value: Number) -> View:
    result = view
    for k in range(len(pad) // 2):
        dim = b.rank(view) - 1 - k
        shape = b.shape(result)
        ends = [b.full(value, [*shape[:dim], width, *shape[dim + 1 :]]) for width in pad[2 * k : 2 * k + 2] if width]
        before, after = (ends[:1] if pad[2 * k] else []), (ends[-1:] if pad[2 * k + 1] else [])
        result = b.concatenate([*before, result, *after], dim) if ends else result
    return result


def part_of(b: Builder, view: View, dim: int, start: Number, length: Size) -> View:
    """``narrow`` as a window, whether or not digits spell it, where the pool has windows."""
    if b.pool.piecewise is None or not isinstance(start, int) or not isinstance(length, int) or length < 1:
        return b.narrow(view, dim, start, length)
    return b.pool.piecewise.narrowed(b.pool, view, b.dim(view, dim), start, length)


def _padded(b: Builder, view: View, pad: Sequence[int]) -> View:
    result = view
    for k in range(len(pad) // 2):
        before, after = pad[2 * k], pad[2 * k + 1]
        dim = b.rank(view) - 1 - k
        if b.depends_on_rank(before):
            total = normalize_size(b.shape(result)[dim] + before + after)
            require_same_on_ranks(b, pad=total)
            result = b.pad(*placed_by_coordinate(b, result, dim, before), total)
            continue
        require_same_on_ranks(b, pad=after)
        if before < 0 or after < 0:
            length = b.shape(result)[dim] + min(before, 0) + min(after, 0)
            result = part_of(b, result, dim, max(-before, 0), length)
        before, after = max(before, 0), max(after, 0)
        if before or after:
            result = b.pad(result, dim, before, result.shape[b.dim(result, dim)] + before + after)
    return result


@operator(aten.repeat.default)
def repeat(b: Builder, self: View, repeats: Sequence[int]) -> View:
    result = self
    for _ in range(len(repeats) - b.rank(self)):
        result = b.unsqueeze(result, 0)
    shape = list(b.shape(result))
    wide: list[Size] = [n for count, size in zip(repeats, shape, strict=True) for n in (count, size)]
    for dim in range(len(shape)):
        result = b.unsqueeze(result, 2 * dim)
    return b.reshape(b.expand(result, wide), [product((c, s)) for c, s in zip(repeats, shape, strict=True)])
