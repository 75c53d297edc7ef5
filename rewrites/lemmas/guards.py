"""Whether a guard of a lemma holds under a substitution. Nothing here searches, and what is not shown does not hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verifycompile.ir.algebra import COMBINE, IOTA, has_infinity
from verifycompile.ir.exponential import may_be_lowest
from verifycompile.ir.indicator import is_indicator
from verifycompile.ir.sign import is_greater_than_zero, is_nonnegative
from verifycompile.ir.size import product
from verifycompile.ir.term import TermPool, View, facts_of
from verifycompile.rewrites.lemmas.build import build, build_product
from verifycompile.rewrites.lemmas.lemma import Guard, Pattern
from verifycompile.rewrites.lemmas.read import Shape, counts
from verifycompile.rewrites.lemmas.substitution import Factors, Substitution
from verifycompile.rewrites.side_conditions.index_arithmetic import equivalent, implied


def is_met(pool: TermPool, guard: Guard, shape: Shape, substitution: Substitution) -> bool:
    """Whether a guard holds. What an operator of the spec demands of an index becomes an assumption by it."""
    return _GUARDS[str(guard[0])](pool, shape, substitution, *guard[1:])


def _views(substitution: Substitution, name: str) -> list[View]:
    """The factors of a value, in all summands."""
    products: Sequence[Factors] = substitution.each.get(name) or (substitution.values[name],)
    return [view for factors in products for view in factors]


def _of_elements(holds_of: Callable[[View], bool]) -> Callable[..., bool]:
    """A guard that holds of a product where it holds of all factors."""

    def is_met(pool: TermPool, shape: Shape, substitution: Substitution, name: str) -> bool:
        return all(holds_of(view) for view in _views(substitution, name))

    return is_met


def _is_independent(pool: TermPool, shape: Shape, substitution: Substitution, name: str, index: str) -> bool:
    dims = substitution.indices.get(index)
    if dims is None:  # of the summands of a written sum
        return name not in substitution.each
    return not any(view.uses(dim) for view in _views(substitution, name) for dim in dims)


def _is_within(pool: TermPool, shape: Shape, substitution: Substitution, name: str, index: str) -> bool:
    from verifycompile.rewrites.operators.bounds import within  # here, because it imports what lemmas are built by

    (view,) = substitution.values[name]
    size = product(shape[dim] for dim in substitution.indices[index])
    if view.term.operation is IOTA:
        return view.coefficient == 1 and view.term.index_sizes[0] == size
    if view.term.operation.places and view.coefficient == 1:
        return product(view.term.index_sizes[i] for core in view.term.cores for i in core) == size
    for fact in facts_of(pool.facts, view) if view.coefficient == 1 and isinstance(size, int) else ():
        if fact.size <= size and (fact.exception is None or 0 <= fact.exception < size):
            pool.assumptions[fact.source] = None
            return True
    return view.coefficient == 1 and view.term.operation is COMBINE and within(pool, view, size, whole=True)


def _is_within_or(
    pool: TermPool, shape: Shape, substitution: Substitution, name: str, index: str, exception: str
) -> bool:
    (view,) = substitution.values[name]
    size = product(shape[dim] for dim in substitution.indices[index])
    number = substitution.numbers[exception]
    for fact in facts_of(pool.facts, view) if view.coefficient == 1 and isinstance(size, int) else ():
        if fact.exception == number and fact.size <= size and not 0 <= number < size:
            pool.assumptions[fact.source] = None
            return True
    return False


def _of_truths(holds_of: Callable[..., bool]) -> Callable[..., bool]:
    def is_met(pool: TermPool, shape: Shape, substitution: Substitution, given: Pattern, wanted: Pattern) -> bool:
        left, right = (build_product(pool, pattern, shape, substitution) for pattern in (given, wanted))
        return holds_of(left, right, shape) or holds_of(left, right, shape, pool)

    return is_met


def _is_beside(pool: TermPool, shape: Shape, given: Substitution, mask: Pattern, value: str, other: str) -> bool:
    from verifycompile.rewrites.parts import beside_masks  # here, because few masks stand in what is beside them

    one = build(pool, mask, shape, given)
    left, right = (build_product(pool, name, shape, given) for name in (value, other))
    return [beside_masks.with_one_for(pool, one, view) for view in left] == right


def _is_known(pool: TermPool, shape: Shape, substitution: Substitution, name: str) -> bool:
    return implied((), substitution.values[name], shape, pool)


def _is_digit(pool: TermPool, shape: Shape, substitution: Substitution, name: str, radix: str) -> bool:
    (view,) = substitution.values[name]
    return (view.term.index_sizes[0] if counts(view) else 1 if view.is_zero else None) == substitution.numbers[radix]


def _reads(
    pool: TermPool, shape: Shape, substitution: Substitution, name: str, window: str, first: str, after: str, line: str,
    *ends: str,
) -> bool:  # fmt: skip
    """Whether two ranges of the line differ only where the matrix is zero for these windows."""
    from verifycompile.rewrites.parts import sliding_matrix  # here, because few are read

    (view,) = substitution.values[name]
    matrix = sliding_matrix.matrix_of(view)
    if matrix is None:
        return False
    dims = [sliding_matrix.axis_along(view, *substitution.indices[index]) for index in (window, line)]
    numbers = [substitution.numbers[end] for end in (first, after, *ends)]
    if dims != [sliding_matrix.WINDOWS, sliding_matrix.LINE] or any(int(number) != number for number in numbers):
        return False
    start, stop, *spans = (int(number) for number in numbers)
    if not 0 <= start < stop <= matrix.windows:
        return False
    low, high = matrix.hits(sliding_matrix.LINE, (start, stop - 1))
    one, other = ((max(low, spans[k]), min(high, spans[k + 1] - 1)) for k in (0, 2))
    return one == other


def is_separable(view: View) -> bool:
    """Whether a value may be taken from itself: no sum with a mask that makes it minus infinity."""
    return view.term.operation is not COMBINE or not may_be_lowest(view)


_GUARDS: dict[str, Callable[..., bool]] = {
    "independent": _is_independent,
    "within": _is_within,
    "within_or": _is_within_or,
    "ordered": lambda _pool, _shape, given, low, high: bool(given.numbers[low] <= given.numbers[high]),
    "whole": _of_elements(lambda view: counts(view) or view.is_zero),
    "digit": _is_digit,
    "reads": _reads,
    "implies": _of_truths(implied),
    "equivalent": _of_truths(equivalent),
    "beside": _is_beside,
    "known": _is_known,
    "indicator": _of_elements(is_indicator),
    "positive": _of_elements(is_greater_than_zero),
    "nonnegative": _of_elements(is_nonnegative),
    "finite": _of_elements(lambda view: not has_infinity(view)),
    "number": _of_elements(is_separable),
}
