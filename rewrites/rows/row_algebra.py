"""Linear algebra on rows of which the number is read from data: sums over rows take their indicator along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operators.collective import reduce_over
from verifycompile.rewrites.registry import UNREPRESENTABLE, Group, UnsupportedError
from verifycompile.rewrites.rows.ragged import ragged
from verifycompile.rewrites.rows.row_values import Counts, Ragged
from verifycompile.rewrites.rows.rows import masked, require

aten, c10d = torch.ops.aten, torch.ops._c10d_functional


@ragged(aten.mm.default)
def mm(b: Builder, counts: Counts, self: Any, mat2: Any) -> Ragged | View:
    del counts
    if isinstance(self, Ragged) and isinstance(mat2, View) and self.dim == 0:
        return Ragged(b.contraction("m k, k n -> m n", self.view, mat2), 0, self.rows)
    if isinstance(mat2, Ragged) and isinstance(self, View) and mat2.dim == 1:
        return Ragged(b.contraction("m k, k n -> m n", self, mat2.view), 1, mat2.rows)
    if not isinstance(self, Ragged) or not isinstance(mat2, Ragged):
        raise UnsupportedError(UNREPRESENTABLE, "a product with a dimension whose size is read from a tensor")
    require(self.rows == mat2.rows and (self.dim, mat2.dim) == (1, 0), "a product over other rows along")
    return b.contraction("m k, k n -> m n", masked(b, self), mat2.view)


@ragged(aten.bmm.default)
def bmm(b: Builder, counts: Counts, self: Any, mat2: Any) -> Ragged:
    """A product for each row."""
    del counts
    require(isinstance(self, Ragged) and isinstance(mat2, Ragged), "products of matrices along")
    require(self.rows == mat2.rows and (self.dim, mat2.dim) == (0, 0), "products of matrices, over or along,")
    return Ragged(b.contraction("b m k, b k n -> b m n", self.view, mat2.view), 0, self.rows)


@ragged(aten.addmm.default)
def addmm(b: Builder, counts: Counts, self: Any, mat1: Any, mat2: Any, beta: Number, alpha: Number) -> Ragged | View:
    found = mm(b, counts, mat1, mat2)
    require(isinstance(self, View), "a product added to")
    view = found.view if isinstance(found, Ragged) else found
    if isinstance(found, Ragged) and b.rank(self) >= b.rank(view) - found.dim:
        require(b.shape(self)[found.dim - b.rank(view)] == 1, "a product added to other rows along")
    result = b.combination((beta, self), (alpha, view))
    return Ragged(result, found.dim, found.rows) if isinstance(found, Ragged) else result


@ragged(aten.sum.dim_IntList)
def sum_rows(b: Builder, counts: Counts, self: Any, dim: Sequence[int] | None, keepdim: bool) -> Ragged | View:
    del counts
    rank = b.rank(self.view)
    dims = sorted(d % rank for d in dim) if dim else list(range(rank))
    if self.dim in dims:
        return b.sum(masked(b, self), dims, keepdim)
    before = 0 if keepdim else sum(d < self.dim for d in dims)
    return Ragged(b.sum(self.view, dims, keepdim), self.dim - before, self.rows)


@ragged(c10d.wait_tensor.default)
def wait_tensor(b: Builder, counts: Counts, tensor: Any) -> Ragged:
    del b, counts
    return tensor


@ragged(c10d.all_reduce.default)
def all_reduce(b: Builder, counts: Counts, input: Any, reduce_op: str, group_name: Any) -> Ragged:
    """Rows are added to those at the same place, so the ranks of the group must have the same rows."""
    del counts
    require(isinstance(input, Ragged) and isinstance(group_name, Group), "all_reduce along")
    require(not any(input.rows.present.uses(axis) for axis in group_name.axes), "all_reduce over other rows along")
    return Ragged(reduce_over(b, input.view, reduce_op, group_name), input.dim, input.rows)
