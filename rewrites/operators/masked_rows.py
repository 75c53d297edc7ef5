"""Rows of attention that see no key: fused attention gives zero there, a softmax that is written out no number.

Where a mask may leave a row without keys, the two are different functions of the sum of the row's exponentials.
"""

from __future__ import annotations

from verifycompile.ir.exponential import is_positive
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder

INVERSE_OR_ZERO = Operation("inverse_or_zero")
"""``1 / x``, and 0 where x is."""
LOG_OR_ZERO = Operation("log_or_zero")
"""The logarithm, and 0 where x is."""


def inverse_or_zero(b: Builder, total: View) -> View:
    return b.power(total, -1) if _sees_a_key(b, total) else b.pointwise(INVERSE_OR_ZERO, total)


def log_or_zero(b: Builder, total: View) -> View:
    return b.log(total) if _sees_a_key(b, total) else b.pointwise(LOG_OR_ZERO, total)


def _sees_a_key(b: Builder, total: View) -> bool:
    """Whether no row is masked wholly."""
    if is_positive(total):
        return True
    if not b.pool.facts:
        return False
    from verifycompile.rewrites.operators.seen_keys import sees_first_key  # here, because few masks are read from data

    return sees_first_key(b.pool, total)
