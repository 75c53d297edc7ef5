"""Laws that no finder proposes: those that terms are built by, and those of functions, which the e-graph looks for.

Each is right on numbers. Laws of the normal form are bound to the code: both sides are built as one term, and as two
where a guard is not met. Every guard dropped, weakened or of another name, and every place of an equation changed, is a
mutant that one of these tests must notice.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lemmas.laws_in_ir import Sides
from tests.lemmas.mutants import mutants_of
from tests.lemmas.numbers import Drawn, holds, holds_on
from tests.lemmas.test_function_laws import proved_by_z3, wraps_around
from tests.lemmas.test_table import RIGHT
from verifycompile.rewrites.lemmas.functions import FUNCTION_LAWS
from verifycompile.rewrites.lemmas.lemma import VALUE, Guard, Lemma
from verifycompile.rewrites.lemmas.normal_form import NORMAL_FORM
from verifycompile.rewrites.lemmas.ring import LINEAR_ALGEBRA
from verifycompile.rewrites.lemmas.spelling import names
from verifycompile.rewrites.registry import UnsupportedError

TRIALS = 300
BUILT_IN = tuple(lemma for lemma in (*LINEAR_ALGEBRA, *NORMAL_FORM) if lemma.code != "VL05")
"""What the normal form decides: it multiplies out no products of sums, which the ring prover does."""
UNPROPOSED = (*BUILT_IN, *FUNCTION_LAWS)
every_law = pytest.mark.parametrize("law", UNPROPOSED, ids=lambda law: law.code)


RING_CODES = {law.code for law in LINEAR_ALGEBRA}
FUNCTION_CODES = {law.code for law in FUNCTION_LAWS}


def of_numbers(law: Lemma) -> Lemma:
    """Laws of the ring are about real numbers: what infinite factors and summands need is in the table."""
    if law.code not in RING_CODES:
        return law
    finite = tuple(("finite", name) for name in names(law, VALUE))
    return dataclasses.replace(law, guards=(*law.guards, *finite))


def is_right_on_numbers(law: Lemma) -> bool:
    """A zero beside what is no number is a mask in the IR; a law of functions must hold as torch computes."""
    masks = law.code not in FUNCTION_CODES
    return all(holds(of_numbers(law), seed, masks=masks) for seed in range(TRIALS))


@every_law
def test_is_right_on_numbers(law: Lemma) -> None:
    assert is_right_on_numbers(law)


@every_law
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_is_right_on_numbers_that_shrink(law: Lemma, data: st.DataObject) -> None:
    assert holds_on(of_numbers(law), Drawn(data), masks=law.code not in FUNCTION_CODES)


@pytest.mark.parametrize("law", BUILT_IN, ids=lambda law: law.code)
def test_both_sides_are_built_as_one_term(law: Lemma) -> None:
    sides = Sides(law)
    assert sides.are_one
    torch.testing.assert_close(*torch.broadcast_tensors(*sides.tensors()), equal_nan=True)


@pytest.mark.parametrize(
    ("law", "guard"),
    [(law, guard) for law in BUILT_IN for guard in law.guards],
    ids=lambda value: value.code if isinstance(value, Lemma) else " ".join(map(str, value)),
)
def test_the_code_applies_no_law_whose_guard_is_not_met(law: Lemma, guard: Guard) -> None:
    try:
        sides = Sides(law, guard)
    except UnsupportedError:
        return  # a negation of what is no mask is refused
    assert not sides.are_one


def outcome(law: Lemma, mutant: Lemma) -> str:
    """By which test a mutant of a law is found out; ``""`` where it survives."""
    if not is_right_on_numbers(mutant):
        return "numbers"
    if law.code in FUNCTION_CODES:
        if law.guards != mutant.guards:
            return "bytes" if wraps_around(mutant) else ""
        return RIGHT if proved_by_z3(mutant) else ""
    if not Sides(mutant).are_one:
        return "terms"
    return RIGHT if len(mutant.guards) == len(law.guards) else ""


ALSO_RIGHT = [
    "VL14 left side a",
    "VL30 ('finite', 'b') for ('finite', 'a')",
    "VL33 ('positive', 'a') for ('positive', 'b')",
    "VL34 ('positive', 'a') for ('positive', 'b')",
    "VL65 left side a",
    "VL161 ('finite', 'a') for ('finite', 'b')",
    "VL167 left side ('less', ('zero',), ('max', 'i', 'm'))",
    "VL133 ('nonnegative', 'm') for ('indicator', 'm')",
    "VL134 left side ('less', 'a', ('number', 'p'))",
    "VL135 left side ('less_equal', ('number', 'p'), 'a')",
    "VL126 left side ('minimum', 'a', 'a')",
]
"""Mutants that are laws, too: the normal form makes one term of both sides, or z3 proves them."""


def test_no_mutant_survives() -> None:
    outcomes = [(f"{law.code} {change}", outcome(law, m)) for law in UNPROPOSED for change, m in mutants_of(law)]
    assert [change for change, found in outcomes if not found] == []
    assert [change for change, found in outcomes if found == RIGHT] == ALSO_RIGHT
