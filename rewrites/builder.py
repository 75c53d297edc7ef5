"""What an operator declaration builds with: the algebra of the IR, over stacked tensors.

A stacked tensor has the mesh axes as its leading dimensions. Declarations speak of tensor dimensions only;
the mesh dimensions ride along as batch indices that all operands share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import sympy
import torch

from verifycompile.ir import algebra, exponential, indicator, relabel
from verifycompile.ir.build import Label, Signature, apply
from verifycompile.ir.inequality import AT_MOST
from verifycompile.ir.pieces import CONCATENATE, STACK, concatenated_dim, opened_stack, pieces_of, whole_dim_of_fresh
from verifycompile.ir.scalar import ONE, NonFiniteScalarError, Scalar, as_scalar, divide, multiply, read
from verifycompile.ir.sign import is_nonnegative, known_equal, known_order
from verifycompile.ir.size import Size, normalize_size, product
from verifycompile.ir.term import CONSTANT, Digit, IndexFact, Operation, Term, TermPool, View, constant_digits
from verifycompile.ir.window import window_at
from verifycompile.rewrites.operations import PAD, RESHAPE, SLICE
from verifycompile.rewrites.parts.slices import narrow_operands
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UndefinedError, UnsupportedError

Number = int | float | bool | sympy.Expr

POWER = exponential.POWER
_SHORT_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.uint64})
LARGEST_CONSTANT = 65_536
"""Larger constants are not compared element by element."""
DOUBLE_DTYPES = frozenset({torch.float64, torch.complex128})
UNKNOWN = Operation("unknown")
"""Of terms that are equal to themselves alone."""


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


class Builder:
    """Builds stacked tensors for one program.

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

    # -- the call being lowered

    def dtype_of(self, argument: str) -> torch.dtype:
        """dtype of a tensor argument of the call, by its schema name."""
        return self.call.dtypes[argument]

    # -- dimensions

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

    # -- numbers

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

    def iota(self, size: Size, start: Number = 0, step: Number = 1) -> View:
        """``start + step * arange(size)``."""
        counter = algebra.iota(self.pool, size)
        axes = tuple(tuple((self.lead, d[1], d[2]) for d in axis) for axis in counter.axes)
        view = View(counter.coefficient, counter.term, (*self.mesh, size), axes)
        return self.combination((step, view), (1, self.mul(self.number(start), 1)))

    # -- element-wise

    def view(self, value: View | Number) -> View:
        return value if isinstance(value, View) else self.number(value)

    def aligned(self, *values: View | Number) -> list[View]:
        """Values brought to a common rank, as torch broadcasts: missing dimensions are added in front."""
        views = [self.view(v) for v in values]
        rank = max(v.rank for v in views)
        result: list[View] = []
        for view in views:
            wide = view
            for _ in range(rank - view.rank):
                wide = relabel.insert_dim(wide, self.lead)
            result.append(wide)
        return result

    def _expanded(self, result: View, views: Sequence[View]) -> View:
        shape = list(result.shape)
        for view in views:
            shape = [algebra.max_size(s, t) for s, t in zip(shape, view.shape, strict=True)]
        return View(result.coefficient, result.term, tuple(shape), result.axes)

    def pointwise(self, operation: Operation, *values: View | Number, attributes: tuple[object, ...] = ()) -> View:
        """One element of the result per element of the (broadcast) operands."""
        self._require_same_on_ranks(attributes)
        views = self.aligned(*values)
        definition = None if attributes else self.pool.definitions.get(operation)
        if definition is not None:
            return self._expanded(definition(self.pool, *views), views)
        return self._expanded(algebra.elementwise(self.pool, operation, attributes, views), views)

    def _require_same_on_ranks(self, attributes: Sequence[object]) -> None:
        """A term has one set of attributes for all ranks."""
        for attribute in attributes:
            if isinstance(attribute, sympy.Expr) and attribute.free_symbols & set(self.coordinates):
                raise UnsupportedError(UNREPRESENTABLE, f"the attribute {attribute} depends on the rank")

    def mul(self, *values: View | Number) -> View:
        views = self.aligned(*values)
        return self._expanded(algebra.multiply_views(self.pool, *views), views)

    def combination(self, *terms: tuple[Number | Scalar, View | Number]) -> View:
        """Linear combination of ``(coefficient, value)`` pairs. A negation among several is ``1 - mask``."""
        views = self.aligned(*(value for _, value in terms))
        scaled = [self.scale(v, factor) for v, (factor, _) in zip(views, terms, strict=True)]
        if len(scaled) > 1:
            scaled = [part for view in scaled for part in self._without_negation(view)]
        return self._expanded(algebra.combine(self.pool, scaled), views)

    def _without_negation(self, view: View) -> list[View]:
        if view.term.operation is not indicator.NOT:
            return [view]
        (mask,) = algebra.open_view(view).operands
        return [self.pool.constant(view.coefficient, view.shape), mask.scaled(view.coefficient).scaled(-ONE)]

    def add(self, *values: View | Number) -> View:
        return self.combination(*((1, value) for value in values))

    def sub(self, left: View | Number, right: View | Number) -> View:
        return self.combination((1, left), (-1, right))

    def scale(self, view: View, factor: Number | Scalar) -> View:
        """Multiply by a number. Zero times infinity is none."""
        if factor == 0 and algebra.holds_infinity(view):
            raise UndefinedError(UNSUPPORTED, "a product with infinity")
        if isinstance(factor, sympy.Expr) and factor.free_symbols & set(self.coordinates):
            return self.mul(view, factor)
        try:
            return view.scaled(self.scalar(factor))
        except NonFiniteScalarError:
            return self.mul(view, factor)  # pyright: ignore[reportArgumentType]  # a number that is not finite, which `mul` takes

    def power(self, view: View, exponent: Number | Scalar) -> View:
        """``view ** exponent``; small whole powers are products, whole powers take the coefficient along."""
        e = self.scalar(exponent)
        if e == 0:
            return self.pool.constant(ONE, view.shape)
        if e == 1:
            return view
        if view.is_zero and isinstance(e, Fraction) and e < 0:
            raise UndefinedError(UNREPRESENTABLE, "division by zero")  # as by the sum of a row that is masked wholly
        moved = self._part_by_part(lambda part: self.power(part, exponent), view)
        if moved is not None:
            return moved
        dim = concatenated_dim(view)
        if dim is not None:
            return self.concatenate([self.power(piece, exponent) for piece in pieces_of(view, dim)], dim - self.lead)
        nested = self._power_of_power(view, e)
        if nested is not None:
            return nested
        if e in (2, 3):
            return self.mul(*[view] * int(e))
        if view.term is self.pool.unit and view.coefficient == 1:
            return view
        factors = exponential.product_factors(self.pool, view)
        if factors is not None and (len(factors) > 1 or factors[0].term.operation is exponential.EXPONENTIAL):
            return self.mul(*(self._power_of_positive(f, e) for f in factors))
        if getattr(e, "denominator", 0) == 1 and not view.is_zero:
            if view.coefficient == 1:
                return self._power_of_nonnegatives(view, e)
            power = self.power(view.unscaled(), e)
            factor = view.coefficient ** int(e)
            return power.scaled(factor if isinstance(factor, sympy.Expr) else as_scalar(factor))
        return self._power_of_nonnegatives(view, e)

    def _power_of_nonnegatives(self, view: View, exponent: Scalar) -> View:
        """A power of a product of values none of which is negative is the product of their powers."""
        if view.coefficient == 1 and view.term.operation is algebra.CONTRACT and not view.term.summed:
            factors = algebra.open_view(view).operands
            if len(factors) > 1 and all(is_nonnegative(factor) for factor in factors):
                return self.mul(*(self.power(factor, exponent) for factor in factors))
        return algebra.elementwise(self.pool, POWER, (exponent,), (view,))

    def _part_by_part(self, function: Callable[..., View], *views: View) -> View | None:
        """``function`` of each part of values that are assembled from parts, else None."""
        if self.pool.piecewise is None:
            return None
        return self.pool.piecewise.pointwise(self.pool, lambda _, *parts: function(*parts), views)

    def _power_of_power(self, view: View, exponent: Scalar) -> View | None:
        """``(t ** p) ** q`` is ``t ** (p q)`` where no element of ``t`` is negative; for q = -1 also where some are."""
        if view.term.operation is not POWER or view.is_zero or not isinstance(view.coefficient, Fraction):
            return None
        (inner,) = view.term.attributes
        (base,) = algebra.open_view(view).operands
        if not isinstance(inner, Fraction) or not isinstance(exponent, Fraction):
            return None
        if exponent.denominator != 1 and view.coefficient != 1:
            return None
        known = not algebra.has_infinity(base) if exponent == -1 else is_nonnegative(base)
        if not known:
            from verifycompile.rewrites.squares import is_sum_of_squares  # here, because few have powers of powers

            if not is_sum_of_squares(self.pool, base):
                return None
        factor = ONE
        for _ in range(abs(int(exponent)) if view.coefficient != 1 else 0):
            factor = multiply(factor, view.coefficient)
        factor = factor if exponent > 0 else divide(ONE, factor)
        return self.power(base, inner * exponent).scaled(factor)

    def _power_of_positive(self, factor: View, exponent: Scalar) -> View:
        if factor.term.operation is exponential.EXPONENTIAL:
            (argument,) = algebra.open_view(factor).operands
            return self.exp(argument.scaled(exponent))
        # Only one that is not known to be positive can be spelled otherwise: what is positive is a factor already.
        nested = self._power_of_power(factor, exponent)
        return self._power_of_nonnegatives(factor, exponent) if nested is None else nested

    def exp(self, view: View) -> View:
        """``e ** view``: a product of exponentials for a sum."""
        return exponential.exponential(self.pool, view, self.power)

    def log(self, view: View) -> View:
        """Natural logarithm: a sum of logarithms for a product of positive factors."""
        if view.is_zero:
            infinite = self._infinity(-math.inf)
            return View(infinite.coefficient, infinite.term, view.shape, ())
        return exponential.logarithm(self.pool, view)

    def divide(self, left: View | Number, right: View | Number) -> View:
        """True division."""
        if not isinstance(right, View) and not (isinstance(right, sympy.Expr) and right.free_symbols):
            if right == 0:
                raise UndefinedError(UNREPRESENTABLE, "division by zero")
            return self.scale(self.view(left), divide(ONE, self.scalar(right)))
        return self.mul(left, self.power(self.view(right), -1))

    # -- comparisons

    def equal(self, left: View | Number, right: View | Number) -> View:
        return self._compared(indicator.equal, known_equal, ("equal-to-less", ""), left, right)

    def less(self, left: View | Number, right: View | Number) -> View:
        if self._wraps_around():
            return self.pointwise(indicator.LESS, left, right)
        if self.view(left).is_zero and _is_never_below(self.view(right)):
            return self.negate(self.equal(left, right))
        known = functools.partial(known_order, strict=True)
        return self._compared(indicator.less, known, ("less-than-bound", "less-than-above"), left, right)

    def less_equal(self, left: View | Number, right: View | Number) -> View:
        if self._wraps_around():
            return self.pointwise(indicator.LESS_EQUAL, left, right)
        if self.view(right).is_zero and _is_never_below(self.view(left)):
            return self.equal(left, right)
        known = functools.partial(known_order, strict=False)
        return self._compared(indicator.less_equal, known, ("at-most-less", "at-most-bounded"), left, right)

    def _wraps_around(self) -> bool:
        """Whether differences of the call's operands may be other numbers than those of whole numbers."""
        return not _SHORT_INTEGERS.isdisjoint(self.call.dtypes.values())

    def _compared(
        self,
        comparison: Callable[[TermPool, View, View], View],
        known: Callable[[TermPool, View, View], bool | None],
        laws: tuple[str, str],
        left: View | Number,
        right: View | Number,
    ) -> View:
        views = self.aligned(left, right)
        if (counted := self._counted(comparison, *views)) is not None:
            return counted
        if (truth := known(self.pool, *views)) is not None:
            self.pool.lemma_trace.append((laws[truth], ""))
            return self._expanded(self.pool.constant(Fraction(int(truth)), views[0].shape), views)
        return self._expanded(comparison(self.pool, *views), views)

    def _counted(self, comparison: Callable[[TermPool, View, View], View], left: View, right: View) -> View | None:
        """``0 < count``, ``1 <= count`` and ``count == 0``: whether an element is one, or none. None for all else."""
        least = 1 if comparison is indicator.less_equal else 0
        number, count = (right, left) if right.term is self.pool.unit else (left, right)
        if self._wraps_around() or number.coefficient != least or not (number.is_zero or number.term is self.pool.unit):
            return None
        if (count is left and comparison is not indicator.equal) or not _is_count(count):
            return None
        from verifycompile.rewrites.operators.reduction import reduce_extreme  # here, because it imports this module

        opened = algebra.open_view(count)
        try:
            some = reduce_extreme(self.pool, algebra.multiply_views(self.pool, *opened.operands), opened.summed, "max")
        except relabel.UnalignedError:
            return None
        self.pool.lemma_trace.append(("positive-count", ""))
        return self.negate(some) if comparison is indicator.equal else some

    def negate(self, view: View) -> View:
        if not indicator.is_indicator(view):
            raise UnsupportedError(UNSUPPORTED, "logical negation of a value that is not known to be boolean")
        return indicator.negate(self.pool, view)

    def either(self, left: View, right: View) -> View:
        return self.negate(self.mul(self.negate(left), self.negate(right)))

    # -- facts

    def assume_index(self, index: View, size: Size, exception: int | None, source: str) -> None:
        """Note that every element of ``index`` is within a table of ``size`` rows, or ``exception`` if there is one.

        For operators that raise an error otherwise; the spec's are meant, for a rank may err where the spec does not.
        Nothing that is built meanwhile depends on it: see ``TermPool.learn``.
        """
        if self.mesh or not self.takes_facts or not isinstance(size, int):
            return
        if index.coefficient == 1 and _covers_term(index):
            fact = IndexFact(exception, size, source, constant_digits(index))
            known = self.pool.noted.get(index.term, ())
            if fact not in known:
                self.pool.noted[index.term] = (*known, fact)

    def spec_takes(self, index: View, size: Size, way: str) -> bool:
        """Whether the spec takes the same numbers for positions of as many rows: torch raises an error for others."""
        taken = index.coefficient, index.term, size, way
        if self.takes_facts and not self.mesh and _covers_term(index) and not constant_digits(index):
            self.pool.taken.add(taken)
        return taken in self.pool.taken

    # -- contraction and sums

    def contraction(self, text: str, *views: View) -> View:
        """Einsum over tensor dimensions, e.g. ``"m k, k n -> m n"``: labels that the output lacks are summed."""
        inputs, output = self._labels(text, views)
        used = {label for labels in inputs for label in labels}
        return algebra.contract(self.pool, views, inputs, output, frozenset(used - set(output)))

    def sum(self, view: View, dims: Sequence[int] | int | None, keepdim: bool = False) -> View:
        positions = sorted(self.dims(view, dims))
        dim = concatenated_dim(view)
        if dim is not None and dim in positions:
            parts = [algebra.sum_over(self.pool, piece, positions) for piece in pieces_of(view, dim)]
            result = algebra.combine(self.pool, parts)
        else:
            result = algebra.sum_over(self.pool, view, positions)
        if keepdim:
            for position in positions:
                result = relabel.insert_dim(result, position)
        return result

    def count(self, view: View, dims: Sequence[int] | int | None) -> Size:
        """Number of elements that a reduction over ``dims`` reads."""
        return product(view.shape[d] for d in self.dims(view, dims))

    def mean(self, view: View, dims: Sequence[int] | int | None, keepdim: bool = False) -> View:
        return self.divide(self.sum(view, dims, keepdim), self.count(view, dims))

    # -- operations with a core

    def core(
        self,
        operation: Operation,
        attributes: tuple[object, ...],
        text: str,
        *views: View,
        cores: str = "",
        fresh: Mapping[str, Size] | None = None,
        summed: str = "",
    ) -> View:
        """Apply an operation that reads the dimensions in ``cores`` wholly and in order.

        ``text``: labels as in ``contraction``; ``fresh``: output labels that no operand has, with sizes.
        """
        self._require_same_on_ranks((*attributes, *(fresh or {}).values()))
        inputs, output = self._labels(text, views)
        signature = Signature(
            inputs,
            output,
            frozenset(summed.split()),
            tuple((label,) for label in cores.split()),
            {label: size for label, size in (fresh or {}).items()},  # noqa: C416 - the key type widens to Label
        )
        return apply(self.pool, operation, attributes, views, signature)

    def along(
        self, operation: Operation, attributes: tuple[object, ...], view: View, dim: int, length: Size | None = None
    ) -> View:
        """Apply an operation that reads one dimension wholly; its result has ``length`` there (default: as before)."""
        self._require_same_on_ranks((*attributes, length))
        position = self.dim(view, dim)
        labels: tuple[Label, ...] = tuple(range(view.rank))
        output = tuple("fresh" if d == position else d for d in labels)
        size = view.shape[position] if length is None else length
        signature = Signature((labels,), output, frozenset(), ((position,),), {"fresh": size})
        return apply(self.pool, operation, attributes, (view,), signature)

    def _labels(self, text: str, views: Sequence[View]) -> tuple[tuple[tuple[Label, ...], ...], tuple[Label, ...]]:
        left, right = text.split("->")
        mesh: tuple[Label, ...] = tuple(("mesh", axis) for axis in range(self.lead))
        stars: dict[str, int] = {}
        inputs: list[tuple[Label, ...]] = []
        for words, view in zip(left.split(","), views, strict=True):
            names = words.split()
            inputs.append(mesh + _expand_star(names, self.rank(view), stars))
        names = right.split()
        count = sum(stars.get(n, 1) if n.startswith("*") else 1 for n in names)
        return tuple(inputs), mesh + _expand_star(names, count, stars)

    # -- layout

    def reshape(self, view: View, shape: Sequence[Size]) -> View:
        """Row-major reshape of the tensor dimensions."""
        target = tuple(shape)
        try:
            return relabel.reshape(view, target, self.lead)
        except relabel.UnalignedError:
            labels: tuple[Label, ...] = tuple(range(view.rank))
            fresh: dict[Label, Size] = {("fresh", i): size for i, size in enumerate(target)}
            mesh, tensor = labels[: self.lead], labels[self.lead :]
            signature = Signature((labels,), (*mesh, *fresh), frozenset(), (tensor,), fresh)
            return apply(self.pool, RESHAPE, (), (view,), signature)

    def permute(self, view: View, dims: Sequence[int]) -> View:
        return relabel.permute(view, [*range(self.lead), *(self.dim(view, d) for d in dims)])

    def transpose(self, view: View, first: int, second: int) -> View:
        order = list(range(view.rank))
        a, b = self.dim(view, first), self.dim(view, second)
        order[a : a + 1], order[b : b + 1] = order[b : b + 1], order[a : a + 1]  # a scalar has none to exchange
        return relabel.permute(view, order)

    def expand(self, view: View, shape: Sequence[Size]) -> View:
        """Broadcast to ``shape`` (-1 keeps a size)."""
        missing = len(shape) - self.rank(view)
        kept = [s if s != -1 else view.shape[self.lead + d - missing] for d, s in enumerate(shape)]
        return relabel.broadcast_to(view, tuple(kept), self.lead)

    def unsqueeze(self, view: View, dim: int) -> View:
        return relabel.insert_dim(view, self.dim(view, dim, extra=1))

    def squeeze(self, view: View, dims: Sequence[int] | int | None) -> View:
        result = view
        for position in sorted(self.dims(view, dims), reverse=True):
            if result.shape[position] == 1:
                result = relabel.remove_dim(result, position)
        return result

    def narrow(self, view: View, dim: int, start: Number, length: Size) -> View:
        """``length`` elements from ``start`` along ``dim``; ``start`` may be linear in the rank's coordinates."""
        position = self.dim(view, dim)
        parts, base = self.affine_parts(start)
        if parts:
            from verifycompile.rewrites.parts.rank_offsets import (
                narrow_by_coordinate,  # here, because few programs slice so
            )

            return narrow_by_coordinate(self, view, position, parts, base, length)  # pyright: ignore[reportArgumentType]  # this class
        key = (view, position, base, length)
        if key not in self._narrowed:
            self._narrowed[key] = self._narrow(view, position, base, length)
        return self._narrowed[key]

    def _narrow(self, view: View, position: int, base: Size, length: Size) -> View:
        size, dim = view.shape[position], position - self.lead
        # From a negative place torch counts from the end, and what is too long it cuts off.
        numbers = (base, length, size - base - length)
        if not all(n >= 0 if isinstance(n, int) else sympy.expand(n).is_nonnegative for n in numbers):
            raise UnsupportedError(UNREPRESENTABLE, f"a slice [{base}:{base}+{length}] of a dimension of size {size}")
        if self.pool.piecewise is not None and isinstance(base, int) and isinstance(length, int) and length:
            if self.pool.piecewise.holds_parts(view, position):
                return self.pool.piecewise.narrowed(self.pool, view, position, base, length)
        part = self.part(view, position, base, length)
        if part is not None:
            return part
        other = concatenated_dim(view)
        across = other is not None and other != position and length != size
        if across and self._is_written_in_parts(view.term):
            return self._narrow_pieces(view, other or 0, dim, base, length)
        computed = self._narrow_operands(view, position, base, length, elementwise=True)
        if computed is not None:
            return computed
        try:
            found = opened_stack(self._with_decided_masks(relabel.narrow(view, position, base, length)))
            return found if self.pool.piecewise is None else self.pool.piecewise.chosen(self.pool, found)
        except relabel.UnalignedError:
            if across:
                return self._narrow_pieces(view, other or 0, dim, base, length)
            if self.pool.piecewise is not None and isinstance(base, int) and isinstance(length, int):
                return self.pool.piecewise.narrowed(self.pool, view, position, base, length)
            computed = self._narrow_operands(view, position, base, length, elementwise=False)
            if computed is None and view.term.operation is algebra.CONTRACT and isinstance(length, int):
                from verifycompile.rewrites.parts.bounded_sums import (
                    narrowed_sum,  # here, because few sums are sliced so
                )

                computed = narrowed_sum(self.pool, view, position, base, length)
            return computed or self.along(SLICE, (base, 1), view, dim, length)

    def _with_decided_masks(self, view: View) -> View:
        """A sum under an inequality at a chosen position, as the last of running sums: the position may decide it."""
        masks = [v for v in view.term.operands if v.term.operation is AT_MOST]
        chosen = constant_digits(view)
        if not masks or not chosen or view.term.operation is not algebra.CONTRACT or not view.term.summed:
            return view
        opened = algebra.open_view(view.unscaled())
        summed = algebra.contract_aligned(self.pool, list(opened.operands), opened.shape, view.rank)
        return summed.scaled(view.coefficient)

    def _narrow_operands(
        self, view: View, position: int, start: Size, length: Size, *, elementwise: bool
    ) -> View | None:
        """The slice of a computed value as computed from parts of concatenations; None where there are none."""
        if length == view.shape[position]:
            return None
        return narrow_operands(
            self.pool,
            view,
            position,
            lambda operand: self.part(operand, position, start, length),
            lambda operand: self.narrow(operand, position - self.lead, start, length),
            elementwise=elementwise,
        )

    def _narrow_pieces(self, view: View, concatenated: int, dim: int, start: Number, length: Size) -> View:
        """A slice of a concatenation across another dimension is the concatenation of slices."""
        pieces = [self.narrow(piece, dim, start, length) for piece in pieces_of(view, concatenated)]
        return self.concatenate(pieces, concatenated - self.lead)

    def _is_written_in_parts(self, term: Term) -> bool:
        """Whether a concatenation holds what nothing is known of, as memory that a program fills part by part.

        A slice is then taken of the parts, so that it does not hold what it does not read.
        """
        known = self._written_in_parts.get(term)
        if known is None:
            known = term.operation is UNKNOWN or (
                term.operation in (SLICE, CONCATENATE, STACK)
                and any(self._is_written_in_parts(v.term) for v in term.operands)
            )
            self._written_in_parts[term] = known
        return known

    def part(self, view: View, position: int, start: Size, length: Size) -> View | None:
        """The slice as made of the pieces of a concatenation, or of the value inside of a padding; None for others."""
        whole = length == view.shape[position]
        if not isinstance(start, int) or not isinstance(length, int) or length == 0 or whole:
            return None
        dim = position - self.lead
        if view.term.operation is PAD and whole_dim_of_fresh(view) == position:
            (inner,) = pieces_of(view, position)
            first, step = view.term.attributes
            size = inner.shape[position]
            if step != 1 or not isinstance(first, int) or not isinstance(size, int):
                return None
            low, high = max(start, first), min(start + length, first + size)
            if low >= high:
                return self.pool.zero((*view.shape[:position], length, *view.shape[position + 1 :]))
            kept = self.narrow(inner, dim, low - first, high - low)
            return self.pad(kept, dim, low - start, length)
        if concatenated_dim(view) != position:
            return None
        taken: list[View] = []
        offset = 0
        for piece in pieces_of(view, position):
            size = piece.shape[position]
            if not isinstance(size, int):
                return None
            first, last = max(start, offset), min(start + length, offset + size)
            if first < last:
                taken.append(self.narrow(piece, dim, first - offset, last - first))
            offset += size
        return taken[0] if len(taken) == 1 else self.concatenate(taken, dim)

    def depends_on_rank(self, value: object) -> bool:
        """Whether a number is an expression of the rank's coordinates."""
        return isinstance(value, sympy.Expr) and bool(value.free_symbols & set(self.coordinates))

    def select(self, view: View, dim: int, index: Number) -> View:
        return relabel.remove_dim(self.narrow(view, dim, index, 1), self.dim(view, dim))

    def pad(self, view: View, dim: int, start: Size, total: Size) -> View:
        """Zeros of length ``total`` along ``dim`` with ``view`` placed at ``start``."""
        position = self.dim(view, dim)
        if view.shape[position] == total:
            return view
        if self.pool.piecewise is not None and isinstance(start, int) and isinstance(total, int):
            after = total - start - view.shape[position]
            ends = [self.pool.zero((*view.shape[:position], n, *view.shape[position + 1 :])) for n in (start, after)]
            return self.pool.piecewise.joined(self.pool, [ends[0], view, ends[1]], position)
        bounded = self._bounded(view, position, start, total)
        return self.along(PAD, (start, 1), view, dim, total) if bounded is None else bounded

    def _bounded(self, view: View, position: int, start: Size, total: Size) -> View | None:
        """A sum under comparisons with places, with zeros around it; None for any other value."""
        if view.term.operation is not algebra.CONTRACT:
            return None
        from verifycompile.rewrites.parts.bounded_sums import padded_sum  # here, because few sums are padded

        return padded_sum(self.pool, view, position, start, total)

    def concatenate(self, views: Sequence[View], dim: int) -> View:
        """``torch.cat``. Pieces of one tensor in their order are concatenated without arithmetic."""
        position = self.dim(views[0], dim)
        sizes = [view.shape[position] for view in views]
        given = [k for k, view in enumerate(views) if not view.is_zero]
        equal = len(set(sizes)) == 1
        if len(given) == 1 and not equal and self.pool.piecewise is None:
            start, total = normalize_size(sum(sizes[: given[0]])), normalize_size(sum(sizes))
            if (bounded := self._bounded(views[given[0]], position, start, total)) is not None:
                return bounded
        joined = join_pieces(views, position)
        if joined is None and len(views) > 1 and len({(view.shape, view.coefficient) for view in views}) == 1:
            from verifycompile.rewrites.parts.similar import (
                join_similar,  # here, because few programs join similar values
            )

            joined = join_similar(self.pool, views, position)
        if joined is None and window_at(views[0], position) is not None:
            from verifycompile.rewrites.parts.ranges import join_windows  # here, because few programs join windows

            joined = join_windows(self.pool, views, position)
        if joined is not None:
            return joined
        if self.pool.piecewise is not None:
            merged = self.pool.piecewise.joined(self.pool, views, position)
            in_parts = any(view.term is self.pool.unit or view.term.operation is CONCATENATE for view in views)
            # Pieces of one value in another order: what is done to them is done to one piece after the other.
            in_parts = in_parts or (len({view.term for view in views}) == 1 and sizes[0] != 1)
            # Equal pieces that stay apart are told apart by a digit.
            apart = merged.term.operation is CONCATENATE and [v.shape[position] for v in pieces_of(merged, position)]
            if in_parts or not equal or apart != sizes:
                return merged
        if equal:
            with contextlib.suppress(relabel.UnalignedError):
                return self._stacked(views, position)
        labels = [[("piece", k) if d == position else d for d in range(v.rank)] for k, v in enumerate(views)]
        output: tuple[Label, ...] = tuple("fresh" if d == position else d for d in range(views[0].rank))
        cores = tuple((("piece", k),) for k in range(len(views)))
        fresh: dict[Label, Size] = {"fresh": normalize_size(sum(sizes))}
        signature = Signature(tuple(tuple(row) for row in labels), output, frozenset(), cores, fresh)
        return apply(self.pool, CONCATENATE, (), views, signature)

    def _stacked(self, views: Sequence[View], position: int) -> View:
        """Equal pieces one after the other along ``position``."""
        labels: tuple[Label, ...] = tuple(range(views[0].rank))
        output = (*labels[:position], "piece", *labels[position:])
        signature = Signature(tuple(labels for _ in views), output, fresh={"piece": len(views)})
        stacked = apply(self.pool, STACK, (), views, signature)
        shape = [max(sizes, key=lambda size: size != 1) for sizes in zip(*(view.shape for view in views), strict=True)]
        shape[position] = product((len(views), shape[position]))
        return self.reshape(stacked, shape[self.lead :])


