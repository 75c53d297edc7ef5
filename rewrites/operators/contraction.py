"""Matrix products. All are sums of products, so all are ``contract``."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import cast
from verifycompile.rewrites.registry import UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten


@operator(aten.mm.default)
def mm(b: Builder, self: View, mat2: View) -> View:
    return b.contraction("m k, k n -> m n", self, mat2)


@operator(aten.bmm.default)
def bmm(b: Builder, self: View, mat2: View) -> View:
    return b.contraction("b m k, b k n -> b m n", self, mat2)


@operator(aten.mv.default)
def mv(b: Builder, self: View, vec: View) -> View:
    return b.contraction("m k, k -> m", self, vec)


@operator(aten.dot.default)
def dot(b: Builder, self: View, tensor: View) -> View:
    return b.contraction("k, k ->", self, tensor)


@operator(aten.linear.default)
def linear(b: Builder, input: View, weight: View, bias: View | None) -> View:
    product = b.contraction("*b k, n k -> *b n", input, weight)
    return product if bias is None else b.add(product, bias)


@operator(aten.sum.default, aten.sum.dim_IntList)
def sum_dims(
    b: Builder, self: View, dtype: torch.dtype | None, dim: Sequence[int] | None = None, keepdim: bool = False
) -> View:
    if b.call.dtype is torch.bool:
        raise UnsupportedError(UNSUPPORTED, "a sum in booleans")
    return b.sum(cast(b, self, b.dtype_of("self"), dtype), dim, keepdim)


@operator(aten.mean.default, aten.mean.dim)
def mean(
    b: Builder, self: View, dtype: torch.dtype | None, dim: Sequence[int] | None = None, keepdim: bool = False
) -> View:
    return b.mean(cast(b, self, b.dtype_of("self"), dtype), dim, keepdim)
