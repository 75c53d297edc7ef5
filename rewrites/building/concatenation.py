"""Tensors put one behind the other, and slices: a part of a concatenation is the concatenation of parts."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import sympy

from verifycompile.ir import algebra, relabel
from verifycompile.ir.build import Label, Signature, apply
from verifycompile.ir.inequality import AT_MOST
from verifycompile.ir.pieces import CONCATENATE, STACK, concatenated_dim, opened_stack, pieces_of, whole_dim_of_fresh
from verifycompile.ir.size import Size, normalize_size, product
from verifycompile.ir.term import CONSTANT, Digit, Term, View, constant_digits
from verifycompile.ir.window import window_at
from verifycompile.rewrites.building.layout import Layout
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operations import PAD, SLICE, UNKNOWN
from verifycompile.rewrites.parts.slices import narrow_operands
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError


class Concatenation(Layout):
    """Padding, concatenation and slices, from numbers and from places that depend on the rank."""

    def pad(self, view: View, dim: int, start: Size, total: Size) -> View:
        """Zeros of length ``total`` along ``dim`` with ``view`` placed at ``start``."""
        position = self.dim(view, dim)
        if view.shape[position] == total:
            return view
        if self.pool.piecewise is not None and isinstance(start, int) and isinstance(total, int):
            after = total - start - view.shape[position]
            ends = [self.pool.zero((*view.shape[:position], n, *view.shape[position + 1 :])) for n in (start, after)]
            return self.pool.piecewise.joined(self.pool, [ends[0], view, ends[1]], position)
        bounded = self._bounded(view, position, start, total)
        return self.along(PAD, (start, 1), view, dim, total) if bounded is None else bounded

    def _bounded(self, view: View, position: int, start: Size, total: Size) -> View | None:
        """A sum under comparisons with places, with zeros around it; None for any other value."""
        if view.term.operation is not algebra.CONTRACT:
            return None
        from verifycompile.rewrites.parts.bounded_sums import padded_sum  # here, because few sums are padded

        return padded_sum(self.pool, view, position, start, total)

    def concatenate(self, views: Sequence[View], dim: int) -> View:
        """``torch.cat``. Pieces of one tensor in their order are concatenated without arithmetic."""
        position = self.dim(views[0], dim)
        sizes = [view.shape[position] for view in views]
        given = [k for k, view in enumerate(views) if not view.is_zero]
        equal = len(set(sizes)) == 1
        if len(given) == 1 and not equal and self.pool.piecewise is None:
            start, total = normalize_size(sum(sizes[: given[0]])), normalize_size(sum(sizes))
            if (bounded := self._bounded(views[given[0]], position, start, total)) is not None:
                return bounded
        joined = join_pieces(views, position)
        if joined is None and len(views) > 1 and len({(view.shape, view.coefficient) for view in views}) == 1:
            from verifycompile.rewrites.parts.similar import (
                join_similar,  # here, because few programs join similar values
            )

            joined = join_similar(self.pool, views, position)
        if joined is None and window_at(views[0], position) is not None:
            from verifycompile.rewrites.parts.ranges import join_windows  # here, because few programs join windows

            joined = join_windows(self.pool, views, position)
        if joined is not None:
            return joined
        if self.pool.piecewise is not None:
            merged = self.pool.piecewise.joined(self.pool, views, position)
            in_parts = any(view.term is self.pool.unit or view.term.operation is CONCATENATE for view in views)
            # Pieces of one value in another order: what is done to them is done to one piece after the other.
            in_parts = in_parts or (len({view.term for view in views}) == 1 and sizes[0] != 1)
            # Equal pieces that stay apart are told apart by a digit.
            apart = merged.term.operation is CONCATENATE and [v.shape[position] for v in pieces_of(merged, position)]
            if in_parts or not equal or apart != sizes:
                return merged
        if equal:
            with contextlib.suppress(relabel.UnalignedError):
                return self._stacked(views, position)
        labels = [[("piece", k) if d == position else d for d in range(v.rank)] for k, v in enumerate(views)]
        output: tuple[Label, ...] = tuple("fresh" if d == position else d for d in range(views[0].rank))
        cores = tuple((("piece", k),) for k in range(len(views)))
        fresh: dict[Label, Size] = {"fresh": normalize_size(sum(sizes))}
        signature = Signature(tuple(tuple(row) for row in labels), output, frozenset(), cores, fresh)
        return apply(self.pool, CONCATENATE, (), views, signature)

    def _stacked(self, views: Sequence[View], position: int) -> View:
        """Equal pieces one after the other along ``position``."""
        labels: tuple[Label, ...] = tuple(range(views[0].rank))
        output = (*labels[:position], "piece", *labels[position:])
        signature = Signature(tuple(labels for _ in views), output, fresh={"piece": len(views)})
        stacked = apply(self.pool, STACK, (), views, signature)
        shape = [max(sizes, key=lambda size: size != 1) for sizes in zip(*(view.shape for view in views), strict=True)]
        shape[position] = product((len(views), shape[position]))
        return self.reshape(stacked, shape[self.lead :])

    def narrow(self, view: View, dim: int, start: Number, length: Size) -> View:
        """``length`` elements from ``start`` along ``dim``; ``start`` may be linear in the rank's coordinates."""
        position = self.dim(view, dim)
        parts, base = self.affine_parts(start)
        if parts:
            from verifycompile.rewrites.parts.rank_offsets import (
                narrow_by_coordinate,  # here, because few programs slice so
            )

            return narrow_by_coordinate(self, view, position, parts, base, length)  # pyright: ignore[reportArgumentType]  # this class
        key = (view, position, base, length)
        if key not in self._narrowed:
            self._narrowed[key] = self._narrow(view, position, base, length)
        return self._narrowed[key]

    def _narrow(self, view: View, position: int, base: Size, length: Size) -> View:
        size, dim = view.shape[position], position - self.lead
        # From a negative place torch counts from the end, and what is too long it cuts off.
        numbers = (base, length, size - base - length)
        if not all(n >= 0 if isinstance(n, int) else sympy.expand(n).is_nonnegative for n in numbers):
            raise UnsupportedError(UNREPRESENTABLE, f"a slice [{base}:{base}+{length}] of a dimension of size {size}")
        if self.pool.piecewise is not None and isinstance(base, int) and isinstance(length, int) and length:
            if self.pool.piecewise.holds_parts(view, position):
                return self.pool.piecewise.narrowed(self.pool, view, position, base, length)
        part = self.part(view, position, base, length)
        if part is not None:
            return part
        other = concatenated_dim(view)
        across = other is not None and other != position and length != size
        if across and self._is_written_in_parts(view.term):
            return self._narrow_pieces(view, other or 0, dim, base, length)
        computed = self._narrow_operands(view, position, base, length, elementwise=True)
        if computed is not None:
            return computed
        try:
            found = opened_stack(self._with_decided_masks(relabel.narrow(view, position, base, length)))
            return found if self.pool.piecewise is None else self.pool.piecewise.chosen(self.pool, found)
        except relabel.UnalignedError:
            if across:
                return self._narrow_pieces(view, other or 0, dim, base, length)
            if self.pool.piecewise is not None and isinstance(base, int) and isinstance(length, int):
                return self.pool.piecewise.narrowed(self.pool, view, position, base, length)
            computed = self._narrow_operands(view, position, base, length, elementwise=False)
            if computed is None and view.term.operation is algebra.CONTRACT and isinstance(length, int):
                from verifycompile.rewrites.parts.bounded_sums import (
                    narrowed_sum,  # here, because few sums are sliced so
                )

                computed = narrowed_sum(self.pool, view, position, base, length)
            return computed or self.along(SLICE, (base, 1), view, dim, length)

    def _with_decided_masks(self, view: View) -> View:
        """A sum under an inequality at a chosen position, as the last of running sums: the position may decide it."""
        masks = [v for v in view.term.operands if v.term.operation is AT_MOST]
        chosen = constant_digits(view)
        if not masks or not chosen or view.term.operation is not algebra.CONTRACT or not view.term.summed:
            return view
        opened = algebra.open_view(view.unscaled())
        summed = algebra.contract_aligned(self.pool, list(opened.operands), opened.shape, view.rank)
        return summed.scaled(view.coefficient)

    def _narrow_operands(
        self, view: View, position: int, start: Size, length: Size, *, elementwise: bool
    ) -> View | None:
        """The slice of a computed value as computed from parts of concatenations; None where there are none."""
        if length == view.shape[position]:
            return None
        return narrow_operands(
            self.pool,
            view,
            position,
            lambda operand: self.part(operand, position, start, length),
            lambda operand: self.narrow(operand, position - self.lead, start, length),
            elementwise=elementwise,
        )

    def _narrow_pieces(self, view: View, concatenated: int, dim: int, start: Number, length: Size) -> View:
        """A slice of a concatenation across another dimension is the concatenation of slices."""
        pieces = [self.narrow(piece, dim, start, length) for piece in pieces_of(view, concatenated)]
        return self.concatenate(pieces, concatenated - self.lead)

    def _is_written_in_parts(self, term: Term) -> bool:
        """Whether a concatenation holds what nothing is known of, as memory that a program fills part by part.

        A slice is then taken of the parts, so that it does not hold what it does not read.
        """
        known = self._written_in_parts.get(term)
        if known is None:
            known = term.operation is UNKNOWN or (
                term.operation in (SLICE, CONCATENATE, STACK)
                and any(self._is_written_in_parts(v.term) for v in term.operands)
            )
            self._written_in_parts[term] = known
        return known

    def part(self, view: View, position: int, start: Size, length: Size) -> View | None:
        """The slice as made of the pieces of a concatenation, or of the value inside of a padding; None for others."""
        whole = length == view.shape[position]
        if not isinstance(start, int) or not isinstance(length, int) or length == 0 or whole:
            return None
        dim = position - self.lead
        if view.term.operation is PAD and whole_dim_of_fresh(view) == position:
            (inner,) = pieces_of(view, position)
            first, step = view.term.attributes
            size = inner.shape[position]
            if step != 1 or not isinstance(first, int) or not isinstance(size, int):
                return None
            low, high = max(start, first), min(start + length, first + size)
            if low >= high:
                return self.pool.zero((*view.shape[:position], length, *view.shape[position + 1 :]))
            kept = self.narrow(inner, dim, low - first, high - low)
            return self.pad(kept, dim, low - start, length)
        if concatenated_dim(view) != position:
            return None
        taken: list[View] = []
        offset = 0
        for piece in pieces_of(view, position):
            size = piece.shape[position]
            if not isinstance(size, int):
                return None
            first, last = max(start, offset), min(start + length, offset + size)
            if first < last:
                taken.append(self.narrow(piece, dim, first - offset, last - first))
            offset += size
        return taken[0] if len(taken) == 1 else self.concatenate(taken, dim)

    def select(self, view: View, dim: int, index: Number) -> View:
        return relabel.remove_dim(self.narrow(view, dim, index, 1), self.dim(view, dim))


