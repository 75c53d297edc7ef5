"""Masks that all parts of a concatenation have as a factor, taken out of it, where they meet the masks of what reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from verifycompile.ir.algebra import CONTRACT, open_view
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder


def concatenate_under_masks(b: Builder, views: Sequence[View], dim: int) -> View:
    """``cat(m * x, m * y)`` as ``m * cat(x, y)``, for indicators ``m`` that do not depend on ``dim``."""
    position = b.dim(views[0], dim)
    factors = [_factors(view) for view in views]
    common = [m for m in factors[0] if m.term.operation.indicator and not m.uses(position)]
    common = [m for m in common if all(any(_is_same(m, f) for f in others) for others in factors[1:])]
    if not common:
        return b.concatenate(views, dim)
    rest = [_without(b, view, own, common) for view, own in zip(views, factors, strict=True)]
    whole = b.concatenate(rest, dim)
    return b.mul(whole, *(dataclasses.replace(m, shape=whole.shape) for m in common))


def _factors(view: View) -> Sequence[View]:
    is_product = view.term.operation is CONTRACT and not view.term.summed
    return open_view(view).operands if is_product else (view.unscaled(),)


def _is_same(left: View, right: View) -> bool:
    """Whether two views are the same but for sizes of dimensions that they do not use."""
    return (left.term, left.axes, left.coefficient) == (right.term, right.axes, right.coefficient)


def _without(b: Builder, view: View, factors: Sequence[View], common: Sequence[View]) -> View:
    kept = [f for f in factors if not any(_is_same(f, m) for m in common)]
    found = b.mul(*kept) if kept else b.pool.constant(1, view.shape)  # pyright: ignore[reportArgumentType]
    return dataclasses.replace(found.scaled(view.coefficient), shape=view.shape)
