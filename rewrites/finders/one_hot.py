"""One-hot look-ups: masked look-up in a shard of a table, summed over the shards, is the whole look-up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, IOTA, elementwise, iota, open_view
from verifycompile.ir.exponential import MAXIMUM, WHERE
from verifycompile.ir.indicator import EQUAL, LESS, LESS_EQUAL, NOT, equal, negate
from verifycompile.ir.inequality import AT_MOST
from verifycompile.ir.relabel import merge_digits
from verifycompile.ir.scalar import as_scalar
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import CONSTANT, Axis, TermPool, View, facts_of
from verifycompile.ir.whole_dims import whole_dim
from verifycompile.rewrites.finders.arithmetic import dividends, integer_leaves, integer_parts, is_arithmetic
from verifycompile.rewrites.finders.finder import ProductFinder, Proposal
from verifycompile.rewrites.lemmas.indicators import IMPLIED_MASK, KNOWN_MASK, SAME_TRUTH
from verifycompile.rewrites.lemmas.products import OPEN_SUM
from verifycompile.rewrites.lemmas.substitution import Substitution
from verifycompile.rewrites.operations import MINIMUM


def _masked_sums(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """A mask that shares a summed index with a look-up: ``sum_m mask[m] (sum_l f[m, l])``."""
    rank = factors[0].rank
    for index in range(free, rank):
        if not any(f.term.operation.indicator and f.uses(index) for f in factors):
            continue
        for factor in factors:
            if _is_lookup(factor) and factor.uses(index):
                opened = open_view(factor)
                values = {"f": tuple(f for f in factors if f is not factor), "a": opened.operands}
                yield Proposal(OPEN_SUM, Substitution(values, indices={"j": (index,), "l": opened.summed}), factors)


def _is_lookup(view: View) -> bool:
    """A contraction of a one-hot factor with others. Opening any other would be undone by pushing its sums back."""
    term = view.term
    if term.operation is not CONTRACT or not term.summed or len(term.operands) < 2:
        return False
    return any(v.term.operation.indicator for v in term.operands)


def _shifted_one_hots(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """``mask[m] * (f(x, m) == l)``, which may be ``x == m * n + l``, where n is the size of a shard."""
    for indicators in _connected([f for f in factors if f.term.operation.indicator]):
        for merged in merged_indicators(pool, indicators):
            yield Proposal(SAME_TRUTH, Substitution({"m": indicators, "n": tuple(merged)}), indicators)


def _connected(indicators: Sequence[View]) -> Iterator[tuple[View, ...]]:
    """Those that share indices or values, directly or through others: no mask says anything of another dimension's."""
    groups: list[tuple[set[object], list[View]]] = []
    for indicator in indicators:
        shared: set[object] = {dim for dim in range(indicator.rank) if indicator.uses(dim)}
        shared |= {(v.term, v.axes) for v in integer_leaves(indicator)}
        members = [indicator]
        for group in [group for group in groups if shared & group[0]]:
            groups.remove(group)
            shared |= group[0]
            members = [*group[1], *members]
        groups.append((shared, members))
    return (tuple(members) for _, members in groups)


def merged_indicators(pool: TermPool, indicators: Sequence[View]) -> Iterator[Sequence[View]]:
    """What masks and the look-up of a computed index may be: one look-up of a plainer index."""
    for lookup in indicators:
        if lookup.term.operation is not EQUAL:
            continue
        operands = open_view(lookup).operands
        for value, counter in (operands, operands[::-1]):
            if len(indicators) == 1 and not _is_chosen(value):
                continue  # no mask says where the index is in the shard
            if counter.coefficient != 1 or counter.term.operation is not IOTA:
                if not (_is_number(pool, counter) and value.term.operation is WHERE):
                    continue  # one place in a shard
            for wanted in _wholes(pool, value, counter, indicators):
                for leaf in _candidates(value, indicators):
                    # Terms are numbered as they are made: what is plainer was made before, so that rewriting ends.
                    if leaf.term.id >= value.term.id or any(leaf.uses(d[0]) for d in wanted.axes[0]):
                        continue
                    merged = equal(pool, leaf, wanted)
                    yield (merged,)
                    kept = [f for f in indicators if not any(f.uses(d[0]) for d in wanted.axes[0])]
                    if kept:
                        yield (merged, *kept)


def _is_chosen(value: View) -> bool:
    """Whether a condition or a limit chooses the value, or a summand of it: a mask, where zero is chosen else."""
    if value.term.operation is COMBINE:
        return any(_is_chosen(operand) or _is_masked(operand) for operand in value.term.operands)
    return value.term.operation in (MAXIMUM, MINIMUM, WHERE)


def _is_masked(view: View) -> bool:
    product_of = view.term.operands if view.term.operation is CONTRACT and not view.term.summed else ()
    return any(factor.term.operation.indicator for factor in product_of)


