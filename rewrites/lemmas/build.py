"""The right side of a lemma under a substitution, built by the operations that build every term.

All views are over one index space: the dimensions of the position, then those that operands of the left side bind. A
dimension that is summed stays in its place with size one, so that the others keep their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verifycompile.ir.algebra import IOTA, combine, contract, elementwise, iota, multiply_views
from verifycompile.ir.exponential import EXPONENTIAL, LOGARITHM, POWER
from verifycompile.ir.indicator import equal, less, less_equal, negate
from verifycompile.ir.relabel import UnalignedError, extract, insert_dim, merge_digits, substitute
from verifycompile.ir.scalar import ONE
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import Digit, TermPool, View
from verifycompile.ir.window import range_view
from verifycompile.rewrites.lemmas.lemma import Pattern
from verifycompile.rewrites.lemmas.read import Shape, digits_of, flattened, number, span, without_sums
from verifycompile.rewrites.lemmas.substitution import Substitution


def build_product(pool: TermPool, pattern: Pattern, shape: Shape, substitution: Substitution) -> list[View]:
    """A pattern as factors over ``shape``, without any where it is one."""
    if isinstance(pattern, str):
        return [View(v.coefficient, v.term, shape, v.axes) for v in substitution.values[pattern]]
    operator, *arguments = pattern
    if operator == "mul":
        return [view for part in arguments for view in build_product(pool, part, shape, substitution)]
    if operator == "one":
        return []
    if operator == "number":
        return [pool.constant(number(arguments[0], substitution), shape)]
    if operator == "scale":
        factor = number(arguments[0], substitution)
        first, *rest = build_product(pool, arguments[1], shape, substitution) or [pool.constant(ONE, shape)]
        return [first.scaled(factor), *rest]
    if operator == "at":
        return _at(build_product(pool, arguments[0], shape, substitution), arguments, shape, substitution, pool)
    if operator == "range":
        (dim,) = substitution.indices[str(arguments[0])]
        first, after = span(pattern, substitution)
        return [] if (first, after) == (0, shape[dim]) else [range_view(pool, dim, shape, (int(first), int(after)))]
    return [_build(pool, pattern, shape, substitution)]


def build(pool: TermPool, pattern: Pattern, shape: Shape, substitution: Substitution) -> View:
    """A pattern as one view over ``shape``."""
    factors = build_product(pool, pattern, shape, substitution)
    if not factors:
        return pool.constant(ONE, shape)
    return factors[0] if len(factors) == 1 else multiply_views(pool, *factors)


def _build(pool: TermPool, pattern: Pattern, shape: Shape, substitution: Substitution) -> View:
    operator, *arguments = pattern
    if operator == "sum":
        return _sum(pool, pattern, shape, substitution)
    if operator == "each":
        parts = [build(pool, arguments[1], shape, substitution.at(k)) for k in range(substitution.count)]
        return combine(pool, parts)
    if operator == "add":
        return combine(pool, [build(pool, part, shape, substitution) for part in flattened(pattern)])
    if operator == "power":
        return _power(pool, pattern, shape, substitution)
    if operator in ("place", "spell"):
        return _counter(pool, pattern, shape, substitution)
    return _FUNCTIONS[str(operator)](pool, *(build(pool, part, shape, substitution) for part in arguments))


_FUNCTIONS: dict[str, Callable[..., View]] = {
    "exp": lambda pool, v: pool.constant(ONE, v.shape) if v.is_zero else elementwise(pool, EXPONENTIAL, (), (v,)),
    "log": lambda pool, view: elementwise(pool, LOGARITHM, (), (view,)),
    "not": negate,
    "equal": equal,
    "less": less,
    "less_equal": less_equal,
}


def _power(pool: TermPool, pattern: Pattern, shape: Shape, substitution: Substitution) -> View:
    exponent = number(pattern[1], substitution)
    base = build(pool, pattern[2], shape, substitution)
    if exponent == 0:
        return pool.constant(ONE, shape)
    return base if exponent == 1 else elementwise(pool, POWER, (exponent,), (base,))


def _sum(pool: TermPool, pattern: Pattern, shape: Shape, substitution: Substitution) -> View:
    indices, body = without_sums(pattern)
    bound = frozenset(dim for index in indices for dim in substitution.indices[index])
    factors = build_product(pool, body, shape, substitution) or [pool.constant(ONE, shape)]
    labels = tuple(range(len(shape)))
    kept = tuple(label for label in labels if label not in bound)
    result = contract(pool, factors, tuple(labels for _ in factors), kept, bound)
    for dim in sorted(bound):
        result = insert_dim(result, dim)
    return result


def _counter(pool: TermPool, pattern: Pattern, shape: Shape, substitution: Substitution) -> View:
    """The number that digits spell. Raises UnalignedError where none do."""
    digits = digits_of(pattern, substitution, dict(enumerate(shape)))
    if digits is None:
        raise UnalignedError("a number that no digits spell")
    counter = iota(pool, product(digit[2] for digit in digits))
    return View(counter.coefficient, counter.term, shape, (merge_digits(digits),) if digits else ())


def _at(
    factors: Sequence[View], arguments: Sequence[Pattern], shape: Shape, substitution: Substitution, pool: TermPool
) -> list[View]:
    """The factors where an index is a number that digits spell. Raises UnalignedError where none do."""
    dims = substitution.indices[str(arguments[1])]
    if not any(view.uses(dim) for view in factors for dim in dims):
        return list(factors)
    position = build(pool, arguments[2], shape, substitution)
    if position.term.operation is not IOTA or position.coefficient != 1:
        raise UnalignedError("a position that no digits spell")
    spelled: dict[int, Sequence[Digit]] = {dim: [(dim, 1, size)] for dim, size in enumerate(shape)}
    weight: Size = 1
    for dim in reversed(dims):
        spelled[dim] = extract(position.axes[0], weight, shape[dim])
        weight = product((weight, shape[dim]))
    return [substitute(view, spelled, shape) for view in factors]