def join_pieces(views: Sequence[View], position: int) -> View | None:
    """The tensor whose equal pieces along ``position`` are ``views``, or None where they are no such pieces."""
    first, count = views[0], len(views)
    if count < 2 or any(v.term is not first.term or v.shape != first.shape for v in views):
        return None
    if any(v.coefficient != first.coefficient for v in views):
        return None
    if all(v.axes == first.axes for v in views):  # one piece, repeated
        size = first.shape[position]
        return relabel.replace_dim(first, position, [(position, 1, size)], product((size, count)))
    place = _differing_digit(first, views[1])
    if place is None:
        return None
    axis_index, digit_index = place
    for k, view in enumerate(views):
        expected = _with_digit(first, axis_index, digit_index, (CONSTANT, k, count))
        if view.axes != expected:
            return None
    length = first.shape[position]
    axes = _with_digit(first, axis_index, digit_index, (position, length, count))
    shape = (*first.shape[:position], product((length, count)), *first.shape[position + 1 :])
    merged = tuple(relabel.merge_digits(axis) for axis in axes)
    return View(first.coefficient, first.term, shape, merged)


def _differing_digit(left: View, right: View) -> tuple[int, int] | None:
    for a, (first, second) in enumerate(zip(left.axes, right.axes, strict=True)):
        if first == second:
            continue
        if len(first) != len(second):
            return None
        for d, (x, y) in enumerate(zip(first, second, strict=True)):
            if x != y:
                return (a, d) if x[0] == y[0] == CONSTANT and x[2] == y[2] else None
    return None


def _with_digit(view: View, axis: int, place: int, digit: Digit) -> tuple[tuple[Digit, ...], ...]:
    digits = list(view.axes[axis])
    digits[place] = digit
    return (*view.axes[:axis], tuple(digits), *view.axes[axis + 1 :])
