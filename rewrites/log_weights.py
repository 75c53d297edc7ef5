"""Sigmoids of differences of logarithms: the weights by which parts of a softmax are merged.

``sigmoid(log b - log a)`` is ``b / (a + b)``. So ``out - sigmoid(b - a) * (out - part)`` is the output of both parts
together, and ``a - logsigmoid(a - b)`` its logarithm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from verifycompile.ir.algebra import COMBINE, CONTRACT, elementwise, multiply_views, open_view
from verifycompile.ir.exponential import LOGARITHM, POWER, is_positive
from verifycompile.ir.relabel import UnalignedError, compose, inverse_digits, substitute
from verifycompile.ir.scalar import ONE
from verifycompile.ir.size import Size
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.matching import matching_lemma


@dataclasses.dataclass(frozen=True)
class Odds:
    """``weight`` is the sigmoid, ``rest`` one minus it; both are quotients by ``total``."""

    weight: View
    rest: View
    log_weight: View


def odds(b: Builder, view: View) -> Odds | None:
    """The sigmoid of a sum and difference of logarithms of positive values as quotients; None for other values."""
    summands = [v.scaled(view.coefficient) for v in open_view(view).operands] if _is_sum(view) else [view]
    for summand in summands:
        if summand.term.operation is not LOGARITHM or summand.coefficient not in (1, -1):
            return None
        if not is_positive(open_view(summand).operands[0]):
            return None
    above, below = (
        b.mul(b.full(1, b.shape(view)), *(b.exp(v.unscaled()) for v in summands if v.coefficient == sign))
        for sign in (1, -1)
    )
    total = b.add(above, below)
    inverse = b.power(total, -1)
    found = Odds(b.mul(above, inverse), b.mul(below, inverse), b.sub(b.log(above), b.log(total)))
    b.pool.memo["one minus", found.weight] = found.rest
    _remember(b.pool, total, above, below)
    return found


def _is_sum(view: View) -> bool:
    return view.term.operation is COMBINE


def one_minus(pool: TermPool, weight: View) -> View | None:
    """The other weight, for the result of a sigmoid that ``odds`` knew."""
    return pool.memo.get(("one minus", weight))


def _remember(pool: TermPool, total: View, above: View, below: View) -> None:
    """Note what the sum was made of, over the axes of its term: its normal form may not show it."""
    digits = inverse_digits(total)
    if digits is None or total.coefficient != 1:
        return
    try:
        parts = [substitute(part, digits, total.term.shape) for part in (above, below)]
    except (KeyError, UnalignedError):
        return
    pool.memo["above", total.term], pool.memo["below", total.term] = parts


@matching_lemma("VL88", "rest-of-weight")
def rest_of_weight(pool: TermPool, operands: Sequence[View], shape: tuple[Size, ...]) -> Sequence[View] | None:
    """``x - x b / (a + b)`` is ``x a / (a + b)`` for positive a and b."""
    for taken in operands:
        if taken.term.operation is not CONTRACT or taken.term.summed:
            continue
        for factor in open_view(taken).operands:
            if factor.term.operation is not POWER or factor.term.attributes[0] != -1:
                continue
            (total,) = open_view(factor).operands
            if total.coefficient != 1 or ("below", total.term) not in pool.memo:
                continue
            for name, other in (("above", "below"), ("below", "above")):
                part, rest = (compose(pool.memo[n, total.term], total.axes, shape) for n in (name, other))
                whole = dataclasses.replace(total, shape=shape)
                inverse = elementwise(pool, POWER, (-ONE,), (part,))
                wanted = multiply_views(pool, taken.scaled(-ONE), whole, inverse)
                if any(
                    (v.term, v.axes, v.coefficient) == (wanted.term, wanted.axes, wanted.coefficient) for v in operands
                ):
                    pool.lemma_trace.append(("rest-of-weight", repr(total.term)))
                    kept = [v for v in operands if v is not taken and (v.term, v.axes) != (wanted.term, wanted.axes)]
                    return [*kept, multiply_views(pool, wanted, rest, dataclasses.replace(factor, shape=shape))]
    return None
