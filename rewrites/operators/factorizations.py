"""Factors of matrices: determinants, eigenvalues, singular values, and what torch keeps of them for the gradient.

What is unique, such as singular values, is the same for each matrix of a batch. Vectors that are unique up to a factor
are those of the same whole batch (see ``OnMatrices.whole``) in the same dtype, and of a matrix that is given: which
sign a kernel arrives at may depend on how a matrix is rounded, and so on how it was computed.
"""

# ruff: noqa: N803 - declarations name the arguments of their schema

from __future__ import annotations

from collections.abc import Sequence

import torch

from verifycompile.ir.size import Size
from verifycompile.ir.term import LEAF, Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.creation import eye
from verifycompile.rewrites.operators.diagonals import triangle
from verifycompile.rewrites.operators.elementwise import require_real
from verifycompile.rewrites.operators.matrices import LU_FACTOR, OnMatrices
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten

PERMUTATION = Operation("permutation_of_pivots")
PSEUDOINVERSE = Operation("pseudoinverse")
NOTHING = (0,)
"""The shape of a result that is not asked for."""

_SCALAR = OnMatrices(aten._linalg_det.default, ("a a'",), ("",), {}, several=True)
_SIGN_AND_LOGARITHM = OnMatrices(aten._linalg_slogdet.default, ("a a'",), ("", ""), {})
_MATRIX = {"p": "a", "q": "a'"}
_SOLUTION = OnMatrices(aten._linalg_solve_ex.default, ("b b'", "a c"), ("p q",), {"p": "a", "q": "c"}, several=True)


# ------------------------------------------------------------------------------------------------ LU


def _factors(b: Builder, matrix: View) -> tuple[View, View]:
    """LU and pivots as torch keeps them: of the transposed matrix where the rows lie one after the other in memory."""
    memory = b.call.memory
    if memory is None:
        raise UnsupportedError(UNREPRESENTABLE, "a matrix whose place in memory is not recorded")
    rows_first = _is_contiguous(b.shape(matrix), memory.strides)
    read = b.transpose(matrix, -1, -2) if rows_first else matrix
    factors, pivots, _ = LU_FACTOR.results(b, A=read, pivot=True, check_errors=False)
    return factors, pivots


def _is_contiguous(shape: Sequence[Size], strides: Sequence[int]) -> bool:
    expected: Size = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected = expected * size
    return True


def _permuted(b: Builder, pivots: View, rows: Size) -> View:
    return b.core(PERMUTATION, (), "*n d -> *n p q", pivots, cores="d", fresh={"p": rows, "q": rows})


