"""Terms and views: the two kinds of value in the IR (DESIGN section 3).

A *term* is an operation on operands, over free indices (its axes), and bound indices (summed, or the core
of the operation). A *view* says what a graph tensor is: a coefficient times an element of a term, whose
index along each term axis is a mixed-radix number made of digits of the tensor's own dimensions.

    x: term of axes (8, 6);  x.view(2, 4, 6)[1] is the view of shape (4, 6) with axes
    ((constant 1 of 2, digit of dim 0), (digit of dim 1))

So split, merge, permute, expand, select, all-gather and all-to-all change digits only and make no term.
The operands of a term are views too, over the term's index space.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from verifycompile.ir.budget import Budget
from verifycompile.ir.scalar import ONE, ZERO, Scalar, multiply
from verifycompile.ir.size import Size

if TYPE_CHECKING:
    from verifycompile.ir.piecewise import Piecewise

CONSTANT = -1
Digit = tuple[int, Size, Size]
"""``(dim, divisor, size)``: ``(index[dim] // divisor) % size``; or ``(CONSTANT, value, size)``."""
Axis = tuple[Digit, ...]
"""Digits of one term axis, most significant first; the product of their sizes is the axis size."""


@dataclasses.dataclass(frozen=True, eq=False)
class Operation:
    """An IR operator, and what lemmas may take for granted of it. Nothing is, unless it is said here.

    Which operation a term has is a question of identity: names are for people, and no lemma reads them.

    ``linear``: operand positions in which the operation is linear, each on its own (multilinear).
    ``jointly_linear``: linear in all operands together, as concatenation and addition are.
    ``commutative``: operands may be exchanged. ``indicator``: every element is 0 or 1. ``whole``: every element is a
    whole number. ``nonnegative``: no element is less than zero. ``copies``: every element is one of an operand, or
    zero. ``extreme``: every element is the largest or the smallest one of some of the operands.
    ``finite``: no element is infinite, whatever the operands are. Without it, one may be where one of an operand may
    be, and of an operation without operands any may be.
    ``places``: every element is a place of the dimension that the core reads. ``distinct``: no two are the same one.
    ``attributes_by_piece``: what is computed of pieces is similar also where the attributes differ by piece.
    """

    name: str
    linear: frozenset[int] = frozenset()
    jointly_linear: bool = False
    commutative: bool = False
    indicator: bool = False
    whole: bool = False
    nonnegative: bool = False
    copies: bool = False
    extreme: bool = False
    finite: bool = False
    places: bool = False
    distinct: bool = False
    attributes_by_piece: bool = False

    @property
    def is_finite(self) -> bool:
        return self.finite or self.indicator or self.whole or self.places


@dataclasses.dataclass(frozen=True, eq=False)
class Term:
    """Hash-consed node; two terms are equal exactly when they are the same object.

    ``index_sizes``: sizes of all indices: first the ``free`` axes, then ``summed`` bound ones, then core ones.
    ``cores``: groups of core indices; within a group the order is the order in which the operation reads them.
    ``fresh``: free axes that no operand feeds (the output of a core dimension, or ``iota``).
    ``opened``: what views of the term are when they are opened, by their axes and shape; see ``open_view``.
    """

    id: int
    operation: Operation
    attributes: tuple[Hashable, ...]
    operands: tuple[View, ...]
    index_sizes: tuple[Size, ...]
    free: int
    summed: int
    cores: tuple[tuple[int, ...], ...]
    fresh: tuple[int, ...]
    opened: dict[Hashable, Any] = dataclasses.field(default_factory=dict[Hashable, Any], init=False)

    @property
    def shape(self) -> tuple[Size, ...]:
        return self.index_sizes[: self.free]

    @property
    def summed_indices(self) -> range:
        return range(self.free, self.free + self.summed)

    def __repr__(self) -> str:
        return f"#{self.id}:{self.operation.name}{list(self.shape)}"


def terms_of(term: Term) -> Iterator[Term]:
    """The terms that a term is made of."""
    return (view.term for view in term.operands)


@dataclasses.dataclass(frozen=True)
class View:
    """``coefficient * term[axes(index)]`` for every index of ``shape`` (mesh dimensions first)."""

    coefficient: Scalar
    term: Term
    shape: tuple[Size, ...]
    axes: tuple[Axis, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def uses(self, dim: int) -> bool:
        """Whether the value depends on the index of ``dim``."""
        return any(digit[0] == dim for axis in self.axes for digit in axis)

    def scaled(self, factor: Scalar) -> View:
        if factor == 1:
            return self
        return dataclasses.replace(self, coefficient=multiply(self.coefficient, factor))

    def unscaled(self) -> View:
        return self if self.coefficient == 1 else dataclasses.replace(self, coefficient=ONE)

    @property
    def is_zero(self) -> bool:
        return self.coefficient == 0


ContractionRule = Callable[["TermPool", Sequence[View], int], Sequence[View] | None]
"""``rule(pool, factors, free)``: factors over one index space, dimensions from ``free`` on summed; None: no match."""

CombinationRule = Callable[["TermPool", Sequence[View], tuple[Size, ...]], Sequence[View] | None]
"""``rule(pool, summands, shape)``: distinct summands over one index space; None: no match."""


@dataclasses.dataclass(frozen=True)
class IndexFact:
    """Every element of a part of a term is ``exception``, or a whole number from 0 to ``size`` - 1.

    ``source``: who says so. ``part``: its digits that are constant.
    """

    exception: int | None
    size: int
    source: str
    part: frozenset[tuple[int, Size, Size, Size]] = frozenset()


def facts_of(facts: Mapping[Term, Sequence[IndexFact]], view: View) -> list[IndexFact]:
    """What is known of all elements that a view reads."""
    return [fact for fact in facts.get(view.term, ()) if fact.part <= constant_digits(view)]


def constant_digits(view: View) -> frozenset[tuple[int, Size, Size, Size]]:
    """Each as its axis, the product of the sizes of those behind it, its value and its size."""
    return frozenset(
        (number, math.prod(size for _, _, size in axis[place + 1 :]), value, size)
        for number, axis in enumerate(view.axes)
        for place, (dim, value, size) in enumerate(axis)
        if dim == CONSTANT
    )


UNIT = Operation("one", whole=True, nonnegative=True, finite=True)
LEAF = Operation("leaf", finite=True)
INDICATOR_LEAF = Operation("indicator_leaf", indicator=True)
INTEGER_LEAF = Operation("integer_leaf", whole=True)
RESHAPE = Operation("reshape", linear=frozenset({0}), copies=True)


class TermPool:
    """Owner of all terms of one verification: interning, memo tables, and the trace of lemmas used.

    ``contraction_rules``: lemmas tried on the factors of a contraction that no structural rule changes any more.
    ``combination_rules``: the same for the summands of a linear combination.
    ``similarity``: numbers by which terms of one form are recognised, see ``rewrites/parts/similar.py``.
    ``budget``: limits of the work on normal forms.
    ``pieces_read``: the first numbers of pieces that a term reads, by which similar terms are ordered.
    ``ranges_held``: whether a product, or one among its factors down to a depth, is restricted to a range.
    ``piecewise``: set where ranks join their shards with parts of others; else parts stay where they are.
    ``definitions``: functions of elements that are built as what they are defined by.
    ``aliases``: terms that a lemma proved equal to a view of another; they are replaced wherever they are built.
    ``facts``: what is known of indices, the same for all that is built, and ``squares``: terms of which no element is
    negative. What is ``noted`` meanwhile waits for ``learn``.
    ``answers``: what was asked about these terms before, as the ring prover is; it is forgotten with ``memo``.
    ``place``: the node that is being lowered, empty elsewhere.
    ``sources``: all terms without operands, in order of creation.
    ``literals``: float literals, and whether torch holds them in single precision, that were read as other numbers.
    """

    def __init__(self) -> None:
        self._terms: dict[Hashable, Term] = {}
        self._ids = itertools.count()
        self.memo: dict[Hashable, View] = {}
        self.answers: dict[Hashable, Any] = {}
        self.lemma_trace: list[tuple[str, str]] = []
        self.contraction_rules: list[ContractionRule] = []
        self.combination_rules: list[CombinationRule] = []
        self.similarity: dict[Hashable, int] = {}
        self.budget = Budget()
        self.pieces_read: dict[Term, tuple[int, ...]] = {}
        self.ranges_held: dict[tuple[Term, int], bool] = {}
        self.facts: dict[Term, tuple[IndexFact, ...]] = {}
        self.noted: dict[Term, tuple[IndexFact, ...]] = {}
        self.squares: frozenset[Term] = frozenset()
        self.noted_squares: set[Term] = set()
        self.taken: set[tuple[Scalar, Term, Size, str]] = set()
        self.assumptions: dict[str, None] = {}
        self.literals: dict[tuple[float, bool], Fraction] = {}
        self.piecewise: Piecewise | None = None
        self.definitions: Mapping[Operation, Callable[[TermPool, View], View]] = {}
        self.aliases: dict[Term, View] = {}
        self.sources: list[Term] = []
        self.place = ""
        self.unit = self.intern(UNIT, (), (), (), 0, 0, (), ())

    def __len__(self) -> int:
        return len(self._terms)

    @property
    def terms(self) -> tuple[Term, ...]:
        """All terms, in order of creation."""
        return tuple(self._terms.values())

    def intern(  # noqa: PLR0917 - the fields of a term, in their order
        self,
        operation: Operation,
        attributes: tuple[Hashable, ...],
        operands: tuple[View, ...],
        index_sizes: tuple[Size, ...],
        free: int,
        summed: int,
        cores: tuple[tuple[int, ...], ...],
        fresh: tuple[int, ...],
    ) -> Term:
        """Return the one term with this content."""
        key = (
            operation,
            attributes,
            tuple((v.coefficient, v.term.id, v.axes) for v in operands),
            index_sizes,
            free,
            summed,
            cores,
            fresh,
        )
        term = self._terms.get(key)
        if term is None:
            bare = tuple(dataclasses.replace(v, shape=index_sizes) for v in operands)
            term = Term(next(self._ids), operation, attributes, bare, index_sizes, free, summed, cores, fresh)
            self._terms[key] = term
            if not operands:
                self.sources.append(term)
        return term

    def leaf(
        self, name: str, shape: tuple[Size, ...], *attributes: Hashable, indicator: bool = False, whole: bool = False
    ) -> View:
        """An input: a term without operands, known by its name. ``indicator``: booleans, ``whole``: integers."""
        operation = INDICATOR_LEAF if indicator else INTEGER_LEAF if whole else LEAF
        term = self.intern(operation, (name, *attributes), (), shape, len(shape), 0, (), ())
        return identity_view(term)

    def learn(self) -> bool:
        """Take what was noted for known from now on; whether that is more than was known."""
        if self.noted == self.facts and self.noted_squares <= self.squares:
            return False
        self.facts, self.squares = dict(self.noted), frozenset(self.noted_squares)
        self.forget()  # what was built before is built again with it
        return True

    def replace(self, term: Term, view: View) -> None:
        """Build ``view`` instead of ``term`` from now on: a lemma proved them equal."""
        self.aliases[term] = view
        self.forget()

    def forget(self) -> None:
        """Nothing that was built or answered before holds any more."""
        self.memo.clear()
        self.answers.clear()

    def constant(self, value: Scalar, shape: tuple[Size, ...]) -> View:
        """A tensor whose elements all equal ``value``."""
        return View(value, self.unit, shape, ())

    def zero(self, shape: tuple[Size, ...]) -> View:
        return self.constant(ZERO, shape)


def identity_view(term: Term) -> View:
    """The term itself, as a view whose dimensions are its axes."""
    axes = tuple(() if size == 1 else ((i, 1, size),) for i, size in enumerate(term.shape))
    return View(ONE, term, term.shape, axes)
