"""Functions of numbers that are taken as they are: element by element, known by their name and other arguments.

Nothing is known of them but that equal arguments give equal values, so every tensor dimension may be sharded.
"""

from __future__ import annotations

from typing import Any

import torch

from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import require_real
from verifycompile.rewrites.registry import UNSUPPORTED, Handler, UnsupportedError, operator, with_arguments
from verifycompile.torch_interface.operators.schema import names_of

aten = torch.ops.aten

NEXT_AFTER = Operation("nextafter")

FUNCTIONS = (
    "acosh", "asinh", "atanh", "digamma", "erfinv", "frac", "i0", "logit", "mvlgamma", "polygamma", "sinc",
    "special_airy_ai", "special_bessel_j0", "special_bessel_j1", "special_bessel_y0", "special_bessel_y1",
    "special_erfcx", "special_i0e", "special_i1", "special_i1e", "special_log_ndtr",
    "special_modified_bessel_i0", "special_modified_bessel_i1", "special_modified_bessel_k0",
    "special_modified_bessel_k1", "special_ndtri", "special_scaled_modified_bessel_k0",
    "special_scaled_modified_bessel_k1", "special_spherical_bessel_j0", "hardshrink", "softshrink", "threshold",
    "hypot", "igamma", "igammac", "logaddexp2", "heaviside", "fmax", "fmin", "special_zeta", "special_xlog1py",
    "special_chebyshev_polynomial_t", "special_chebyshev_polynomial_u", "special_hermite_polynomial_h",
    "special_hermite_polynomial_he", "special_laguerre_polynomial_l", "special_legendre_polynomial_p",
    "special_chebyshev_polynomial_v", "special_chebyshev_polynomial_w", "special_shifted_chebyshev_polynomial_t",
    "special_shifted_chebyshev_polynomial_u", "special_shifted_chebyshev_polynomial_v",
    "special_shifted_chebyshev_polynomial_w", "angle", "copysign.Tensor", "copysign.Scalar", "ldexp.Tensor",
    "round.decimals", "special_zeta.self_scalar", "special_zeta.other_scalar", "special_xlog1py.self_scalar",
    "special_xlog1py.other_scalar",
    *(
        f"special_{name}_polynomial_{letter}.{scalar}_scalar"
        for name, letters in {
            "chebyshev": "tuvw", "shifted_chebyshev": "tuvw", "laguerre": "l", "legendre": "p",
        }.items()
        for letter in letters
        for scalar in ("x", "n")
    ),
    *(f"special_hermite_polynomial_{kind}.{scalar}_scalar" for kind in ("h", "he") for scalar in ("x", "n")),
)  # fmt: skip
"""Operators on real numbers, every tensor argument of which is read at the element that is computed."""

DERIVATIVES = ("hardshrink_backward", "softshrink_backward", "logit_backward")
"""The same, and linear in their first argument."""


def _element_by_element(target: Any, linear: bool) -> Handler:
    operation = Operation(str(target), linear=frozenset({0}) if linear else frozenset())

    def handler(b: Builder, **given: Any) -> View:
        operands = {name: value for name, value in given.items() if isinstance(value, View)}
        if any(isinstance(value, (list, tuple)) for value in given.values()):
            raise UnsupportedError(UNSUPPORTED, f"`{target}` of a list")
        require_real(b, *operands)
        attributes = tuple((name, value) for name, value in given.items() if name not in operands)
        return b.pointwise(operation, *operands.values(), attributes=attributes)

    return with_arguments(handler, names_of(target))


for _name in (*FUNCTIONS, *DERIVATIVES):
    _packet, _, _overload = _name.partition(".")
    _target = getattr(getattr(aten, _packet), _overload or "default")
    operator(_target)(_element_by_element(_target, _name in DERIVATIVES))

FREXP = Operation("frexp_mantissa"), Operation("frexp_exponent")


@operator(aten.frexp.Tensor)
def frexp(b: Builder, self: View) -> tuple[View, View]:
    require_real(b, "self")
    mantissa, exponent = (b.pointwise(operation, self) for operation in FREXP)
    return mantissa, exponent


@operator(aten.nextafter.default)
def nextafter(b: Builder, self: View, other: View) -> View:
    """The neighbour in the direction of ``other``, of which there is another one in every dtype."""
    require_real(b, "self", "other")
    dtype = b.dtype_of("self")
    if b.dtype_of("other") != dtype:
        raise UnsupportedError(UNSUPPORTED, "neighbours of numbers of one dtype among those of another")
    return b.pointwise(NEXT_AFTER, self, other, attributes=(dtype,))
