"""Sample calls: special functions, matrices, diagonals, copies of views."""

from __future__ import annotations

import torch

from tests.operators.samples import add, positive, real, truth, unit, whole

aten = torch.ops.aten

# ------------------------------------------------------------------------------------------------ special functions

for _name in (
    "asinh", "digamma", "frac", "i0", "sinc", "special_airy_ai", "special_bessel_j0", "special_bessel_j1",
    "special_erfcx", "special_i0e", "special_i1", "special_i1e", "special_log_ndtr", "special_modified_bessel_i0",
    "special_modified_bessel_i1", "special_spherical_bessel_j0", "hardshrink", "softshrink",
):  # fmt: skip
    add(getattr(aten, _name).default, real(3, 4))
for _name in (
    "special_bessel_y0", "special_bessel_y1", "special_modified_bessel_k0",
    "special_modified_bessel_k1", "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1",
):  # fmt: skip
    add(getattr(aten, _name).default, positive(3, 4))
add(aten.acosh.default, positive(3, 4) + 1)
add(aten.atanh.default, unit(3, 4))
add(aten.erfinv.default, unit(3, 4))
add(aten.logit.default, unit(3, 4).abs())
add(aten.logit.default, unit(3, 4).abs(), 0.2)
add(aten.special_ndtri.default, unit(3, 4).abs())
add(aten.mvlgamma.default, positive(3, 4) + 2, 2)
add(aten.polygamma.default, 1, positive(3, 4))
add(aten.threshold.default, real(3, 4), 0.3, 2.5)
add(aten.hardshrink_backward.default, real(3, 4), real(3, 4), 0.3)
add(aten.softshrink_backward.default, real(3, 4), real(3, 4), 0.3)
add(aten.logit_backward.default, real(3, 4), unit(3, 4).abs(), 0.2)
for _name in ("hypot", "logaddexp2", "heaviside", "fmax", "fmin"):
    add(getattr(aten, _name).default, real(3, 4), real(4))
for _name in ("igamma", "igammac", "special_xlog1py"):
    add(getattr(aten, _name).default, positive(3, 4), positive(4))
add(aten.special_zeta.default, positive(3, 4) + 1.5, positive(3, 4))
for _name in (
    "chebyshev_polynomial_t", "chebyshev_polynomial_u", "hermite_polynomial_h", "hermite_polynomial_he",
    "laguerre_polynomial_l", "legendre_polynomial_p",
):  # fmt: skip
    add(getattr(aten, f"special_{_name}").default, unit(3, 4), whole(4, 3, 4).double())
add(aten.frexp.Tensor, real(3, 4))
for _name in ("cummax", "cummin"):
    add(getattr(aten, _name).default, real(3, 4), 1)
    add(getattr(aten, _name).default, real(3, 4), 0)
for _name in ("logical_and", "logical_or"):
    add(getattr(aten, _name).default, whole(2, 3, 4).double(), truth(4))
add(aten.logical_not.default, whole(2, 3, 4))

# ------------------------------------------------------------------------------------------------ matrices

_m = real(2, 3, 3)
_definite = _m @ _m.mT + 3 * torch.eye(3, dtype=torch.float64)
_triangle = _definite.tril()
for _upper in (False, True):
    # Shuffled, as the test of stacked operands does, only numbers stay positive definite.
    add(aten.cholesky.default, positive(2, 1, 1), _upper)
    add(aten.cholesky_inverse.default, _triangle, _upper)
    add(aten.linalg_cholesky_ex.default, _definite, upper=_upper)
    add(aten.cholesky_solve.default, real(2, 3, 2), _triangle, _upper)
    add(aten.linalg_solve_triangular.default, _definite, real(2, 3, 2), upper=_upper)
    add(aten.triangular_solve.default, real(2, 3, 2), _definite, _upper)
add(aten.linalg_inv_ex.default, _definite)
add(aten.linalg_matrix_exp.default, unit(2, 3, 3))
add(aten.linalg_lu_factor_ex.default, _definite)
_lu, _pivots, _ = aten.linalg_lu_factor_ex.default(_definite)
add(aten.linalg_lu_solve.default, _lu, _pivots, real(2, 3, 2))
_wide, _tall = real(2, 2, 4), real(2, 4, 2)
for _matrices in (_wide, _tall):
    add(aten.linalg_lu_factor_ex.default, _matrices)
    add(aten.lu_unpack.default, *aten.linalg_lu_factor_ex.default(_matrices)[:2])
    add(aten.linalg_lu.default, _matrices)
    add(aten.geqrf.default, _matrices)
    for _mode in ("reduced", "complete", "r"):
        add(aten.linalg_qr.default, _matrices, _mode)
    for _full in (False, True):
        add(aten._linalg_svd.default, _matrices, _full)
    add(aten.linalg_pinv.atol_rtol_tensor, _matrices, rtol=torch.tensor([0.4, 0.9]))
    add(aten.linalg_pinv.atol_rtol_tensor, _matrices, atol=torch.tensor(0.3), rtol=torch.tensor(0.4))
    add(aten.linalg_pinv.atol_rtol_tensor, _matrices)
