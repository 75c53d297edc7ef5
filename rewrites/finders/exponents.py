"""Products of powers of one base, and sums that stand in a softmax's gradient.

The shift by a maximum, and a division by a sum of exponentials that something multiplies by again, cancel with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from verifycompile.ir.algebra import CONTRACT, open_view
from verifycompile.ir.exponential import EXPONENTIAL, POWER, is_positive
from verifycompile.ir.scalar import ONE, Scalar
from verifycompile.ir.sign import is_positive_sum
from verifycompile.ir.term import CONSTANT, Digit, TermPool, View
from verifycompile.rewrites.finders.finder import ProductFinder, Proposal
from verifycompile.rewrites.lemmas.exponentials import MERGE_EXPONENTIALS, MERGE_POWERS
from verifycompile.rewrites.lemmas.products import EXCHANGE_SUMS, OPEN_SUM
from verifycompile.rewrites.lemmas.substitution import Substitution


def _equal_exponents(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """Exponentials of multiples of one value."""
    powers = [f for f in factors if f.term.operation is EXPONENTIAL]
    exponents = [open_view(f).operands[0] for f in powers]
    for k, first in enumerate(exponents):
        for j, other in enumerate(exponents[:k]):
            if first.term is other.term and first.axes == other.axes:
                numbers = {"p": first.coefficient, "q": other.coefficient}
                yield Proposal(
                    MERGE_EXPONENTIALS, Substitution({"a": (first.unscaled(),)}, numbers), (powers[k], powers[j])
                )


def _equal_bases(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """Powers of one positive value."""
    bases = [_base(f) for f in factors]
    for k, (base, exponent) in enumerate(bases):
        for j, (other, further) in enumerate(bases[:k]):
            if base == other and _is_positive_total(base):
                numbers = {"p": exponent, "q": further}
                yield Proposal(MERGE_POWERS, Substitution({"a": (base,)}, numbers), (factors[k], factors[j]))


def _base(view: View) -> tuple[View, Scalar]:
    """``(a, p)`` where the view is ``a ** p``."""
    if view.term.operation is not POWER:
        return view, ONE
    (exponent,) = view.term.attributes
    (base,) = open_view(view).operands
    return base, exponent  # pyright: ignore[reportReturnType] - a scalar by construction


def _is_positive_total(view: View) -> bool:
    summed = view.term.operation is CONTRACT and view.term.summed
    return (summed and is_positive(view)) or is_positive_sum(view)


def _sums_inside_of_weights(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """``sum_j (sum_l exp(s[k, l]) v[l, j]) g[k, j]``, where j may be summed before l is.

    Of the two orders the one in which the exponential stands outside: that of a softmax's gradient.
    """
    rank = factors[0].rank
    for total in factors if free < rank else ():
        if not _is_sum_of(total, _is_exponential):
            continue
        opened = open_view(total)
        weights = [f for f in opened.operands if _is_exponential(f)]
        bound = tuple(d for d in range(free, rank) if total.uses(d) and not _any_uses(weights, d))
        outer = [f for f in factors if f is not total]
        if not bound or any(_reads(v, bound) for v in outer if _is_exponential(v)):
            continue
        inner = tuple(f for f in opened.operands if _reads(f, bound))
        joined = tuple(f for f in outer if _reads(f, bound))
        if not (_digits(joined) & _digits(weights)) - _digits(inner):
            continue
        values = {"e": tuple(f for f in opened.operands if not _reads(f, bound)), "a": inner, "g": joined}
        indices = {"j": bound, "l": opened.summed}
        yield Proposal(EXCHANGE_SUMS, Substitution(values, indices=indices), (total, *joined))


def _sums_between_weights(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """``sum_j exp(t[j]) (sum_l exp(s[j, l]) a[l])``: one sum over both indices.

    The exponential of a softmax's denominator leaves the sum over the keys, so that a sum over the heads finds it
    outside where the keys were summed first, as on a rank that has one head, and inside where both are summed at once.
    """
    rank = factors[0].rank
    exponentials = [f for f in factors if _is_exponential(f)]
    for total in factors if free < rank and exponentials else ():
        if not _is_sum_of(total, _is_weighted):
            continue
        opened = open_view(total)
        outer = [f for f in factors if f is not total]
        weights = exponentials, [f for f in opened.operands if _is_weighted(f)]
        varying = [f for f in opened.operands if _reads(f, opened.summed)]
        bound = tuple(d for d in range(free, rank) if total.uses(d))
        if bound and all(
            all(_any_uses(views, d) for views in weights) and not all(f.uses(d) for f in varying) for d in bound
        ):
            joined = tuple(f for f in outer if _reads(f, bound))
            values = {"f": joined, "a": tuple(opened.operands)}
            yield Proposal(OPEN_SUM, Substitution(values, indices={"j": bound, "l": opened.summed}), (total, *joined))


def _is_sum_of(view: View, kind: Callable[[View], bool]) -> bool:
    """Whether a view is a sum of products, with a factor of a kind."""
    return view.term.operation is CONTRACT and bool(view.term.summed) and any(map(kind, view.term.operands))


def _is_exponential(view: View) -> bool:
    return view.term.operation is EXPONENTIAL


def _is_weighted(view: View) -> bool:
    """Whether a view is an exponential, or a product or sum of products with one."""
    term = view.term
    inner = term.operands if term.operation is CONTRACT else (view,)
    return any(f.term.operation is EXPONENTIAL for f in inner)


def _any_uses(views: Sequence[View], dim: int) -> bool:
    return any(view.uses(dim) for view in views)


def _digits(views: Sequence[View]) -> set[Digit]:
    """What views read of their dimensions: of a batch and a sequence that are one dimension each may be read alone."""
    return {digit for view in views for axis in view.axes for digit in axis if digit[0] != CONSTANT}


def _reads(view: View, dims: Sequence[int]) -> bool:
    return any(view.uses(dim) for dim in dims)


equal_exponents = ProductFinder(_equal_exponents)
equal_bases = ProductFinder(_equal_bases)
sums_inside_of_weights = ProductFinder(_sums_inside_of_weights)
sums_between_weights = ProductFinder(_sums_between_weights)