def _is_never_below(view: View) -> bool:
    return (view.term.operation is POWER or view.term.operation.nonnegative) and is_nonnegative(view)


def _is_count(view: View) -> bool:
    """Whether the value is a sum of masks."""
    term = view.term
    counts = term.operation is algebra.CONTRACT and term.summed > 0 and view.coefficient == 1
    return counts and all(map(indicator.is_indicator, term.operands))


def _covers_term(view: View) -> bool:
    """Whether a view has every element of its term with these constant digits: all other digits are its own."""
    ends: dict[int, list[tuple[Size, Size]]] = {}
    for axis in view.axes:
        for dim, divisor, size in axis:
            if not isinstance(divisor, int) or not isinstance(size, int):
                return False
            if dim != CONSTANT:
                ends.setdefault(dim, []).append((divisor, divisor * size))
    for spans in ends.values():
        spans.sort()
        if any(end > start for (_, end), (start, _) in itertools.pairwise(spans)):
            return False
    return True


def _expand_star(names: Sequence[str], rank: int, stars: dict[str, int]) -> tuple[Label, ...]:
    labels: list[Label] = []
    explicit = sum(1 for n in names if not n.startswith("*"))
    for name in names:
        if not name.startswith("*"):
            labels.append(name)
            continue
        count = rank - explicit
        stars[name] = max(stars.get(name, 0), count)
        labels.extend((name, k) for k in range(-count, 0))
    if len(labels) != rank:
        raise UnsupportedError(UNREPRESENTABLE, f"a tensor of {rank} dimensions where {len(labels)} are expected")
    return tuple(labels)


