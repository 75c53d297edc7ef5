"""What must hold of the one place that disposes, as checks that are fast: its mutants must fail one of them.

An instance of a lemma is a step and keeps its value. What breaks a guard is none. Whatever is proposed beside that, the
value stays as it was where a step is made: other values, numbers and indices, other factors, and the left sides of
lemmas that were changed.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from tests.lemmas.conditions import Check
from tests.lemmas.instances import FREE, SIZE, Instance, Maker, instance, violation
from tests.lemmas.kernel_tables import table
from tests.lemmas.mutants import with_another_equation
from tests.lemmas.test_table import DISPOSED
from verifycompile.ir.scalar import ONE
from verifycompile.ir.term import View
from verifycompile.rewrites.lemmas import build, dispose, guards, read, substitution
from verifycompile.rewrites.lemmas.substitution import InProduct, InSum, Position, Substitution

KERNEL = (dispose, guards, read, build, substitution)
"""What a step of a proof rests on, beside the lemmas and the algebra of terms."""


@functools.cache
def checks() -> tuple[tuple[str, Check], ...]:
    """All of them, by name; what most mutants fail first."""
    families = (table(), _instances(), _violations(), _other_left_sides(), _near_misses())
    return tuple(found for family in families for found in family)


# ------------------------------------------------------------------------------------------------ steps


def _instances() -> Iterator[tuple[str, Check]]:
    for lemma in DISPOSED:
        made = instance(lemma)
        yield f"instance of {lemma.code}", functools.partial(_is_a_step, made, made.value())


def _is_a_step(made: Instance, value: torch.Tensor) -> None:
    before = len(made.pool.lemma_trace)
    found = made.disposed()
    assert found is not None
    assert (made.lemma.name, "") in made.pool.lemma_trace[before:]
    torch.testing.assert_close(made.value(found), value)


def _violations() -> Iterator[tuple[str, Check]]:
    for lemma in DISPOSED:
        for guard in lemma.guards:
            if (made := violation(lemma, guard)) is not None:
                yield f"{lemma.code} without {guard}", functools.partial(_is_no_step, made)


def _is_no_step(made: Instance) -> None:
    before = len(made.pool.lemma_trace)
    assert made.disposed() is None
    assert (made.lemma.name, "") not in made.pool.lemma_trace[before:]


# ------------------------------------------------------------------------------------------------ other proposals


def _other_left_sides() -> Iterator[tuple[str, Check]]:
    """What stands there is the left side of a changed lemma."""
    for lemma in DISPOSED:
        for change, mutant in with_another_equation(lemma):
            if mutant.right != lemma.right:
                continue
            try:
                made = dataclasses.replace(Maker(mutant).make(), lemma=lemma)
                value = made.value()
            except Exception:  # noqa: BLE001 - a left side that is no expression of this size
                continue
            yield f"{lemma.code} {change}", functools.partial(_keeps_its_value, made, value)


def _near_misses() -> Iterator[tuple[str, Check]]:
    for lemma in DISPOSED:
        made = instance(lemma)
        value = made.value()
        for what, given in _substitutions(made):
            other = dataclasses.replace(made, given=given)
            yield f"{lemma.code} {what}", functools.partial(_keeps_its_value, other, value)
        for what, position in _positions(made):
            other = dataclasses.replace(made, position=position)
            yield f"{lemma.code} {what}", functools.partial(_keeps_its_value, other, other.value())


def _keeps_its_value(made: Instance, value: torch.Tensor) -> None:
    found = made.disposed()
    if found is not None:
        torch.testing.assert_close(made.value(found), value)


def _substitutions(made: Instance) -> Iterator[tuple[str, Substitution]]:
    given = made.given
    views = {id(v): v for factors in given.values.values() for v in factors}
    others: list[tuple[View, ...]] = [(), *((v,) for v in views.values())]
    for name, factors in given.values.items():
        wrong = [*others, (*factors, *factors), tuple(v.scaled(ONE * 2) for v in factors)]
        yield from ((f"{name} {k}", _with(given, "values", name, other)) for k, other in enumerate(wrong))
    for name, number in given.numbers.items():
        for other in (number + 1, number - 1, ONE * 0, ONE / 2):
            yield f"{name} = {other}", _with(given, "numbers", name, other)
    for name in given.indices:
        for dims in ((0,), (FREE,), (FREE + 1,), (FREE + 2,), (), (FREE, FREE + 1), (FREE, FREE)):
            yield f"{name} at {dims}", _with(given, "indices", name, dims)
    for (one, first), (other, second) in itertools.combinations(given.indices.items(), 2):
        yield (
            f"{one}, {other} exchanged",
            dataclasses.replace(given, indices={**given.indices, one: second, other: first}),
        )
    for name, parts in given.each.items():
        for k, changed in enumerate([parts[:1], parts[::-1], (*parts, parts[0]), (parts[0], parts[0])]):
            yield f"{name} in each {k}", _with(given, "each", name, changed)


def _with(given: Substitution, field: str, name: str, value: Any) -> Substitution:
    held: Mapping[str, Any] = getattr(given, field)
    return dataclasses.replace(given, **{field: {**held, name: value}})


def _positions(made: Instance) -> Iterator[tuple[str, Position]]:
    position = made.position
    there = list(position.factors if isinstance(position, InProduct) else position.summands)
    shape = there[0].shape
    readers = [made.pool.leaf(f"reader{d}", (SIZE,)) for d in range(len(shape))]
    more = [View(v.coefficient, v.term, shape, (((d, 1, SIZE),),)) for d, v in enumerate(readers)]
    more.append(made.pool.constant(ONE * 2, shape))
    for k, view in enumerate(more):
        yield f"beside {k}", _of(position, [*there, view], there)
        yield f"and {k}", _of(position, [*there, view], [*there, view])
    for k in range(len(there)):
        doubled = [v.scaled(ONE * 2) if i == k else v for i, v in enumerate(there)]
        yield f"{k} twice", _of(position, doubled, doubled)
        yield f"without {k}", _of(position, there, [v for i, v in enumerate(there) if i != k])
        yield f"{k} again", _of(position, there, [*there, there[k]])
        copied = [dataclasses.replace(v) if i == k else v for i, v in enumerate(there)]
        yield f"a copy of {k}", _of(position, there, copied)
        repeated = [*there, dataclasses.replace(there[k])]
        yield f"{k} is there again", _of(position, repeated, repeated)
    yield "the other way round", _of(position, there[::-1], there[::-1])
    if isinstance(position, InProduct):
        for free in range(FREE - 1, len(shape) + 1):
            yield f"free up to {free}", InProduct(there, free, there)


def _of(position: InProduct | InSum, there: Sequence[View], matched: Sequence[View]) -> Position:
    if isinstance(position, InProduct):
        return InProduct(there, position.free, matched)
    return InSum(there, position.shape, matched)
