"""Whether ground instances of lemmas make two expressions equal. Nothing here searches for instances, or believes any.

An instance counts where its guards hold: then both sides, built as terms, are one value. One term of the difference is
replaced by the rest of it wherever it is built from then on, which is congruence: what contains it is built anew. What
is left to show is decided by the normal form and the ring prover. So a proposal that is nonsense proves nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from verifycompile.ir.algebra import COMBINE, CONTRACT, has_infinity
from verifycompile.ir.build import ShapeError
from verifycompile.ir.exponential import LOGARITHM, POWER, WHERE
from verifycompile.ir.indicator import is_indicator
from verifycompile.ir.relabel import UnalignedError, inverse_digits, substitute
from verifycompile.ir.scalar import ONE, NonFiniteScalarError, divide
from verifycompile.ir.sign import is_greater_than_zero
from verifycompile.ir.term import CONSTANT, Term, TermPool, View
from verifycompile.ir.term_property import TermProperty
from verifycompile.refinement.ring import equal_in_ring
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.interpretation import Expression, Space, build, ground
from verifycompile.rewrites.lemmas.functions import FUNCTION_LAWS
from verifycompile.rewrites.operators.elementwise import FUNCTIONS
from verifycompile.rewrites.registry import UnsupportedError

_ROUNDS = 3
_MOST_INSTANCES = 64

LAWS = {law.code: law for law in FUNCTION_LAWS}

_ERRORS = (UnsupportedError, UnalignedError, ShapeError, NonFiniteScalarError)
_REFUSED = (*_ERRORS, KeyError, TypeError, ValueError, IndexError)


@dataclasses.dataclass(frozen=True)
class Instance:
    """The law of ``code`` with an expression or a number for each of its variables."""

    code: str
    values: Mapping[str, Expression]


def instances_prove(
    pool: TermPool, space: Space, left: Expression, right: Expression, instances: Sequence[Instance]
) -> tuple[Instance, ...] | None:
    """Instances of those given by which two expressions are equal; None where they do not make them equal."""
    with _scratch(pool):
        closure = _Closure(pool, space)
        used = [instance for instance in instances[:_MOST_INSTANCES] if closure.meets_guards(instance)]
        for _ in range(_ROUNDS):  # an instance says more where others replaced what it speaks of
            for instance in used:
                if closure.learn(instance) and closure.equal(left, right):
                    return closure.learnt
    return None


def without_needless(
    pool: TermPool, space: Space, left: Expression, right: Expression, instances: tuple[Instance, ...]
) -> tuple[Instance, ...]:
    """As few of the instances as still prove it. Without the last one it was not proved yet: that one is not tried."""
    for instance in instances[:-1]:
        fewer = tuple(other for other in instances if other is not instance)
        if instances_prove(pool, space, left, right, fewer) is not None:
            instances = fewer
    return instances


@contextlib.contextmanager
def _scratch(pool: TermPool) -> Generator[None]:
    """What is replaced within is forgotten after."""
    aliases, trace, built, answers = dict(pool.aliases), len(pool.lemma_trace), pool.memo, pool.answers
    pool.memo, pool.answers = {}, {}
    try:
        yield
    finally:
        pool.aliases.clear()
        pool.aliases.update(aliases)
        del pool.lemma_trace[trace:]
        pool.memo, pool.answers = built, answers


class _Closure:
    """Terms that were replaced, by the instances that say so."""

    def __init__(self, pool: TermPool, space: Space) -> None:
        self._pool, self._space = pool, space
        self._builder = Builder(pool)
        self._learnt: dict[int, tuple[Instance, Term, View]] = {}
        self._built = dict(space.read)
        """Values of expressions in which no term is replaced any more."""

    @property
    def learnt(self) -> tuple[Instance, ...]:
        """Instances by which a term is replaced."""
        return tuple(instance for instance, _, _ in self._learnt.values())

    def meets_guards(self, instance: Instance) -> bool:
        try:
            guards = LAWS[instance.code].guards
            return all(self._is_met(str(kind), instance.values[str(name)]) for kind, name, *_ in guards)
        except _REFUSED:
            return False

    def _is_met(self, kind: str, value: Any) -> bool:
        sign = _SIGNS.get(kind)
        return _KINDS[kind](self._build(value)) if sign is None else value == sign * abs(value)

    def _build(self, expression: Expression) -> View:
        return build(self._builder, self._space, expression, self._built)

    def learn(self, instance: Instance) -> bool:
        """Replace a term by what the instance says that it equals; whether that changes anything."""
        pool = self._pool
        known = self._learnt.pop(id(instance), None)
        if known is not None:
            pool.aliases.pop(known[1], None)
        pool.forget()
        self._built.clear()
        try:
            found = self._solved(instance)
        except _REFUSED:
            return False
        if found is None:
            return False
        term, alias = found
        self._learnt[id(instance)] = learnt = instance, term, alias
        pool.replace(term, alias)
        self._built.clear()
        return learnt != known

    def _solved(self, instance: Instance) -> tuple[Term, View] | None:
        """The term of the law's left side, and what it equals."""
        law = LAWS[instance.code]
        left, right = (self._build(ground(side, instance.values)) for side in (law.left, law.right))
        alias = None if has_infinity(right) else alias_of(right, left)
        return None if alias is None else (left.term, alias)

    def equal(self, left: Expression, right: Expression) -> bool:
        """Whether both are one value now."""
        try:
            first, second = (self._over_dimensions(self._build(e)) for e in (left, right))
            return equal_in_ring(self._pool, first, second)
        except _ERRORS:
            return False

    def _over_dimensions(self, view: View) -> View:
        shape = (*self._space.sizes[: self._space.rank], *view.shape[self._space.rank :])
        return View(view.coefficient, view.term, shape, view.axes)


def alias_of(expected: View, found: View) -> View | None:
    """``found.term`` as a view of ``expected.term`` over its own axes; None where ``found`` is not the whole of it."""
    digits = inverse_digits(found)
    if digits is None or not found.term.operands or found.is_zero or expected.is_zero:
        return None
    if not {d[0] for axis in expected.axes for d in axis} - {CONSTANT} <= set(digits):
        return None
    try:
        moved = substitute(expected, digits, found.term.shape)
    except UnalignedError:
        return None
    return moved.scaled(divide(ONE, found.coefficient))


def is_defined(view: View) -> bool:
    """Whether every element is a number wherever the inputs are: no infinity, no quotient or logarithm of a zero."""
    return _DEFINED(view.term)


def _is_defined(term: Term) -> bool:
    operation = term.operation
    if not all(is_defined(operand) for operand in term.operands):
        return False
    if operation in (POWER, LOGARITHM):
        (operand,) = term.operands
        return is_greater_than_zero(operand)
    return (
        operation.is_finite
        or operation.copies
        or operation.extreme
        or operation in (COMBINE, CONTRACT, WHERE, FUNCTIONS["abs"])
    )


_DEFINED = TermProperty(lambda _: True, _is_defined)
_KINDS = {"indicator": is_indicator, "defined": is_defined}
_SIGNS = {"positive_number": 1, "negative_number": -1}
"""Guards of values and of numbers. Zero is either: where a number is zero, the laws of these guards hold as well."""
