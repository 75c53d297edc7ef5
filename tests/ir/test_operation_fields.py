"""What lemmas take for granted of an operation is said by its fields: its name decides nothing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import pytest
import torch

from tests.operators.test_operations import declared_operations, sample_terms
from verifycompile.ir.algebra import EXPONENTIAL, has_infinity
from verifycompile.ir.exponential import LOGARITHM, MAXIMUM, REDUCE_MAX, WHERE, is_positive, may_be_lowest
from verifycompile.ir.indicator import is_indicator
from verifycompile.ir.inequality import AT_MOST, is_whole
from verifycompile.ir.pieces import CONCATENATE, STACK
from verifycompile.ir.sign import is_nonnegative
from verifycompile.ir.similarity import frame
from verifycompile.ir.term import RESHAPE, UNIT, Operation, TermPool, View, identity_view
from verifycompile.ir.window import WINDOW
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operations import MINIMUM, PAD, SLICE, UNKNOWN
from verifycompile.rewrites.operators.counted import number_of_places
from verifycompile.rewrites.operators.distinct import SORT, TOPK
from verifycompile.rewrites.operators.elementwise import FUNCTIONS, choose
from verifycompile.rewrites.operators.extreme_places import ARG_EXTREME
from verifycompile.rewrites.operators.flips import FLIP
from verifycompile.rewrites.operators.ordering import ROLL
from verifycompile.rewrites.operators.reduction import EXTREMES, reduce_extreme
from verifycompile.rewrites.operators.stored_tensors import CONSTANT, stored

PLAIN = Operation("plain")
FIELDS = {
    "copies": {CONCATENATE, STACK, WINDOW, RESHAPE, SLICE, PAD, ROLL, FLIP},
    "extreme": {MAXIMUM, MINIMUM, *EXTREMES.values()},
    "nonnegative": {UNIT, EXPONENTIAL, FUNCTIONS["abs"]},
    "places": {TOPK[1], SORT[1], *ARG_EXTREME.values()},
    "attributes_by_piece": {AT_MOST},
}
GUARDS = (is_nonnegative, is_whole, is_indicator, is_positive, may_be_lowest, has_infinity, number_of_places)


def numbers_and_masked(b: Builder) -> tuple[View, View]:
    """Numbers, and the same ones, minus infinity where a mask is zero."""
    x, keep = b.pool.leaf("x", (2, 3)), b.pool.leaf("keep", (2, 3), indicator=True)
    return x, choose(b, keep, x, -math.inf)


def values() -> dict[str, View]:
    """Values that guards decide about, made anew in a pool of their own."""
    b = Builder(TermPool())
    x, masked = numbers_and_masked(b)
    lowest = reduce_extreme(b.pool, masked, (1,), "max")
    total = b.sum(b.exp(masked), [1])
    other = b.pool.leaf("y", (2,))
    shift = b.pointwise(MAXIMUM, lowest, b.log(total))
    counters = b.less_equal(b.unsqueeze(b.iota(4), 1), b.iota(4))
    return {
        "masked": masked,
        "largest": lowest,
        "largest of both": shift,
        "largest that is a number": b.pointwise(MAXIMUM, lowest, other),
        "logarithm": b.log(total),
        "exponential": b.exp(masked),
        "difference from the largest": b.exp(b.sub(lowest, shift)),
        "difference from a number": b.exp(b.sub(other, b.pointwise(MAXIMUM, lowest, other))),
        "softmax": b.exp(b.sub(masked, b.unsqueeze(lowest, 1))),
        "smallest": b.pointwise(MINIMUM, b.pointwise(FUNCTIONS["abs"], x), b.mul(x, x)),
        "square": b.power(x, 2),
        "inequality": counters,
        "constant": stored(b, torch.float64, (2,), (0.5, 2.0)),
        "constant with infinities": stored(b, torch.float64, (2,), (0.5, -math.inf)),
        "places": identity_view(b.pool.intern(ARG_EXTREME["max"], (), (), (3,), 1, 0, ((0,),), (0,))),
    }


def decisions() -> dict[str, object]:
    made = values()
    found: dict[str, object] = {name: tuple(guard(view) for guard in GUARDS) for name, view in made.items()}
    split = [made[f"difference from {what}"].term.operation is not EXPONENTIAL for what in ("the largest", "a number")]
    return {**found, "split": split, "same frame": frame(made["inequality"].term)[1]}


@pytest.fixture
def renamed() -> Iterator[None]:
    """All operations, each under the name of another."""
    operations = declared_operations()
    names = [operation.name for operation in operations]
    for operation, name in zip(operations, [*names[1:], names[0]], strict=True):
        object.__setattr__(operation, "name", name)
    yield
    for operation, name in zip(operations, names, strict=True):
        object.__setattr__(operation, "name", name)


WITH_THEIR_NAMES = decisions()


@pytest.mark.usefixtures("renamed")
def test_no_decision_goes_by_a_name() -> None:
    assert MAXIMUM.name != "maximum"
    assert decisions() == WITH_THEIR_NAMES


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # nonnegative, whole, an indicator, positive, maybe minus infinity, infinite by construction, places
        ("masked", (False, False, False, False, True, True, None)),
        ("largest", (False, False, False, False, True, False, None)),
        ("largest of both", (False, False, False, False, True, False, None)),
        ("largest that is a number", (False, False, False, False, False, False, None)),
        ("logarithm", (False, False, False, False, True, False, None)),
        ("exponential", (True, False, False, False, False, False, None)),
        ("smallest", (True, False, False, False, False, False, None)),
        ("square", (True, False, False, False, False, False, None)),
        ("inequality", (True, True, True, False, False, False, None)),
        ("constant", (False, False, False, False, False, False, None)),
        ("constant with infinities", (False, False, False, False, True, True, None)),
        ("places", (False, True, False, False, False, False, 3)),
    ],
)
def test_decisions(name: str, expected: tuple[object, ...]) -> None:
    assert WITH_THEIR_NAMES[name] == expected


def test_sums_are_split_where_no_infinity_is_taken_from_itself() -> None:
    assert WITH_THEIR_NAMES["split"] == [False, True]
    assert values()["softmax"].term.operation is not EXPONENTIAL


# ------------------------------------------------------------------------------------------------ no fields


def test_nothing_is_taken_for_granted_unless_it_is_said() -> None:
    assert [f.name for f in dataclasses.fields(Operation) if f.name != "name" and getattr(PLAIN, f.name)] == []
    assert not PLAIN.is_finite


@pytest.mark.parametrize("field", FIELDS)
def test_operations_with_a_field(field: str) -> None:
    found = {t.operation for t in sample_terms() if getattr(t.operation, field)}
    assert found <= FIELDS[field] == {o for o in FIELDS[field] if getattr(o, field)}


def exponential_of_difference(operation: Operation) -> View:
    """``exp(x - f(masked))``."""
    b = Builder(TermPool())
    x, masked = numbers_and_masked(b)
    return b.exp(b.sub(x, b.pointwise(operation, masked)))


def test_an_operation_of_which_nothing_is_said_may_be_minus_infinity() -> None:
    b = Builder(TermPool())
    x, masked = numbers_and_masked(b)
    assert may_be_lowest(b.pointwise(PLAIN, masked))
    assert not may_be_lowest(b.pointwise(PLAIN, x))
    assert exponential_of_difference(PLAIN).term.operation is EXPONENTIAL
    assert exponential_of_difference(dataclasses.replace(PLAIN, finite=True)).term.operation is not EXPONENTIAL


def test_copies_of_largest_values_are_no_masks() -> None:
    """``exp(x - c)`` where c is a concatenation of values that may be minus infinity."""
    b = Builder(TermPool())
    x, masked = numbers_and_masked(b)
    largest = reduce_extreme(b.pool, masked, (1,), "max")
    copied = b.pointwise(dataclasses.replace(PLAIN, copies=True), largest)
    taken = b.exp(b.sub(b.sum(x, [1]), copied))
    assert taken.term.operation is EXPONENTIAL


def test_what_nothing_is_known_of_may_be_minus_infinity() -> None:
    """Memory that a program did not write, and a stored tensor that holds one."""
    b = Builder(TermPool())
    unknown = identity_view(b.pool.intern(UNKNOWN, ("spec", "empty", 0), (), (2,), 1, 0, (), ()))
    x = b.pool.leaf("x", (2,))
    for view in (unknown, stored(b, torch.float64, (2,), (0.5, -math.inf))):
        assert may_be_lowest(view)
        assert b.exp(b.sub(x, view)).term.operation is EXPONENTIAL
        assert not b.sub(view, view).is_zero
    assert stored(b, torch.float64, (2,), (0.5, 2.0)).term.operation is CONSTANT
    assert b.sub(x, x).is_zero


def test_no_sign_and_no_whole_number_without_a_field() -> None:
    b = Builder(TermPool())
    places = b.iota(4)
    view = b.pointwise(dataclasses.replace(PLAIN, name="abs"), places)
    assert not is_nonnegative(view)
    assert not is_whole(view)
    assert is_whole(b.pointwise(dataclasses.replace(PLAIN, copies=True), places))
    assert is_nonnegative(b.pointwise(dataclasses.replace(PLAIN, nonnegative=True), places))
    assert is_nonnegative(b.pointwise(dataclasses.replace(PLAIN, extreme=True), b.power(b.pool.leaf("x", (4,)), 2)))


def test_operations_of_one_name_are_two() -> None:
    b = Builder(TermPool())
    x = b.pool.leaf("x", (4,))
    assert b.pointwise(PLAIN, x) != b.pointwise(dataclasses.replace(PLAIN, commutative=True), x)
    assert b.log(x).term.operation is LOGARITHM
    assert b.pointwise(dataclasses.replace(WHERE), x, x, x).term.operation is not WHERE
    assert reduce_extreme(b.pool, x, (0,), "max").term.operation is REDUCE_MAX
