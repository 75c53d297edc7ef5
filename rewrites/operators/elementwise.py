"""Element-wise arithmetic, comparisons, casts and the common unary functions."""

from __future__ import annotations

import itertools
from typing import Any

import sympy
import torch

from verifycompile.ir.algebra import COMBINE, CONTRACT, INFINITY, holds_infinity
from verifycompile.ir.exponential import WHERE
from verifycompile.ir.indicator import LESS, NOT, is_indicator
from verifycompile.ir.inequality import AT_MOST
from verifycompile.ir.pieces import CONCATENATE, STACK
from verifycompile.ir.term import INTEGER_LEAF, LEAF, RESHAPE, Operation, Term, View
from verifycompile.ir.term_property import TermProperty
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operations import COMPLEX, FLOOR, SLICE, TRUNCATED
from verifycompile.rewrites.registry import (
    UNREPRESENTABLE,
    UNSUPPORTED,
    Handler,
    UndefinedError,
    UnsupportedError,
    operator,
)

aten = torch.ops.aten

REAL_DTYPES = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})
"""Between these a cast is the identity on the reals; the report lists every one."""
INTEGER_DTYPES = frozenset({torch.int64, torch.int32})
SHORT_DTYPES = frozenset({torch.uint8, torch.int8, torch.uint16, torch.int16})
"""Integers that every one of the others holds. Arithmetic on them wraps around."""

TRUNCATE = Operation("truncate")


def require_real(b: Builder, *arguments: str) -> None:
    """Refuse a call unless the named tensors, and its single result, hold floating-point numbers.

    For operators that divide, or whose rule for complex numbers is another one: in integers torch truncates or
    wraps around where the declaration means real numbers.
    """
    dtypes = {name: b.call.dtypes[name] for name in arguments if name in b.call.dtypes}
    for name, dtype in (*dtypes.items(), ("result", b.call.dtype)):
        if dtype is not None and dtype not in REAL_DTYPES:
            raise UnsupportedError(UNSUPPORTED, f"an operator on real numbers whose `{name}` is of {dtype}")


def require_exact(b: Builder, **numbers: Number) -> None:
    """Refuse numbers that the dtype of the result would truncate."""
    dtype = b.call.dtype
    if dtype is None or dtype.is_floating_point or dtype.is_complex:
        return
    for name, value in numbers.items():
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if not (whole or getattr(value, "is_integer", False) is True) or dtype is torch.bool:
            raise UnsupportedError(UNSUPPORTED, f"`{name}={value}` in arithmetic on {dtype}")


def require_same_on_ranks(b: Builder, **numbers: object) -> None:
    """Refuse attributes that are computed from a rank's coordinate: a term has one attribute for all ranks."""
    for name, value in numbers.items():
        if isinstance(value, sympy.Expr) and value.free_symbols & set(b.coordinates):
            raise UnsupportedError(UNREPRESENTABLE, f"`{name}={value}` depends on the rank")


def require_one_shape(b: Builder, *views: View) -> None:
    """Refuse operands of several shapes where torch looks at one alone, and reads beyond the others or repeats them."""
    if len({b.shape(view) for view in views}) > 1:
        raise UnsupportedError(UNSUPPORTED, "operands of several shapes where torch looks at the shape of one")


@operator(aten.add.Tensor, aten.add.Scalar)
def add(b: Builder, self: View, other: View | Number, alpha: Number) -> View:
    if b.call.dtype is torch.bool:
        # torch's sum of two booleans is "or".
        if alpha != 1:
            raise UnsupportedError(UNSUPPORTED, f"a sum of booleans with alpha={alpha}")
        return b.either(*(boolean(v) for v in b.aligned(self, other)))
    return b.combination((1, self), (alpha, other))


@operator(aten.sub.Tensor, aten.sub.Scalar)
def sub(b: Builder, self: View, other: View | Number, alpha: Number) -> View:
    return b.combination((1, self), (-alpha, other))


