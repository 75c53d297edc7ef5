"""Tensors whose elements are known, as a graph stores them."""

from __future__ import annotations

import cmath
import itertools
from typing import Any

import torch

from verifycompile.ir.algebra import CONSTANT_WITH_INFINITIES
from verifycompile.ir.relabel import insert_dim
from verifycompile.ir.term import Operation, View, identity_view
from verifycompile.rewrites.builder import Builder

CONSTANT = Operation("constant", finite=True)
BOOLEAN_CONSTANT = Operation("boolean_constant", indicator=True)


def stored(b: Builder, dtype: torch.dtype, shape: tuple[int, ...], content: tuple[Any, ...]) -> View:
    """Elements that are known, the same on all ranks: a counter, a number, or what its content alone identifies."""
    steps = {right - left for left, right in itertools.pairwise(content)}
    if dtype is torch.int64 and len(shape) == len(steps) == 1:
        return b.iota(shape[0], content[0], steps.pop())
    if len(set(content)) == 1 and not dtype.is_complex:
        return b.full(content[0], shape)
    finite = all(map(cmath.isfinite, content))
    operation = BOOLEAN_CONSTANT if dtype is torch.bool else CONSTANT if finite else CONSTANT_WITH_INFINITIES
    view = identity_view(b.pool.intern(operation, (dtype, shape, content), (), shape, len(shape), 0, (), ()))
    for size in reversed(b.mesh):
        view = insert_dim(view, 0, size)
    return view
