"""What an operator declaration builds with: the algebra of the IR, over stacked tensors.

A stacked tensor has the mesh axes as its leading dimensions. Declarations speak of tensor dimensions only;
the mesh dimensions ride along as batch indices that all operands share.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import sympy
import torch

from verifycompile.ir import algebra, exponential, indicator, relabel
from verifycompile.ir.pieces import concatenated_dim, pieces_of
from verifycompile.ir.scalar import ONE, NonFiniteScalarError, Scalar, as_scalar, divide, multiply
from verifycompile.ir.sign import is_nonnegative, known_equal, known_order
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import CONSTANT, INTEGER_LEAF, IndexFact, Operation, TermPool, View, constant_digits
from verifycompile.rewrites.building.concatenation import Concatenation
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UndefinedError, UnsupportedError

_SHORT_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.uint64})


class Builder(Concatenation):
    """Element-wise values of broadcast operands, comparisons, sums, and what the spec is known to take."""

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

    def iota(self, size: Size, start: Number = 0, step: Number = 1) -> View:
        """``start + step * arange(size)``."""
        counter = algebra.iota(self.pool, size)
        axes = tuple(tuple((self.lead, d[1], d[2]) for d in axis) for axis in counter.axes)
        view = View(counter.coefficient, counter.term, (*self.mesh, size), axes)
        return self.combination((step, view), (1, self.mul(self.number(start), 1)))

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
        return algebra.elementwise(self.pool, exponential.POWER, (exponent,), (view,))

    def _part_by_part(self, function: Callable[..., View], *views: View) -> View | None:
        """``function`` of each part of values that are assembled from parts, else None."""
        if self.pool.piecewise is None:
            return None
        return self.pool.piecewise.pointwise(self.pool, lambda _, *parts: function(*parts), views)

    def _power_of_power(self, view: View, exponent: Scalar) -> View | None:
        """``(t ** p) ** q`` is ``t ** (p q)`` where no element of ``t`` is negative; for q = -1 also where some are."""
        if view.term.operation is not exponential.POWER or view.is_zero or not isinstance(view.coefficient, Fraction):
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

    def assume_index(self, index: View, size: Size, exception: int | None, source: str) -> None:
        """Note that every element of ``index`` is within a table of ``size`` rows, or ``exception`` if there is one.

        For operators that raise an error otherwise; the spec's are meant, for a rank may err where the spec does not.
        Ranks that take an input as it is for positions of as many rows as the spec err where it counts from the end.
        Nothing that is built meanwhile depends on it: see ``TermPool.learn``.
        """
        if not isinstance(size, int) or index.coefficient != 1 or not _covers_term(index):
            return
        is_of_spec, is_input = self.takes_facts and not self.mesh, index.term.operation is INTEGER_LEAF
        if is_of_spec or (is_input and self.spec_takes(index, size, "from both ends")):
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


def _is_never_below(view: View) -> bool:
    return (view.term.operation is exponential.POWER or view.term.operation.nonnegative) and is_nonnegative(view)


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
