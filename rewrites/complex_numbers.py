"""Complex numbers: views as pairs of reals, conjugation, construction. Products and sums are those of any field."""

from __future__ import annotations

import torch

from verifycompile.ir import relabel
from verifycompile.ir.build import Label, Signature, apply
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.registry import operator

aten = torch.ops.aten

# Linear over the reals, which is where all coefficients lie.
AS_COMPLEX = Operation("as_complex", linear=frozenset({0}))
AS_REAL = Operation("as_real", linear=frozenset({0}))
CONJUGATE = Operation("conjugate", linear=frozenset({0}))
POLAR = Operation("polar", linear=frozenset({0}))
COMPLEX = Operation("complex", jointly_linear=True)


@operator(aten.view_as_complex.default)
def view_as_complex(b: Builder, self: View) -> View:
    """Pairs in the last dimension become complex numbers."""
    labels: tuple[Label, ...] = tuple(range(self.rank))
    signature = Signature((labels,), labels[:-1], frozenset(), ((labels[-1],),))
    return apply(b.pool, AS_COMPLEX, (), (self,), signature)


@operator(aten.view_as_real.default)
def view_as_real(b: Builder, self: View) -> View:
    """Complex numbers become pairs in a new last dimension."""
    return b.along(AS_REAL, (), relabel.insert_dim(self, self.rank), b.rank(self), 2)


@operator(aten._conj.default, aten.conj_physical.default, aten._conj_physical.default)
def conjugate(b: Builder, self: View) -> View:
    return b.pointwise(CONJUGATE, self)


@operator(aten.resolve_conj.default)
def resolve_conj(b: Builder, self: View) -> View:
    return self


@operator(aten.polar.default)
def polar(b: Builder, abs: View, angle: View) -> View:
    return b.pointwise(POLAR, abs, angle)


@operator(aten.complex.default)
def complex_pair(b: Builder, real: View, imag: View) -> View:
    return b.pointwise(COMPLEX, real, imag)
