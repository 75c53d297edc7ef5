"""Places of values among others: in sorted boundaries, in a set. The values are read one by one, the others wholly."""

from __future__ import annotations

import torch

from verifycompile.ir.size import product
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operators.arithmetic import any_over
from verifycompile.rewrites.operators.elementwise import INTEGER_DTYPES, REAL_DTYPES
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten

PLACE_AMONG = Operation("place_among_boundaries", whole=True)


def _require_equal_dtypes(b: Builder, *names: str) -> None:
    """Of other dtypes the one is cast to the other, which may round."""
    found = {b.call.dtypes[name] for name in names if name in b.call.dtypes}
    if len(found) > 1 or not found <= REAL_DTYPES | INTEGER_DTYPES:
        raise UnsupportedError(UNSUPPORTED, f"a search for values of {sorted(map(str, found))}")


def _places(b: Builder, values: View, boundaries: View, right: bool) -> View:
    """For each value how many of the (ascending) boundaries are less, or not greater where ``right``."""
    if 0 in b.shape(boundaries):
        raise UnsupportedError(UNREPRESENTABLE, "a search in nothing")
    if b.rank(boundaries) == 1:
        return b.core(PLACE_AMONG, (right,), "*n, v -> *n", values, boundaries, cores="v")
    if b.shape(values)[:-1] != b.shape(boundaries)[:-1]:
        raise UnsupportedError(UNSUPPORTED, "a search whose values and boundaries have other batches")
    return b.core(PLACE_AMONG, (right,), "*n k, *n v -> *n k", values, boundaries, cores="v")


@operator(aten.bucketize.Tensor)
def bucketize(b: Builder, self: View, boundaries: View, out_int32: bool, right: bool) -> View:
    _require_equal_dtypes(b, "self", "boundaries")
    return _places(b, self, boundaries, right)


@operator(aten.searchsorted.Tensor)
def searchsorted(
    b: Builder, sorted_sequence: View, self: View, out_int32: bool, right: bool, side: str | None, sorter: View | None
) -> View:
    _require_equal_dtypes(b, "sorted_sequence", "self")
    if sorter is not None:
        raise UnsupportedError(UNSUPPORTED, "a search in boundaries that another tensor orders")
    return _places(b, self, sorted_sequence, right or side == "right")


@operator(aten.isin.Tensor_Tensor)
def is_in(b: Builder, elements: View, test_elements: View, assume_unique: bool, invert: bool) -> View:
    """``assume_unique`` chooses an algorithm, and is a promise of the caller."""
    _require_equal_dtypes(b, "elements", "test_elements")
    if 0 in b.shape(test_elements):
        raise UnsupportedError(UNREPRESENTABLE, "a search in nothing")
    candidates = b.reshape(test_elements, [product(b.shape(test_elements))])
    found = any_over(b, b.equal(b.unsqueeze(elements, -1), candidates), -1, False)
    return b.negate(found) if invert else found


@operator(aten.isin.Tensor_Scalar)
def is_in_scalar(b: Builder, elements: View, test_element: Number, assume_unique: bool, invert: bool) -> View:
    found = b.equal(elements, test_element)
    return b.negate(found) if invert else found
