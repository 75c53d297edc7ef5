"""Views of whole numbers as statements of integer arithmetic, which a solver can be asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import cast

from verifycompile.ir.algebra import COMBINE, CONTRACT, IOTA, open_view
from verifycompile.ir.exponential import MAXIMUM, WHERE
from verifycompile.ir.indicator import EQUAL, LESS, LESS_EQUAL, NOT
from verifycompile.ir.inequality import AT_MOST
from verifycompile.ir.pieces import CONCATENATE
from verifycompile.ir.size import Size
from verifycompile.ir.term import RESHAPE, UNIT, IndexFact, Term, TermPool, View, facts_of
from verifycompile.ir.term_property import TermProperty
from verifycompile.ir.window import RANGE
from verifycompile.rewrites.operations import FLOOR, MINIMUM, PAD, SLICE, TRUNCATED
from verifycompile.rewrites.side_conditions import formula
from verifycompile.rewrites.side_conditions.formula import Formula, Key
from verifycompile.rewrites.side_conditions.solver import holds

_COPIES = (CONCATENATE, PAD, RESHAPE, SLICE)
_Views = Sequence[View]


def implied(given: _Views, wanted: _Views, shape: tuple[Size, ...], known: TermPool | None = None) -> bool:
    """Whether z3 proves that all of the wanted indicators hold wherever all of the given ones do.

    ``known``: for all indices that the spec takes without error, which is noted as an assumption.
    """
    return _holds(formula.implies, given, wanted, shape, known)


def equivalent(given: _Views, wanted: _Views, shape: tuple[Size, ...], known: TermPool | None = None) -> bool:
    """Whether z3 proves that all of the wanted indicators hold exactly where all of the given ones do."""
    return _holds(lambda left, right: left == right, given, wanted, shape, known)


def _holds(
    relation: Callable[[Formula, Formula], Formula],
    given: _Views,
    wanted: _Views,
    shape: tuple[Size, ...],
    known: TermPool | None,
) -> bool:
    translator = Translator(known.facts if known is not None else None)
    try:
        left, right = (formula.both(*(translator.truth(view) for view in views)) for views in (given, wanted))
    except UntranslatableError:
        return False
    claim = formula.implies(formula.both(*translator.given.values()), relation(left, right))
    is_proved = holds(claim, translator.indices, shape)
    if is_proved and known is not None:
        known.assumptions.update(dict.fromkeys(translator.sources))
    return is_proved


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
    ``opaque``: the views that are variables.
    """

    def __init__(self, facts: Mapping[Term, Sequence[IndexFact]] | None = None) -> None:
        self.indices: dict[int, Formula] = {}
        self.given: dict[tuple[str, str], Formula] = {}
        self.opaque: dict[Key, View] = {}
        self._facts = facts or {}
        self._variables: dict[tuple[object, ...], Formula] = {}

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
            AT_MOST: lambda a, b: a <= b + numbers[0],
        }
        numbers = cast("Sequence[int]", view.term.attributes)
        if operation in comparison:
            return comparison[operation](*map(self.integer, open_view(view).operands))
        if operation is RANGE:
            place = self._number(view)
            return formula.both(place >= numbers[0], place < numbers[1])
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
        if term.operation is UNIT:
            return formula.number(1)
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
        if term.operation is FLOOR:
            (value,) = open_view(view).operands
            return formula.floor(self.integer(value))
        if term.operation is TRUNCATED:
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
        name = f"x{len(self._variables)}"
        # What is not known to be whole may be: what holds for all reals holds for the integers among them.
        known = self._variables.get(key)
        if known is not None:
            return known
        variable = formula.integer(name) if is_whole(view.term) else formula.real(name)
        for fact in facts_of(self._facts, view):
            said = formula.both(variable >= 0, variable < fact.size)
            if fact.exception is not None:
                said = formula.either(said, variable == fact.exception)
            self.given[fact.source, name] = said
        self.opaque[variable.kind, name] = view
        return self._variables.setdefault(key, variable)

    @property
    def sources(self) -> tuple[str, ...]:
        """Who says what is given."""
        return tuple(dict.fromkeys(source for source, _ in self.given))
