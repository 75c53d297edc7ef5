"""A declaration is a function of its operands, its arguments and the call: what was lowered before changes nothing."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence

import pytest

from tests.operators.call import RefusedError, leaf, lower_call
from tests.operators.samples import SAMPLES
from verifycompile.ir.exponential import WHERE
from verifycompile.ir.scalar import ONE, Scalar, divide, multiply
from verifycompile.ir.term import Term, TermPool, View
from verifycompile.refinement.check import new_pool
from verifycompile.rewrites.registry import declarations

Result = list[View | None] | str
TARGETS = list(dict.fromkeys(sample.target for sample in SAMPLES))


@functools.cache
def _recorded(number: int) -> object:
    return SAMPLES[number].recorded()


def _lower(pool: TermPool, number: int) -> Result:
    """The values of a call on leaves that other calls take too; where it is refused, the message."""
    sample = SAMPLES[number]
    values = [leaf(pool, k, tensor) for k, tensor in enumerate(sample.tensors)]
    try:
        return lower_call(sample, values, _recorded(number), pool=pool, validated=False)
    except RefusedError as refused:
        return refused.message


def _lower_all(numbers: Iterable[int]) -> tuple[TermPool, dict[int, Result]]:
    pool = new_pool()
    return pool, {number: _lower(pool, number) for number in numbers}


@functools.cache
def _in_order() -> tuple[TermPool, dict[int, Result]]:
    return _lower_all(range(len(SAMPLES)))


@functools.cache
def _in_opposite_order() -> tuple[TermPool, dict[int, Result]]:
    return _lower_all(reversed(range(len(SAMPLES))))


# ------------------------------------------------------------------------------------------------ equal in two pools


class _Forms:
    """Forms of terms that do not depend on the order in which terms were made.

    That order decides in which order factors and summands stand, and which summand of a combination has no coefficient,
    and so which number leaves a choice.
    The form of a term names it and each of its axes: by sizes and by where its operands read it, and in turn by that.
    """

    def __init__(self) -> None:
        self._known: dict[Term, tuple[int, tuple[int, ...], Scalar]] = {}

    def of(self, result: Result) -> object:
        if isinstance(result, str):
            return result
        return [None if view is None else self._view(view, [hash(size) for size in view.shape]) for view in result]

    def _view(self, view: View, dims: Sequence[int]) -> tuple[int, Scalar]:
        """``dims``: names of the dimensions."""
        name, axes, scale = self._term(view.term)
        read = sorted(
            hash((axis, tuple((hash("constant") if d < 0 else dims[d], low, size) for d, low, size in digits)))
            for axis, digits in zip(axes, view.axes, strict=True)
        )
        return hash((name, tuple(read))), multiply(view.coefficient, scale)

    def _term(self, wanted: Term) -> tuple[int, tuple[int, ...], Scalar]:
        pending = [wanted]
        while pending:
            term = pending.pop()
            if term in self._known:
                continue
            missing = [v.term for v in term.operands if v.term not in self._known]
            if missing:
                pending.extend((term, *missing))
                continue
            self._known[term] = self._form(term)
        return self._known[wanted]

    def _form(self, term: Term) -> tuple[int, tuple[int, ...], Scalar]:
        core = {index: (k, i) for k, group in enumerate(term.cores) for i, index in enumerate(group)}
        ordered = not term.operation.commutative
        indices = [
            hash((size, i < term.free, i in term.fresh, core.get(i), None if term.operands else i))
            for i, size in enumerate(term.index_sizes)
        ]
        for _ in range(2):
            readers: list[list[int]] = [[] for _ in indices]
            for number, view in enumerate(term.operands):
                own = (number if ordered else 0, self._view(view, indices)[0])
                for axis, digits in zip(self._term(view.term)[1], view.axes, strict=True):
                    for place, (dim, low, size) in enumerate(digits):
                        if dim >= 0:
                            readers[dim].append(hash((own, axis, place, low, size)))
            indices = [hash((index, tuple(sorted(read)))) for index, read in zip(indices, readers, strict=True)]
        operands = [self._view(view, indices) for view in term.operands]
        scale: Scalar = ONE
        if term.operation.jointly_linear or term.operation is WHERE:
            first = 1 if term.operation is WHERE else 0
            condition, values = operands[:first], operands[first:]
            scale = min((o for o in values if o[1] != 0), key=operator.itemgetter(0), default=(0, ONE))[1]
            operands = [*condition, *((name, divide(coefficient, scale)) for name, coefficient in values)]
        for number in term.operation.linear.intersection(range(len(operands))):
            scale = multiply(scale, operands[number][1])
            operands[number] = (operands[number][0], ONE)
        content = tuple(operands if ordered else sorted(operands, key=hash)), tuple(sorted(indices))
        return hash((term.operation.name, str(term.attributes), content)), tuple(indices[: term.free]), scale


# ------------------------------------------------------------------------------------------------ tests


def test_all_declarations_have_samples_here() -> None:
    of_aten = [target for target in declarations() if str(target).startswith("aten.")]
    assert len(TARGETS) >= 0.95 * len(of_aten)


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_the_same_term_whatever_was_lowered_before(target: object) -> None:
    pools = (_in_order(), _in_opposite_order())
    for number in (number for number, sample in enumerate(SAMPLES) if sample.target is target):
        fresh = _Forms().of(_lower(new_pool(), number))
        for pool, lowered in pools:
            again = _lower(pool, number) == lowered[number]  # compared here: pytest would write both out
            assert again, f"{SAMPLES[number]} has two values in one pool"
            same = _Forms().of(lowered[number]) == fresh
            assert same, f"{SAMPLES[number]} has another value where other calls were lowered before"


def test_forms_tell_terms_apart() -> None:
    forms = {str(_Forms().of(result)) for result in _in_order()[1].values() if not isinstance(result, str)}
    terms = {str(result) for result in _in_order()[1].values() if not isinstance(result, str)}
    assert len(forms) >= 0.9 * len(terms)
