"""Whether ground instances of lemmas make two expressions equal. Nothing here searches for instances, or believes any.

An instance counts where its guards hold: then both sides, built as terms, are one value. One term of the difference is
replaced by the rest of it wherever it is built from then on, which is congruence: what contains it is built anew. What
is left to show is decided by the normal form and the ring prover. So a proposal that is nonsense proves nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from verifycompile.ir.algebra import COMBINE, CONTRACT, has_infinity, open_view
from verifycompile.ir.build import ShapeError
from verifycompile.ir.exponential import LOGARITHM, POWER, WHERE, is_positive
from verifycompile.ir.indicator import is_indicator
from verifycompile.ir.relabel import UnalignedError, inverse_digits, substitute
from verifycompile.ir.scalar import ONE, NonFiniteScalarError, divide
from verifycompile.ir.sign import is_positive_sum
from verifycompile.ir.term import Term, TermPool, View
from verifycompile.ir.term_property import TermProperty
from verifycompile.refinement.ring import equal_in_ring
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.elementwise import FUNCTIONS
from verifycompile.rewrites.interpretation import Expression, Space, build, ground
from verifycompile.rewrites.lemmas.functions import FUNCTION_LAWS
from verifycompile.rewrites.registry import UnsupportedError

_ROUNDS = 3
_MOST_INSTANCES = 64

LAWS = {law.code: law for law in FUNCTION_LAWS}

_ERRORS = (UnsupportedError, UnalignedError, ShapeError, NonFiniteScalarError)


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
        for _ in range(min(len(used), _ROUNDS)):  # an instance says the same again without others
            learnt = False
            for instance in used:
                if not closure.learn(instance):
                    continue
                learnt = True
                if closure.equal(left, right):
                    return tuple(instance for instance in used if closure.uses(instance))
            if not learnt:
                break
    return None


def without_needless(
    pool: TermPool, space: Space, left: Expression, right: Expression, instances: tuple[Instance, ...]
) -> tuple[Instance, ...]:
    """As few of the instances as still prove it."""
    for instance in instances:
        fewer = tuple(other for other in instances if other is not instance)
        if fewer and len(fewer) < len(instances) and instances_prove(pool, space, left, right, fewer) is not None:
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
        self._replaced: dict[int, Term] = {}
        self._built = dict(space.read)
        """Values of expressions in which no term is replaced any more."""

    def meets_guards(self, instance: Instance) -> bool:
        law = LAWS.get(instance.code)
        if law is None:
            return False
        try:
            return all(self._is_met(str(kind), instance.values[str(name)]) for kind, name, *_ in law.guards)
        except (*_ERRORS, KeyError, TypeError, ValueError, IndexError):
            return False

    def _is_met(self, kind: str, value: Any) -> bool:
        if kind in ("positive_number", "negative_number"):
            return isinstance(value, Fraction) and (value > 0 if kind == "positive_number" else value < 0)
        view = self._build(value)
        if kind == "indicator":
            return is_indicator(view)
        return kind == "defined" and is_defined(view)

    def _build(self, expression: Expression) -> View:
        return build(self._builder, self._space, expression, self._built)

    def learn(self, instance: Instance) -> bool:
        """Replace a term by what the instance says that it equals; whether that changes anything."""
        law, pool = LAWS[instance.code], self._pool
        before = self._replaced.get(id(instance))
        if before is not None and not self._is_changed(before):
            return False
        known = None if before is None else pool.aliases.pop(before)
        if before is not None:
            del self._replaced[id(instance)]
            pool.forget()
            self._built.clear()
        try:
            sides = [self._build(ground(side, instance.values)) for side in (law.left, law.right)]
            found = next(self._solved(*sides), None)
        except (*_ERRORS, KeyError, TypeError, ValueError, IndexError):
            found = None
        if found is None:
            return known is not None
        term, alias = found
        self._replaced[id(instance)] = term
        pool.replace(term, alias)
        self._built = {e: view for e, view in self._built.items() if not _holds(view.term, term)}
        return term is not before or alias != known

    def _is_changed(self, term: Term) -> bool:
        """Whether something that was replaced since stands in a term that is replaced, or in what stands for it."""
        others = [other for other in self._pool.aliases if other is not term]
        return any(_holds(t, other) for other in others for t in (term, self._pool.aliases[term].term))

    def _solved(self, left: View, right: View) -> Iterator[tuple[Term, View]]:
        """Terms of the equation with what each of them equals, the left side first."""
        if left == right or has_infinity(left) or has_infinity(right):
            return
        if self._is_function(left.term) and not _holds(right.term, left.term):
            alias = replacement(right, left)
            if alias is not None:
                yield left.term, alias
        b = self._builder
        difference = b.sub(left, right)
        if difference.is_zero:
            return
        parts = [v.scaled(difference.coefficient) for v in open_view(difference).operands]
        parts = parts if difference.term.operation is COMBINE else [difference]
        for part in sorted(parts, key=lambda v: (v.term is not left.term, -v.term.id)):
            rest = [other for other in parts if other is not part]
            if not self._is_function(part.term) or any(_holds(other.term, part.term) for other in rest):
                continue
            value = b.add(*rest) if rest else self._pool.zero(difference.shape)
            alias = replacement(value.scaled(divide(-ONE, part.coefficient)), part.unscaled())
            if alias is not None:
                yield part.term, alias

    def _is_function(self, term: Term) -> bool:
        return term.operation not in (COMBINE, CONTRACT) and bool(term.operands) and term not in self._pool.aliases

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

    def uses(self, instance: Instance) -> bool:
        """Whether a term was replaced by the instance."""
        return id(instance) in self._replaced


def alias_of(expected: View, found: View) -> View | None:
    """``found.term`` as a view of ``expected.term`` over its own axes."""
    if not found.term.operands or found.is_zero or expected.is_zero:
        return None
    return replacement(expected, found)


def replacement(expected: View, found: View) -> View | None:
    """``found.term``, of which ``found`` is the whole, as a view of ``expected.term``; None where it is not."""
    digits = inverse_digits(found)
    if digits is None:
        return None
    used = {d[0] for axis in expected.axes for d in axis if d[0] >= 0}
    if not used <= set(digits):
        return None
    try:
        moved = substitute(expected, digits, found.term.shape)
    except UnalignedError:
        return None
    return moved.scaled(divide(ONE, found.coefficient))


def _holds(term: Term, wanted: Term) -> bool:
    """Whether a term is made of another one."""
    seen: set[Term] = set()
    pending = [term]
    while pending:
        current = pending.pop()
        if current is wanted:
            return True
        if current not in seen and current.id > wanted.id:
            seen.add(current)
            pending.extend(view.term for view in current.operands)
    return False


def is_defined(view: View) -> bool:
    """Whether every element is a number wherever the inputs are: no infinity, no quotient or logarithm of a zero."""
    return _DEFINED(view.term)


def _is_defined(term: Term) -> bool:
    operation = term.operation
    if not all(is_defined(operand) for operand in term.operands):
        return False
    if operation in (POWER, LOGARITHM):
        return all(is_positive(v) or is_positive_sum(v) for v in term.operands)
    return (
        operation.is_finite
        or operation.copies
        or operation.extreme
        or operation in (COMBINE, CONTRACT, WHERE, FUNCTIONS["abs"])
    )


_DEFINED = TermProperty(lambda _: True, _is_defined)
