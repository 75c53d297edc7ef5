"""Stacked tensors of one call: where their dimensions lie, for the mesh axes lead, and numbers as tensors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import sympy
import torch

from verifycompile.ir import algebra
from verifycompile.ir.scalar import ONE, NonFiniteScalarError, Scalar, as_scalar, read
from verifycompile.ir.size import Size, normalize_size
from verifycompile.ir.term import Digit, Term, TermPool, View
from verifycompile.rewrites.registry import UNREPRESENTABLE, UndefinedError, UnsupportedError

Number = int | float | bool | sympy.Expr
LARGEST_CONSTANT = 65_536
"""Larger constants are not compared element by element."""
DOUBLE_DTYPES = frozenset({torch.float64, torch.complex128})


@dataclasses.dataclass(frozen=True)
class Memory:
    """Where a tensor's elements lie, in elements: strides of its dimensions, and the place of the first."""

    strides: tuple[int, ...]
    offset: int


@dataclasses.dataclass(frozen=True)
class Call:
    """Facts about the call being lowered that values do not carry: dtypes, and the shape that torch recorded.

    ``elements``: the same for each element where the operator gives a list of tensors.
    ``memory``: of the first operand, for operators that read through it.
    """

    dtypes: Mapping[str, torch.dtype] = dataclasses.field(default_factory=dict[str, torch.dtype])
    shape: tuple[Size, ...] | None = None
    dtype: torch.dtype | None = None
    elements: tuple[Call, ...] | None = None
    memory: Memory | None = None


class Numbers:
    """The pool, the mesh and the call, positions of dimensions, and numbers as they are held where the call computes.

    ``mesh``: sizes of the mesh axes. ``coordinates``: symbol of a rank coordinate -> mesh axis.
    ``takes_facts``: whether what operators require of their operands is known from now on.
    """

    def __init__(
        self,
        pool: TermPool,
        mesh: tuple[int, ...] = (),
        coordinates: Mapping[sympy.Symbol, int] | None = None,
        *,
        takes_facts: bool = True,
    ) -> None:
        self.pool = pool
        self.mesh = mesh
        self.takes_facts = takes_facts
        self.coordinates = dict(coordinates or {})
        self.call = Call()
        self._written_in_parts: dict[Term, bool] = {}
        self._narrowed: dict[tuple[View, int, Size, Size], View] = {}

    def dtype_of(self, argument: str) -> torch.dtype:
        """dtype of a tensor argument of the call, by its schema name."""
        return self.call.dtypes[argument]

    @property
    def lead(self) -> int:
        """Number of mesh dimensions."""
        return len(self.mesh)

    def rank(self, view: View) -> int:
        """Number of tensor dimensions."""
        return view.rank - self.lead

    def shape(self, view: View) -> tuple[Size, ...]:
        """Local shape: sizes of the tensor dimensions."""
        return view.shape[self.lead :]

    def dim(self, view: View, dim: int, extra: int = 0) -> int:
        """Position of tensor dimension ``dim`` (negative counts from the end) among all dimensions."""
        rank = self.rank(view) + extra
        return self.lead + (dim % rank if rank else 0)

    def dims(self, view: View, dims: Sequence[int] | int | None) -> list[int]:
        """Positions of several tensor dimensions; all of them for None or an empty list."""
        if dims is None or dims == [] or view.rank == self.lead:
            # torch lets a tensor without dimensions be reduced over dimension 0, to itself.
            return list(range(self.lead, view.rank))
        return [self.dim(view, d) for d in ([dims] if isinstance(dims, int) else dims)]

    def depends_on_rank(self, value: object) -> bool:
        """Whether a number is an expression of the rank's coordinates."""
        return isinstance(value, sympy.Expr) and bool(value.free_symbols & set(self.coordinates))

    def scalar(self, value: Number | Scalar) -> Scalar:
        """A number, a literal as it is held where the call computes. Raises NonFiniteScalarError."""
        if not isinstance(value, float):
            return as_scalar(value)
        single = self.in_single_precision()
        number = read(value, single)
        if single or float(number) != value:
            self.pool.literals[value, single] = number
        return number

    def in_single_precision(self) -> bool:
        """Whether torch computes the call with literals in single precision, as all dtypes up to that have it."""
        calls = (self.call, *(self.call.elements or ()))
        dtypes = {dtype for call in calls for dtype in (call.dtype, *call.dtypes.values()) if dtype is not None}
        real = [dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
        return bool(real) and not any(dtype in DOUBLE_DTYPES for dtype in real)

    def number(self, value: Number) -> View:
        """A scalar tensor. Rank coordinates become counters over their mesh axis."""
        if isinstance(value, sympy.Expr) and value.free_symbols & set(self.coordinates):
            return self._affine(value)
        try:
            scalar = self.scalar(int(value) if isinstance(value, bool) else value)
        except NonFiniteScalarError:
            return self._infinity(float(value))
        return self.pool.constant(scalar, self.mesh)

    def _infinity(self, value: float) -> View:
        if math.isnan(value):
            raise UndefinedError(UNREPRESENTABLE, "NaN is not a real number")
        term = self.pool.intern(algebra.INFINITY, (), (), (), 0, 0, (), ())
        return View(ONE if value > 0 else -ONE, term, self.mesh, ())

    def _affine(self, expression: sympy.Expr) -> View:
        parts, rest = self.affine_parts(expression)
        views = [self.pool.constant(as_scalar(rest), self.mesh)]
        for axis, factor in parts:
            counter = algebra.iota(self.pool, self.mesh[axis])
            axes: tuple[tuple[Digit, ...], ...] = tuple(((axis, 1, self.mesh[axis]),) for _ in counter.axes)
            views.append(View(counter.coefficient, counter.term, self.mesh, axes).scaled(as_scalar(factor)))
        return algebra.combine(self.pool, views)

    def affine_parts(self, expression: Number) -> tuple[list[tuple[int, Size]], Size]:
        """``expression`` as ``sum(factor * coordinate of mesh axis) + rest``. Raises UnsupportedError."""
        if not isinstance(expression, sympy.Expr):
            return [], int(expression)
        expanded = sympy.expand(expression)
        totals: dict[int, sympy.Expr] = {}
        rest = expanded
        for symbol, axis in self.coordinates.items():
            factor = expanded.coeff(symbol, 1)
            if factor != 0:
                totals[axis] = totals.get(axis, sympy.Integer(0)) + factor
                rest -= factor * symbol
        rest = sympy.expand(rest)
        unknown = [*totals.values(), rest]
        if any(e.free_symbols & set(self.coordinates) for e in unknown):
            raise UnsupportedError(UNREPRESENTABLE, f"`{expression}` is not linear in the rank's coordinates")
        return [(axis, normalize_size(f)) for axis, f in totals.items()], normalize_size(rest)

    def full(self, value: Number, shape: Sequence[Size]) -> View:
        """A tensor of one repeated value."""
        scalar = self.number(value)
        return View(scalar.coefficient, scalar.term, (*self.mesh, *shape), scalar.axes)
