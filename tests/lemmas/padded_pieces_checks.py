"""What must hold of sums of padded pieces, as checks that its mutants must fail."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import sympy
import torch

from tests.ir.evaluate import Evaluator
from tests.lemmas.conditions import Check
from verifycompile.ir.pieces import STACK
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operations import PAD
from verifycompile.rewrites.parts.padded_pieces import sum_padded

SIZES = {"x": (6, 2), "y": (6, 2), "z": (7, 2), "p": (2, 2), "q": (2, 2), "r": (2, 2)}
_Made = Callable[[Builder], tuple[Sequence[View], Sequence[View] | None]]
"""Summands, and what they become; None where the lemma does not apply."""


def checks() -> Iterator[tuple[str, Check]]:
    """All of them, by name."""
    for number, made in enumerate((*_whole(), *_others(), *_stacks())):
        yield f"padded pieces {number}", functools.partial(_becomes, made)


def _becomes(made: _Made) -> None:
    b = Builder(TermPool())
    summands, expected = made(b)
    found = sum_padded(b.pool, summands, summands[0].shape)
    assert (found is None) == (expected is None)
    if found is None or expected is None:
        return
    assert ("sum-of-padded-pieces", repr(found[-1].term)) in b.pool.lemma_trace
    assert list(found) == list(expected)
    generator = torch.Generator().manual_seed(0)
    values = {name: torch.randn(shape, dtype=torch.float64, generator=generator) for name, shape in SIZES.items()}
    before, after = (sum(map(Evaluator(values).view, views)) for views in (summands, found))
    torch.testing.assert_close(before, after)


def _leaf(b: Builder, name: str) -> View:
    return b.pool.leaf(name, SIZES[name])


def _padded(b: Builder, *starts: int, total: int = 6, length: int = 3, dim: int = 0) -> list[View]:
    """The pieces of ``x`` one after the other, each at a place."""
    x = _leaf(b, "x")
    pieces = [b.narrow(x, 0, length * k, length) for k in range(len(starts))]
    return [b.pad(piece, dim, start, total) for piece, start in zip(pieces, starts, strict=True)]


def _whole() -> Iterator[_Made]:
    yield lambda b: (_padded(b, 0, 3), [_leaf(b, "x")])
    yield lambda b: (_padded(b, 0, 2, 4, length=2), [_leaf(b, "x")])
    yield lambda b: (_padded(b, 0, 3)[::-1], [_leaf(b, "x")])
    yield lambda b: ([*_padded(b, 0, 3), _leaf(b, "y")], [_leaf(b, "y"), _leaf(b, "x")])
    yield lambda b: ([v.scaled(Fraction(2)) for v in _padded(b, 0, 3)], [_leaf(b, "x").scaled(Fraction(2))])
    yield _of_functions
    # What is not whole stays; another group is.
    yield lambda b: (
        [*(v.scaled(Fraction(3)) for v in _padded(b, 0, 2)), *_padded(b, 0, 3)],
        [*(v.scaled(Fraction(3)) for v in _padded(b, 0, 2)), _leaf(b, "x")],
    )


def _of_functions(b: Builder) -> tuple[Sequence[View], Sequence[View]]:
    """What is computed of each piece is computed of the whole."""
    pieces = [b.pad(b.exp(b.narrow(_leaf(b, "x"), 0, start, 3)), 0, start, 6) for start in (0, 3)]
    return pieces, [b.exp(_leaf(b, "x"))]


def _others() -> Iterator[_Made]:
    for starts, total in (((0, 3), 7), ((1, 4), 7), ((0, 4), 7), ((0, 2), 6), ((0, 0), 6), ((3,), 6), ((0,), 6)):
        yield lambda b, starts=starts, total=total: (_padded(b, *starts, total=total), None)
    yield lambda b: ([_padded(b, 0, 3)[0], _padded(b, 0, 3)[1].scaled(Fraction(2))], None)
    yield lambda b: ([_leaf(b, "x"), _leaf(b, "y")], None)
    yield _with_steps
    yield _at_open_places
    yield _of_a_part
    yield _of_a_whole


def _with_steps(b: Builder) -> tuple[Sequence[View], None]:
    """Pieces whose elements lie apart."""
    pieces = [b.narrow(_leaf(b, "x"), 0, start, 3) for start in (0, 3)]
    return [b.along(PAD, (start, 2), piece, 0, 6) for start, piece in zip((0, 3), pieces, strict=True)], None


def _at_open_places(b: Builder) -> tuple[Sequence[View], None]:
    place = sympy.Symbol("place", integer=True, positive=True)
    pieces = [b.narrow(_leaf(b, "x"), 0, start, 3) for start in (0, 3)]
    places = (place * 0, place - place + 3)
    return [b.along(PAD, (at, 1), piece, 0, 6) for at, piece in zip(places, pieces, strict=True)], None


def _of_a_part(b: Builder) -> tuple[Sequence[View], None]:
    """One row of what is padded."""
    return [b.select(padded, 0, 0) for padded in _padded(b, 0, 3)], None


def _of_a_whole(b: Builder) -> tuple[Sequence[View], None]:
    """A term that pads a value with nothing, which no builder makes: there is nothing to join."""
    return [b.along(PAD, (0, 1), _leaf(b, "x"), 0, 6)], None


def _stack(b: Builder, *names: str) -> View:
    zero = b.pool.zero(SIZES["p"])
    return b.concatenate([_leaf(b, name) if name else zero for name in names], 0)


def _stacks() -> Iterator[_Made]:
    yield lambda b: ([_stack(b, "p", ""), _stack(b, "", "q")], [_stack(b, "p", "q")])
    yield lambda b: ([_stack(b, "", "q"), _stack(b, "p", "")], [_stack(b, "p", "q")])
    yield lambda b: (
        [_stack(b, "p", "", ""), _stack(b, "", "q", ""), _stack(b, "", "", "r")],
        [_stack(b, "p", "q", "r")],
    )
    yield lambda b: (
        [_stack(b, "p", "", "r"), _stack(b, "", "q", ""), _leaf(b, "y")],
        [_leaf(b, "y"), _stack(b, *"pqr")],
    )
    for first, second in ((("p", ""), ("q", "")), (("p", "q"), ("", "r")), (("p", "", ""), ("", "q", ""))):
        yield lambda b, first=first, second=second: ([_stack(b, *first), _stack(b, *second)], None)
    yield lambda b: ([_stack(b, "p", "")], None)
    yield lambda b: (
        [_stack(b, "r", "p"), _stack(b, "p", ""), _stack(b, "", "q")],
        [_stack(b, "r", "p"), _stack(b, "p", "q")],
    )
    yield _of_pieces_that_differ
    yield lambda b: ([_stack(b, "p", ""), _leaf(b, "x")], None)
    yield _of_one_piece


def _of_pieces_that_differ(b: Builder) -> tuple[Sequence[View], None]:
    """Concatenations that are cut at other places."""
    zeros = b.pool.zero((3, 2))
    return [b.concatenate([_leaf(b, "p"), zeros], 0), b.concatenate([zeros, _leaf(b, "q")], 0)], None


def _of_one_piece(b: Builder) -> tuple[Sequence[View], None]:
    """What is read of one piece of each stack."""
    stacks = _stack(b, "p", ""), _stack(b, "", "q")
    assert all(stack.term.operation is STACK for stack in stacks)
    return [b.narrow(stack, 0, 0, 2) for stack in stacks], None
