"""Products, sums and linear combinations in normal form.

Three operations carry all linear algebra of the IR:

- ``contract``: sum over bound indices of a product of factors (mul, mm, bmm, sum, einsum, one-hot lookup);
- ``combine``: linear combination (add, sub, neg, scaling of sums);
- a sum is pushed as deep as it goes: into the one factor that depends on it, through linear combinations and
  through every operation declared linear in the operand concerned.

So a contraction whose contracted axis is sharded leaves a term with the mesh digit free (a partial value), and
summing over that digit yields the very term of the specification.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction

from verifycompile.ir.build import Label, ShapeError, Signature, apply, label_sizes, refine
from verifycompile.ir.relabel import compose, merge_digits, permute, substitute
from verifycompile.ir.scalar import ONE, ZERO, NonFiniteScalarError, Scalar, add, as_scalar, divide, multiply
from verifycompile.ir.similarity import term_key
from verifycompile.ir.size import Size, product, quotient
from verifycompile.ir.term import CONSTANT, UNIT, Axis, Digit, Operation, Term, TermPool, View
from verifycompile.ir.term_property import TermProperty
from verifycompile.ir.window import has_windows

CONTRACT = Operation("contract", linear=frozenset(range(64)), commutative=True)
COMBINE = Operation("combine", jointly_linear=True, commutative=True)
IOTA = Operation("iota", whole=True)
INFINITY = Operation("infinity")
CONSTANT_WITH_INFINITIES = Operation("constant_with_infinities")
WHERE = Operation("where")
EXPONENTIAL = Operation("exp", nonnegative=True, finite=True)

_MAX_FACTORS = 64


def iota(pool: TermPool, size: Size) -> View:
    """The integers 0 .. size-1, shape ``(size,)``."""
    if size == 1:
        return pool.zero((1,))
    term = pool.intern(IOTA, (), (), (size,), 1, 0, (), (0,))
    return View(ONE, term, (size,), (((0, 1, size),),))


# ------------------------------------------------------------------------------------------------ composition


@dataclasses.dataclass(frozen=True)
class Opened:
    """A view with the operation of its term opened: operands over the view's dimensions and the bound indices.

    Dimension ``rank + i`` of every operand is bound or fresh index ``inner[i]`` of the term.
    """

    operands: tuple[View, ...]
    shape: tuple[Size, ...]
    summed: tuple[int, ...]
    cores: tuple[tuple[int, ...], ...]


def open_view(view: View) -> Opened:
    """Open the operation of a view. Its fresh axes must be handled by the caller: they have no operand digits."""
    key = (view.axes, view.shape)
    opened: Opened | None = view.term.opened.get(key)
    if opened is None:
        opened = view.term.opened[key] = _opened(view)
    return opened


def _opened(view: View) -> Opened:
    term, rank = view.term, view.rank
    inner = range(term.free, len(term.index_sizes))
    shape = (*view.shape, *(term.index_sizes[i] for i in inner))
    index_axes: list[Axis] = [*view.axes, *(((rank + k, 1, term.index_sizes[i]),) for k, i in enumerate(inner))]
    operands = tuple(compose(operand, index_axes, shape) for operand in term.operands)
    place = {index: rank + k for k, index in enumerate(inner)}
    return Opened(
        operands,
        shape,
        tuple(place[i] for i in term.summed_indices),
        tuple(tuple(place[i] for i in core) for core in term.cores),
    )


# ------------------------------------------------------------------------------------------------ contraction


def multiply_views(pool: TermPool, *factors: View) -> View:
    """Element-wise product of views of equal rank (size 1 broadcasts)."""
    labels = tuple(range(factors[0].rank))
    return contract(pool, factors, tuple(labels for _ in factors), labels, frozenset())


def contract(
    pool: TermPool,
    factors: Sequence[View],
    inputs: Sequence[tuple[Label, ...]],
    output: tuple[Label, ...],
    summed: frozenset[Label],
) -> View:
    """Sum over ``summed`` of the product of ``factors``, einsum-like. Raises ShapeError and UnalignedError."""
    signature = Signature(tuple(inputs), output, summed)
    sizes = label_sizes(factors, signature)
    shape = tuple(sizes[label] for label in output)
    if any(sizes[label] == 0 for label in summed):
        return pool.zero(shape)  # a sum without summands
    if any(factor.is_zero for factor in factors):
        if any(has_infinity(factor) for factor in factors):
            raise NonFiniteScalarError("zero times infinity")
        return pool.zero(shape)
    # One shared index space: dimension i of every factor is label i.
    labels = (*output, *sorted(summed, key=repr))
    aligned = [_align(f, ls, labels, sizes) for f, ls in zip(factors, inputs, strict=True)]
    return contract_aligned(pool, aligned, tuple(sizes[label] for label in labels), len(output))


def _align(view: View, labels: Sequence[Label], target: tuple[Label, ...], sizes: dict[Label, Size]) -> View:
    if len(set(labels)) != len(labels):
        raise ShapeError("a repeated index within one factor")
    position = {label: i for i, label in enumerate(target)}
    axes = tuple(
        tuple(d if d[0] == CONSTANT else (position[labels[d[0]]], d[1], d[2]) for d in axis) for axis in view.axes
    )
    return View(view.coefficient, view.term, tuple(sizes[label] for label in target), axes)


def contract_aligned(pool: TermPool, factors: list[View], shape: tuple[Size, ...], free: int) -> View:
    """Contract factors over one index space; dimensions from ``free`` on are summed."""
    if pool.piecewise is not None:
        moved = pool.piecewise.product(pool, factors, shape, free)
        if moved is not None:
            return moved
    elif has_windows(factors):
        from verifycompile.ir.window_moves import moved_product  # here, because few programs have windows

        moved = moved_product(pool, factors, shape, free)
        if moved is not None:
            return moved
    coefficient, plain = _flatten_products(factors)
    if free == len(shape):
        return _product(pool, plain, shape).scaled(coefficient)
    if not plain:
        return pool.constant(multiply(coefficient, as_scalar(product(shape[free:]))), shape[:free])
    plain, shape = _split_summed(plain, shape, free)
    users = {d: [i for i, f in enumerate(plain) if f.uses(d)] for d in range(free, len(shape))}
    unused = [d for d, who in users.items() if not who]
    for d in unused:
        coefficient = multiply(coefficient, as_scalar(shape[d]))
    live = [d for d, who in users.items() if who]
    if len(plain) == 1:
        return _sum_single(pool, permute(plain[0], [*range(free), *live]), free).scaled(coefficient)
    private = {i: [d for d in live if users[d] == [i]] for i in range(len(plain))}
    if any(private.values()):
        pool.lemma_trace.append(("sum-factor", ""))
        pushed: list[View] = []
        shared = [d for d in live if len(users[d]) > 1]
        kept = [*range(free), *shared]
        for i, factor in enumerate(plain):
            own = private[i]
            narrowed = permute(factor, [*kept, *own])
            pushed.append(contract_aligned(pool, [narrowed], narrowed.shape, len(kept)) if own else narrowed)
        return contract_aligned(pool, pushed, tuple(shape[d] for d in kept), free).scaled(coefficient)
    kept = [*range(free), *live]
    final = [permute(f, kept) for f in plain]
    for rule in pool.contraction_rules:
        rewritten = rule(pool, final, free)
        if rewritten is not None:
            return contract_aligned(pool, list(rewritten), rewritten[0].shape, free).scaled(coefficient)
    return _without_constant_factors(pool, final, free).scaled(coefficient)


def _without_constant_factors(pool: TermPool, factors: list[View], free: int) -> View:
    """A factor that does not depend on what is summed leaves the sum."""
    bound = range(free, factors[0].rank)
    outer = [f for f in factors if not any(f.uses(d) for d in bound)]
    if not bound:
        return _apply_contract(pool, factors, free)
    if not outer:
        return _nested(pool, factors, free)
    pool.lemma_trace.append(("sum-factor", ""))
    inner = _nested(pool, [f for f in factors if f not in outer], free)
    kept = list(range(free))
    return _product(pool, [*(permute(f, kept) for f in outer), inner], inner.shape)


def _nested(pool: TermPool, factors: list[View], free: int) -> View:
    """Sums over indices that only some of the factors have stand inside of the others.

    So a sum over several indices is the same term whether it is taken at once or one index after the other. Where the
    factors of two indices overlap otherwise, as in a chain of matrices, there is no innermost one, and none is chosen.
    """
    bound = range(free, factors[0].rank)
    users = {d: frozenset(i for i, f in enumerate(factors) if f.uses(d)) for d in bound}
    for group in sorted(set(users.values()), key=len):
        innermost = all(group <= other or not group & other for other in users.values())
        if not innermost or len(group) == len(factors):
            continue
        own = [d for d in bound if users[d] == group]
        kept = [d for d in range(factors[0].rank) if d not in own]
        inner = _apply_contract(
            pool, [permute(f, [*kept, *own]) for i, f in enumerate(factors) if i in group], len(kept)
        )
        rest = [permute(f, kept) for i, f in enumerate(factors) if i not in group]
        if any([v.term for v in f.term.operands] == [inner.term] for f in rest):  # a power of the sum, which rules join
            return contract_aligned(pool, [*rest, inner], inner.shape, free)
        return _without_constant_factors(pool, [*rest, inner], free)
    return _apply_contract(pool, factors, free)


def _apply_contract(pool: TermPool, factors: Sequence[View], free: int) -> View:
    labels = tuple(range(factors[0].rank))
    signature = Signature(tuple(labels for _ in factors), labels[:free], frozenset(labels[free:]))
    return apply(pool, CONTRACT, (), factors, signature)


def _flatten_products(factors: Sequence[View]) -> tuple[Scalar, list[View]]:
    """Factors with products of factors opened and constants collected."""
    coefficient: Scalar = ONE
    plain: list[View] = []
    for factor in factors:
        coefficient = multiply(coefficient, factor.coefficient)
        term = factor.term
        if term.operation is CONTRACT and not term.summed and len(plain) + len(term.operands) < _MAX_FACTORS:
            plain.extend(compose(operand, factor.axes, factor.shape) for operand in term.operands)
        elif term.operation is not UNIT:
            plain.append(factor.unscaled())
    return coefficient, plain


def _product(pool: TermPool, factors: list[View], shape: tuple[Size, ...]) -> View:
    if not factors:
        return pool.constant(ONE, shape)
    if len(factors) == 1:
        return dataclasses.replace(factors[0], shape=shape)
    for rule in pool.contraction_rules:
        rewritten = rule(pool, factors, len(shape))
        if rewritten is not None:
            return contract_aligned(pool, list(rewritten), rewritten[0].shape, len(shape))
    result = _apply_contract(pool, factors, len(shape))
    return dataclasses.replace(result, shape=shape)


def _split_summed(factors: list[View], shape: tuple[Size, ...], free: int) -> tuple[list[View], tuple[Size, ...]]:
    """Split summed dimensions at every digit boundary, so that each is used wholly or not at all."""
    digits_read = (digit for factor in factors for axis in factor.axes for digit in axis)
    if all(dim < free or (low == 1 and size == shape[dim]) for dim, low, size in digits_read):
        return factors, shape
    labels = tuple(range(len(shape)))
    signature = Signature(tuple(labels for _ in factors), labels[:free], frozenset(labels[free:]))
    chains = refine(factors, signature, dict(enumerate(shape)))
    new_shape: list[Size] = list(shape[:free])
    replacement: dict[int, list[Digit]] = {d: [(d, 1, shape[d])] for d in range(free)}
    for d in labels[free:]:
        digits: list[Digit] = []
        for low, high in reversed(list(itertools.pairwise(chains[d]))):
            extent = quotient(high, low)
            digits.append((len(new_shape), 1, extent))
            new_shape.append(extent)
        replacement[d] = digits
    return [substitute(f, replacement, tuple(new_shape)) for f in factors], tuple(new_shape)


# ------------------------------------------------------------------------------------------------ sums


def sum_over(pool: TermPool, view: View, dims: Sequence[int]) -> View:
    """Sum over dimensions ``dims``; they are dropped from the result."""
    bound = set(dims)
    kept = [d for d in range(view.rank) if d not in bound]
    if not bound:
        return view
    if any(view.shape[d] == 0 for d in bound):
        return pool.zero(tuple(view.shape[d] for d in kept))  # a sum without summands
    key = ("sum", view, tuple(sorted(bound)))
    known = pool.memo.get(key)
    if known is None:
        reordered = permute(view, [*kept, *sorted(bound)])
        known = _whole_sum(pool, reordered, len(kept))
        if known is None:
            known = contract_aligned(pool, [reordered], reordered.shape, len(kept))
        pool.memo[key] = known
        if view.term in pool.squares and isinstance(view.coefficient, Fraction) and view.coefficient > 0:
            from verifycompile.ir.squares import note_sum_of_squares  # here, because few programs take norms

            note_sum_of_squares(pool, known)
    return known


def _sum_single(pool: TermPool, view: View, free: int) -> View:
    """Sum one view over all dimensions from ``free`` on, each of which it uses wholly."""
    if free == view.rank:
        return view
    # Dimensions in the order in which the term has them, and no others: a sum that was taken before, of the same term
    # among other dimensions, is found again, so that a chain of layers is not summed anew for each of them.
    used = list(dict.fromkeys(digit[0] for axis in view.axes for digit in axis if digit[0] != CONSTANT))
    kept = [d for d in used if d < free]
    narrowed = permute(view, [*kept, *(d for d in used if d >= free)])
    key = ("sum-single", narrowed, len(kept))
    known = pool.memo.get(key)
    if known is None:
        known = pool.memo[key] = _push_sum(pool, narrowed, len(kept))
    axes = tuple(tuple(g if g[0] == CONSTANT else (kept[g[0]], g[1], g[2]) for g in axis) for axis in known.axes)
    return View(known.coefficient, known.term, view.shape[:free], axes)


def _push_sum(pool: TermPool, view: View, free: int) -> View:
    term = view.term
    bound = list(range(free, view.rank))
    whole = _whole_sum(pool, view, free)
    if whole is not None:
        return whole
    if term.operation is CONTRACT:
        pool.lemma_trace.append(("sum-exchange", repr(term)))
        opened = open_view(view)
        return contract_aligned(pool, list(opened.operands), opened.shape, free)
    if term.operation is COMBINE:
        pool.lemma_trace.append(("sum-distributes", repr(term)))
        opened = open_view(view)
        return combine(pool, [sum_over(pool, operand, bound) for operand in opened.operands])
    pushed = _push_linear(pool, view, free)
    if pushed is not None:
        return pushed
    for rule in pool.contraction_rules if term.operation.indicator else ():
        rewritten = rule(pool, [view], free)
        if rewritten is not None:
            return contract_aligned(pool, list(rewritten), rewritten[0].shape, free)
    return _apply_contract(pool, [view], free)


def _whole_sum(pool: TermPool, view: View, free: int) -> View | None:
    """A sum over a part of an arithmetic term as that part of the sum; None for other views.

    What a slice takes of a partial value is the slice of the whole value once the parts are added.
    """
    operation = view.term.operation
    fixed = [(i, j) for i, axis in enumerate(view.axes) for j, digit in enumerate(axis) if digit[0] == CONSTANT]
    if not fixed or not (operation.linear or operation.jointly_linear) or has_windows([view]):
        return None
    # Each fixed digit becomes a dimension in front of those that are summed.
    axes = [[(d + len(fixed) if d >= free else d, low, size) for d, low, size in axis] for axis in view.axes]
    chosen: dict[int, Sequence[Digit]] = {d: [(d, 1, view.shape[d])] for d in range(free)}
    shape = list(view.shape)
    for number, (i, j) in enumerate(fixed):
        _, value, size = view.axes[i][j]
        axes[i][j] = (free + number, 1, size)
        chosen[free + number] = [(CONSTANT, value, size)]
        shape.insert(free + number, size)
    widened = View(view.coefficient, view.term, tuple(shape), tuple(map(tuple, axes)))
    total = sum_over(pool, widened, range(free + len(fixed), len(shape)))
    pool.lemma_trace.append(("sum-of-part", repr(view.term)))
    return substitute(total, chosen, view.shape[:free])


def _push_linear(pool: TermPool, view: View, free: int) -> View | None:
    """Move sums through a linear operation; None where no summed dimension can move."""
    term = view.term
    operation = term.operation
    if not (operation.linear or operation.jointly_linear):
        return None
    opened = open_view(view)
    bound = range(free, view.rank)
    through_fresh = {d[0] for i in term.fresh for d in view.axes[i]}
    if operation.jointly_linear:
        movable = {d: range(len(opened.operands)) for d in bound if d not in through_fresh}
    else:
        users = {d: [i for i, operand in enumerate(opened.operands) if operand.uses(d)] for d in bound}
        movable = {
            d: who
            for d, who in users.items()
            if len(who) == 1 and who[0] in operation.linear and d not in through_fresh
        }
    if not movable:
        return None
    pool.lemma_trace.append(("sum-through-linear", repr(term)))
    operands = [
        _sum_keeping_rank(pool, operand, [d for d, who in movable.items() if i in who])
        for i, operand in enumerate(opened.operands)
    ]
    moved = reapply(pool, view, opened, operands)
    moved = permute(moved, [d for d in range(view.rank) if d not in movable])
    rest = [d for d in bound if d not in movable]
    return sum_over(pool, moved, range(free, free + len(rest))) if rest else moved


def _sum_keeping_rank(pool: TermPool, view: View, dims: Sequence[int]) -> View:
    """Sum over dims but keep them, with size 1."""
    result = sum_over(pool, view, dims)
    kept = [d for d in range(view.rank) if d not in dims]
    axes = tuple(tuple(g if g[0] == CONSTANT else (kept[g[0]], g[1], g[2]) for g in axis) for axis in result.axes)
    return View(result.coefficient, result.term, tuple(1 if d in dims else s for d, s in enumerate(view.shape)), axes)


def reapply(pool: TermPool, view: View, opened: Opened, operands: Sequence[View]) -> View:
    """Apply the operation of ``view`` to other operands over the same index space; dims of the result as in view."""
    term, rank = view.term, view.rank
    if term.operation is COMBINE:
        return combine(pool, operands)
    labels = tuple(range(len(opened.shape)))
    fresh: dict[Label, Size] = {("fresh", i): term.index_sizes[i] for i in term.fresh}
    dims = tuple(labels[:rank])
    signature = Signature(
        tuple(labels for _ in operands),
        (*dims, *fresh),
        frozenset(opened.summed),
        tuple(tuple(core) for core in opened.cores),
        fresh,
    )
    if term.operation is CONTRACT:
        return contract(pool, operands, signature.inputs, dims, signature.summed)
    applied = apply(pool, term.operation, term.attributes, operands, signature)
    if not fresh:
        return applied
    replacement: dict[int, Sequence[Digit]] = {d: [(d, 1, applied.shape[d])] for d in dims}
    for k, i in enumerate(term.fresh):
        replacement[rank + k] = view.axes[i]
    shape = tuple(max_size(view.shape[d], applied.shape[d]) for d in dims)
    return substitute(applied, replacement, shape)


def max_size(left: Size, right: Size) -> Size:
    """The larger of two sizes of which one is 1, or which are equal."""
    return right if left == 1 else left


# ------------------------------------------------------------------------------------------------ linear combinations


def combine(pool: TermPool, operands: Sequence[View]) -> View:
    """Sum of views of equal rank (size 1 broadcasts); their coefficients are those of the combination."""
    rank = operands[0].rank
    shape = tuple(_common_size([v.shape[d] for v in operands]) for d in range(rank))
    if pool.piecewise is not None:
        moved = pool.piecewise.combination(pool, operands, shape)
        if moved is not None:
            return moved
    elif has_windows(operands):
        from verifycompile.ir.window_moves import moved_combination  # here, because few programs have windows

        moved = moved_combination(pool, operands, shape)
        if moved is not None:
            return moved
    collected: dict[tuple[Term, tuple[Axis, ...]], Scalar] = {}
    infinite: list[View] = []
    for operand in _flatten_combinations(operands):
        if has_infinity(operand):  # inf - inf is no zero
            infinite.append(dataclasses.replace(operand, shape=shape))
            continue
        key = (operand.term, operand.axes)
        collected[key] = add(collected[key], operand.coefficient) if key in collected else operand.coefficient
    live = [View(c, term, shape, axes) for (term, axes), c in collected.items() if c != 0]
    live = [*_merge_counting(pool, live, shape), *infinite]
    if not live:
        return pool.zero(shape)
    if len(live) == 1:
        return live[0]
    for rule in pool.combination_rules:
        rewritten = rule(pool, live, shape)
        if rewritten is not None:
            return combine(pool, [dataclasses.replace(view, shape=shape) for view in rewritten])
    leading = min(live, key=lambda v: (term_key(pool, v.term), v.term.id, repr(v.axes))).coefficient or ONE  # 0 * inf
    scaled = [dataclasses.replace(v, coefficient=divide(v.coefficient, leading)) for v in live]
    labels = tuple(range(rank))
    result = apply(pool, COMBINE, (), scaled, Signature(tuple(labels for _ in scaled), labels))
    return dataclasses.replace(result.scaled(leading), shape=shape)


def _flatten_combinations(operands: Sequence[View]) -> Iterator[View]:
    """Operands with nested combinations opened: addition is associative."""
    for operand in operands:
        if operand.term.operation is not COMBINE:
            yield operand
            continue
        for inner in operand.term.operands:
            yield compose(inner, operand.axes, operand.shape).scaled(operand.coefficient)


def has_infinity(view: View) -> bool:
    """Whether the value may be infinite somewhere by construction: real arithmetic does not hold for it."""
    return _INFINITE(view.term)


def _has_infinity(term: Term) -> bool:
    if term.operation is EXPONENTIAL:
        (exponent,) = term.operands
        return _holds_infinity(term) or (exponent.term.operation is COMBINE and has_infinity(exponent))
    if _keeps_infinities(term):
        return any(map(has_infinity, term.operands))
    return not term.operands and not term.operation.is_finite


def _keeps_infinities(term: Term) -> bool:
    return term.operation in (COMBINE, CONTRACT, WHERE) or term.operation.copies


_INFINITE = TermProperty(lambda term: _keeps_infinities(term) or term.operation is EXPONENTIAL, _has_infinity)


def holds_infinity(view: View) -> bool:
    """Whether the program writes an infinity into the value: zero times it is no number, whatever the inputs are."""
    return _HOLDS_INFINITY(view.term)


def _holds_infinity(term: Term) -> bool:
    if term.operation is EXPONENTIAL:  # what is minus infinity there by a mask is a factor of zero instead
        (exponent,) = term.operands
        inner = exponent.term.operands if exponent.term.operation in (CONTRACT, WHERE) else ()
        return any(view.term.operation is INFINITY for view in (exponent, *inner))
    infinite = term.operation in (INFINITY, CONSTANT_WITH_INFINITIES)
    return infinite or (_keeps_infinities(term) and any(map(holds_infinity, term.operands)))


_HOLDS_INFINITY = TermProperty(_keeps_infinities, _holds_infinity)


def _common_size(sizes: Sequence[Size]) -> Size:
    result: Size = 1
    for size in sizes:
        if result == 1:
            result = size
        elif size not in (1, result):
            raise ShapeError(f"sizes {result} and {size} do not broadcast")
    return result


def _merge_counting(pool: TermPool, operands: list[View], shape: tuple[Size, ...]) -> list[View]:
    """``n * iota(m)[i] + iota(n)[j]`` is ``iota(m * n)[i, j]``: offsets of a shard join its local positions."""
    operands = _without_fixed_digits(pool, operands, shape)
    counters = [v for v in operands if v.term.operation is IOTA]
    for low in counters:
        for high in counters:
            inner = low.term.index_sizes[0]
            if high.coefficient != multiply(low.coefficient, as_scalar(inner)):
                continue
            total = product((high.term.index_sizes[0], inner))
            joined = View(
                low.coefficient, iota(pool, total).term, shape, (merge_digits((*high.axes[0], *low.axes[0])),)
            )
            pool.lemma_trace.append(("iota-merge", ""))
            rest = [v for v in operands if v is not low and v is not high]
            return _merge_counting(pool, [*rest, joined], shape)
    return operands


def _without_fixed_digits(pool: TermPool, operands: list[View], shape: tuple[Size, ...]) -> list[View]:
    """Counters with constant digits, which a slice of ``arange`` has, as counters of their other digits."""
    if not any(v.term.operation is IOTA and any(d[0] == CONSTANT for d in v.axes[0]) for v in operands):
        return operands
    parts: list[View] = []
    fixed: Scalar = ZERO
    for view in operands:
        if view.term is pool.unit:
            fixed = add(fixed, view.coefficient)
            continue
        if view.term.operation is not IOTA or not any(d[0] == CONSTANT for d in view.axes[0]):
            parts.append(view)
            continue
        weight: Size = 1
        for digit in reversed(view.axes[0]):
            scale = multiply(view.coefficient, as_scalar(weight))
            if digit[0] == CONSTANT:
                fixed = add(fixed, multiply(scale, as_scalar(digit[1])))
            else:
                parts.append(View(scale, iota(pool, digit[2]).term, shape, ((digit,),)))
            weight = product((weight, digit[2]))
    return parts if fixed == 0 else [*parts, pool.constant(fixed, shape)]


def elementwise(pool: TermPool, operation: Operation, attributes: tuple[object, ...], operands: Sequence[View]) -> View:
    """Apply an operation point by point to views of equal rank (size 1 broadcasts)."""
    labels = tuple(range(operands[0].rank))
    return apply(pool, operation, attributes, operands, Signature(tuple(labels for _ in operands), labels))
