"""Equality in the ring of sums and products: products distributed over sums, sums over indices taken of each product.

Normal form keeps products of sums as the program wrote them, since to expand them all would cost too much. Here two
values that ought to be equal are expanded, down to what is neither a sum nor a product, and compared product by
product. Every product is brought to normal form, and a negated mask is one less the mask. Terms that stand below both
values are first taken as they are.

This is the only prover of this theory. A term is expanded once for all questions, a question is asked once, and what
an expansion may hold is bounded by counts alone, so the answer is the same on every machine.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, combine, contract, has_infinity, multiply_views, open_view
from verifycompile.ir.build import ShapeError
from verifycompile.ir.exponential import POWER
from verifycompile.ir.indicator import LESS_EQUAL, NOT, negate
from verifycompile.ir.pieces import STACK
from verifycompile.ir.relabel import UnalignedError, substitute
from verifycompile.ir.scalar import ONE, ZERO, NonFiniteScalarError, Scalar, add, multiply
from verifycompile.ir.sign import is_greater_than_zero
from verifycompile.ir.size import Size
from verifycompile.ir.term import CONSTANT, Axis, Term, TermPool, View
from verifycompile.ir.term_property import TermProperty
from verifycompile.refinement.fingerprint import fingerprint
from verifycompile.refinement.quotients import Quotients, quotients, together
from verifycompile.rewrites.operations import PAD
from verifycompile.rewrites.registry import UnsupportedError

_MAX_PRODUCTS = 512
_MAX_FACTORS = 32
_MAX_TERMS = 512
_SHARED_DEPTH = 4
_MAX_DENOMINATORS = 4
_PLACED = (PAD, STACK)

Polynomial = dict[tuple[Term, tuple[Axis, ...]], Scalar]
"""Products in normal form with their coefficients."""


class _TooLargeError(Exception):
    """More products than anyone wants to wait for."""


@dataclasses.dataclass(frozen=True)
class _Product:
    """``coefficient`` times the product of ``factors``, summed over the dimensions that ``shape`` has at its end."""

    coefficient: Scalar
    factors: tuple[View, ...]
    shape: tuple[Size, ...]


_durations: list[float] = []

_Expansions = dict[Term, tuple[_Product, ...]]


def equal_in_ring(pool: TermPool, left: View, right: View) -> bool:
    """Whether two views are equal by the laws of the ring; False where that is not found."""
    if left.shape != right.shape:
        return False
    key = ("equal in ring", left, right)
    known = pool.answers.get(key)
    if known is None:
        started = time.perf_counter()
        operands = _operands_of_one_function(left, right)
        known = pool.answers[key] = _is_found_equal(pool, left, right) or (
            len(operands) > 0 and all(_is_found_equal(pool, one, other) for one, other in operands)
        )
        _durations.append(time.perf_counter() - started)
    return bool(known)


def _is_found_equal(pool: TermPool, left: View, right: View) -> bool:
    return left == right or (_may_be_equal(left, right) and _is_equal(pool, left, right))


def _operands_of_one_function(left: View, right: View) -> list[tuple[View, View]]:
    """What one function of elements, as a root, is taken of on both sides; empty where it is none."""
    one, other = left.term, right.term
    is_one = (one.operation, one.attributes, left.coefficient) == (other.operation, other.attributes, right.coefficient)
    if not is_one or _is_linear(one) or any(t.summed or t.cores or t.fresh for t in (one, other)):
        return []
    first, second = open_view(left).operands, open_view(right).operands
    return list(zip(first, second, strict=True)) if len(first) == len(second) else []


def take_durations() -> list[float]:
    """Seconds of every question since the last call."""
    taken = list(_durations)
    _durations.clear()
    return taken


def _may_be_equal(left: View, right: View) -> bool:
    """Whether expanding changes anything at all, and no evaluation tells the two values apart."""
    if not (_EXPANDS(left.term) or _EXPANDS(right.term) or _divides(left) or _divides(right)):
        return False
    first, second = fingerprint(left), fingerprint(right)
    return first is None or second is None or first == second


def _divides(view: View) -> bool:
    """Whether a quotient is among the factors of a value."""
    terms = (view.term, *(operand.term for operand in view.term.operands)) if _is_linear(view.term) else (view.term,)
    return any(
        POWER in (term.operation, *(o.term.operation for o in term.operands if term.operation is CONTRACT))
        for term in terms
    )


def _is_equal(pool: TermPool, left: View, right: View) -> bool:
    """Whether two values are equal once they are expanded: with what stands below both taken as it is, else down to
    what is neither a sum nor a product. Of the two ways one is kept to the end: each denominator would double them.
    """
    ways = (True, False) if _shared(left, right) else (False,)
    return any(
        _is_equal_expanded(pool, left, right, keeps_shared=keeps_shared, left_over=_MAX_DENOMINATORS)
        for keeps_shared in ways
    )


def _is_equal_expanded(pool: TermPool, left: View, right: View, *, keeps_shared: bool, left_over: int) -> bool:
    opaque = _shared(left, right) if keeps_shared else frozenset[Term]()
    try:
        divided = quotients(pool, left, right)
        first, second = (_polynomial(pool, view, opaque, divided) for view in (left, right))
        if first is None or second is None:
            return False
        return (
            first == second
            or _joined(pool, first, left.shape) == _joined(pool, second, left.shape)
            or (
                left_over > 0
                and _equal_without_denominators(
                    pool, first, second, left.shape, keeps_shared=keeps_shared, left_over=left_over - 1
                )
            )
        )
    except (_TooLargeError, NonFiniteScalarError, ShapeError, UnalignedError, UnsupportedError):
        return False


def _shared(left: View, right: View) -> frozenset[Term]:
    return _below(left) & _below(right) - {left.term, right.term}


def _joined(pool: TermPool, polynomial: Polynomial, shape: tuple[Size, ...]) -> View:
    """The sum of the products of a polynomial: by laws of sums, several products may be one."""
    views = (View(coefficient, term, shape, axes) for (term, axes), coefficient in polynomial.items())
    return combine(pool, [pool.zero(shape), *views])


def _equal_without_denominators(
    pool: TermPool, left: Polynomial, right: Polynomial, shape: tuple[Size, ...], *, keeps_shared: bool, left_over: int
) -> bool:
    """Whether two sums are equal once they are multiplied by a positive value that something in them is divided by."""
    for factor in (f for polynomial in (left, right) for monomial in polynomial for f in _factors(monomial, shape)):
        (exponent,) = factor.term.attributes if factor.term.operation is POWER else (ONE,)
        if not isinstance(exponent, Fraction) or exponent >= 0 or exponent.denominator != 1:
            continue
        (base,) = open_view(factor).operands
        if not is_greater_than_zero(base):
            continue
        sides = [
            combine(
                pool,
                [pool.zero(shape), *(
                    multiply_views(pool, View(coefficient, term, shape, axes), *([base] * -int(exponent)))
                    for (term, axes), coefficient in polynomial.items()
                )],
            )
            for polynomial in (left, right)
        ]  # fmt: skip
        return sides[0] == sides[1] or _is_equal_expanded(
            pool, sides[0], sides[1], keeps_shared=keeps_shared, left_over=left_over
        )
    return False


def _factors(monomial: tuple[Term, tuple[Axis, ...]], shape: tuple[Size, ...]) -> tuple[View, ...]:
    """The factors of a product without a sum, which may be one."""
    term, axes = monomial
    view = View(ONE, term, shape, axes)
    if term.operation is CONTRACT:
        return () if term.summed else open_view(view).operands
    return (view,)


def _is_linear(term: Term) -> bool:
    """Whether a term is a sum or a product, or one less a mask: in the ring of masks "or" is a sum too.

    So is what is padded or stacked, of parts times one where their place is.
    """
    return term.operation in (CONTRACT, COMBINE, NOT, LESS_EQUAL, *_PLACED)


def _expands(term: Term) -> bool:
    """Whether a product of sums or a sum within a product is among the sums and products of a term."""
    if term.operation is CONTRACT:
        return any(_is_linear(operand.term) for operand in term.operands)
    if term.operation in (NOT, LESS_EQUAL, *_PLACED):
        return True
    return any(_EXPANDS(operand.term) for operand in term.operands if _is_linear(operand.term))


_EXPANDS = TermProperty(_is_linear, lambda term: _is_linear(term) and _expands(term))


def _below(view: View) -> frozenset[Term]:
    """What stands below a value, through some levels of sums and products."""
    found: set[Term] = set()
    frontier = {view.term}
    for _ in range(_SHARED_DEPTH):
        frontier = {operand.term for term in frontier if _is_linear(term) for operand in term.operands} - found
        found |= frontier
    return frozenset(found)


def _polynomial(pool: TermPool, view: View, opaque: frozenset[Term], divided: Quotients) -> Polynomial | None:
    """The value as a polynomial; None where it is infinite somewhere by construction."""
    opaque |= divided.whole
    key = ("polynomial", view, tuple(divided.summands.items()))
    known: Polynomial | None = None if opaque else pool.answers.get(key)
    if known is not None:
        return known
    expansions = _expansions(pool, view.term, opaque)
    result: Polynomial = {}
    products = _at(view, expansions, view.shape)
    if any(has_infinity(factor) for product in products for factor in product.factors):
        return None
    products = _in_one_form(pool, products, divided)
    for product in _summed_inside(pool, products, view.rank) if divided.summands else products:
        labels = tuple(range(len(product.shape)))
        free, bound = labels[: view.rank], frozenset(labels[view.rank :])
        factors = product.factors or (pool.constant(ONE, product.shape),)
        value = contract(pool, factors, tuple(labels for _ in factors), free, bound).scaled(product.coefficient)
        monomial = value.term, value.axes
        result[monomial] = add(result[monomial], value.coefficient) if monomial in result else value.coefficient
    result = {monomial: coefficient for monomial, coefficient in result.items() if coefficient != 0}
    if not opaque:
        pool.answers[key] = result
    return result


def _in_one_form(pool: TermPool, products: Sequence[_Product], divided: Quotients) -> Sequence[_Product]:
    """Products in which quotients have one form, equal ones collected."""
    done: dict[Hashable, _Product] = {}
    while products and divided.summands:
        opened: dict[Hashable, _Product] = {}
        for product in products:
            factors = together(pool, product.factors)
            parts = divided.taken_apart(pool, factors)
            target = done if parts is None else opened
            for share, inner in [(ONE, factors)] if parts is None else parts:
                key = (product.shape, frozenset(Counter(inner).items()))
                known = target[key].coefficient if key in target else ZERO
                coefficient = add(known, multiply(product.coefficient, share))
                target[key] = _Product(coefficient, inner, product.shape)
            if len(done) + len(opened) > _MAX_PRODUCTS:
                raise _TooLargeError
        products = [product for product in opened.values() if product.coefficient != 0]
    return [*(product for product in done.values() if product.coefficient != 0), *products]


def _summed_inside(pool: TermPool, products: Sequence[_Product], free: int) -> Iterator[_Product]:
    """Products that differ in a sum within a quotient alone, with the sum of these: parts of a sum join there."""
    groups: dict[Hashable, tuple[tuple[Size, ...], list[View], list[View]]] = {}
    for product in products:
        outer = set(range(free)).union(*(_dims(f) for f in product.factors if f.term.operation is POWER))
        kept, labels = sorted(outer), tuple(range(len(product.shape)))
        shape = tuple(product.shape[d] for d in kept)
        moved = {d: [(k, 1, product.shape[d])] for k, d in enumerate(kept)}
        rest = [substitute(f, moved, shape) for f in product.factors if _dims(f) <= outer]
        inner = [f for f in product.factors if not _dims(f) <= outer] or [pool.constant(ONE, product.shape)]
        total = contract(pool, inner, tuple(labels for _ in inner), tuple(kept), frozenset(labels) - outer)
        key = (shape, frozenset(Counter(rest).items()))
        groups.setdefault(key, (shape, rest, []))[2].append(total.scaled(product.coefficient))
    for shape, rest, parts in groups.values():
        total = combine(pool, [pool.zero(shape), *parts])
        if total.term.operation is not COMBINE:
            yield _Product(total.coefficient, (*rest, total.unscaled()), shape)
            continue
        for part in open_view(total).operands:
            yield _Product(multiply(total.coefficient, part.coefficient), (*rest, part.unscaled()), shape)


def _dims(view: View) -> set[int]:
    return {digit[0] for axis in view.axes for digit in axis if digit[0] != CONSTANT}


def _expansions(pool: TermPool, wanted: Term, opaque: frozenset[Term]) -> _Expansions:
    """The products of a term and of all sums and products within it, operands first, each term once."""
    kept: _Expansions = {} if opaque else pool.answers.setdefault("expansions", {})
    pending, visited = [wanted], 0
    while pending:
        term = pending[-1]
        parts = () if term.operation is LESS_EQUAL else term.operands
        missing = [v.term for v in parts if v.term not in kept and _is_linear(v.term) and v.term not in opaque]
        if term in kept or not _is_linear(term):
            pending.pop()
        elif missing:
            pending.extend(missing)
        else:
            visited += 1
            if visited > _MAX_TERMS:
                raise _TooLargeError
            kept[pending.pop()] = _expanded(pool, term, kept)
    return kept


def _expanded(pool: TermPool, term: Term, known: Mapping[Term, tuple[_Product, ...]]) -> tuple[_Product, ...]:
    """The products of a term over its free dimensions, and bound ones behind them."""
    shape = term.index_sizes
    if term.operation is COMBINE:
        return _limited([product for operand in term.operands for product in _at(operand, known, shape)])
    if term.operation in (NOT, LESS_EQUAL):
        whole = View(ONE, term, shape, tuple(((i, 1, size),) for i, size in enumerate(shape)))
        return (_Product(ONE, (), shape), *_at(negate(pool, whole).scaled(-ONE), known, shape))
    if term.operation in _PLACED:
        from verifycompile.refinement.placed import placed  # here, because few values are padded or stacked

        parts = ((_at(v, known, v.shape), [_Product(ONE, (at,), v.shape)]) for v, at in placed(pool, term))
        return _limited(pair for part, place in parts for pair in _pairs(part, place, len(place[0].shape)))
    result: tuple[_Product, ...] = (_Product(ONE, (), shape),)
    for operand in term.operands:
        result = _limited(_pairs(result, _at(operand, known, shape), len(shape)))
    return result


def _at(view: View, known: Mapping[Term, tuple[_Product, ...]], shape: tuple[Size, ...]) -> list[_Product]:
    """The products of a view over dimensions of ``shape``."""
    if view.term not in known:
        return [_Product(view.coefficient, (dataclasses.replace(view.unscaled(), shape=shape),), shape)]
    rank, free = len(shape), view.term.free
    result: list[_Product] = []
    for product in known[view.term]:
        bound = product.shape[free:]
        wide = (*shape, *bound)
        axes: list[Axis] = [*view.axes, *(((rank + k, 1, size),) for k, size in enumerate(bound))]
        factors = tuple(substitute(factor, dict(enumerate(axes)), wide) for factor in product.factors)
        result.append(_Product(multiply(view.coefficient, product.coefficient), factors, wide))
    return result


def _limited(products: Iterator[_Product] | list[_Product]) -> tuple[_Product, ...]:
    found = tuple(itertools.islice(products, _MAX_PRODUCTS + 1))
    if len(found) > _MAX_PRODUCTS or any(len(product.factors) > _MAX_FACTORS for product in found):
        raise _TooLargeError
    return found


def _pairs(left: Sequence[_Product], right: Sequence[_Product], shared: int) -> Iterator[_Product]:
    """All products of two sums over ``shared`` dimensions; bound ones stay apart."""
    for first, second in itertools.product(left, right):
        more = len(first.shape) - shared
        shape = (*first.shape, *second.shape[shared:])
        factors = (
            *(dataclasses.replace(factor, shape=shape) for factor in first.factors),
            *(_moved(factor, shared, more, shape) for factor in second.factors),
        )
        yield _Product(multiply(first.coefficient, second.coefficient), factors, shape)


def _moved(view: View, shared: int, by: int, shape: tuple[Size, ...]) -> View:
    """The view with its dimensions from ``shared`` on moved behind those of another product."""
    axes = tuple(
        tuple(d if d[0] == CONSTANT or d[0] < shared else (d[0] + by, d[1], d[2]) for d in axis) for axis in view.axes
    )
    return View(view.coefficient, view.term, shape, axes)
