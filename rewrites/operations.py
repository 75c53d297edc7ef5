"""Operations of the IR that declarations make and lemmas know, below both."""

from __future__ import annotations

from verifycompile.ir.term import Operation

SLICE = Operation("slice", linear=frozenset({0}), copies=True)
PAD = Operation("pad", linear=frozenset({0}), copies=True)
MINIMUM = Operation("minimum", commutative=True, extreme=True)
FLOOR = Operation("floor")
TRUNCATED = Operation("trunc")
COMPLEX = Operation("complex", jointly_linear=True)
SLIDING_WINDOW = Operation("sliding_window", finite=True)
"""``[o, k, x]``: one where element ``k`` of window ``o`` is element ``x`` of the line.

Attributes: stride, padding, dilation. Element ``k`` of window ``o`` is ``o * stride - padding + k * dilation``.
"""
UNKNOWN = Operation("unknown")
"""Of terms that are equal to themselves alone."""
