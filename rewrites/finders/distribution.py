"""Products of sums that are worth writing as sums of products. All other products of sums stay as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from verifycompile.ir.algebra import COMBINE, CONTRACT, IOTA, combine, elementwise, has_infinity, open_view
from verifycompile.ir.exponential import EXPONENTIAL, POWER, is_positive
from verifycompile.ir.scalar import ONE
from verifycompile.ir.term import UNIT, TermPool, View
from verifycompile.rewrites.finders.arithmetic import integer_leaves, is_arithmetic
from verifycompile.rewrites.finders.finder import ProductFinder, Proposal, whole_view
from verifycompile.rewrites.lemmas.products import DISTRIBUTE
from verifycompile.rewrites.lemmas.substitution import Substitution
from verifycompile.rewrites.side_conditions.index_arithmetic import implied

_MAX_SUMS = 2
"""A product of more sums that could be split is left as it is: a mean square has no more, and of ``y = y * y + w``,
repeated, all monomials would be written out.
"""
_MOST_SUMMANDS = 4
"""The gradient of a softmax has no more. That of a stream of layers has all of them, and of each what is before it."""


def distributed(
    factors: Sequence[View], total: View, groups: Sequence[Sequence[View]] | None = None, pool: TermPool | None = None
) -> Iterator[Proposal]:
    """The other factors, times each summand of ``total`` or each of these groups of its summands.

    One of them may be infinite, as padding that is masked: the sum is then as infinite as that one.
    """
    parts = open_view(total).operands
    if sum(map(has_infinity, parts)) > 1:
        return
    others = tuple(factor for factor in factors if factor is not total)
    summands = parts if groups is None or pool is None else [combine(pool, group) for group in groups]
    given = Substitution({"f": others}, each={"a": tuple((part,) for part in summands)})
    yield Proposal(DISTRIBUTE, given, factors)


def _sums_about_a_constant(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """A sum of which some summands depend on an index that is summed, and others do not.

    So a variance is one term, written as mean of squares less squared mean, about the mean, or from parts with means of
    their own; so is the gradient of a norm.
    """
    for product, direct, bound in _nested(factors, free):
        sums = [factor for factor in direct if factor.term.operation is COMBINE]
        splits = [(total, split) for total in sums if (split := _split(total, bound)) is not None]
        if splits and len(splits) <= _MAX_SUMS:
            yield from distributed(product, *splits[0], pool)


def _nested(factors: Sequence[View], free: int) -> Iterator[tuple[Sequence[View], Sequence[View], Sequence[int]]]:
    """Products that are summed, the innermost first: all factors, those that are in no inner sum, and the indices.

    So what is proposed is the same whether a sum over several indices is taken at once or one index after the other.
    """
    users = {d: {k for k, f in enumerate(factors) if f.uses(d)} for d in range(free, factors[0].rank)}
    direct = set(range(len(factors)))
    while users:
        inner = next((k for k in users.values() if all(k <= other or not k & other for other in users.values())), None)
        own = [d for d, who in users.items() if who == inner]
        if inner is None or len(own) == len(users):
            yield factors, [factors[k] for k in sorted(direct)], list(users)
            return
        yield [factors[k] for k in sorted(inner)], [factors[k] for k in sorted(inner & direct)], own
        direct -= inner
        users = {d: who for d, who in users.items() if d not in own}


def _split(total: View, bound: Iterable[int]) -> tuple[list[View], list[View]] | None:
    """The summands that depend on one of the indices ``bound``, and those that do not; None where either has none."""
    parts = open_view(total).operands
    for index in bound:
        varying = [part for part in parts if part.uses(index)]
        if varying and len(varying) < len(parts):
            return varying, [part for part in parts if not part.uses(index)]
    return None


def _exponentials_that_meet(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """``exp(p x) (a exp(q x) + b)``: the exponentials become one."""
    exponents = [(f, open_view(f).operands[0]) for f in factors if f.term.operation is EXPONENTIAL]
    for total in factors if exponents else ():
        if total.term.operation is not COMBINE:
            continue
        parts = open_view(total).operands
        for power, exponent in exponents:
            if any(_holds_exponential(part, exponent) for part in parts):
                yield from distributed((power, total), total)


def _weights_of_sums(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """Exponentials on both sides, or in a summand: the gradient of a softmax is one sum."""
    weighted = any(_is_weight(factor) for factor in factors if factor.term.operation is not COMBINE)
    for total in factors:
        if total.term.operation is not COMBINE or len(factors) == 1:
            continue
        parts = open_view(total).operands
        if len(parts) > _MOST_SUMMANDS and not _cancels(pool, factors, total, parts):
            continue
        weighing = [f for part in parts for f in _weights(part)]
        if any(weighted or factor.term.operation is EXPONENTIAL for factor in weighing):
            yield from distributed(factors, total)


def _cancels(pool: TermPool, factors: Sequence[View], total: View, parts: Sequence[View]) -> bool:
    """Whether all summands are divided by another of the factors, as where parts of a softmax are merged in turn."""
    sums = (factor for factor in factors if factor is not total and is_positive(factor))
    inverses = (elementwise(pool, POWER, (-ONE,), (factor.unscaled(),)) for factor in sums)
    return any(all(_has_factor(part, inverse) for part in parts) for inverse in inverses)


def _has_factor(product: View, factor: View) -> bool:
    plain = product.term.operation is CONTRACT and not product.term.summed
    found = open_view(product).operands if plain else (product,)
    return any((view.term, view.axes) == (factor.term, factor.axes) for view in found)


def _masks_of_their_subject(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """A mask of a sum that holds an indicator of what the mask is about, where the two may be one.

    The look-up in a shard is a look-up in the whole table only together with its mask, and a mask that leaves out what
    no row of a table is says nothing beside a look-up. Any other mask stays in front of its sum: distributed, it would
    be written into all that follows a look-up.
    """
    if free != factors[0].rank:
        return
    masks = [f for f in factors if f.term.operation.indicator]
    for total in factors if masks else ():
        if total.term.operation is not COMBINE:
            continue
        found = [f for part in open_view(total).operands for f in _indicators(part)]
        if any(_may_be_one(mask, f) for f in found for mask in masks):
            yield from distributed(factors, total)


def _indicators(view: View) -> Iterator[View]:
    """Indicators among the factors of a product, those inside of its sums included."""
    if view.term.operation is CONTRACT:
        for operand in open_view(view).operands:
            yield from _indicators(operand)
    elif view.term.operation.indicator:
        yield view


def _may_be_one(mask: View, indicator: View) -> bool:
    """Whether an indicator of what a mask is about compares a number that is computed from it, or implies the mask.

    What compares two values, as the gradient of a maximum does, looks up nothing.
    """
    operands = open_view(indicator).operands
    if not any(view.term.operation in (IOTA, UNIT) for view in operands):
        return False
    if {leaf.term for leaf in integer_leaves(mask)}.isdisjoint(leaf.term for leaf in integer_leaves(indicator)):
        return False
    computed = any(is_arithmetic(view) for view in operands)
    return computed or implied([indicator], [whole_view(mask, indicator.shape)], indicator.shape)


def _is_weight(view: View) -> bool:
    return view.term.operation is EXPONENTIAL or (view.term.operation is POWER and is_positive(view.unscaled()))


def _weights(view: View) -> Iterator[View]:
    """The factors of the view that are exponentials, or powers of a sum of exponentials."""
    plain = view.term.operation is CONTRACT and not view.term.summed
    return (factor for factor in (view.term.operands if plain else (view,)) if _is_weight(factor))


def _holds_exponential(view: View, exponent: View) -> bool:
    """Whether a factor of a product is an exponential of a multiple of ``exponent``."""
    plain = view.term.operation is CONTRACT and not view.term.summed
    for factor in open_view(view).operands if plain else (view,):
        if factor.term.operation is EXPONENTIAL:
            (found,) = open_view(factor).operands
            if found.term is exponent.term and found.axes == exponent.axes:
                return True
    return False


sums_about_a_constant = ProductFinder(_sums_about_a_constant)
exponentials_that_meet = ProductFinder(_exponentials_that_meet)
weights_of_sums = ProductFinder(_weights_of_sums)
masks_of_their_subject = ProductFinder(_masks_of_their_subject)
