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
    "special_bessel_y0", "special_bessel_y1", "special_entr", "special_modified_bessel_k0",
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
add(aten.as_strided_copy.default, real(6, 2), [3, 4], [4, 1], 0)
add(aten.as_strided_scatter.default, real(3, 4), real(4, 3), [4, 3], [1, 4])
add(aten.as_strided_scatter.default, real(4, 3), real(2, 6), [2, 6], [6, 1], 0)
