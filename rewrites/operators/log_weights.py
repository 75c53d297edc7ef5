"""Sigmoids of differences of logarithms: the weights by which parts of a softmax are merged.

``sigmoid(log b - log a)`` is ``b / (a + b)``. So ``out - sigmoid(b - a) * (out - part)`` is the output of both parts
together, and ``a - logsigmoid(a - b)`` its logarithm.
"""

from __future__ import annotations

import dataclasses

from verifycompile.ir.algebra import COMBINE, open_view
from verifycompile.ir.exponential import LOGARITHM, is_positive
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder


@dataclasses.dataclass(frozen=True)
class Odds:
    """``weight`` is the sigmoid, ``rest`` one minus it; both are quotients by ``total``."""

    weight: View
    rest: View
    log_weight: View


def odds(b: Builder, view: View) -> Odds | None:
    """The sigmoid of a sum and difference of logarithms of positive values as quotients; None for other values."""
    is_sum = view.term.operation is COMBINE
    summands = [v.scaled(view.coefficient) for v in open_view(view).operands] if is_sum else [view]
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
    return Odds(b.mul(above, inverse), b.mul(below, inverse), b.sub(b.log(above), b.log(total)))