def join_pieces(views: Sequence[View], position: int) -> View | None:
    """The tensor whose equal pieces along ``position`` are ``views``, or None where they are no such pieces."""
    first, count = views[0], len(views)
    if count < 2 or any(v.term is not first.term or v.shape != first.shape for v in views):
        return None
    if any(v.coefficient != first.coefficient for v in views):
        return None
    if all(v.axes == first.axes for v in views):  # one piece, repeated
        size = first.shape[position]
        return relabel.replace_dim(first, position, [(position, 1, size)], product((size, count)))
    place = _differing_digit(first, views[1])
    if place is None:
        return None
    axis_index, digit_index = place
    for k, view in enumerate(views):
        expected = _with_digit(first, axis_index, digit_index, (CONSTANT, k, count))
        if view.axes != expected:
            return None
    length = first.shape[position]
    axes = _with_digit(first, axis_index, digit_index, (position, length, count))
    shape = (*first.shape[:position], product((length, count)), *first.shape[position + 1 :])
    merged = tuple(relabel.merge_digits(axis) for axis in axes)
    return View(first.coefficient, first.term, shape, merged)


def _differing_digit(left: View, right: View) -> tuple[int, int] | None:
    for a, (first, second) in enumerate(zip(left.axes, right.axes, strict=True)):
        if first == second:
            continue
        if len(first) != len(second):
            return None
        for d, (x, y) in enumerate(zip(first, second, strict=True)):
            if x != y:
                return (a, d) if x[0] == y[0] == CONSTANT and x[2] == y[2] else None
    return None


def _with_digit(view: View, axis: int, place: int, digit: Digit) -> tuple[tuple[Digit, ...], ...]:
    digits = list(view.axes[axis])
    digits[place] = digit
    return (*view.axes[:axis], tuple(digits), *view.axes[axis + 1 :])
