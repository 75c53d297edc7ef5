"""Two values as expressions over one space of named indices, for the e-graph and for the check of what it proposes.

Sums, products, scalings and functions that laws know are opened; everything else is a leaf, and so are sums of
products without functions that both values have: no law looks into those. Leaves are numbered in the order in which
they are met.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, open_view
from verifycompile.ir.size import Size
from verifycompile.ir.term import CONSTANT, UNIT, Term, View, terms_of
from verifycompile.ir.term_property import TermProperty
from verifycompile.rewrites.interpretation import OPERATORS, Expression, Space
from verifycompile.walks import reached

_Named = tuple[tuple[tuple[object, Size, Size], ...], ...]

MAX_DEPTH = 8
_MAX_NODES = 200


def encode(left: View, right: View) -> tuple[Space, Expression, Expression] | None:
    """Two views over one space of named indices; None where they are too large, or a coefficient is not rational."""
    encoder = _Encoder(left.shape, _plain_sums(left) & _plain_sums(right))
    names = tuple(("dim", d) for d in range(left.rank))
    try:
        expressions = encoder.encode(left, names), encoder.encode(right, names)
    except _NotEncodedError:
        return None
    return encoder.space(), *expressions


class _NotEncodedError(Exception):
    pass


def is_open(term: Term) -> bool:
    """Whether a term is a sum, a product or a function that laws know."""
    return term.operation in (CONTRACT, COMBINE) or term.operation in OPERATORS


def _plain_sums(view: View) -> set[Term]:
    """The sums of products in a value that no function is in."""

    def is_plain(term: Term) -> bool:
        return term.operation is CONTRACT and bool(term.summed) and not _HAS_FUNCTION(term)

    opened = reached([view.term], lambda term: terms_of(term) if is_open(term) and not is_plain(term) else ())
    return set(filter(is_plain, opened))


_HAS_FUNCTION = TermProperty(
    is_open,
    lambda term: term.operation in OPERATORS or (is_open(term) and any(_HAS_FUNCTION(v.term) for v in term.operands)),
)


def _is_whole(term: Term) -> bool:
    """Whether a value may be made of integers, which arithmetic, copies and extremes leave whole."""
    if term.operation is UNIT or term.operation.indicator:
        return False
    return term.operation.whole or (_keeps_integers(term) and any(may_be_whole(v.term) for v in term.operands))


def _keeps_integers(term: Term) -> bool:
    operation = term.operation
    return bool(operation.linear) or operation.jointly_linear or operation.copies or is_open(term)


may_be_whole = TermProperty(_keeps_integers, _is_whole)


class _Encoder:
    """Bound indices are named by the number of enclosing sums, so that equal sums have equal names."""

    def __init__(self, shape: tuple[Size, ...], closed: Collection[Term]) -> None:
        self._closed = closed
        self._sizes: dict[object, Size] = {("dim", d): size for d, size in enumerate(shape)}
        self._rank = len(shape)
        self._nodes = 0
        self._leaves: dict[tuple[Term, _Named], int] = {}
        self._read: dict[Expression, tuple[Term, _Named]] = {}

    def encode(self, view: View, names: Sequence[object], depth: int = 0, level: int = 0) -> Expression:
        """The expression of ``view`` whose dimensions are called ``names``."""
        self._nodes += 1
        if not isinstance(view.coefficient, Fraction) or self._nodes > _MAX_NODES:
            raise _NotEncodedError
        if view.is_zero:
            return ("zero",)
        body = self._term(view, names, depth, level)
        if not isinstance(body, int):
            self._read[body] = view.term, _named(view, names)
        return body if view.coefficient == 1 else ("scale", view.coefficient, body)

    def _term(self, view: View, names: Sequence[object], depth: int, level: int) -> Expression:
        term = view.term
        if term.operation is UNIT:
            return ("one",)
        if depth >= MAX_DEPTH or not is_open(term) or term in self._closed or term.fresh or term.cores:
            return self._leaf(view, names)
        opened = open_view(view)
        bound = [("bound", level, opened.shape[d], k) for k, d in enumerate(opened.summed)]
        for name, d in zip(bound, opened.summed, strict=True):
            self._sizes.setdefault(name, opened.shape[d])
        inner = [*names, *bound]
        parts = [self.encode(operand, inner, depth + 1, level + bool(bound)) for operand in opened.operands]
        operator = {CONTRACT: "mul", COMBINE: "add"}.get(term.operation)
        if operator is None:
            return self._function(term, parts)
        result = functools.reduce(lambda first, second: (operator, first, second), parts)
        for name in bound:
            result = ("sum", list(self._sizes).index(name), result)
        return result

    def _function(self, term: Term, parts: list[Expression]) -> Expression:
        name = OPERATORS[term.operation]
        if name == "power":
            (exponent,) = term.attributes
            if not isinstance(exponent, Fraction):
                raise _NotEncodedError
            return (name, exponent, *parts)
        return (name, *parts)

    def _leaf(self, view: View, names: Sequence[object]) -> int:
        if may_be_whole(view.term):
            raise _NotEncodedError  # arithmetic on integers wraps around, and the laws are those of real numbers
        return self._leaves.setdefault((view.term, _named(view, names)), len(self._leaves))

    def space(self) -> Space:
        """The names, and the leaves over them; a leaf has size one along what it does not depend on."""
        place = {name: dim for dim, name in enumerate(self._sizes)}
        sizes = tuple(self._sizes.values())

        def over_names(term: Term, named: _Named) -> View:
            axes = tuple(
                tuple((CONSTANT if name == CONSTANT else place[name], low, size) for name, low, size in axis)
                for axis in named
            )
            used = {digit[0] for axis in axes for digit in axis}
            shape = tuple(size if dim in used else 1 for dim, size in enumerate(sizes))
            return View(Fraction(1), term, shape, axes)

        leaves = tuple(over_names(term, named) for term, named in self._leaves)
        return Space(sizes, self._rank, leaves, {e: over_names(*read) for e, read in self._read.items()})


def _named(view: View, names: Sequence[object]) -> _Named:
    """The axes of a view with names for its dimensions."""
    return tuple(tuple((CONSTANT if d[0] == CONSTANT else names[d[0]], d[1], d[2]) for d in a) for a in view.axes)
