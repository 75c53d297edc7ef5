"""Every lemma of the e-graph stage: tried on numbers, proved by z3 at small sizes, its guards shown to be needed."""

import itertools

import numpy as np
import pytest
import torch
import z3

from tests.lemmas.interpret import evaluate, independent_axes, value_names
from verifycompile.rewrites.lemmas.lemma import Lemma
from verifycompile.rewrites.lemmas.ring import LINEAR_ALGEBRA

SIZES = list(itertools.product((1, 2, 3), repeat=2))
every_lemma = pytest.mark.parametrize("lemma", LINEAR_ALGEBRA, ids=lambda lemma: lemma.code)


def numbers(lemma: Lemma, sizes: tuple[int, int], generator: torch.Generator, *, guarded: bool) -> dict:
    values: dict = {name: float(torch.randint(-5, 6, (), generator=generator)) for name in ("p", "q")}
    for name in value_names(lemma):
        shape = list(sizes)
        for axis in independent_axes(lemma, name) if guarded else ():
            shape[axis] = 1
        drawn = torch.randint(-4, 5, shape, generator=generator).double().numpy()
        values[name] = np.broadcast_to(drawn, sizes)
    return values


def symbols(lemma: Lemma, sizes: tuple[int, int], *, guarded: bool) -> dict:
    values: dict = {name: z3.Real(name) for name in ("p", "q")}
    for name in value_names(lemma):
        fixed = independent_axes(lemma, name) if guarded else []
        cells = np.empty(sizes, dtype=object)
        for index in np.ndindex(*sizes):
            spelled = [0 if axis in fixed else k for axis, k in enumerate(index)]
            cells[index] = z3.Real(f"{name}{spelled}")
        values[name] = cells
    return values


def differs(lemma: Lemma, sizes: tuple[int, int], *, guarded: bool) -> z3.CheckSatResult:
    values = symbols(lemma, sizes, guarded=guarded)
    left, right = evaluate(lemma.left, values), evaluate(lemma.right, values)
    solver = z3.Solver()
    solver.add(z3.Or([a != b for a, b in zip(left.ravel(), right.ravel(), strict=True)]))
    return solver.check()


@every_lemma
def test_holds_on_numbers(lemma):
    generator = torch.Generator().manual_seed(0)
    for sizes in SIZES:
        values = numbers(lemma, sizes, generator, guarded=True)
        np.testing.assert_array_equal(evaluate(lemma.left, values), evaluate(lemma.right, values))


@every_lemma
@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (1, 2), (2, 2)], ids=str)
def test_is_proved_by_z3(lemma, sizes):
    assert differs(lemma, sizes, guarded=True) == z3.unsat


@pytest.mark.parametrize("lemma", [x for x in LINEAR_ALGEBRA if x.guards], ids=lambda lemma: lemma.code)
def test_is_false_without_its_guard(lemma):
    assert differs(lemma, (2, 2), guarded=False) == z3.sat


def test_some_lemma_has_a_guard():
    assert [lemma.code for lemma in LINEAR_ALGEBRA if lemma.guards] == ["VL08"]


def test_a_wrong_lemma_is_caught():
    wrong = Lemma("VLXX", "wrong", "", ("sum", "i", ("mul", "a", "b")), ("mul", ("sum", "i", "a"), ("sum", "i", "b")))
    assert differs(wrong, (2, 1), guarded=True) == z3.sat


def test_codes_are_unique():
    codes = [lemma.code for lemma in LINEAR_ALGEBRA]
    assert len(set(codes)) == len(codes)
