"""Lemmas on one-hot lookups: masked lookup in a shard of a table, summed over the shards, is the whole lookup.

Every match is proved for its own sizes by z3 before it is used; a match that z3 does not prove is not rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, IOTA, iota, open_view
from verifycompile.ir.indicator import EQUAL, LESS, LESS_EQUAL, NOT, equal
from verifycompile.ir.inequality import AT_MOST
from verifycompile.ir.pieces import CONCATENATE
from verifycompile.ir.relabel import merge_digits
from verifycompile.ir.scalar import ONE
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import UNIT, Axis, IndexFact, Term, TermPool, View
from verifycompile.ir.term_property import TermProperty
from verifycompile.rewrites import formula
from verifycompile.rewrites.builder import PAD, RESHAPE, SLICE
from verifycompile.rewrites.elementwise import FUNCTIONS, MAXIMUM, MINIMUM, WHERE
from verifycompile.rewrites.formula import Formula
from verifycompile.rewrites.matching import matching_lemma
from verifycompile.rewrites.solver import holds

_COPIES = (CONCATENATE, PAD, RESHAPE, SLICE)
_FLOOR, _TRUNC = FUNCTIONS["floor"], FUNCTIONS["trunc"]
_ARITHMETIC = (COMBINE, EQUAL, LESS, LESS_EQUAL, AT_MOST, NOT, MAXIMUM, MINIMUM, WHERE, _FLOOR, _TRUNC)


@matching_lemma("VL20", "open-masked-sum")
def open_masked_sum(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """A mask that shares a summed index with an inner contraction joins it: sum_m mask[m] * (sum_l f[m, l])."""
    rank = factors[0].rank
    for index in range(free, rank):
        if not any(f.term.operation.indicator and f.uses(index) for f in factors):
            continue
        for factor in factors:
            if _is_lookup(factor) and factor.uses(index):
                pool.lemma_trace.append(("open-masked-sum", repr(factor.term)))
                opened = open_view(factor)
                others = [View(f.coefficient, f.term, opened.shape, f.axes) for f in factors if f is not factor]
                return [*others, *opened.operands]
    return None


def _is_lookup(view: View) -> bool:
    """A contraction of a one-hot factor with others. Opening any other would be undone by pushing its sums back."""
    term = view.term
    if term.operation is not CONTRACT or not term.summed or len(term.operands) < 2:
        return False
    return any(v.term.operation.indicator for v in term.operands)


@matching_lemma("VL21", "merge-shifted-one-hot")
def merge_shifted_one_hot(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """``mask[m] * (f(x, m) == l)`` is ``x == m * n + l`` where z3 proves it for all x, 0 <= m < W, 0 <= l < n."""
    indicators = [f for f in factors if f.term.operation.indicator]
    merged = merge_indicators(pool, indicators)
    if merged is None:
        return None
    return [*(f for f in factors if f not in indicators), *merged]


def merge_indicators(pool: TermPool, indicators: Sequence[View]) -> Sequence[View] | None:
    """The masks and the lookup of a computed index that are, as z3 proves, one lookup of a plainer index."""
    for lookup in indicators:
        if lookup.term.operation is not EQUAL:
            continue
        operands = open_view(lookup).operands
        for value, counter in (operands, operands[::-1]):
            if len(indicators) == 1 and value.term.operation is not WHERE:
                continue  # no mask says where the index is in the shard
            if counter.coefficient != 1 or counter.term.operation is not IOTA:
                if not (counter.is_zero and value.term.operation is WHERE):
                    continue  # zero is the only place in a shard of one
            for wanted in _wholes(pool, value, counter, indicators):
                for leaf in _candidates(value, indicators):
                    # Terms are numbered as they are made: what is plainer was made before, so that rewriting ends.
                    if leaf.term.id >= value.term.id or any(leaf.uses(d[0]) for d in wanted.axes[0]):
                        continue
                    merged = _merge(pool, indicators, leaf, wanted)
                    if merged is not None:
                        pool.lemma_trace.append(("merge-shifted-one-hot", repr(leaf.term)))
                        return merged
    return None


def _wholes(pool: TermPool, value: View, counter: View, indicators: Sequence[View]) -> Iterator[View]:
    """Positions in the whole table, of which ``counter`` counts a shard: a dimension may number the shards."""
    shape = counter.shape
    if counter.is_zero:
        yield from (_position(pool, shape, ((dim, 1, count),)) for dim, count in enumerate(shape) if value.uses(dim))
        return
    position = whole_dim(counter, shape)
    computed = value.term.operation in _ARITHMETIC or _is_product(value)
    for dim, count in enumerate(shape):
        if position is None:
            break
        if dim == position or not (value.uses(dim) or (computed and any(f.uses(dim) for f in indicators))):
            continue
        yield _position(pool, shape, ((dim, 1, count), (position, 1, shape[position])))
    if computed:
        yield counter


def _position(pool: TermPool, shape: tuple[Size, ...], digits: Axis) -> View:
    """The number that these digits spell."""
    whole = iota(pool, product([size for _, _, size in digits]))
    return View(whole.coefficient, whole.term, shape, (merge_digits(digits),))


def _candidates(value: View, indicators: Sequence[View]) -> Iterator[View]:
    """What the lookup may be a lookup of: leaves of the computed index, and what the masks compare."""
    leaves = integer_leaves(value)
    yield from leaves
    for mask in indicators:
        if mask.term.operation in (LESS, LESS_EQUAL, AT_MOST):
            yield from (v for v in open_view(mask).operands if v.coefficient == 1 and v not in leaves)


def whole_dim(view: View, shape: tuple[Size, ...]) -> int | None:
    """The dimension that an ``iota`` view counts from first to last, else None."""
    if view.term.operation is not IOTA or view.coefficient != 1 or len(view.axes[0]) != 1:
        return None
    dim, divisor, size = view.axes[0][0]
    return dim if divisor == 1 and dim >= 0 and shape[dim] == size else None


def _merge(pool: TermPool, indicators: Sequence[View], leaf: View, counter: View) -> Sequence[View] | None:
    """The lookup of ``leaf`` at ``counter``; with those masks that do not use its dimensions where it needs them."""
    translator = Translator()
    try:
        given = formula.both(*(translator.truth(f) for f in indicators))
        wanted = translator.integer(leaf) == translator.integer(counter)
    except UntranslatableError:
        return None
    shape, kept = counter.shape, list[View]()
    if not holds(given == wanted, translator.indices, shape):
        kept = [f for f in indicators if not any(f.uses(d[0]) for d in counter.axes[0])]
        masked = formula.both(wanted, *(translator.truth(f) for f in kept))
        if not kept or not holds(given == masked, translator.indices, shape):
            return None
    return [equal(pool, leaf, counter), *kept]


@matching_lemma("VL22", "drop-implied-mask")
def drop_implied_mask(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """``(x == v) * mask(x)`` is ``x == v`` where z3 proves the mask for every position v of the table."""
    shape = factors[0].shape
    indicators = [f for f in factors if f.term.operation.indicator]
    for lookup in indicators if len(indicators) > 1 else ():
        if lookup.term.operation is not EQUAL:
            continue
        if not any(v.term.operation is IOTA for v in open_view(lookup).operands):
            continue
        for mask in indicators:
            if mask is not lookup and implied(mask, [lookup], shape):
                pool.lemma_trace.append(("drop-implied-mask", repr(mask.term)))
                return [f for f in factors if f is not mask]
    return None


@matching_lemma("VL45", "drop-known-mask")
def drop_known_mask(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """A mask on indices is one where z3 proves it for all indices that an operator of the spec takes without error."""
    for mask in factors if pool.facts else ():
        if not mask.term.operation.indicator or not any(v.term in pool.facts for v in integer_leaves(mask)):
            continue
        translator = Translator(pool.facts)
        try:
            truth = translator.truth(mask.unscaled())
        except UntranslatableError:
            continue
        claim = formula.implies(formula.both(*translator.given.values()), truth)
        if translator.given and holds(claim, translator.indices, mask.shape):
            pool.lemma_trace.append(("drop-known-mask", repr(mask.term)))
            pool.assumptions.update(dict.fromkeys(translator.sources))
            return [f for f in factors if f is not mask] or [pool.constant(ONE, mask.shape)]
    return None


def implied(mask: View, given: Sequence[View], shape: tuple[Size, ...]) -> bool:
    """Whether z3 proves a mask wherever all given indicators hold."""
    translator = Translator()
    try:
        claim = formula.implies(formula.both(*(translator.truth(v) for v in given)), translator.truth(mask))
    except UntranslatableError:
        return False
    return holds(claim, translator.indices, shape)


def integer_leaves(view: View) -> list[View]:
    """Operands reached through integer arithmetic that are no arithmetic themselves, as views over the same space."""
    leaves: list[View] = []
    pending = [view]
    seen: set[tuple[Term, tuple[Axis, ...]]] = set()
    while pending:
        current = pending.pop()
        if (current.term, current.axes) in seen:
            continue
        seen.add((current.term, current.axes))
        if current.term.operation in _ARITHMETIC or _is_product(current):
            pending.extend(open_view(current).operands)
        elif current.term.index_sizes:
            leaves.append(current.unscaled())
    return leaves


def is_whole(term: Term) -> bool:
    """Whether every element is a whole number by construction."""
    return _WHOLE(term)


def _is_whole(term: Term) -> bool:
    if term.operation in _COPIES:
        return all(v.coefficient in (0, 1, -1) and is_whole(v.term) for v in term.operands)
    return term.operation.whole or term.operation.indicator


_WHOLE = TermProperty(lambda term: term.operation in _COPIES, _is_whole)


def _is_product(view: View) -> bool:
    return view.term.operation is CONTRACT and not view.term.summed


class UntranslatableError(Exception):
    """A value that integer arithmetic over indices and opaque integers cannot express."""


class Translator:
    """Views over one index space as numbers and truths of formulas; equal views become equal variables.

    ``facts``: of terms. ``given``: what they say of the variables that occurred, by who says so and the variable.
    """

    def __init__(self, facts: Mapping[Term, Sequence[IndexFact]] | None = None) -> None:
        self.indices: dict[int, Formula] = {}
        self.given: dict[tuple[str, str], Formula] = {}
        self._facts = facts or {}
        self._opaque: dict[tuple[object, ...], Formula] = {}

    def index(self, dim: int) -> Formula:
        return self.indices.setdefault(dim, formula.index(dim))

    def truth(self, view: View) -> Formula:
        if view.coefficient != 1:
            raise UntranslatableError
        operation = view.term.operation
        comparison: dict[object, Callable[[Formula, Formula], Formula]] = {
            EQUAL: lambda a, b: a == b,
            LESS: lambda a, b: a < b,
            LESS_EQUAL: lambda a, b: a <= b,
        }
        if operation in comparison:
            left, right = open_view(view).operands
            return comparison[operation](self.integer(left), self.integer(right))
        if operation is AT_MOST:
            left, right = open_view(view).operands
            (constant,) = view.term.attributes
            assert isinstance(constant, int)
            return self.integer(left) <= self.integer(right) + constant
        if operation is NOT:
            return formula.negation(self.truth(open_view(view).operands[0]))
        if _is_product(view):
            return formula.both(*(self.truth(v) for v in open_view(view).operands))
        raise UntranslatableError

    def integer(self, view: View) -> Formula:
        coefficient = view.coefficient
        if not isinstance(coefficient, Fraction):
            raise UntranslatableError
        value = self._unscaled(view.unscaled())
        return value if coefficient == 1 else value * coefficient

    def _unscaled(self, view: View) -> Formula:
        term = view.term
        if not term.index_sizes and not term.operands:
            return formula.number(1) if term.operation is UNIT else self._variable(view)
        if term.operation is IOTA:
            return self._number(view)
        if term.operation is COMBINE:
            return formula.total([self.integer(v) for v in open_view(view).operands])
        if _is_product(view):
            operands = open_view(view).operands
            masks = [v for v in operands if v.term.operation.indicator]
            values = [v for v in operands if not v.term.operation.indicator]
            if len(values) > 1:
                raise UntranslatableError
            inner = self.integer(values[0]) if values else formula.number(1)
            return formula.choose(formula.both(*(self.truth(v) for v in masks)), inner, formula.number(0))
        if term.operation.indicator:
            return formula.choose(self.truth(view), formula.number(1), formula.number(0))
        if term.operation in (MAXIMUM, MINIMUM):
            left, right = (self.integer(v) for v in open_view(view).operands)
            return formula.choose((left < right) == (term.operation is MINIMUM), left, right)
        if term.operation is WHERE:
            condition, then, otherwise = open_view(view).operands
            return formula.choose(self.truth(condition), self.integer(then), self.integer(otherwise))
        if term.operation is _FLOOR:
            (value,) = open_view(view).operands
            return formula.floor(self.integer(value))
        if term.operation is _TRUNC:
            number = self.integer(open_view(view).operands[0])
            return formula.choose(number < 0, formula.floor(number * -1) * -1, formula.floor(number))
        return self._variable(view)

    def _number(self, view: View) -> Formula:
        """Value of an ``iota``: the number that its digits spell."""
        total = formula.number(0)
        for dim, divisor, size in view.axes[0]:
            if not isinstance(size, int) or not isinstance(divisor, int):
                raise UntranslatableError
            if dim < 0:
                total = total * size + divisor
                continue
            whole = divisor == 1 and view.shape[dim] == size
            digit = self.index(dim) if whole else (self.index(dim) // divisor) % size
            total = total * size + digit
        return total

    def _variable(self, view: View) -> Formula:
        key = (view.term.id, view.axes)
        name = f"x{len(self._opaque)}"
        # What is not known to be whole may be: what holds for all reals holds for the integers among them.
        known = self._opaque.get(key)
        if known is not None:
            return known
        variable = formula.integer(name) if is_whole(view.term) else formula.real(name)
        for fact in self._facts.get(view.term, ()):
            said = formula.both(variable >= 0, variable < fact.size)
            if fact.exception is not None:
                said = formula.either(said, variable == fact.exception)
            self.given[fact.source, name] = said
        return self._opaque.setdefault(key, variable)

    @property
    def sources(self) -> tuple[str, ...]:
        """Who says what is given."""
        return tuple(dict.fromkeys(source for source, _ in self.given))
