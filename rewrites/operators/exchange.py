"""Collectives by which ranks change places with a dimension, or all get what one has."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.tensor  # pyright: ignore[reportUnusedImport]  # registers the operators below

from verifycompile.ir.build import reindexed
from verifycompile.ir.size import Size, exact_quotient, product
from verifycompile.ir.term import CONSTANT, Digit, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.collective import group_of, group_ranks, rank_digits
from verifycompile.rewrites.registry import UNREPRESENTABLE, Group, UnsupportedError, operator

c10d = torch.ops._c10d_functional
dtensor = torch.ops._dtensor


def exchange(b: Builder, view: View, gather: int, split: int, group: Group) -> View:
    """All-to-all: rank and the leading digit of ``split`` change places; blocks are concatenated along ``gather``."""
    source, target = b.dim(view, split), b.dim(view, gather)
    ranks = group_ranks(b, group)
    length = exact_quotient(view.shape[source], ranks)
    if length is None:
        raise UnsupportedError(UNREPRESENTABLE, f"a dimension of size {view.shape[source]} exchanged unevenly")
    shape = list(view.shape)
    replacement: dict[int, list[Digit]] = {}
    if source != target:
        shape[source] = length
        inner = view.shape[target]
        shape[target] = product((inner, ranks))
        replacement[target] = [(target, 1, inner)]
        below: Size = inner
    else:
        below = length
    replacement[source] = [*rank_digits(b, group), (source, 1, length)]
    for axis, digit in zip(group.axes, rank_digits(b, group, target, below), strict=True):
        replacement[axis] = [digit]
    return reindexed(b.pool, view, replacement, tuple(shape))


@operator(c10d.all_to_all_single.default)
def all_to_all_single(
    b: Builder, input: View, output_split_sizes: Any, input_split_sizes: Any, group_name: Group
) -> View:
    group = group_of(group_name)
    rows, ranks = b.shape(input)[0], group_ranks(b, group)
    each = exact_quotient(rows, ranks)
    for sizes in (output_split_sizes, input_split_sizes):
        if each is None or len(sizes) != ranks or any(size != each for size in sizes):
            raise UnsupportedError(UNREPRESENTABLE, f"all_to_all_single with the split sizes {list(sizes)}")
    return exchange(b, input, 0, 0, group)


@operator(dtensor.shard_dim_alltoall.default)
def shard_dim_alltoall(b: Builder, input: View, gather_dim: int, shard_dim: int, group_name: Group) -> View:
    return exchange(b, input, gather_dim, shard_dim, group_of(group_name))


@operator(c10d.broadcast.default)
def broadcast(b: Builder, input: View, src: int, group_name: Group) -> View:
    group = group_of(group_name)
    if not 0 <= src < group_ranks(b, group):
        ranks = group_ranks(b, group)
        raise UnsupportedError(UNREPRESENTABLE, f"a broadcast from rank {src} in a group of {ranks} ranks")
    replacement = {axis: [d] for axis, d in zip(group.axes, _source_digits(b, group, src), strict=True)}
    return reindexed(b.pool, input, replacement, input.shape)


def _source_digits(b: Builder, group: Group, source: int) -> list[Digit]:
    digits: list[Digit] = []
    rest = group_ranks(b, group)
    for axis in group.axes:
        rest //= b.mesh[axis]
        digits.append((CONSTANT, source // rest % b.mesh[axis], b.mesh[axis]))
    return digits
