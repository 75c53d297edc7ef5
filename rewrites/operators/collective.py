"""Collectives on stacked tensors (DESIGN section 2): relabellings of mesh digits, and sums over mesh axes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.tensor  # pyright: ignore[reportUnusedImport]  # registers the operators below

from verifycompile.ir import algebra, relabel
from verifycompile.ir.build import reindexed
from verifycompile.ir.scalar import ONE, as_scalar, divide
from verifycompile.ir.size import Size, exact_quotient, product, quotient
from verifycompile.ir.term import Digit, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, Group, UnsupportedError, operator
from verifycompile.torch_interface.dtensor.placements import TRUTH_REDUCTIONS

c10d = torch.ops._c10d_functional
dtensor = torch.ops._dtensor


REDUCTION_ARGUMENT: dict[object, int] = {c10d.all_reduce.default: 1, c10d.reduce_scatter_tensor.default: 1}
"""Reducing collectives, with the position of the argument that names the reduction."""


def group_of(group: Any) -> Group:
    if not isinstance(group, Group):
        raise UnsupportedError(UNREPRESENTABLE, f"a process group that is no set of mesh axes: {group}")
    return group


def group_ranks(b: Builder, group: Group) -> int:
    """How many ranks a group has."""
    count = 1
    for axis in group.axes:
        count *= b.mesh[axis]
    return count


def reduce_over(b: Builder, view: View, operation: str, group: Group) -> View:
    """The reduced value, equal on every rank of the group."""
    axes = sorted(group.axes)
    dtype = b.call.dtype
    if dtype is not None and _is_whole(dtype) and operation == "avg":
        # A mean of whole numbers is truncated, each backend in its own way.
        raise UnsupportedError(UNSUPPORTED, f"a collective `{operation}` of {dtype}")
    if dtype is torch.bool:
        operation = TRUTH_REDUCTIONS.get(operation, operation)
    if operation in ("sum", "avg"):
        reduced = algebra.sum_over(b.pool, view, axes)
        if operation == "avg":
            reduced = reduced.scaled(divide(ONE, as_scalar(group_ranks(b, group))))
    elif operation in ("max", "min", "product"):
        from verifycompile.rewrites.operators import reduction  # here, because few programs reduce so

        if operation == "product":
            reduced = reduction.reduce_product(b.pool, view, axes)
        else:
            reduced = reduction.reduce_extreme(b.pool, view, axes, operation)
    else:
        raise UnsupportedError(UNSUPPORTED, f"a collective with the reduction `{operation}`")
    for axis in axes:
        reduced = relabel.insert_dim(reduced, axis, b.mesh[axis])
    return reduced


def _is_whole(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


def rank_digits(b: Builder, group: Group, dim: int | None = None, inner: Size = 1) -> list[Digit]:
    """The number of a rank within the group: digits of the mesh axes, or digits of ``dim`` above ``inner``."""
    digits: list[Digit] = []
    divisor: Size = product((inner, group_ranks(b, group)))
    for axis in group.axes:
        size = b.mesh[axis]
        divisor = quotient(divisor, size)
        digits.append((axis, 1, size) if dim is None else (dim, divisor, size))
    return digits


def gather_dim(b: Builder, view: View, dim: int, group: Group) -> View:
    """All-gather along tensor dimension ``dim``: the rank becomes the leading digit of that dimension."""
    position = b.dim(view, dim)
    length = view.shape[position]
    shape = list(view.shape)
    shape[position] = product((length, group_ranks(b, group)))
    digits = zip(group.axes, rank_digits(b, group, position, length), strict=True)
    replacement = {axis: [digit] for axis, digit in digits} | {position: [(position, 1, length)]}
    return reindexed(b.pool, view, replacement, tuple(shape))


def scatter_dim(b: Builder, view: View, dim: int, group: Group) -> View:
    """Keep this rank's block of tensor dimension ``dim``."""
    position = b.dim(view, dim)
    length = exact_quotient(view.shape[position], group_ranks(b, group))
    if length is None:
        raise UnsupportedError(UNREPRESENTABLE, f"a dimension of size {view.shape[position]} scattered unevenly")
    digits = [*rank_digits(b, group), (position, 1, length)]
    return reindexed(b.pool, view, {position: digits}, (*view.shape[:position], length, *view.shape[position + 1 :]))


@operator(c10d.wait_tensor.default)
def wait_tensor(b: Builder, tensor: View) -> View:
    return tensor


@operator(c10d.all_reduce.default)
def all_reduce(b: Builder, input: View, reduce_op: str, group_name: Group) -> View:
    return reduce_over(b, input, reduce_op, group_of(group_name))


@operator(c10d.all_gather_into_tensor.default)
def all_gather_into_tensor(b: Builder, input: View, group_size: int, group_name: Group) -> View:
    group = group_of(group_name)
    _check_size(b, group, group_size)
    return gather_dim(b, input, 0, group)


@operator(c10d.reduce_scatter_tensor.default)
def reduce_scatter_tensor(b: Builder, input: View, reduce_op: str, group_size: int, group_name: Group) -> View:
    group = group_of(group_name)
    _check_size(b, group, group_size)
    return scatter_dim(b, reduce_over(b, input, reduce_op, group), 0, group)


def _check_size(b: Builder, group: Group, group_size: int) -> None:
    if group_size != group_ranks(b, group):
        raise UnsupportedError(UNREPRESENTABLE, f"group_size={group_size} for a group of {group_ranks(b, group)} ranks")
