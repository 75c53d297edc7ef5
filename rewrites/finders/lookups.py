"""Look-ups in computed tables: a look-up distributes over a sum, and finds itself under its own indicator.

With them the logit of the target, picked before or after the shift by the maximum or by the log-sum-exp, is one
term. They hold for every value of the index: no fact about it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from verifycompile.ir.algebra import COMBINE, CONTRACT, IOTA, open_view
from verifycompile.ir.indicator import EQUAL
from verifycompile.ir.size import Size
from verifycompile.ir.term import UNIT, Term, TermPool, View
from verifycompile.ir.term_property import TermProperty
from verifycompile.ir.whole_dims import whole_dim
from verifycompile.rewrites.finders.arithmetic import integer_leaves
from verifycompile.rewrites.finders.distribution import distributed
from verifycompile.rewrites.finders.finder import ProductFinder, Proposal, whole_view
from verifycompile.rewrites.finders.one_hot import merged_indicators
from verifycompile.rewrites.lemmas.build import build
from verifycompile.rewrites.lemmas.indicators import LOOK_UP_INSIDE, LOOKED_UP, MASKS_JOIN_SUM
from verifycompile.rewrites.lemmas.substitution import Factors, Substitution
from verifycompile.rewrites.parts.beside_masks import is_elementwise, is_given, looked_up_by, positions_compared
from verifycompile.rewrites.parts.chosen import applied


def lookup_parts(view: View, shape: tuple[Size, ...]) -> tuple[View, int] | None:
    """``(x, dim)`` where the view is the indicator ``x == position in dim`` and x does not depend on ``dim``."""
    if view.term.operation is not EQUAL or view.coefficient != 1:
        return None
    operands = open_view(view).operands
    for index, counter in (operands, operands[::-1]):
        dim = whole_dim(counter, shape)
        if dim is not None and not index.uses(dim):
            return index, dim
    return None


def _look_ups_of_sums(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """Sums under a look-up in a summed dimension: the logit of the target, before or after a shift."""
    shape = factors[0].shape
    looked_up = {found[1] for f in factors if (found := lookup_parts(f, shape)) is not None and found[1] >= free}
    for total in factors:
        if total.term.operation is COMBINE and any(total.uses(dim) for dim in looked_up):
            yield from distributed(factors, total)


def _look_ups_inside(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """A look-up in a sum, where the index is compared with a position outside of it."""
    for indicator in factors:
        for index, position in positions_compared(indicator):
            for factor in factors:
                found = None if factor is indicator else _looked_up(factor, index)
                if found is not None:
                    values, bound = found
                    given = {"x": (index,), "n": (position,), "a": values}
                    proposal = Substitution(given, indices={"j": (bound,)})
                    yield Proposal(LOOK_UP_INSIDE, proposal, (indicator, factor))


def _looked_up(view: View, index: View) -> tuple[Factors, int] | None:
    """What a sum over w of ``(index == w) a[w]`` looks up, and w."""
    if view.term.operation is not CONTRACT or view.term.summed != 1:
        return None
    opened = open_view(view)
    (bound,) = opened.summed
    wide = View(index.coefficient, index.term, opened.shape, index.axes)
    for lookup in opened.operands:
        if lookup_parts(lookup, opened.shape) == (wide, bound):
            return tuple(v for v in opened.operands if v is not lookup), bound
    return None


def _masks_of_look_ups(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """Masks of a sum of a look-up of what they are about: the one look-up that both are, or the sum alone."""
    masks = tuple(f for f in factors if f.term.operation.indicator)
    sums = [f for f in factors if f.term.operation is CONTRACT and f.term.summed]
    subjects = {leaf.term for mask in masks for leaf in integer_leaves(mask)} if sums else set[Term]()
    for total in sums:
        opened = open_view(total)
        inner = tuple(v for v in opened.operands if v.term.operation.indicator)
        if not any(leaf.term in subjects for v in inner for leaf in integer_leaves(v)):
            continue
        rest = tuple(v for v in opened.operands if v not in inner)
        wide = [whole_view(f, opened.shape) for f in masks]
        given = {"m": masks, "n": inner, "a": rest}
        without = ((*(m for m in wide if m is not mask), *inner) for mask in wide)
        for joined in (*merged_indicators(pool, [*wide, *inner]), *without):
            proposal = Substitution({**given, "c": tuple(joined)}, indices={"l": opened.summed})
            yield Proposal(MASKS_JOIN_SUM, proposal, (*masks, total))


def _is_counted(term: Term) -> bool:
    """Whether a term is computed of places and numbers alone, element by element."""
    if is_elementwise(term):
        return all(_IS_COUNTED(view.term) for view in term.operands)
    return term.operation in (IOTA, UNIT)


_IS_COUNTED = TermProperty(is_elementwise, _is_counted)


def _functions_looked_up(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """Functions under a look-up by an index that is a position: they are functions of what is looked up."""
    bound = range(free, factors[0].rank)
    for lookup in factors if bound else ():
        for index, place in positions_compared(lookup):
            dims = looked_up_by(lookup, index, place.term, bound)
            own = tuple(f for f in factors if f is not lookup and any(map(f.uses, dims)))
            known = index.term in pool.facts or index.term.operation is COMBINE
            if not (known and is_given(index.term)) and not all(_IS_COUNTED(f.term) for f in own):
                continue  # nothing is known of it, or it is chosen
            if any(is_elementwise(f.term) and f.term.operation not in (CONTRACT, COMBINE) for f in own):
                picked = tuple(_picked(pool, f, lookup, dims) for f in own)
                given = {"n": (index,), "a": own, "b": picked}
                yield Proposal(LOOKED_UP, Substitution(given, indices={"j": dims}), (lookup, *own))


def _picked(pool: TermPool, view: View, lookup: View, dims: tuple[int, ...]) -> View:
    """What is looked up of a value: of a function of values, the function of what is looked up of them."""
    if not any(map(view.uses, dims)):
        return view
    if not is_elementwise(view.term):
        given = Substitution({"e": (lookup,), "a": (view,)}, indices={"j": dims})
        return build(pool, ("sum", "j", ("mul", "e", "a")), view.shape, given)
    opened = open_view(view)
    return applied(pool, view, opened, [_picked(pool, operand, lookup, dims) for operand in opened.operands])


look_ups_of_sums = ProductFinder(_look_ups_of_sums, among_masks=True)
functions_looked_up = ProductFinder(_functions_looked_up, among_masks=True)
look_ups_inside = ProductFinder(_look_ups_inside, among_masks=True)
masks_of_look_ups = ProductFinder(_masks_of_look_ups, among_masks=True)
