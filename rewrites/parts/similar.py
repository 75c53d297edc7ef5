"""Terms that are equal but for the piece of an input that they read: the same computation, batched over the pieces.

``f(x[0]) + f(x[1])`` is the sum of ``f(x)`` over the pieces, and their concatenation is ``f(x)``. Micro-batches, ranks
enumerated one by one and chunked evaluation are of this form. The batched term is built by the same operations, so that
its normal form is the one that the whole computation has.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from fractions import Fraction

from verifycompile.ir import algebra, relabel
from verifycompile.ir.build import Label, Signature, apply
from verifycompile.ir.inequality import AT_MOST, whole_at_most
from verifycompile.ir.scalar import ONE
from verifycompile.ir.similarity import frame, similarity_key
from verifycompile.ir.size import Size
from verifycompile.ir.term import CONSTANT, Axis, Digit, Term, TermPool, View, terms_of
from verifycompile.rewrites.matching import matching_lemma
from verifycompile.walks import parts_first

_MAX_PIECES = 4096
_MOST_CONSTANTS = 64


def stack_similar(pool: TermPool, views: Sequence[View]) -> View | None:
    """One view with a new leading dimension, whose element ``r`` is ``views[r]``; None where they are not similar."""
    if not _stack_all_terms(pool, tuple(view.term for view in views)):
        return None
    return _stack_views(pool, views)


def _stack_views(pool: TermPool, views: Sequence[View]) -> View | None:
    """``stack_similar`` where the terms are stacked already."""
    first = views[0]
    if any(view.shape != first.shape or view.coefficient != first.coefficient for view in views):
        return None
    term = _known(pool, tuple(view.term for view in views))
    assert term is not None
    replacement: dict[int, Sequence[Digit]] = {0: [(0, 1, len(views))]}
    for position in range(len(first.axes)):
        axis = _stack_axes([view.axes[position] for view in views])
        if axis is None:
            return None
        replacement[1 + position] = axis
    try:
        stacked = relabel.substitute(term, replacement, (len(views), *first.shape))
    except relabel.UnalignedError:
        return None
    return stacked.scaled(first.coefficient)


_Terms = tuple[Term, ...]


def _known(pool: TermPool, terms: _Terms) -> View | None:
    """The stacked term, its dimensions being the new one and the axes of the terms."""
    first = terms[0]
    if all(term is first for term in terms):
        axes: tuple[Axis, ...] = tuple(((1 + i, 1, size),) for i, size in enumerate(first.shape))
        return View(ONE, first, (len(terms), *first.shape), axes)
    return pool.memo.get(_key(terms))


def _key(terms: _Terms) -> Hashable:
    return ("similar", *(term.id for term in terms))


def _stack_all_terms(pool: TermPool, wanted: _Terms) -> bool:
    """Stack terms and what they are made of, innermost first; False where they are not similar."""
    pending = [wanted]
    while pending:
        terms = pending[-1]
        if _known(pool, terms) is not None:
            pending.pop()
            continue
        first = terms[0]
        if any(frame(term) != frame(first) for term in terms):
            return False
        columns = list(zip(*(_ordered_operands(pool, term) for term in terms), strict=True))
        missing = [inner for column in columns if _known(pool, inner := tuple(v.term for v in column)) is None]
        if missing:
            pending.extend(missing)
            continue
        pending.pop()
        operands: list[View] = []
        for column in columns:
            views = [View(v.coefficient, v.term, first.index_sizes, v.axes) for v in column]
            stacked = _stack_views(pool, views)
            if stacked is None:
                return False
            operands.append(stacked)
        compared = first.operation is AT_MOST
        built = _rebuild_inequality(pool, terms, operands) if compared else _rebuild(pool, first, operands)
        if built is None:
            return False
        pool.memo[_key(terms)] = built
    return True


def _rebuild(pool: TermPool, term: Term, operands: Sequence[View]) -> View | None:
    labels: tuple[Label, ...] = ("piece", *range(len(term.index_sizes)))
    inputs = tuple(labels for _ in operands)
    output = labels[: 1 + term.free]
    try:
        if term.operation is algebra.COMBINE:
            return algebra.combine(pool, operands)
        if term.operation is algebra.CONTRACT:
            return algebra.contract(pool, operands, inputs, output, frozenset(term.summed_indices))
        fresh: Mapping[Label, Size] = {index: term.index_sizes[index] for index in term.fresh}
        bound = tuple(tuple(core) for core in term.cores)
        signature = Signature(inputs, output, frozenset(term.summed_indices), bound, fresh)
        return apply(pool, term.operation, term.attributes, operands, signature)
    except (relabel.UnalignedError, ValueError):
        return None


def _rebuild_inequality(pool: TermPool, terms: _Terms, operands: Sequence[View]) -> View | None:
    """``left <= right + c[piece]`` where c grows evenly: a counter of the pieces joins the right side."""
    left, right = operands
    constants = [int(term.attributes[0]) for term in terms]  # type: ignore[call-overload]  # a whole number
    step = constants[1] - constants[0]
    if any(c != constants[0] + k * step for k, c in enumerate(constants)):
        return None
    shape = right.shape
    counter = algebra.iota(pool, len(terms))
    pieces = View(counter.coefficient, counter.term, shape, (((0, 1, len(terms)),),)).scaled(Fraction(step))
    offset = pool.constant(Fraction(constants[0]), shape)
    return whole_at_most(pool, left, algebra.combine(pool, [right, offset, pieces]))


def _ordered_operands(pool: TermPool, term: Term) -> list[View]:
    """Operands in an order that similar terms share."""
    if not term.operation.commutative:
        return list(term.operands)
    return sorted(term.operands, key=lambda view: (similarity_key(pool, view), _constants(pool, view)))


def _constants(pool: TermPool, view: View) -> tuple[int, ...]:
    """The first pieces that a view reads, from the outside in: similar views are ordered by them."""
    return (*_own_constants(view), *_term_constants(pool, view.term))[:_MOST_CONSTANTS]


def _own_constants(view: View) -> Iterator[int]:
    return (d[1] for axis in view.axes for d in axis if d[0] == CONSTANT and isinstance(d[1], int))


def _term_constants(pool: TermPool, wanted: Term) -> tuple[int, ...]:
    known = pool.pieces_read

    def constants(term: Term) -> tuple[int, ...]:
        # Operands of commutative operations stand in the order of their forms, so alike in similar terms.
        inner = (constant for view in term.operands for constant in (*_own_constants(view), *known[view.term]))
        return tuple(itertools.islice(inner, _MOST_CONSTANTS))

    return parts_first(known, wanted, terms_of, constants)


def _stack_axes(axes: Sequence[Axis]) -> list[Digit] | None:
    """Digits of one axis over the stacked dimensions: the new one is 0, the others move up by one."""
    first = axes[0]
    if any(len(axis) != len(first) for axis in axes):
        return None
    digits: list[Digit] = []
    for column in zip(*axes, strict=True):
        dim, divisor, size = column[0]
        if any(digit[0] != dim or digit[2] != size for digit in column):
            return None
        if dim != CONSTANT:
            if any(digit[1] != divisor for digit in column):
                return None
            digits.append((dim + 1, divisor, size))
            continue
        found = _constant_digits([digit[1] for digit in column], size)
        if found is None:
            return None
        digits.extend(found)
    return digits


def _constant_digits(values: Sequence[Size], size: Size) -> list[Digit] | None:
    """Digits that spell ``values[r]`` for every ``r``: constants, and one digit of the new dimension."""
    if all(value == values[0] for value in values):
        return [(CONSTANT, values[0], size)]
    if not isinstance(size, int):
        return None
    numbers = [value for value in values if isinstance(value, int)]
    count = len(values)
    if len(numbers) != count or count > _MAX_PIECES:
        return None
    for low in _divisors(size):
        if any(number % low != numbers[0] % low for number in numbers):
            continue
        upper = [number // low for number in numbers]
        for extent in _divisors(size // low):
            if any(number // extent != upper[0] // extent for number in upper):
                continue
            for divisor in _divisors(count):
                if count % (divisor * extent) != 0:
                    continue
                if all(number % extent == r // divisor % extent for r, number in enumerate(upper)):
                    return [
                        (CONSTANT, upper[0] // extent, size // low // extent),
                        (0, divisor, extent),
                        (CONSTANT, numbers[0] % low, low),
                    ]
    return None


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


@matching_lemma("VL26", "sum-of-pieces")
def sum_similar(pool: TermPool, operands: Sequence[View], shape: tuple[Size, ...]) -> Sequence[View] | None:
    """Summands that are similar and together read all pieces, as one sum over the pieces; None where there are none.

    No equation of the table says this: that a summand is the value at a piece of what is summed shows where that value
    is built at the piece, so a guard would be this function the other way around, once a piece.
    """
    groups: dict[tuple[object, int], list[View]] = {}
    for operand in operands:
        groups.setdefault((operand.coefficient, similarity_key(pool, operand)), []).append(operand)
    for group in groups.values():
        if len(group) < 2:
            continue
        ordered = sorted(group, key=lambda view: _constants(pool, view))
        stacked = stack_similar(pool, [View(v.coefficient, v.term, shape, v.axes) for v in ordered])
        if stacked is None:
            continue
        pool.lemma_trace.append(("sum-of-pieces", repr(ordered[0].term)))
        total = algebra.sum_over(pool, stacked, [0])
        members = {id(view) for view in group}
        return [*(operand for operand in operands if id(operand) not in members), total]
    return None


def join_similar(pool: TermPool, views: Sequence[View], position: int) -> View | None:
    """The concatenation along ``position`` of similar views; None where they are not similar."""
    length = views[0].shape[position]
    stacked = stack_similar(pool, views)
    if stacked is None:
        return None
    replacement: dict[int, Sequence[Digit]] = {0: [(position, length, len(views))]}
    for dim, size in enumerate(views[0].shape):
        replacement[1 + dim] = [(dim, 1, size)]
    shape = list(views[0].shape)
    shape[position] = length * len(views)
    try:
        joined = relabel.substitute(stacked, replacement, tuple(shape))
    except relabel.UnalignedError:
        return None
    pool.lemma_trace.append(("concatenation-of-pieces", repr(views[0].term)))
    return joined
