"""Random pairs of compositions: one call is changed, or a value is written another way; equal terms are equal values.

The calls are those of ``composed.py``. What is asked is what every relation rests on: whether the values of one place of
both programs have the same normal form, or are the same in the ring. What is equal is decided by numbers, on several inputs.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from tests.soundness.composed import Composition, empty, is_close, is_kept, next_call, places_of
from tests.soundness.composed_ranks import GROUPS, REDUCTIONS
from tests.soundness.composed_steps import Call, Ref
from verifycompile.ir.term import TermPool
from verifycompile.refinement.placement import same_value

aten = torch.ops.aten
Calls = list[Call]

OTHERS: dict[Any, tuple[Any, ...]] = {
    aten.mul.Tensor: (aten.add.Tensor, aten.sub.Tensor), aten.add.Tensor: (aten.sub.Tensor, aten.mul.Tensor),
    aten.sub.Tensor: (aten.add.Tensor,), aten.mul.Scalar: (aten.add.Scalar, aten.div.Scalar), aten.add.Scalar: (aten.mul.Scalar,),
    aten.sum.dim_IntList: (aten.mean.dim, aten.amax.default), aten.mean.dim: (aten.sum.dim_IntList,),
    aten.amax.default: (aten.amin.default, aten.logsumexp.default), aten.maximum.default: (aten.minimum.default, aten.add.Tensor),
    aten.eq.Scalar: (aten.ne.Scalar, aten.le.Scalar), aten.le.Scalar: (aten.lt.Scalar, aten.ge.Scalar),
    aten.lt.Scalar: (aten.le.Scalar, aten.gt.Scalar), aten.lt.Tensor: (aten.le.Tensor, aten.gt.Tensor),
    aten.le.Tensor: (aten.lt.Tensor, aten.ge.Tensor), aten.relu.default: (aten.abs.default, aten.neg.default),
    aten.abs.default: (aten.relu.default, aten.neg.default), aten.exp.default: (aten.sigmoid.default,),
    aten.sigmoid.default: (aten.tanh.default,), aten.tril.default: (aten.triu.default,),
    aten.scatter_add.default: (aten.scatter.src,), aten.index_add.default: (aten.index_copy.default,),
    aten._softmax.default: (aten._log_softmax.default,), aten.logical_and.default: (aten.logical_or.default,),
}  # fmt: skip
"""What an operator may be taken for."""


def _same(place: Ref, dim: int, last: int) -> tuple[tuple[Any, ...], ...]:
    """Pairs of calls, most of which give back the value: the second takes the result of the first.

    None of them rounds, because a comparison behind it would be another one where both sides are equal.
    """
    return (
        (aten.neg.default, (place,), aten.neg.default, ()), (aten.mul.Scalar, (place, 2), aten.mul.Scalar, (0.5,)),
        (aten.flip.default, (place, [dim]), aten.flip.default, ([dim],)),
        (aten.roll.default, (place, [1], [dim]), aten.roll.default, ([-1], [dim])),
        (aten.roll.default, (place, [1], [dim]), aten.roll.default, ([1], [dim])),
        (aten.transpose.int, (place, 0, dim), aten.transpose.int, (0, dim)),
        (aten.unsqueeze.default, (place, dim), aten.squeeze.dim, (dim,)),
        (aten.constant_pad_nd.default, (place, [1, 1], 0.0), aten.slice.Tensor, (-1, 1, 1 + last)),
    )  # fmt: skip


def drawn(draw: random.Random, length: int, mesh: tuple[int, ...]) -> Composition:
    """Up to ``length`` calls that fit."""
    found = empty(draw, mesh)
    values = found.inputs(0)
    for _ in range(length):
        call = next_call(draw, found, values)
        try:
            results = [] if call is None else found.results(call, values)
        except (IndexError, RuntimeError):
            continue
        if call is not None and is_kept(results):
            found.calls.append(call)
            values += results
    return found


# ------------------------------------------------------------------------------------------------ edits


def edited(draw: random.Random, whole: Composition) -> Composition | None:
    """With one call changed, or one operand written by two further calls; None where that does not fit there."""
    values = [ranks[0] for ranks in whole.values(0)]
    number = draw.randrange(len(whole.calls))
    target, arguments = whole.calls[number]
    way: Callable[..., Calls | None] = draw.choice((_operator, _number, _operand, _exchanged))
    operands = [k for k, a in enumerate(arguments) if isinstance(a, Ref) and values[a.place].dim()]
    if draw.random() < 0.4 and operands:
        return _written_otherwise(draw, whole, number, draw.choice(operands))
    changed = way(draw, target, arguments, values[: _first_result(whole, number)])
    return changed and dataclasses.replace(whole, calls=[*whole.calls[:number], *changed, *whole.calls[number + 1 :]])  # pyright: ignore[reportReturnType]


def _first_result(whole: Composition, number: int) -> int:
    return len(dataclasses.replace(whole, calls=whole.calls[:number]).values(0))


def _operator(draw: random.Random, target: Any, arguments: Any, _: object) -> Calls | None:
    return [(draw.choice(OTHERS[target]), arguments)] if target in OTHERS else None


def _number(draw: random.Random, target: Any, arguments: Any, _: object) -> Calls | None:
    numbers = (int, float, str, sympy.Expr)
    places = [k for k, a in enumerate(arguments) if isinstance(a, numbers) or (isinstance(a, list) and isinstance(a[0], int))]
    if not places:
        return None
    place = draw.choice(places)
    held: Any = arguments[place]
    other = [held[0] + draw.choice((-1, 1)), *held[1:]] if isinstance(held, list) else _other(draw, held)
    return [(target, (*arguments[:place], other, *arguments[place + 1 :]))]


def _other(draw: random.Random, held: Any) -> Any:
    """Another number, group or way to reduce: what does not fit there is told by the numbers."""
    if isinstance(held, str):
        return draw.choice([*(GROUPS if held in GROUPS else REDUCTIONS)])
    if isinstance(held, sympy.Expr):
        return draw.choice((held + 1, held - 1, held.subs(dict.fromkeys(held.free_symbols, 0)), 2 * held))
    return not held if isinstance(held, bool) else held + draw.choice((-2, -1, 1, 2) if isinstance(held, int) else (-1.0, 0.5))


def _operand(draw: random.Random, target: Any, arguments: Any, values: Sequence[torch.Tensor]) -> Calls | None:
    places = [k for k, a in enumerate(arguments) if isinstance(a, Ref)]
    place = draw.choice(places) if places else 0
    held = values[arguments[place].place] if places else None
    fits = [k for k, v in enumerate(values) if held is not None and v.shape == held.shape and v.dtype == held.dtype]
    return [(target, (*arguments[:place], Ref(draw.choice(fits)), *arguments[place + 1 :]))] if fits else None


def _exchanged(_: object, target: Any, arguments: Any, values: object) -> Calls | None:
    return [(target, (arguments[1], arguments[0], *arguments[2:]))] if len([*places_of(arguments)]) == 2 else None


def _written_otherwise(draw: random.Random, whole: Composition, number: int, operand: int) -> Composition:
    target, arguments = whole.calls[number]
    value, at = whole.values(0)[arguments[operand].place][0], _first_result(whole, number)
    first, given, second, more = draw.choice(_same(arguments[operand], draw.randrange(value.dim()), value.shape[-1]))
    call = target, (*arguments[:operand], Ref(at + 1), *arguments[operand + 1 :])
    after = [(other, _moved(taken, at)) for other, taken in whole.calls[number + 1 :]]
    calls = [*whole.calls[:number], (first, given), (second, (Ref(at), *more)), call, *after]
    return dataclasses.replace(whole, calls=calls, moved=at)


def _moved(argument: Any, at: int) -> Any:
    if isinstance(argument, list | tuple):
        return type(argument)(_moved(item, at) for item in argument)
    return Ref(argument.place + 2) if isinstance(argument, Ref) and argument.place >= at else argument


# ------------------------------------------------------------------------------------------------ what is asked

Counts = collections.Counter[str]


def compared(draw: random.Random, length: int, edits: int = 6, mesh: tuple[int, ...] = ()) -> tuple[Counts, str]:
    """How many values were compared, wrong and proved; and the first pair that is wrong and proved, else ``""``."""
    counts, whole, pool = Counts(), drawn(draw, length, mesh), TermPool()
    if not whole.calls:
        return counts, ""
    views = whole.views(pool)
    for _ in range(edits):
        try:
            other = edited(draw, whole)
            runs = [] if other is None else [(whole.values(seed), other.values(seed)) for seed in range(4)]
        except (RuntimeError, IndexError, TypeError, KeyError):  # neither torch nor a collective takes such a call
            continue
        if other is None or not is_kept(runs[0][1]):
            continue
        others = other.views(pool)
        for place, view in enumerate(views):
            there = place if other.moved is None or place < other.moved else place + 2
            found = others[there] if there < len(others) else None
            if view is None or found is None or view.shape != found.shape:
                continue
            ranks = [pair for left, right in runs for pair in zip(left[place], right[there], strict=True)]
            equal = all(is_close(*pair) for pair in ranks)
            proved = view is found or same_value(view, found)
            counts += {"compared": 1, "wrong": not equal, "proved": proved}
            if proved and not equal:
                return counts, f"value {place} of {whole.calls}, changed to {other.calls}"
    return counts, ""
