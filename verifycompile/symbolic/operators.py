"""Torch's operators on tensors of expressions, element by element.

Only few have a meaning of their own here: arithmetic, sums of products, maxima, choices. What moves elements is done by
torch on their numbers, what torch decomposes is decomposed, and a pointwise function without a decomposition is one of
which nothing is known but that equal operands give equal results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from verifycompile import bounds
from verifycompile.symbolic.arithmetic import ARITHMETIC
from verifycompile.symbolic.expressions import Expressions
from verifycompile.symbolic.sums import SUMS
from verifycompile.symbolic.tensor import SymbolicTensor, elementwise, symbolic
from verifycompile.torch_interface.operators.evaluation import decomposition, operator_name
from verifycompile.witness.error import EvaluationError

aten = torch.ops.aten
Handler = Callable[..., Any]

_MOVES = frozenset(
    """
    _reshape_alias _unsafe_view alias as_strided cat chunk clone contiguous detach diagonal diagonal_copy
    diagonal_scatter expand expand_copy flip gather im2col index_select lift_fresh_copy movedim narrow narrow_copy
    permute permute_copy pixel_shuffle pixel_unshuffle repeat repeat_interleave reshape roll scatter select
    select_backward select_copy select_scatter slice slice_backward slice_copy slice_scatter split split_copy
    split_with_sizes split_with_sizes_copy squeeze squeeze_copy stack swapaxes t take take_along_dim transpose
    transpose_copy tril triu unbind unflatten unfold unfold_copy unsqueeze unsqueeze_copy view view_copy
    """.split()  # noqa: SIM905 - a list would take a line for each name - a table of names
)
"""What only moves elements, and puts zeros where there are none: zero is the expression with the number 0."""
_FUNCTIONS = frozenset(
    """
    acos acosh asin asinh atan atanh ceil cos cosh digamma erf erfc erfinv floor lgamma round sin sinh tan tanh trunc
    """.split()  # noqa: SIM905 - a list would take a line for each name
)
"""Functions of one number of which nothing else is known."""
_CONCRETE = frozenset(
    ("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty")
)


def apply(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of an operator of which an operand is symbolic. Raises ``EvaluationError``."""
    bounds.check()
    pool = _pool_of((args, kwargs))
    name = (operator_name(func) or "").split(".")[1]
    if name in _CONCRETE:
        return _concrete(func, args, kwargs)
    handler = ARITHMETIC.get(name) or SUMS.get(name)
    if handler is not None:
        return handler(pool, *args, **_without_dtype(kwargs))
    if name in _MOVES:
        return _moved(pool, func, args, kwargs)
    if name in _FUNCTIONS:
        return _pointwise(pool, func, args, kwargs)
    definition = decomposition(func)
    if callable(definition):
        return definition(*args, **kwargs)
    decomposed = func.decompose(*args, **kwargs)
    if decomposed is not NotImplemented:
        return decomposed
    if torch.Tag.pointwise in func.tags:
        return _pointwise(pool, func, args, kwargs)
    raise EvaluationError(f"`{func}` has no meaning element by element")


def _pool_of(value: Any) -> Expressions:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, SymbolicTensor):
            return item.pool
        if isinstance(item, (list, tuple)):
            pending.extend(item)
        elif isinstance(item, Mapping):
            pending.extend(item.values())
    raise EvaluationError("no operand is symbolic")


def _without_dtype(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All is real numbers, whatever the precision."""
    return {name: value for name, value in kwargs.items() if name not in ("dtype", "memory_format", "device", "layout")}


def _concrete(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    first: torch.Tensor = args[0]
    return func(torch.empty(first.shape, dtype=first.dtype), *args[1:], **kwargs)


def _moved(pool: Expressions, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    dtypes: list[torch.dtype] = []

    def numbers(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [numbers(item) for item in value]
        if isinstance(value, SymbolicTensor) or (isinstance(value, torch.Tensor) and value.is_floating_point()):
            dtypes.append(value.dtype)
            return symbolic(pool, value).numbers
        return value

    result = func(*(numbers(value) for value in args), **{name: numbers(value) for name, value in kwargs.items()})
    return _wrapped(pool, result, dtypes[0])


def _wrapped(pool: Expressions, result: Any, dtype: torch.dtype) -> Any:
    if isinstance(result, torch.Tensor):
        return SymbolicTensor(pool, result.clone(), dtype)
    return type(result)(_wrapped(pool, item, dtype) for item in result)


def _pointwise(pool: Expressions, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SymbolicTensor:
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    others = [None if isinstance(value, torch.Tensor) else value for value in args]
    name = f"{func}{others}{kwargs}"

    def of_numbers(*numbers: float) -> float:
        given = iter(numbers)
        values = [torch.tensor(next(given)) if isinstance(value, torch.Tensor) else value for value in args]
        return float(func(*values, **kwargs))

    pool.functions.setdefault(name, of_numbers)
    return elementwise(pool, functools.partial(pool.call, name), tensors, tensors[0].dtype)
