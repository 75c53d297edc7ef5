"""The lemmas of the table: right on numbers, proved for all sizes, and disposed of as their guards say.

Every guard dropped and every place of every equation changed is a mutant, which one of these must notice.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lemmas.instances import instance, violation
from tests.lemmas.mutants import mutants_of
from tests.lemmas.numbers import Drawn, holds, holds_on
from tests.lemmas.proofs import one_hot_sums_are_look_ups, proved_for_all_sizes
from verifycompile.rewrites.lemmas.lemma import GUARDS, VALUE, Guard, Lemma
from verifycompile.rewrites.lemmas.ring import LINEAR_ALGEBRA
from verifycompile.rewrites.lemmas.spelling import names
from verifycompile.rewrites.lemmas.table import TABLE

TRIALS = 300
DISPOSED = tuple(lemma for lemma in TABLE if lemma not in LINEAR_ALGEBRA)
every_lemma = pytest.mark.parametrize("lemma", DISPOSED, ids=lambda lemma: lemma.code)
every_guard = pytest.mark.parametrize(
    ("lemma", "guard"),
    [(lemma, guard) for lemma in DISPOSED for guard in lemma.guards],
    ids=lambda value: value.code if isinstance(value, Lemma) else " ".join(map(str, value)),
)

NOT_SPELLED = {
    # What stands outside of a sum cannot depend on its index, nor a value outside of a written sum on the summand.
    ("VL24", "f"), ("VL20", "f"), ("VL87", "g"), ("VL70", "m"), ("VL40", "m"), ("VL29", "x"), ("VL23", "n"),
    # Only digits are read as parts of a number.
    ("VL47", "a"), ("VL47", "c"), ("VL47", "d"), ("VL47", "e"),
}  # fmt: skip
"""Lemmas with values of which a guard demands what no instance can break."""


def is_well_formed(lemma: Lemma) -> bool:
    """Guards speak of the equation's own names."""
    known = {name for kind in (VALUE, "number", "index") for name in names(lemma, kind)}
    return all(name in known for guard in lemma.guards for part in guard[1:] for name in _names(part))


def _names(pattern: object) -> set[str]:
    if isinstance(pattern, str):
        return {pattern}
    return set[str]().union(*map(_names, pattern[1:])) if isinstance(pattern, tuple) else set()


def is_right_on_numbers(lemma: Lemma) -> bool:
    return is_well_formed(lemma) and all(holds(lemma, seed) for seed in range(TRIALS))


def is_disposed_as(lemma: Lemma, other: Lemma) -> bool:
    """Whether ``other`` makes of an instance of ``lemma`` what the lemma does."""
    made = instance(lemma)
    wanted, found = made.disposed(), made.disposed(other)
    return wanted is not None and found is not None and made.value(found).equal(made.value(wanted)) and found == wanted


@every_lemma
def test_is_right_on_numbers(lemma: Lemma) -> None:
    assert is_right_on_numbers(lemma)
    assert all(guard[0] in GUARDS for guard in lemma.guards)


@every_lemma
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_is_right_on_numbers_that_shrink(lemma: Lemma, data: st.DataObject) -> None:
    assert holds_on(lemma, Drawn(data))


@every_lemma
def test_an_instance_is_disposed_of(lemma: Lemma) -> None:
    made = instance(lemma)
    found = made.disposed()
    assert found is not None
    assert lemma.name in {name for name, _ in made.pool.lemma_trace}
    torch.testing.assert_close(made.value(found), made.value())


@every_guard
def test_an_instance_that_does_not_meet_a_guard_is_refused(lemma: Lemma, guard: Guard) -> None:
    made = violation(lemma, guard)
    if made is None:
        assert (lemma.code, guard[1]) in NOT_SPELLED
        return
    assert made.disposed() is None


def test_sums_under_a_comparison_are_look_ups() -> None:
    assert one_hot_sums_are_look_ups()


@every_lemma
def test_is_proved_for_all_sizes(lemma: Lemma) -> None:
    assert proved_for_all_sizes(lemma)


RIGHT = "right as well"
"""A mutant that is a lemma: right on numbers, and proved for all sizes."""

INFINITE = ("finite", "number")
"""Guards about values that are no real numbers, of which the proofs do not speak."""


@every_guard
def test_the_proof_needs_each_guard(lemma: Lemma, guard: Guard) -> None:
    bare = dataclasses.replace(lemma, guards=tuple(other for other in lemma.guards if other != guard))
    assert proved_for_all_sizes(bare) == (guard[0] in INFINITE)


def outcome(lemma: Lemma, mutant: Lemma) -> str:
    """By which test a mutant of a lemma is found out; ``""`` where it survives."""
    if not is_right_on_numbers(mutant):
        return "numbers"
    if lemma.guards == mutant.guards:
        return "" if is_disposed_as(lemma, mutant) else "instances"
    if not proved_for_all_sizes(mutant):
        return "proofs"
    return RIGHT if len(mutant.guards) == len(lemma.guards) else ""


def survives(lemma: Lemma, mutant: Lemma) -> bool:
    return not outcome(lemma, mutant)


def test_no_mutant_survives() -> None:
    outcomes = [(f"{lemma.code} {change}", outcome(lemma, m)) for lemma in DISPOSED for change, m in mutants_of(lemma)]
    assert [change for change, found in outcomes if not found] == []
    assert [change for change, found in outcomes if found == RIGHT] == [
        "VL94 ('within', 'x', 'j') for ('within', 'n', 'j')",
        "VL29 ('within', 'x', 'j') for ('within', 'n', 'j')",
        "VL97 ('reads', 'a', 'w', 'p', 'q', 'x', 'b', 'c', 'f', 'g') for ('reads', 'm', 'w', 'p', 'q', 'x', 'b', 'c', 'f', 'g')",
        "VL97 ('reads', 'm', 'w', 'p', 's', 'x', 'b', 'c', 'f', 'g') for ('reads', 'm', 'w', 'p', 'q', 'x', 'b', 'c', 'f', 'g')",
        "VL97 ('reads', 'a', 'w', 'q', 's', 'x', 'd', 'e', 'f', 'g') for ('reads', 'm', 'w', 'q', 's', 'x', 'd', 'e', 'f', 'g')",
        "VL97 ('reads', 'm', 'w', 'p', 's', 'x', 'd', 'e', 'f', 'g') for ('reads', 'm', 'w', 'q', 's', 'x', 'd', 'e', 'f', 'g')",
    ]
