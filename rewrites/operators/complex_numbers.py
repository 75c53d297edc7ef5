"""Complex numbers: views as pairs of reals, conjugation, construction. Products and sums are those of any field."""

from __future__ import annotations

import functools

import torch

from verifycompile.ir import relabel
from verifycompile.ir.algebra import COMBINE, CONTRACT, open_view
from verifycompile.ir.build import Label, Signature, apply
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operations import COMPLEX
from verifycompile.rewrites.operators.elementwise import FUNCTIONS
from verifycompile.rewrites.registry import operator

aten = torch.ops.aten

# Linear over the reals, which is where all coefficients lie.
AS_COMPLEX = Operation("as_complex", linear=frozenset({0}))
AS_REAL = Operation("as_real", linear=frozenset({0}))
CONJUGATE = Operation("conjugate", linear=frozenset({0}))
POLAR = Operation("polar", linear=frozenset({0}))


@operator(aten.view_as_complex.default)
def view_as_complex(b: Builder, self: View) -> View:
    """Pairs in the last dimension become complex numbers."""
    labels: tuple[Label, ...] = tuple(range(self.rank))
    signature = Signature((labels,), labels[:-1], frozenset(), ((labels[-1],),))
    return apply(b.pool, AS_COMPLEX, (), (self,), signature)


@operator(aten.view_as_real.default)
def view_as_real(b: Builder, self: View) -> View:
    """Complex numbers become pairs in a new last dimension."""
    parts = _parts(b, self)
    if parts is not None:
        return b.concatenate([relabel.insert_dim(part, part.rank) for part in parts], b.rank(self))
    return b.along(AS_REAL, (), relabel.insert_dim(self, self.rank), b.rank(self), 2)


def _parts(b: Builder, view: View) -> tuple[View, View] | None:
    """The real and the imaginary part of what is computed from pairs and angles; None for anything else."""
    operation, opened = view.term.operation, open_view(view)
    found: tuple[View, View] | None = None
    if operation is AS_COMPLEX:
        (pair,) = opened.operands
        real, imaginary = (relabel.narrow(pair, view.rank, part, 1) for part in (0, 1))
        found = relabel.remove_dim(real, view.rank), relabel.remove_dim(imaginary, view.rank)
    elif operation is POLAR:
        length, angle = opened.operands
        found = b.mul(length, b.pointwise(FUNCTIONS["cos"], angle)), b.mul(length, b.pointwise(FUNCTIONS["sin"], angle))
    elif operation in (CONJUGATE, COMBINE) or (operation is CONTRACT and not view.term.summed):
        inner = [_parts(b, operand) for operand in opened.operands]
        known = [parts for parts in inner if parts is not None]
        if len(known) < len(inner):
            return None
        if operation is CONTRACT:
            found = functools.reduce(functools.partial(_product, b), known)
        else:
            real, imaginary = (b.add(*parts) for parts in zip(*known, strict=True))
            found = real, b.scale(imaginary, -1 if operation is CONJUGATE else 1)
    return None if found is None else (found[0].scaled(view.coefficient), found[1].scaled(view.coefficient))


def _product(b: Builder, left: tuple[View, View], right: tuple[View, View]) -> tuple[View, View]:
    real = b.sub(b.mul(left[0], right[0]), b.mul(left[1], right[1]))
    return real, b.add(b.mul(left[0], right[1]), b.mul(left[1], right[0]))


@operator(aten._conj.default, aten.conj_physical.default, aten._conj_physical.default)
def conjugate(b: Builder, self: View | complex) -> View:
    if isinstance(self, complex):
        return b.pointwise(COMPLEX, self.real, -self.imag)
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