def _wholes(pool: TermPool, value: View, counter: View, indicators: Sequence[View]) -> Iterator[View]:
    """Positions in the whole table, of which ``counter`` counts a shard: a dimension may number the shards."""
    shape = counter.shape
    if _is_number(pool, counter):
        place = 0 if counter.is_zero else int(counter.coefficient)
        for digits, size in _shards(value, place):
            yield _position(pool, shape, (*digits, (CONSTANT, place, size)))
        return
    position = whole_dim(counter, shape)
    computed = is_arithmetic(value)
    for dim, count in enumerate(shape):
        if position is None:
            break
        if dim == position or not (value.uses(dim) or (computed and any(f.uses(dim) for f in indicators))):
            continue
        yield _position(pool, shape, ((dim, 1, count), (position, 1, shape[position])))
    if computed and position is not None:
        # Several dimensions number the shards, as the axes of a mesh do.
        for digits in dict.fromkeys(v.axes[0] for v in integer_leaves(value) if v.term.operation is IOTA):
            if len(digits) > 1 and all(dim not in (position, CONSTANT) for dim, _, _ in digits):
                yield _position(pool, shape, (*digits, (position, 1, shape[position])))
    if computed:
        yield counter


def _is_number(pool: TermPool, view: View) -> bool:
    number = view.coefficient
    return view.is_zero or (view.term is pool.unit and isinstance(number, Fraction) and number == int(number) >= 0)


def _shards(value: View, place: int) -> Iterator[tuple[Axis, int]]:
    """What numbers the shards that a computed index may lie in, and the size of each: more than the place in one."""
    for total in integer_parts(value):
        for part in open_view(total).operands if total.term.operation is COMBINE else ():
            size = part.coefficient
            if part.term.operation is IOTA and isinstance(size, Fraction) and abs(size) == int(abs(size)) > place:
                yield part.axes[0], int(abs(size))


def _position(pool: TermPool, shape: tuple[Size, ...], digits: Axis) -> View:
    """The number that these digits spell."""
    whole = iota(pool, product([size for _, _, size in digits]))
    return View(whole.coefficient, whole.term, shape, (merge_digits(digits),))


def _candidates(value: View, indicators: Sequence[View]) -> Iterator[View]:
    """What the lookup may be a lookup of: leaves of the computed index, dividends in it, and what the masks compare."""
    leaves = [*integer_leaves(value), *dividends(value)]
    yield from leaves
    for mask in indicators:
        if mask.term.operation in (LESS, LESS_EQUAL, AT_MOST):
            yield from (v for v in open_view(mask).operands if v.coefficient == 1 and v not in leaves)


def _implied_masks(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """A mask beside a look-up, which may hold for every position of the table."""
    indicators = [f for f in factors if f.term.operation.indicator]
    for lookup in indicators if len(indicators) > 1 else ():
        if lookup.term.operation is not EQUAL or not any(v.term.operation is IOTA for v in open_view(lookup).operands):
            continue
        for mask in indicators:
            if mask is not lookup:
                yield Proposal(IMPLIED_MASK, Substitution({"m": (lookup,), "n": (mask,)}), (lookup, mask))


def _masks_outside(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """Beside ``x == v`` a mask that compares x with a number is the mask of v: outside of the sum, if v is."""
    masks = [f for f in factors if f.term.operation in (NOT, AT_MOST)]
    for lookup in factors if masks and free < factors[0].rank else ():
        if lookup.term.operation is not EQUAL:
            continue
        operands = open_view(lookup).operands
        for own, other in (operands, operands[::-1]):
            bound = [any(v.uses(dim) for dim in range(free, v.rank)) for v in (own, other)]
            for mask in masks if bound == [True, False] else ():
                moved = _of_another(pool, mask, own, other)
                if moved is not None:
                    given = {"m": (lookup, mask), "n": (lookup, moved)}
                    yield Proposal(SAME_TRUTH, Substitution(given), (lookup, mask))


def _of_another(pool: TermPool, mask: View, own: View, other: View) -> View | None:
    """A comparison of ``own`` with a number as one of ``other``."""
    operands = open_view(mask).operands
    if mask.term.operation is NOT:
        opposite = _of_another(pool, operands[0], own, other)
        return None if opposite is None else negate(pool, opposite)
    place = (own.coefficient, own.term, own.axes)
    replaced = [other if (v.coefficient, v.term, v.axes) == place else v for v in operands]
    if replaced == list(operands) or not any(v.term is pool.unit for v in operands):
        return None
    if mask.term.operation is EQUAL:
        return equal(pool, replaced[0], replaced[1])
    return elementwise(pool, AT_MOST, mask.term.attributes, replaced) if mask.term.operation is AT_MOST else None


def _known_masks(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """Masks on indices of which something is known: they hold, or say whether the index is the exception."""
    for mask in factors if pool.facts else ():
        known = [v for v in integer_leaves(mask) if v.term in pool.facts] if mask.term.operation.indicator else []
        if not known:
            continue
        yield Proposal(KNOWN_MASK, Substitution({"m": (mask,)}), (mask,))
        for index in known:
            for fact in facts_of(pool.facts, index):
                if fact.exception is not None:
                    is_it = equal(pool, index, pool.constant(as_scalar(fact.exception), index.shape))
                    ways = is_it, negate(pool, is_it)
                    for way in ways if mask not in ways else ():
                        yield Proposal(SAME_TRUTH, Substitution({"m": (mask,), "n": (way,)}), (mask,))


masked_sums = ProductFinder(_masked_sums, among_masks=True)
shifted_one_hots = ProductFinder(_shifted_one_hots, among_masks=True)
implied_masks = ProductFinder(_implied_masks, among_masks=True)
masks_outside = ProductFinder(_masks_outside, among_masks=True)
known_masks = ProductFinder(_known_masks, among_masks=True)
