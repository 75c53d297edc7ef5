"""The steps by lemmas of a stored proof: (node, lemma, substitution, position). Each is disposed of, none is believed.

A position is known by its digest: there ``lemmas/dispose.py`` finds out whether the expression is the instance of the
lemma, and builds what stands there by it. Nothing is searched for. A view is written as a coefficient, its axes, its
shape where it is not that of the position, and a term: one that is there, by its digest, or one that is made of others.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, cast

import sympy

from verifycompile.certificate.digests import Digests
from verifycompile.certificate.storage import StorageError
from verifycompile.ir.algebra import combine, iota, multiply_views
from verifycompile.ir.indicator import equal, less, less_equal, negate
from verifycompile.ir.scalar import Scalar, as_scalar
from verifycompile.ir.size import Size
from verifycompile.ir.term import TermPool, View
from verifycompile.ir.validate import validate
from verifycompile.rewrites.lemmas.dispose import dispose
from verifycompile.rewrites.lemmas.substitution import InProduct, InSum, Substitution
from verifycompile.rewrites.lemmas.table import TABLE
from verifycompile.torch_interface.operators.expressions import expression_from_data

_LEMMAS = {lemma.code: lemma for lemma in TABLE}

_PARTS = "verifycompile.rewrites.parts"
_FUNCTIONS = {
    "VL26": ("similar", "sum_similar"),
    "VL48": ("padded_pieces", "sum_padded"),
    "VL147": ("places", "places_in_parts"),
}
"""Lemmas that are functions of the summands: file in `rewrites/parts` and name. One is loaded where a step is by it."""

MADE: dict[str, Callable[..., View]] = {
    "equal": equal,
    "less": less,
    "less_equal": less_equal,
    "at_most": lambda pool, left, right, offset: less_equal(pool, left, combine(pool, [right, offset])),
    "not": negate,
    "combine": lambda pool, *parts: combine(pool, parts),
    "contract": multiply_views,
    "beside": lambda *given: importlib.import_module(f"{_PARTS}.beside_masks").with_one_for(*given),
    "like": lambda *given: importlib.import_module(f"{_PARTS}.chosen").like(*given),
}
"""Values that a step may make of others: by an operation, as beside a mask, or by the function that a term there is."""


@dataclasses.dataclass(frozen=True)
class LemmaStep:
    """``matched``: which of the factors or summands are those of the left side. Views are written as data."""

    node: str
    lemma: str
    position: str
    matched: tuple[int, ...]
    values: Mapping[str, Sequence[Any]]
    numbers: Mapping[str, Any]
    indices: Mapping[str, Sequence[int]]
    each: Mapping[str, Sequence[Sequence[Any]]]


class LemmaSteps:
    """Rules of a pool that apply the steps of a certificate, and nothing else."""

    def __init__(self, steps: Sequence[LemmaStep]) -> None:
        self.digests = Digests()
        self.fault = ""
        """Why a step is none."""
        self._steps = {step.position: step for step in steps}
        self._unused = dict.fromkeys(self._steps)

    @property
    def unused(self) -> tuple[LemmaStep, ...]:
        """Steps that nothing has needed so far."""
        return tuple(self._steps[position] for position in self._unused)

    def product(self, pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
        """A rule on the factors of a contraction."""
        return self._applied(pool, factors, free, factors[0].shape)

    def combination(self, pool: TermPool, summands: Sequence[View], shape: tuple[Size, ...]) -> Sequence[View] | None:
        """A rule on summands."""
        return self._applied(pool, summands, shape, shape)

    def _applied(self, pool: TermPool, views: Sequence[View], rest: Any, shape: tuple[Size, ...]) -> list[View] | None:
        step = self._steps.get(self.digests.position(pool, views, rest))
        if step is None or self.fault:
            return None
        place = pool.place
        try:
            result = self._disposed(pool, step, views, rest, shape)
        except Exception as error:  # noqa: BLE001 - data that nothing was written for
            result, place = None, f"{place} ({type(error).__name__}: {error})"
        if result is None:
            self.fault = f"its step by {step.lemma} at `{step.node}` is none: `{place}`"
        elif step.position in self._unused:
            del self._unused[step.position]
            if step.node != pool.place:
                self.fault = f"its step by {step.lemma} at `{step.node}` is needed at `{pool.place}`"
        return None if self.fault else result

    def _disposed(
        self, pool: TermPool, step: LemmaStep, views: Sequence[View], rest: Any, shape: tuple[Size, ...]
    ) -> list[View] | None:
        if step.lemma in _FUNCTIONS:
            return self._applied_function(pool, step, views, rest)
        given = self._substitution(pool, step, shape)
        matched = [views[k] for k in step.matched]
        if isinstance(rest, tuple):
            position = InSum(views, shape, matched)
        elif list(step.matched) != sorted(step.matched):
            raise StorageError("the factors of a product are not in their order")
        else:
            position = InProduct(views, rest, matched)
        result = dispose(pool, _LEMMAS[step.lemma], given, position)
        for view in result or ():
            validate(view)
        return result

    def _applied_function(self, pool: TermPool, step: LemmaStep, views: Sequence[View], rest: Any) -> list[View] | None:
        if not isinstance(rest, tuple) or step.matched or step.values or step.numbers or step.indices or step.each:
            raise StorageError("a lemma that is a function is applied to all summands")
        file, name = _FUNCTIONS[step.lemma]
        function = getattr(importlib.import_module(f"{_PARTS}.{file}"), name)
        result = function(pool, views, rest)
        return None if result is None else list(result)

    def _substitution(self, pool: TermPool, step: LemmaStep, shape: tuple[Size, ...]) -> Substitution:
        def factors(written: Sequence[Any]) -> tuple[View, ...]:
            return tuple(self._view(pool, item, shape) for item in written)

        return Substitution(
            {name: factors(written) for name, written in step.values.items()},
            {name: _scalar(written) for name, written in step.numbers.items()},
            {name: tuple(dims) for name, dims in step.indices.items()},
            {name: tuple(map(factors, summands)) for name, summands in step.each.items()},
        )

    def _view(self, pool: TermPool, written: Any, shape: tuple[Size, ...]) -> View:
        coefficient, kind, content, axes, own = written
        shape = shape if own is None else tuple(map(_size, own))
        if kind == "made":
            operation, *operands = content
            made = MADE[operation](pool, *(self._view(pool, operand, shape) for operand in operands))
            return made.scaled(_scalar(coefficient))
        if kind == "term":
            term = self.digests.term(pool, content)
        else:
            term = pool.unit if kind == "one" else iota(pool, _size(content)).term
        if term is None:
            raise StorageError(f"no term {content} is there")
        digits = tuple(tuple((int(d), _size(low), _size(size)) for d, low, size in axis) for axis in axes)
        view = View(_scalar(coefficient), term, shape, digits)
        validate(view)
        return view


def _size(data: Any) -> Size:
    return data if isinstance(data, int) else cast("sympy.Expr", expression_from_data(data))


def _scalar(data: Any) -> Scalar:
    if isinstance(data, str):
        return Fraction(data)
    return as_scalar(_size(data))


# ------------------------------------------------------------------------------------------------ stored


def steps_from_data(steps: Sequence[Mapping[str, Any]], views: Sequence[Any]) -> tuple[LemmaStep, ...]:
    """The steps that were written. Raises StorageError for a position with two, and a view that no step needs."""
    found = tuple(_step_from_data(step, views) for step in steps)
    if len({step.position for step in found}) != len(found):
        raise StorageError("two steps are at one position")
    parts = (p for s in steps for p in (*s.get("values", {}).values(), *itertools.chain(*s.get("each", {}).values())))
    if {number for part in parts for number in part} != set(range(len(views))):
        raise StorageError("it holds a view that no step needs")
    return found


def _step_from_data(data: Mapping[str, Any], views: Sequence[Any]) -> LemmaStep:
    node, lemma, position, matched = (data[name] for name in ("node", "lemma", "position", "matched"))
    parts: list[Mapping[str, Any]] = [data.get(name, {}) for name in ("values", "numbers", "indices", "each")]
    unknown = data.keys() - {"node", "lemma", "position", "matched", "values", "numbers", "indices", "each"}
    if unknown:
        raise StorageError(f"a step has no `{min(unknown)}`")
    values, numbers, indices, each = parts
    return LemmaStep(
        str(node),
        str(lemma),
        str(position),
        tuple(int(k) for k in matched),
        {name: [views[k] for k in numbers_of] for name, numbers_of in values.items()},
        numbers,
        indices,
        {name: [[views[k] for k in part] for part in summands] for name, summands in each.items()},
    )