@operator(aten.lu_unpack.default)
def lu_unpack(
    b: Builder, LU_data: View, LU_pivots: View, unpack_data: bool, unpack_pivots: bool
) -> tuple[View, View, View]:
    """P, L and U; a part that is not asked for is a tensor without elements."""
    require_real(b, "LU_data")
    rows, columns = b.shape(LU_data)[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise UnsupportedError(UNREPRESENTABLE, "factors of a matrix of symbolic sizes")
    if b.shape(LU_pivots)[-1] != min(rows, columns):
        raise UnsupportedError(UNSUPPORTED, "another number of pivots than the matrix has")
    permutation = _permuted(b, LU_pivots, rows) if unpack_pivots else b.full(0, NOTHING)
    if not unpack_data:
        return permutation, b.full(0, NOTHING), b.full(0, NOTHING)
    count = min(rows, columns)
    lower = triangle(b, b.narrow(LU_data, -1, 0, count), -1, lower=True)
    upper = triangle(b, b.narrow(LU_data, -2, 0, count), 0, lower=False)
    return permutation, b.add(lower, eye(b, rows, None, m=count)), upper


@operator(aten.linalg_lu.default)
def linalg_lu(b: Builder, A: View, pivot: bool) -> tuple[View, View, View]:
    if not pivot:
        raise UnsupportedError(UNSUPPORTED, "an LU factorization without pivots")
    factors, pivots, _ = LU_FACTOR.results(b, A=A, pivot=True, check_errors=False)
    return lu_unpack(b, factors, pivots, True, True)


@operator(aten._linalg_det.default)
def linalg_det(b: Builder, A: View) -> tuple[View, View, View]:
    """One for a matrix without elements."""
    if b.shape(A)[-1] == 0:
        return b.full(1, b.shape(A)[:-2]), A, b.full(0, b.shape(A)[:-1])
    (determinant,) = _SCALAR.results(b, A=A)
    return determinant, *_factors(b, A)


@operator(aten._linalg_slogdet.default)
def linalg_slogdet(b: Builder, A: View) -> tuple[View, View, View, View]:
    if b.shape(A)[-1] == 0:
        return b.full(1, b.shape(A)[:-2]), b.full(0, b.shape(A)[:-2]), A, b.full(0, b.shape(A)[:-1])
    sign, logarithm = _SIGN_AND_LOGARITHM.results(b, A=A)
    return sign, logarithm, *_factors(b, A)


@operator(aten._linalg_solve_ex.default)
def linalg_solve(b: Builder, A: View, B: View, left: bool, check_errors: bool) -> tuple[View, View, View, View]:
    """Of vectors where ``B`` has the shape of ``A`` but for its last dimension."""
    vectors = b.rank(B) == 1 or b.shape(B) == b.shape(A)[:-1]
    if vectors and not left:
        raise UnsupportedError(UNSUPPORTED, "a system of equations whose vectors are on the left")
    right = b.unsqueeze(B, -1) if vectors else B
    (result,) = _SOLUTION.results(b, A=A, B=right, left=left)
    factors, pivots, information = LU_FACTOR.results(b, A=A, pivot=True, check_errors=False)
    return b.squeeze(result, -1) if vectors else result, factors, pivots, information


# ------------------------------------------------------------------------------------------------ vectors


def _require_given(matrix: View) -> None:
    if matrix.term.operation is not LEAF or matrix.coefficient != 1:
        unknown = "vectors of a computed matrix, unique up to a factor that may depend on how it was rounded"
        raise UnsupportedError(UNSUPPORTED, unknown)


@operator(aten._linalg_svd.default)
def linalg_svd(
    b: Builder, A: View, full_matrices: bool, compute_uv: bool, driver: str | None
) -> tuple[View, View, View]:
    """Singular values are the same by whatever driver; without vectors these have no elements."""
    inner = ("a", "a'") if full_matrices else ("a a'", "a a'")
    sizes = {"p": "a", "q": inner[0], "r": "a a'", "s": inner[1], "t": "a'"}
    outputs = ("p q", "r", "s t")
    declared = OnMatrices(aten._linalg_svd.default, ("a a'",), outputs, sizes, whole=(0, 2), attributes={1: ()})
    dtype = b.dtype_of("A")
    left, values, right = declared.results(b, A=A, full_matrices=full_matrices, driver=driver, dtype=dtype)
    if not compute_uv:
        return b.full(0, NOTHING), values, b.full(0, NOTHING)
    _require_given(A)
    return left, values, right


@operator(aten._linalg_eigh.default)
def linalg_eigh(b: Builder, A: View, UPLO: str, compute_v: bool) -> tuple[View, View]:
    """Values in ascending order; without vectors these have no elements."""
    sizes = {**_MATRIX, "r": "a"}
    only = {0: ("UPLO",)}
    declared = OnMatrices(aten._linalg_eigh.default, ("a a'",), ("r", "p q"), sizes, whole=(1,), attributes=only)
    values, vectors = declared.results(b, A=A, UPLO=UPLO, dtype=b.dtype_of("A"))
    if not compute_v:
        return values, b.full(0, NOTHING)
    _require_given(A)
    return values, vectors


@operator(aten.linalg_qr.default)
def linalg_qr(b: Builder, A: View, mode: str) -> tuple[View, View]:
    if mode not in ("reduced", "complete", "r"):
        raise UnsupportedError(UNSUPPORTED, f"a QR factorization in mode {mode!r}")
    inner = "a" if mode == "complete" else "a a'"
    sizes = {"p": "a", "q": inner, "r": inner, "s": "a'"}
    declared = OnMatrices(aten.linalg_qr.default, ("a a'",), ("p q", "r s"), sizes, whole=(0, 1))
    orthogonal, upper = declared.results(b, A=A, mode=mode)
    return b.full(0, NOTHING) if mode == "r" else orthogonal, upper


@operator(aten.linalg_pinv.atol_rtol_tensor)
def linalg_pinv(b: Builder, self: View, atol: View | None, rtol: View | None, hermitian: bool) -> View:
    """Unique for given tolerances, which singular values are compared with."""
    require_real(b, "self", "atol", "rtol")
    if b.rank(self) < 2 or 0 in b.shape(self):
        raise UnsupportedError(UNREPRESENTABLE, f"the inverse of a tensor of shape {list(b.shape(self))}")
    rows, columns = b.shape(self)[-2:]
    batch = b.shape(self)[:-2]
    tolerances = [value for value in (atol, rtol) if value is not None]
    if any(b.shape(value) not in ((), batch) for value in tolerances):
        raise UnsupportedError(UNSUPPORTED, "tolerances of another shape than the batch")
    text = ", ".join(("*n a a'", *("*n" for _ in tolerances)))
    return b.core(
        PSEUDOINVERSE,
        (hermitian, atol is not None, rtol is not None),
        f"{text} -> *n q p",
        self,
        *(b.expand(value, batch) for value in tolerances),
        cores="a a'",
        fresh={"q": columns, "p": rows},
    )
