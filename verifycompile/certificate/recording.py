"""Steps by lemmas: recorded where finders find them, and written down when the proof is made from them alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from verifycompile.certificate.lemma_steps import MADE, LemmaStep, LemmaSteps
from verifycompile.certificate.storage import StorageError
from verifycompile.ir.algebra import IOTA, open_view
from verifycompile.ir.inequality import AT_MOST
from verifycompile.ir.scalar import ONE, Scalar
from verifycompile.ir.size import Size
from verifycompile.ir.term import CONSTANT, UNIT, Term, TermPool, View
from verifycompile.rewrites.catalogue import COMBINATION_LEMMAS, lemmas_of_product
from verifycompile.rewrites.finders.finder import ProductFinder, Proposal, SumFinder
from verifycompile.rewrites.lemmas.substitution import Factors
from verifycompile.rewrites.parts.beside_masks import is_elementwise
from verifycompile.torch_interface.operators.written_expressions import expression_to_data


class Recording(LemmaSteps):
    """Rules of a pool that ask the finders, and keep what was found by its position."""

    def __init__(self) -> None:
        super().__init__(())
        self.found: dict[str, tuple[Proposal, tuple[int, ...]]] = {}
        self.functions: dict[str, str] = {}
        """Position -> the lemma that is a function which was applied there."""

    def product(self, pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
        """A rule on the factors of a contraction."""
        return self._first(pool, factors, free, lemmas_of_product(factors))

    def combination(self, pool: TermPool, summands: Sequence[View], shape: tuple[Size, ...]) -> Sequence[View] | None:
        """A rule on summands."""
        return self._first(pool, summands, shape, COMBINATION_LEMMAS)

    def _first(self, pool: TermPool, views: Sequence[View], rest: Any, rules: Sequence[Any]) -> Sequence[View] | None:
        for rule in rules:
            if not isinstance(rule, (ProductFinder, SumFinder)):  # a lemma that is a function
                if (result := rule(pool, views, rest)) is not None:
                    self.functions[self.digests.position(pool, views, rest)] = rule.code
                    return result
                continue
            found = rule.instance(pool, views, rest)
            if found is not None:
                proposal, result = found
                places = {id(view): k for k, view in enumerate(views)}
                matched = tuple(places[id(view)] for view in proposal.matched)
                position = self.digests.position(pool, views, rest)
                self.found[position] = proposal, matched if isinstance(rest, tuple) else tuple(sorted(matched))
                return result
        return None


class WrittenSteps(LemmaSteps):
    """Applies recorded steps as the checker does: each is written down, read again, and disposed of."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(())
        self._recording = recording
        self._numbers: dict[str, int] = {}
        self.data: list[Mapping[str, Any]] = []
        self.views: list[Any] = []

    def _applied(self, pool: TermPool, views: Sequence[View], rest: Any, shape: tuple[Size, ...]) -> list[View] | None:
        position = self.digests.position(pool, views, rest)
        if position not in self._steps and position in self._recording.found:
            self._write(pool, position, shape)
        if position not in self._steps and position in self._recording.functions:
            step = LemmaStep(pool.place, self._recording.functions[position], position, (), {}, {}, {}, {})
            self._steps[position] = step
            self.data.append({"node": step.node, "lemma": step.lemma, "position": position, "matched": ()})
        return super()._applied(pool, views, rest, shape)

    def _write(self, pool: TermPool, position: str, shape: tuple[Size, ...]) -> None:
        """Write a step down, which is needed for the first time."""
        proposal, matched = self._recording.found[position]
        given = proposal.substitution
        beside = dict(self._made_beside(pool, proposal, shape))
        values = {
            name: beside.get(name) or self._factors(pool, factors, shape) for name, factors in given.values.items()
        }
        each = {name: [self._factors(pool, part, shape) for part in parts] for name, parts in given.each.items()}
        step = LemmaStep(
            pool.place, proposal.lemma.code, position, matched, values,
            {name: _scalar(number) for name, number in given.numbers.items()}, given.indices, each,
        )  # fmt: skip
        self._steps[position] = step
        numbered = {name: list(map(self._number, written)) for name, written in values.items()}
        summands = {name: [list(map(self._number, part)) for part in parts] for name, parts in each.items()}
        parts = {"values": numbered, "numbers": step.numbers, "indices": given.indices, "each": summands}
        fields = {"node": step.node, "lemma": step.lemma, "position": position, "matched": matched}
        self.data.append(fields | {name: part for name, part in parts.items() if part})

    def _number(self, written: Any) -> int:
        """The place of a view in the table of all."""
        text = json.dumps(written)
        if text not in self._numbers:
            self._numbers[text] = len(self.views)
            self.views.append(written)
        return self._numbers[text]

    def _made_beside(
        self, pool: TermPool, proposal: Proposal, shape: tuple[Size, ...]
    ) -> Iterator[tuple[str, list[Any]]]:
        """What a guard says that a value is beside a mask, which nothing else may hold: it is made again."""
        for kind, *names in proposal.lemma.guards:
            given = [proposal.substitution.values.get(str(name), ()) for name in names]
            if kind == "beside" and all(len(factors) == 1 for factors in given):
                (mask,), (value,), _ = given
                operands = [self._written(pool, view, shape) for view in (mask, value)]
                yield str(names[-1]), [["1", "made", ["beside", *operands], [], None]]

    def _factors(self, pool: TermPool, factors: Factors, shape: tuple[Size, ...]) -> list[Any]:
        return [self._written(pool, view, shape) for view in factors]

    def _written(self, pool: TermPool, view: View, shape: tuple[Size, ...]) -> Any:
        """A view of a term of the pool in which it was found."""
        own = None if view.shape == shape else list(map(_size, view.shape))
        coefficient = _scalar(view.coefficient)
        axes = [[[dim, _size(low), _size(size)] for dim, low, size in axis] for axis in view.axes]
        if view.term.operation is UNIT:
            return [coefficient, "one", None, axes, own]
        if view.term.operation is IOTA:
            return [coefficient, "iota", _size(view.term.index_sizes[0]), axes, own]
        text = self._recording.digests.of(view.term)
        if self.digests.term(pool, text) is not None:
            return [coefficient, "term", text, axes, own]
        term = view.term
        function = next((t for t in pool.terms if is_elementwise(t) and _function(t) == _function(term)), None)
        if not is_elementwise(term) or (function is None and term.operation.name not in MADE):
            raise StorageError(f"a step with a value `{term}` that nothing else holds")
        operands = [self._written(pool, operand, view.shape) for operand in open_view(view.unscaled()).operands]
        if term.operation.name in MADE:
            operands += [self._written(pool, pool.constant(n, view.shape), view.shape) for n in _bound(view)]
            return [coefficient, "made", [term.operation.name, *operands], [], own]
        assert function is not None
        there = View(ONE, function, view.shape, tuple(() if n == 1 else ((CONSTANT, 0, n),) for n in function.shape))
        return [coefficient, "made", ["like", self._written(pool, there, view.shape), *operands], [], own]


def _function(term: Term) -> tuple[object, ...]:
    """What a term is of its operands."""
    return term.operation, term.attributes, len(term.operands)


def _bound(view: View) -> list[Fraction]:
    """By how much an inequality is moved, which is no operand."""
    return [Fraction(int(c)) for c in view.term.attributes] if view.term.operation is AT_MOST else []  # type: ignore[call-overload]  # whole numbers


def _size(size: Size) -> Any:
    return size if isinstance(size, int) else expression_to_data(size)


def _scalar(number: Scalar) -> Any:
    if isinstance(number, int):
        return number
    return str(number) if isinstance(number, Fraction) else expression_to_data(number)
