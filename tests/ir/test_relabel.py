"""Digits are moved as torch moves elements: every relabelling is compared with torch on random tensors."""

from __future__ import annotations

import random

import pytest
import torch

from tests.ir.evaluate import Evaluator
from tests.ir.views import Leaves, leaf, random_shape
from verifycompile.ir import relabel
from verifycompile.ir.relabel import UnalignedError, extract, merge_digits
from verifycompile.ir.term import CONSTANT, TermPool, View
from verifycompile.ir.validate import validate

STEPS = ("reshape", "permute", "insert", "select", "narrow", "split", "broadcast", "remove")


def step(draw: random.Random, view: View, value: torch.Tensor) -> tuple[View, torch.Tensor]:
    """One random layout operation on a view and on its tensor. Raises UnalignedError."""
    dim = draw.randrange(view.rank) if view.rank else 0
    size = int(view.shape[dim]) if view.rank else 1
    kind = draw.choice(STEPS)
    if kind == "reshape":
        shape = random_shape(draw, value.numel())
        return relabel.reshape(view, shape), value.reshape(shape)
    if kind == "permute":
        order = draw.sample(range(view.rank), view.rank)
        return relabel.permute(view, order), value.permute(order)
    if kind == "insert":
        place, extent = draw.randrange(view.rank + 1), draw.choice([1, 1, 2])
        wide = value.unsqueeze(place)
        return relabel.insert_dim(view, place, extent), wide.expand(
            [extent if d == place else -1 for d in range(wide.dim())]
        )
    if kind == "broadcast":
        return relabel.broadcast_to(view, (2, *view.shape), 0), value.expand((2, *value.shape))
    if not view.rank:
        return view, value
    if kind == "select":
        index = draw.randrange(size)
        return relabel.select(view, dim, index), value.select(dim, index)
    if kind == "narrow":
        length = draw.randint(1, size)
        start = draw.randint(0, size - length)
        return relabel.narrow(view, dim, start, length), value.narrow(dim, start, length)
    if kind == "split":
        inner = draw.choice([k for k in range(1, size + 1) if size % k == 0])
        return relabel.split_dim(view, dim, size // inner, inner), value.unflatten(dim, (size // inner, inner))
    if view.uses(dim):
        return view, value
    return relabel.remove_dim(view, dim), value.select(dim, 0)


@pytest.mark.parametrize("seed", range(60))
def test_chains_of_layout_operations(seed: int) -> None:
    draw = random.Random(seed)
    pool, leaves = TermPool(), Leaves()
    view = leaf(pool, leaves, *draw.choice([(8, 6), (2, 12, 2), (24,), (4, 4, 4)]))
    value = leaves["x0"]
    terms = len(pool)
    for _ in range(10):
        try:
            other, expected = step(draw, view, value)
        except UnalignedError:
            continue
        if not 0 < expected.numel() <= 256:
            continue
        view, value = other, expected
        assert view.shape == tuple(value.shape)
        validate(view)
        torch.testing.assert_close(Evaluator(leaves).view(view), value)
    assert len(pool) == terms  # no layout operation makes a term


@pytest.mark.parametrize("seed", range(20))
def test_a_permutation_and_its_inverse_cancel(seed: int) -> None:
    draw = random.Random(seed)
    view = leaf(TermPool(), {}, 2, 3, 4, 5)
    order = draw.sample(range(4), 4)
    inverse = [order.index(d) for d in range(4)]
    assert relabel.permute(relabel.permute(view, order), inverse) == view


def test_reshapes_cancel() -> None:
    view = leaf(TermPool(), {}, 8, 6)
    assert relabel.reshape(relabel.reshape(view, (2, 24)), (8, 6)) == view
    assert relabel.reshape(relabel.reshape(view, (2, 2, 2, 3, 2)), (8, 6)) == view


def test_reshape_keeps_mesh_dimensions() -> None:
    leaves = Leaves()
    view = leaf(TermPool(), leaves, 2, 4, 6)
    wide = relabel.reshape(view, (8, 3), keep=1)
    torch.testing.assert_close(Evaluator(leaves).view(wide), leaves["x0"].reshape(2, 8, 3))


def test_boundaries_inside_of_digits_are_refused() -> None:
    view = leaf(TermPool(), {}, 6)
    with pytest.raises(UnalignedError):
        relabel.substitute(view, {0: [(0, 1, 4), (1, 1, 2)]}, (4, 2))
    with pytest.raises(UnalignedError):
        relabel.narrow(view, 0, 1, 3)
    with pytest.raises(UnalignedError):
        relabel.narrow(view, 0, 0, 4)
    with pytest.raises(UnalignedError, match="boundary 2 inside a digit of size 3"):
        extract([(0, 1, 3)], 1, 2)

    with pytest.raises(UnalignedError, match="digits end before 4"):
        extract([(0, 1, 2)], 1, 4)
    assert extract([(0, 1, 3)], 2, 1) == []  # nothing is read


def test_whole_periods_of_what_repeats_are_read_anywhere() -> None:
    leaves = Leaves()
    x = leaf(TermPool(), leaves, 2, 5)
    repeated = View(x.coefficient, x.term, (6, 5), x.axes)
    part = relabel.narrow(repeated, 0, 2, 4)
    torch.testing.assert_close(Evaluator(leaves).view(part), leaves["x0"].repeat(3, 1)[2:6])
    assert relabel.narrow(part, 1, 0, 5) == part
    row = relabel.narrow(x, 0, 1, 1)
    torch.testing.assert_close(Evaluator(leaves).view(row), leaves["x0"][1:])
    assert relabel.compose(row, [((3, 1, 2),), ((4, 1, 5),)], (1, 1, 1, 2, 5)).axes == (
        ((CONSTANT, 1, 2),),
        ((4, 1, 5),),
    )
    for start, length in ((1, 4), (2, 3)):
        with pytest.raises(UnalignedError):
            relabel.narrow(repeated, 0, start, length)


def test_a_used_dimension_cannot_be_removed() -> None:
    with pytest.raises(ValueError, match="the value depends on dimension 0"):
        relabel.remove_dim(leaf(TermPool(), {}, 3), 0)


def test_canonical_axes() -> None:
    assert merge_digits([(0, 4, 2), (0, 2, 2), (0, 1, 2)]) == ((0, 1, 8),)
    assert merge_digits([(0, 1, 1), (1, 1, 3)]) == ((1, 1, 3),)
    assert merge_digits([(0, 1, 2), (0, 2, 2)]) == ((0, 1, 2), (0, 2, 2))  # in the other order
    assert merge_digits([(CONSTANT, 1, 2), (CONSTANT, 2, 3)]) == ((CONSTANT, 5, 6),)


@pytest.mark.parametrize("seed", range(40))
def test_extracted_digits_spell_the_part(seed: int) -> None:
    draw = random.Random(seed)
    shape = [draw.choice([1, 2, 3, 4]) for _ in range(3)]
    digits = [(d, 1, size) for d, size in enumerate(shape)]
    digits.insert(draw.randrange(4), (CONSTANT, draw.randrange(2), 2))
    total = 2 * shape[0] * shape[1] * shape[2]
    divisor = draw.choice([k for k in range(1, total + 1) if total % k == 0])
    size = draw.choice([k for k in range(1, total // divisor + 1) if (total // divisor) % k == 0])
    try:
        part = extract(digits, divisor, size)
    except UnalignedError:
        return
    for place in torch.cartesian_prod(*(torch.arange(s) for s in shape)).tolist():
        assert spelled(part, place) == spelled(digits, place) // divisor % size


def spelled(digits: list[tuple[int, int, int]], place: list[int]) -> int:
    number = 0
    for dim, divisor, size in digits:
        number = number * size + (divisor if dim == CONSTANT else place[dim] // divisor % size)
    return number