add(aten._linalg_svd.default, _wide, False, False)
add(aten.linalg_pinv.atol_rtol_tensor, _definite, hermitian=True)
for _matrices in (_m, _m.mT):
    add(aten._linalg_det.default, _matrices)
    add(aten._linalg_slogdet.default, _matrices)
    for _left in (False, True):
        add(aten._linalg_solve_ex.default, _matrices, real(2, 3, 3), left=_left)
add(aten._linalg_det.default, real(3, 3))
add(aten._linalg_solve_ex.default, _definite, real(2, 3))
add(aten._linalg_solve_ex.default, real(3, 3), real(3))
for _triangle_read in ("L", "U"):
    for _vectors in (True, False):
        add(aten._linalg_eigh.default, _m, _triangle_read, _vectors)
add(aten.linalg_ldl_factor_ex.default, _definite - 5 * torch.eye(3, dtype=torch.float64))
add(aten.linalg_ldl_solve.default, *aten.linalg_ldl_factor_ex.default(_definite)[:2], real(2, 3, 2))
_reflectors, _scales = aten.geqrf.default(_tall)
add(aten.linalg_householder_product.default, _reflectors, _scales)
for _left in (False, True):
    for _adjoint in (False, True):
        add(aten.ormqr.default, _reflectors, _scales, real(2, 4, 4), _left, _adjoint)
add(aten.linalg_ldl_solve.default, *aten.linalg_ldl_factor_ex.default(_definite)[:2], real(3, 2))
for _operator in (
    aten.linalg_inv_ex, aten.linalg_cholesky_ex, aten.linalg_lu_factor_ex, aten._linalg_det, aten._linalg_slogdet,
):  # fmt: skip
    add(_operator.default, real(0, 0))

# ------------------------------------------------------------------------------------------------ diagonals

for _operator in (aten.diagonal, aten.diagonal_copy):
    add(_operator.default, real(3, 4))
    add(_operator.default, real(3, 4, 2), -1, 1, 0)
    add(_operator.default, real(2, 3, 3), 1, -2, -1)
add(aten.diag_embed.default, real(2, 3))
add(aten.diag_embed.default, real(2, 3), -1, 0, 2)
add(aten.diagonal_backward.default, real(3), [3, 4], 0, 0, 1)
add(aten.diagonal_backward.default, real(2, 3), [3, 4, 2], -1, 1, 0)

# ------------------------------------------------------------------------------------------------ copies of views

add(aten.alias_copy.default, real(3, 4))
add(aten.detach_copy.default, real(3, 4))
add(aten.view_copy.default, real(3, 4), [2, 6])
add(aten.t_copy.default, real(3, 4))
add(aten.transpose_copy.int, real(2, 3, 4), 0, -1)
add(aten.permute_copy.default, real(2, 3, 4), [2, 0, 1])
add(aten.expand_copy.default, real(3, 1), [3, 4])
add(aten.unsqueeze_copy.default, real(3, 4), 1)
add(aten.squeeze_copy.default, real(1, 3, 1))
add(aten.squeeze_copy.dim, real(1, 3, 1), 0)
add(aten.squeeze_copy.dims, real(1, 3, 1), [0, 2])
add(aten.select_copy.int, real(3, 4), 1, 2)
add(aten.slice_copy.Tensor, real(3, 6), 1, 2, 4)
add(aten.split_copy.Tensor, real(6, 4), 2)
add(aten.unsafe_split.Tensor, real(6, 4), 4)
add(aten.split_with_sizes_copy.default, real(6, 4), [1, 3, 2])
add(aten.unsafe_split_with_sizes.default, real(6, 4), [1, 3, 2])
add(aten.unbind_copy.int, real(3, 4), 1)
add(aten.unfold_copy.default, real(2, 7, 3), 1, 3, 2)

# ------------------------------------------------------------------------------------------------ through memory

add(aten.as_strided.default, real(2, 3, 4), [3, 8], [8, 1])
add(aten.as_strided.default, real(2, 3, 4), [8, 3], [1, 8])
add(aten.as_strided.default, real(2, 3, 4), [2, 1, 3, 1], [3, 24, 1, 1], 6)
add(aten.as_strided.default, real(2, 3, 4), [2, 3, 5, 4], [12, 4, 0, 1])
add(aten.as_strided.default, real(4, 6), [4, 3], [6, 2], 1)
add(aten.as_strided.default, real(4, 6), [2, 3], [3, 1], 1)
add(aten.as_strided.default, real(4, 6), [2, 2], [12, 3], 8)
add(aten.as_strided_copy.default, real(6, 2), [3, 4], [4, 1], 0)
add(aten.as_strided_scatter.default, real(3, 4), real(4, 3), [4, 3], [1, 4])
add(aten.as_strided_scatter.default, real(4, 3), real(2, 6), [2, 6], [6, 1], 0)