@operator(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(b: Builder, self: View, other: View | Number, alpha: Number) -> View:
    return b.combination((1, other), (-alpha, self))


@operator(aten.mul.Tensor, aten.mul.Scalar)
def mul(b: Builder, self: View, other: View | Number | complex) -> View:
    if isinstance(other, complex):
        other = b.pointwise(COMPLEX, other.real, other.imag)
    for one, factor in itertools.permutations((self, b.view(other))):
        # Zero times infinity is no number in torch; a mask that selects an infinity is a product here.
        is_mask = is_indicator(factor) and factor.term is not b.pool.unit
        if _is_infinite(one) or (is_mask and holds_infinity(one)):
            raise UndefinedError(UNSUPPORTED, "a product with infinity")
    return b.mul(self, other) if isinstance(other, View) else b.scale(self, other)


def _is_infinite(view: View) -> bool:
    """Whether the value is infinity, or infinity where a mask is one."""
    term = view.term
    return term.operation is INFINITY or (
        term.operation is CONTRACT and any(v.term.operation is INFINITY for v in term.operands)
    )


@operator(aten.div.Tensor, aten.div.Scalar)
def div(b: Builder, self: View, other: View | Number) -> View:
    return b.divide(self, other)


@operator(aten.neg.default)
def neg(b: Builder, self: View) -> View:
    return b.scale(self, -1)


@operator(aten.pow.Tensor_Scalar)
def pow_scalar(b: Builder, self: View, exponent: Number) -> View:
    require_same_on_ranks(b, exponent=exponent)
    return b.power(self, exponent)


def _power(exponent: float) -> Handler:
    def handler(b: Builder, self: View) -> View:
        return b.power(self, exponent)

    return handler


for _name, _exponent in {"square": 2, "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1}.items():
    operator(getattr(aten, _name).default)(_power(_exponent))


_BOUNDED = frozenset({"acos", "asin", "atan", "cos", "erf", "erfc", "sigmoid", "sign", "sin", "tanh"})

FUNCTIONS = {
    name: Operation(name, nonnegative=name == "abs", finite=name in _BOUNDED)
    for name in (
        "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "lgamma",
        "log1p", "round", "sigmoid", "sign", "sin", "sinh", "tan", "tanh",
    )
} | {"floor": FLOOR, "trunc": TRUNCATED}  # fmt: skip
"""Functions of one number without parameters, taken as they are."""


def _function(operation: Operation) -> Handler:
    def handler(b: Builder, self: View) -> View:
        return b.pointwise(operation, self)

    return handler


for _name, _operation in FUNCTIONS.items():
    if _name == "sigmoid":
        continue  # see sigmoids.py
    operator(getattr(aten, _name).default)(_function(_operation))


# ------------------------------------------------------------------------------------------------ comparisons


@operator(aten.eq.Tensor, aten.eq.Scalar)
def eq(b: Builder, self: View, other: View | Number) -> View:
    return _equal(b, self, other)


@operator(aten.ne.Tensor, aten.ne.Scalar)
def ne(b: Builder, self: View, other: View | Number) -> View:
    return b.negate(_equal(b, self, other))


def _equal(b: Builder, left: View, right: View | Number) -> View:
    from verifycompile.rewrites.operators.counted import equal_numbers  # here, because few programs compare numbers

    return equal_numbers(b, *b.aligned(left, right))


@operator(aten.lt.Tensor, aten.lt.Scalar)
def lt(b: Builder, self: View, other: View | Number) -> View:
    return b.less(self, other)


@operator(aten.le.Tensor, aten.le.Scalar)
def le(b: Builder, self: View, other: View | Number) -> View:
    return b.less_equal(self, other)


@operator(aten.gt.Tensor, aten.gt.Scalar)
def gt(b: Builder, self: View, other: View | Number) -> View:
    return b.less(other, self)


@operator(aten.ge.Tensor, aten.ge.Scalar)
def ge(b: Builder, self: View, other: View | Number) -> View:
    return b.less_equal(other, self)


@operator(aten.logical_not.default)
def logical_not(b: Builder, self: View) -> View:
    return b.negate(truth(b, self))


@operator(aten.logical_and.default)
def logical_and(b: Builder, self: View, other: View) -> View:
    return b.mul(truth(b, self), truth(b, other))


@operator(aten.logical_or.default)
def logical_or(b: Builder, self: View, other: View) -> View:
    return b.either(truth(b, self), truth(b, other))


def truth(b: Builder, view: View) -> View:
    return view if is_indicator(view) else b.negate(b.equal(view, 0))


def boolean(view: View) -> View:
    if not is_indicator(view):
        raise UnsupportedError(UNSUPPORTED, "a logical operator on a value that is not known to be boolean")
    return view


# ------------------------------------------------------------------------------------------------ selection


def choose(b: Builder, condition: View, then: View | Number, otherwise: View | Number) -> View:
    """``where``. With zero on one side, or two numbers, it is a product with an indicator: sums pass through."""
    left, right = b.view(then), b.view(otherwise)
    if not is_indicator(condition):
        raise UnsupportedError(UNSUPPORTED, "`where` on a condition that is not known to be boolean")
    if b.call.dtype is torch.bool:
        return b.either(b.mul(condition, boolean(left)), b.mul(b.negate(condition), boolean(right)))
    if (right.is_zero and not condition.is_zero) or (condition.term is b.pool.unit and condition.coefficient == 1):
        return _spread(b, b.mul(condition, left), right)
    if left.is_zero or condition.is_zero:
        return _spread(b, b.mul(b.negate(condition), right), left)
    operation, numbers = condition.term.operation, left.term is b.pool.unit is right.term
    turned = operation is LESS or (operation is AT_MOST and condition.term.attributes < (0,))
    if operation is NOT or (turned and not numbers):
        return choose(b, b.negate(condition), right, left)
    if numbers:
        return b.add(b.mul(condition, b.sub(left, right)), right)
    if left.coefficient != 1 or left.term is right.term or WHERE in (left.term.operation, right.term.operation):
        from verifycompile.rewrites.operators.choices import choice_of_alike  # here, because few programs choose so

        return choice_of_alike(b, condition, left, right)
    return b.pointwise(WHERE, condition, left, right)


def _spread(b: Builder, result: View, other: View) -> View:
    """Give ``result`` the shape that broadcasting with ``other`` has."""
    wide, narrow = b.aligned(result, other)
    if all(size in (1, whole) for whole, size in zip(wide.shape, narrow.shape, strict=True)):
        return wide  # as it is: a sum would take a negated mask apart
    return b.add(result, b.pool.zero(other.shape))


@operator(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(b: Builder, condition: View, self: View | Number, other: View | Number) -> View:
    return choose(b, condition, self, other)


# ------------------------------------------------------------------------------------------------ casts


def is_whole_sum(view: View) -> bool:
    """Whether a value is a whole number because it is a sum of products of whole numbers, such as a count."""
    scale = view.coefficient
    return not isinstance(scale, sympy.Expr) and scale.denominator == 1 and _WHOLE_SUM(view.term)


def _is_whole_sum(term: Term) -> bool:
    if term.operation in (COMBINE, CONTRACT):
        return all(is_whole_sum(operand) for operand in term.operands)
    return term.operation.whole or term.operation.indicator


_WHOLE_SUM = TermProperty(lambda term: term.operation in (COMBINE, CONTRACT), _is_whole_sum)


def cast(b: Builder, view: View, source: torch.dtype, target: torch.dtype | None) -> View:
    """Conversion between dtypes. What loses more than rounding is no identity, and is declared or refused."""
    if target is None or target == source:
        return view
    if target in REAL_DTYPES and (source in REAL_DTYPES or source in INTEGER_DTYPES or source is torch.bool):
        return view
    if target.is_complex and (source.is_complex or source in REAL_DTYPES or source in INTEGER_DTYPES):
        return view
    if target in INTEGER_DTYPES:
        if source in INTEGER_DTYPES or source is torch.bool:
            return view
        if source in REAL_DTYPES:
            if source.itemsize == 2:  # which has not all whole numbers that indices and counts are
                return b.pointwise(TRUNCATE, view)
            if is_whole_sum(view):
                return view
            from verifycompile.rewrites.operators.quotients import truncated_share  # here: few programs truncate

            share = truncated_share(b, view)
            return b.pointwise(TRUNCATE, view) if share is None else share
    if target is torch.bool:
        return view if is_indicator(view) else b.negate(b.equal(view, 0))
    if source in SHORT_DTYPES and (target in REAL_DTYPES or target in INTEGER_DTYPES) and is_stored(view):
        return view
    raise UnsupportedError(UNSUPPORTED, f"a cast from {source} to {target}")


def is_stored(view: View) -> bool:
    """Whether every element is one of an input, as those of a quantised weight: not computed, so never wrapped."""
    return view.coefficient == 1 and _STORED(view.term)


def _is_stored_term(term: Term) -> bool:
    return term.operation in (LEAF, INTEGER_LEAF) or (_copies_all(term) and all(map(is_stored, term.operands)))


def _copies_all(term: Term) -> bool:
    return term.operation in (CONCATENATE, STACK, SLICE, RESHAPE)


_STORED = TermProperty(_copies_all, _is_stored_term)


@operator(aten._to_copy.default)
def to_copy(b: Builder, self: View | Number, dtype: Any) -> View:
    if not isinstance(self, View):  # torch takes a number for a tensor without dimensions
        require_exact(b, self=self)
        return b.view(self)
    return cast(b, self, b.dtype_of("self"), dtype)


@operator(torch.ops.prims.convert_element_type.default)
def convert_element_type(b: Builder, a: View, dtype: Any) -> View:
    return cast(b, a, b.dtype_of("a"), dtype)
