"""Quotients by positive sums in one form, also within sums over samples.

With ``s = a + b`` positive, ``b / s`` is ``1 - a / s``, and ``s**2`` is ``a s + b s``. Of each sum that something is
divided by, one summand, the last, is never divided by the sum. Of sums that hold others, as those of a softmax that is
merged part by part do, it is one that the smaller sums do not have, so that all of this comes to an end.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, contract_aligned, open_view, reapply
from verifycompile.ir.common_factors import power_of, powers_of
from verifycompile.ir.exponential import EXPONENTIAL, POWER, is_positive
from verifycompile.ir.pieces import STACK
from verifycompile.ir.relabel import compose, substitute
from verifycompile.ir.scalar import ONE, ZERO, Scalar, add, divide, multiply
from verifycompile.ir.sign import is_greater_than_zero
from verifycompile.ir.size import Size
from verifycompile.ir.term import CONSTANT, Digit, Term, TermPool, View, identity_view, terms_of
from verifycompile.rewrites.lemmas.read import factors_of
from verifycompile.rewrites.operations import PAD
from verifycompile.walks import reached

_MAX_PARTS = 16
_MAX_DEPTH = 8

Summand = tuple[Scalar, tuple[View, ...]]
"""A coefficient, and the factors of a product."""


@dataclasses.dataclass(frozen=True)
class Quotients:
    """What is divided by in two values.

    ``summands``: those of each positive sum, over the dimensions of its term. ``whole``: positive sums over an index
    that stay factors as they are.
    """

    summands: Mapping[Term, tuple[View, ...]]
    whole: frozenset[Term]

    def taken_apart(self, pool: TermPool, factors: Sequence[View]) -> list[Summand] | None:
        """A product as a sum, of which something is closer to the one form; None where it has that form."""
        for factor in factors:
            power = factor.term.operation is POWER
            (exponent,) = factor.term.attributes if power else (ONE,)
            base = open_view(factor).operands[0] if power else factor
            if base.term not in self.summands or base.coefficient != 1 or not isinstance(exponent, Fraction):
                continue
            parts = [compose(part, base.axes, base.shape) for part in self.summands[base.term]]
            rest = [f for f in factors if f is not factor]
            if exponent >= 1:
                less = _power(pool, base, exponent - 1)
                return [(v.coefficient, (*rest, *less, v.unscaled())) for v in parts]
            last = _last(rest, parts) if exponent <= -1 else None
            if last is not None:
                left = together(pool, rest, last)
                others = [(divide(-v.coefficient, last.coefficient), v.unscaled()) for v in parts if v is not last]
                return [
                    (divide(ONE, last.coefficient), (*left, *_power(pool, base, exponent + 1))),
                    *((share, (*left, factor, other)) for share, other in others),
                ]
        return None


def _power(pool: TermPool, base: View, exponent: Fraction) -> tuple[View, ...]:
    return () if exponent == 0 else (power_of(pool, (False, base), exponent),)


def together(pool: TermPool, factors: Sequence[View], less: View | None = None) -> tuple[View, ...]:
    """Factors, whose coefficients are one, with powers of one positive value as one power.

    They are divided by the powers that ``less`` is the product of.
    """
    exponents: dict[tuple[bool, View], Scalar] = {}
    rest: list[View] = []
    for factor in factors:
        powers = powers_of(factor)
        for key, exponent in powers.items():
            exponents[key] = add(exponents.get(key, ZERO), exponent)
        if not powers:
            rest.append(factor)
    for key, exponent in _only_powers(less).items() if less is not None else ():
        exponents[key] = add(exponents.get(key, ZERO), multiply(exponent, -ONE))
    return (*rest, *(power_of(pool, key, exponent) for key, exponent in exponents.items() if exponent != 0))


def _last(factors: Sequence[View], parts: Sequence[View]) -> View | None:
    """Of the summands that a product is not divided by, the last one, where the product is a multiple of it."""
    held = dict[tuple[bool, View], Scalar]()
    for factor in factors:
        for key, power in powers_of(factor).items():
            held[key] = add(held.get(key, ZERO), power)
    for part in reversed(parts):
        wanted = _only_powers(part)
        if not any(held.get(key, ZERO) < 0 for key in wanted):
            return part if wanted and all(held.get(key, ZERO) >= power for key, power in wanted.items()) else None
    return None


def _only_powers(view: View) -> dict[tuple[bool, View], Scalar]:
    """The powers of positive values that a value is the product of; none where it has any other factor."""
    powers, (_, factors) = powers_of(view), factors_of([view])
    return powers if len(powers) == len(factors) else {}


def quotients(pool: TermPool, left: View, right: View) -> Quotients:
    """What is divided by in two values, through sums and products."""
    opened = reached([left.term, right.term], _operands)
    bases = dict.fromkeys(
        base.term
        for term in opened
        if term.operation is POWER
        for base in term.operands
        if base.coefficient == 1 and is_greater_than_zero(base)
    )
    known = {v.term for base in bases if base.operation is COMBINE for v in base.operands}
    known.update(t for t in (*bases, *opened) if bases and (t.operation is EXPONENTIAL or _is_whole(t)))
    found = {base: base.operands for base in bases if base.operation is COMBINE}
    found |= {term: pieces for term in known if _is_whole(term) and (pieces := _pieces(pool, term, known))}
    ordered: dict[Term, tuple[View, ...]] = {}
    seen: set[Term] = set()
    for base, parts in sorted(found.items(), key=lambda item: (len(item[1]), item[0].id)):
        ordered[base] = tuple(sorted(parts, key=lambda v: (bool(_only_powers(v)), v.term not in seen, v.term.id)))
        seen.update(v.term for v in parts)
    sums = {v.term for parts in ordered.values() for v in parts} | known
    return Quotients(ordered, frozenset(filter(_is_whole, sums)) if ordered else frozenset())


def _is_whole(term: Term) -> bool:
    """Whether a term is a positive sum over an index."""
    return term.operation is CONTRACT and term.summed > 0 and is_positive(identity_view(term))


def _operands(term: Term) -> Iterable[Term]:
    return terms_of(term) if term.operation in (CONTRACT, COMBINE, POWER, PAD, STACK) else ()


def _pieces(pool: TermPool, term: Term, known: Collection[Term]) -> tuple[View, ...]:
    """A sum over an index as those over its parts, where one of these is known; else none."""
    opened = open_view(identity_view(term))
    (dim, *others), size = opened.summed, opened.shape[-1]
    if others or not isinstance(size, int):
        return ()
    sizes = {1, *(n for t in known if _is_whole(t) and isinstance(n := t.index_sizes[-1], int))}
    extents = sorted(n for n in sizes if size % n == 0 and 1 < size // n <= _MAX_PARTS)
    for extent, depth in itertools.product(extents, (_MAX_DEPTH, 1)):  # functions of parts, or of a whole in parts
        count, shape = size // extent, (*opened.shape[:dim], extent)
        places: list[Digit] = [(CONSTANT, place, count) for place in range(count)]
        pieces = tuple(_piece(pool, opened.operands, shape, place, depth) for place in places)
        if any(piece.term in known for piece in pieces):
            return pieces
    return ()


def _piece(pool: TermPool, factors: Sequence[View], shape: tuple[Size, ...], place: Digit, depth: int) -> View:
    dim = len(shape) - 1
    digits: dict[int, list[Digit]] = {d: [(d, 1, size)] for d, size in enumerate(shape)}
    digits[dim] = [place, (dim, 1, shape[dim])]
    parts = [_read_inside(pool, substitute(factor, digits, shape), depth) for factor in factors]
    return contract_aligned(pool, parts, shape, dim)


def _read_inside(pool: TermPool, view: View, depth: int) -> View:
    """A part of what is computed element by element, as computed of the parts of the operands."""
    term = view.term
    is_part = any(digit[0] == CONSTANT for axis in view.axes for digit in axis)
    if not is_part or depth == 0 or not term.operands or term.fresh or term.cores:
        return view
    key = ("read inside", view, depth)
    if key not in pool.memo:
        opened = open_view(view)
        operands = [_read_inside(pool, operand, depth - 1) for operand in opened.operands]
        pool.memo[key] = reapply(pool, view, opened, operands).scaled(view.coefficient)
    return pool.memo[key]
