"""What is left of a value after a share of it is taken: ``x - x b / (a + b)``, as parts of a softmax are merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from verifycompile.ir.algebra import COMBINE, CONTRACT, combine, elementwise, multiply_views, open_view
from verifycompile.ir.exponential import POWER, is_positive
from verifycompile.ir.scalar import ONE
from verifycompile.ir.size import Size
from verifycompile.ir.term import UNIT, Axis, Term, TermPool, View
from verifycompile.rewrites.finders.finder import Proposal, SumFinder, whole_view
from verifycompile.rewrites.lemmas.exponentials import REST_OF_SHARE
from verifycompile.rewrites.lemmas.substitution import Substitution


def _parts(pool: TermPool, total: View, factors: Sequence[View]) -> Iterator[tuple[View, View]]:
    """Two positive values of which ``total`` is the sum, one of them a part of ``total`` or among ``factors``.

    The other one is what is left of a written sum. Where the sum has another form, as that of all pieces has, it is
    what another of the factors is divided by.
    """
    summands = open_view(total).operands if total.term.operation is COMBINE else ()
    for part in (*summands, *factors):
        if not is_positive(part):
            continue
        if summands and is_positive(rest := combine(pool, [total, part.scaled(-ONE)])):
            yield part, rest
        for other in factors:
            if (
                _is_quotient(other)
                and is_positive(base := open_view(other).operands[0])
                and combine(pool, [part, base]) == total
            ):
                yield part, base


def _is_quotient(factor: View) -> bool:
    """Whether a factor of a product is what the product is divided by."""
    return factor.term.operation is POWER and factor.term.attributes[0] == -1


def _has_quotient(view: View) -> bool:
    """Whether a summand is a product that is divided by something."""
    return view.term.operation is CONTRACT and not view.term.summed and any(map(_is_quotient, view.term.operands))


def _unsigned_factors(view: View) -> Counter[tuple[Term, tuple[Axis, ...]]]:
    """The factors that are not known to be positive, as often as they occur."""
    product = view.term.operation is CONTRACT and not view.term.summed
    factors = open_view(view).operands if product else (view.unscaled(),)
    unknown = (factor for factor in factors if factor.term.operation is not UNIT and not is_positive(factor))
    return Counter((factor.term, factor.axes) for factor in unknown)


def _rests_of_shares(pool: TermPool, operands: Sequence[View], shape: tuple[Size, ...]) -> Iterator[Proposal]:
    """``x - x b / (a + b)`` for positive a and b."""
    quotients = [view for view in operands if _has_quotient(view)]
    unsigned = [_unsigned_factors(view) for view in operands] if quotients else []
    for taken in quotients:
        # Both have the factors of x, of which those that are not known to be positive are neither a, b nor a quotient.
        own = _unsigned_factors(taken)
        whole = [v for v, factors in zip(operands, unsigned, strict=True) if v is not taken and factors == own]
        if not whole:
            continue
        for factor in open_view(taken).operands:
            if not _is_quotient(factor):
                continue
            (total,) = (whole_view(v, shape) for v in open_view(factor).operands)
            factors = [whole_view(v, shape) for v in open_view(taken).operands if v is not factor]
            for part, rest in _parts(pool, total, factors):
                inverse = elementwise(pool, POWER, (-ONE,), (part,))
                wanted = multiply_views(pool, taken.scaled(-ONE), total, inverse)
                for view in whole:
                    if (view.term, view.axes, view.coefficient) == (wanted.term, wanted.axes, wanted.coefficient):
                        given = Substitution({"x": (view,), "a": (rest,), "b": (part,)})
                        yield Proposal(REST_OF_SHARE, given, (view, taken))


rests_of_shares = SumFinder(_rests_of_shares)
