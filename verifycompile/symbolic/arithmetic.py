"""Arithmetic, comparisons and choices on tensors of expressions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import torch

from verifycompile.symbolic.expressions import ONE, ZERO, Expressions, rational
from verifycompile.symbolic.tensor import SymbolicTensor, dtype_of, elementwise, tensor_of
from verifycompile.witness.error import EvaluationError

Handler = Callable[..., Any]


def _add(pool: Expressions, left: Any, right: Any, alpha: float = 1, *, sign: int = 1) -> SymbolicTensor:
    factor = rational(alpha) * sign

    def added(a: int, b: int) -> int:
        return pool.add(a, b) if factor == 1 else pool.combination(((a, Fraction(1)), (b, factor)))

    return elementwise(pool, added, (tensor_of(left), tensor_of(right)), dtype_of(left, right))


def _binary(method: str) -> Handler:
    def handler(pool: Expressions, left: Any, right: Any) -> SymbolicTensor:
        return elementwise(pool, getattr(pool, method), (tensor_of(left), tensor_of(right)), dtype_of(left, right))

    return handler


def _divide(pool: Expressions, left: Any, right: Any, rounding_mode: str | None = None) -> SymbolicTensor:
    if rounding_mode is not None:
        raise EvaluationError("a rounded quotient has no meaning element by element")
    return elementwise(pool, pool.divide, (tensor_of(left), tensor_of(right)), dtype_of(left, right))


def _power(pool: Expressions, base: Any, exponent: Any) -> SymbolicTensor:
    if isinstance(exponent, torch.Tensor) and (isinstance(exponent, SymbolicTensor) or exponent.numel() != 1):
        raise EvaluationError("a power whose exponent is a tensor")
    value = rational(float(exponent))
    return elementwise(pool, lambda b: pool.power(b, value), (tensor_of(base),), dtype_of(base))


def _unary(function: Callable[[Expressions, int], int]) -> Handler:
    def handler(pool: Expressions, value: torch.Tensor) -> SymbolicTensor:
        return elementwise(pool, functools.partial(function, pool), (value,), value.dtype)

    return handler


def _cast(pool: Expressions, value: SymbolicTensor, *dtypes: Any, **_: Any) -> SymbolicTensor:
    wanted = next((dtype for dtype in dtypes if isinstance(dtype, torch.dtype)), value.dtype)
    if not wanted.is_floating_point and value.dtype.is_floating_point:
        raise EvaluationError(f"a cast of real numbers to {wanted}")
    return SymbolicTensor(pool, value.numbers, wanted)


def _to_copy(pool: Expressions, value: SymbolicTensor, **kwargs: Any) -> SymbolicTensor:
    return _cast(pool, value, kwargs.get("dtype"))


def _greater(pool: Expressions, left: int, right: int) -> int:
    if left == right:
        return ZERO
    if right == pool.minus_infinity or left == pool.plus_infinity:
        return ONE
    if left == pool.minus_infinity or right == pool.plus_infinity:
        return ZERO
    return pool.is_positive(pool.subtract(left, right))


def _not(pool: Expressions, value: int) -> int:
    return pool.subtract(ONE, value)


def _different(pool: Expressions, left: int, right: int) -> int:
    if left == right:
        return ZERO
    values = pool.value_of(left), pool.value_of(right)
    if None not in values:
        return ONE
    return pool.call("different", min(left, right), max(left, right))


_COMPARISONS: Mapping[str, Callable[[Expressions, int, int], int]] = {
    "gt": _greater,
    "lt": lambda pool, a, b: _greater(pool, b, a),
    "le": lambda pool, a, b: _not(pool, _greater(pool, a, b)),
    "ge": lambda pool, a, b: _not(pool, _greater(pool, b, a)),
    "ne": _different,
    "eq": lambda pool, a, b: _not(pool, _different(pool, a, b)),
    "logical_and": lambda pool, a, b: pool.multiply(a, b),
    "bitwise_and": lambda pool, a, b: pool.multiply(a, b),
    "logical_or": lambda pool, a, b: _not(pool, pool.multiply(_not(pool, a), _not(pool, b))),
    "bitwise_or": lambda pool, a, b: _not(pool, pool.multiply(_not(pool, a), _not(pool, b))),
}


def _comparison(name: str) -> Handler:
    def handler(pool: Expressions, left: Any, right: Any) -> SymbolicTensor:
        return elementwise(
            pool, functools.partial(_COMPARISONS[name], pool), (tensor_of(left), tensor_of(right)), torch.bool
        )

    return handler


def _negation(pool: Expressions, value: SymbolicTensor) -> SymbolicTensor:
    return elementwise(pool, functools.partial(_not, pool), (value,), torch.bool)


def _where(pool: Expressions, condition: Any, then: Any = None, otherwise: Any = None) -> SymbolicTensor:
    if then is None:
        raise EvaluationError("the places where a value is not zero depend on the value")
    operands = (tensor_of(condition), tensor_of(then), tensor_of(otherwise))
    return elementwise(pool, pool.choose, operands, dtype_of(then, otherwise))


def _sign(pool: Expressions, value: int) -> int:
    return pool.subtract(_greater(pool, value, ZERO), _greater(pool, ZERO, value))


ARITHMETIC: Mapping[str, Handler] = {
    "add": _add,
    "sub": functools.partial(_add, sign=-1),
    "mul": _binary("multiply"),
    "div": _divide,
    "true_divide": _divide,
    "maximum": lambda pool, a, b: elementwise(
        pool, lambda x, y: pool.largest((x, y)), (tensor_of(a), tensor_of(b)), dtype_of(a, b)
    ),
    "minimum": lambda pool, a, b: elementwise(
        pool, lambda x, y: pool.smallest((x, y)), (tensor_of(a), tensor_of(b)), dtype_of(a, b)
    ),
    "pow": _power,
    "neg": _unary(lambda pool, a: pool.negative(a)),
    "reciprocal": _unary(lambda pool, a: pool.power(a, Fraction(-1))),
    "sqrt": _unary(lambda pool, a: pool.power(a, Fraction(1, 2))),
    "rsqrt": _unary(lambda pool, a: pool.power(a, Fraction(-1, 2))),
    "exp": _unary(lambda pool, a: pool.exp(a)),
    "log": _unary(lambda pool, a: pool.log(a)),
    "log1p": _unary(lambda pool, a: pool.log(pool.add(ONE, a))),
    "expm1": _unary(lambda pool, a: pool.subtract(pool.exp(a), ONE)),
    "relu": _unary(lambda pool, a: pool.largest((a, ZERO))),
    "abs": _unary(lambda pool, a: pool.largest((a, pool.negative(a)))),
    "sign": _unary(_sign),
    "sigmoid": _unary(lambda pool, a: pool.power(pool.add(ONE, pool.exp(pool.negative(a))), Fraction(-1))),
    "_to_copy": _to_copy,
    "convert_element_type": _cast,
    "where": _where,
    "logical_not": _negation,
    "bitwise_not": _negation,
    **{name: _comparison(name) for name in _COMPARISONS},
}
