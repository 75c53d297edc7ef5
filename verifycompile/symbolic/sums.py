"""Sums, products of matrices, maxima, and sums at places, on tensors of expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch

from verifycompile.symbolic.expressions import Expressions, rational
from verifycompile.symbolic.tensor import SymbolicTensor, dtype_of, symbolic, tensor_of
from verifycompile.witness.error import EvaluationError

aten = torch.ops.aten
Handler = Callable[..., Any]


def _rows(value: SymbolicTensor, dims: Any, keepdim: bool) -> tuple[list[list[int]], list[int], int]:
    """The elements that are reduced together, the shape of the result, and how many each is of."""
    rank = value.dim()
    chosen = range(rank) if dims is None or dims == [] else ([dims] if isinstance(dims, int) else dims)
    reduced = sorted(d % rank for d in chosen) if rank else []
    kept = [d for d in range(rank) if d not in reduced]
    count = math.prod(value.shape[d] for d in reduced)
    rows = value.numbers.permute([*kept, *reduced]).reshape(-1, count) if count else value.numbers.reshape(-1, 0)
    shape = [1 if d in reduced else value.shape[d] for d in range(rank)] if keepdim else [value.shape[d] for d in kept]
    return rows.tolist(), shape, count


def _reduction(function: Callable[[Expressions, list[int]], int]) -> Handler:
    def handler(pool: Expressions, value: Any, dims: Any = None, keepdim: bool = False, **_: Any) -> SymbolicTensor:
        rows, shape, _count = _rows(value, dims, keepdim)
        numbers = torch.tensor([function(pool, row) for row in rows], dtype=torch.int64).reshape(shape)
        return SymbolicTensor(pool, numbers, dtype_of(value))

    return handler


def _mean_of(pool: Expressions, row: list[int]) -> int:
    return pool.multiply(pool.total(row), pool.number(Fraction(1, len(row))))


def _product_of(pool: Expressions, row: list[int]) -> int:
    return pool.product(*((item, Fraction(1)) for item in row))


def _variance(
    pool: Expressions,
    value: Any,
    dims: Any = None,
    unbiased: float = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    **_: Any,
) -> SymbolicTensor:
    less = rational(float(unbiased if correction is None else correction))

    def of_row(pool: Expressions, row: list[int]) -> int:
        mean = _mean_of(pool, row)
        squares = [pool.power(pool.subtract(item, mean), Fraction(2)) for item in row]
        return pool.multiply(pool.total(squares), pool.number(Fraction(1) / (len(row) - less)))

    return _reduction(of_row)(pool, value, dims, keepdim)


def _variance_and_mean(
    pool: Expressions, value: Any, dims: Any = None, unbiased: bool = True, keepdim: bool = False, **options: Any
) -> Any:
    mean = _reduction(_mean_of)(pool, value, dims, keepdim)
    return _variance(pool, value, dims, unbiased, keepdim, **options), mean


def _cumulative_sum(pool: Expressions, value: SymbolicTensor, dim: int) -> SymbolicTensor:
    moved = value.numbers.movedim(dim, -1)
    rows = [
        [pool.total(row[: stop + 1]) for stop in range(len(row))] for row in moved.reshape(-1, moved.shape[-1]).tolist()
    ]
    return SymbolicTensor(pool, torch.tensor(rows).reshape(moved.shape).movedim(-1, dim), value.dtype)


def _matrix_product(pool: Expressions, left: Any, right: Any) -> SymbolicTensor:
    """Of matrices, or of equally many of them."""
    a, b = symbolic(pool, left).numbers, symbolic(pool, right).numbers
    batches = [(a, b)] if a.dim() == 2 else list(zip(a, b, strict=True))
    results = [
        [[pool.dot(row, column) for column in columns] for row in first.tolist()]
        for first, columns in ((first, second.T.tolist()) for first, second in batches)
    ]
    shape = (*a.shape[:-1], b.shape[-1])
    return SymbolicTensor(pool, torch.tensor(results, dtype=torch.int64).reshape(shape), dtype_of(left, right))


def _accumulated(pool: Expressions, value: Any, places: torch.Tensor, added: Any) -> SymbolicTensor:
    """``value`` with the elements of ``added`` added at ``places``, counted through all of its elements."""
    before = symbolic(pool, value)
    flat = before.numbers.reshape(-1).tolist()
    summands: dict[int, list[int]] = {}
    source = symbolic(pool, added).numbers
    for place, item in zip(places.reshape(-1).tolist(), source.reshape(-1).tolist(), strict=True):
        summands.setdefault(place, []).append(item)
    for place, items in summands.items():
        flat[place] = pool.total((flat[place], *items))
    return SymbolicTensor(pool, torch.tensor(flat, dtype=torch.int64).reshape(before.shape), dtype_of(value, added))


def _places(shape: Sequence[int]) -> torch.Tensor:
    return torch.arange(math.prod(shape)).reshape(tuple(shape))


def _scatter_add(pool: Expressions, value: Any, dim: int, index: torch.Tensor, source: Any) -> SymbolicTensor:
    cut = symbolic(pool, source).numbers[tuple(slice(size) for size in index.shape)]
    places = _places(value.shape).gather(dim, index) if value.dim() else _places(value.shape)
    return _accumulated(pool, value, places, SymbolicTensor(pool, cut, dtype_of(source)))


def _index(pool: Expressions, value: Any, indices: Sequence[torch.Tensor | None]) -> SymbolicTensor:
    return SymbolicTensor(pool, aten.index.Tensor(_known(value), _concrete_indices(indices)), value.dtype)


def _index_put(
    pool: Expressions, value: Any, indices: Sequence[torch.Tensor | None], source: Any, accumulate: bool = False
) -> SymbolicTensor:
    places = aten.index.Tensor(_places(value.shape), _concrete_indices(indices))
    source = torch.broadcast_to(symbolic(pool, tensor_of(source)).numbers, places.shape)
    if accumulate:
        return _accumulated(pool, value, places, SymbolicTensor(pool, source, dtype_of(value)))
    flat = symbolic(pool, value).numbers.reshape(-1).clone()
    flat[places.reshape(-1)] = source.reshape(-1)
    return SymbolicTensor(pool, flat.reshape(value.shape), dtype_of(value))


def _known(value: Any) -> torch.Tensor:
    if not isinstance(value, SymbolicTensor):
        raise EvaluationError("an index that depends on the values of real inputs")
    return value.numbers


def _concrete_indices(indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    if any(isinstance(index, SymbolicTensor) for index in indices):
        raise EvaluationError("an index that depends on the values of real inputs")
    return list(indices)


def _embedding(_: Expressions, table: Any, index: torch.Tensor, *__: Any, **___: Any) -> Any:
    return table[index]


def _padded(pool: Expressions, value: SymbolicTensor, padding: Sequence[int], filling: float = 0.0) -> SymbolicTensor:
    numbers = aten.constant_pad_nd.default(value.numbers, list(padding), pool.literal(float(filling)))
    return SymbolicTensor(pool, numbers, value.dtype)


def _place_of_extreme(*_: Any, **__: Any) -> Any:
    raise EvaluationError("the place of a maximum depends on the values of real inputs")


SUMS: Mapping[str, Handler] = {
    "sum": _reduction(lambda pool, row: pool.total(row)),
    "mean": _reduction(_mean_of),
    "amax": _reduction(lambda pool, row: pool.largest(row)),
    "amin": _reduction(lambda pool, row: pool.smallest(row)),
    "prod": _reduction(_product_of),
    "var": _variance,
    "var_mean": _variance_and_mean,
    "cumsum": _cumulative_sum,
    "mm": _matrix_product,
    "bmm": _matrix_product,
    "scatter_add": _scatter_add,
    "index": _index,
    "index_put": _index_put,
    "embedding": _embedding,
    "constant_pad_nd": _padded,
    "argmax": _place_of_extreme,
    "argmin": _place_of_extreme,
}
