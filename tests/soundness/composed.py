"""Random compositions of operators: what each call is lowered to, evaluated on numbers, is what torch computes.

A declaration is tried on inputs elsewhere (``tests/operators``). Here its operands are values of other operators, so
that what it does to sums, masks, look-ups and parts is tried: every law of the normal form stands between both sides. On a
mesh all ranks run the calls, collectives among them, on tensors that they share, have a part of, or have of their own.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch

from tests.ir.evaluate import Evaluator
from tests.operators.call import RefusedError, Sample, flat_results, lower_call
from tests.operators.test_collectives import members
from tests.soundness.composed_ranks import COLLECTIVES, COORDINATES, GROUPS, RANK_STEPS
from tests.soundness.composed_steps import LARGEST, STEPS, Call, Drawn, Ref
from verifycompile.ir import relabel
from verifycompile.ir.term import TermPool, View

aten = torch.ops.aten
Ranks = Sequence[torch.Tensor]
"""One value, as each rank of the mesh has it."""
Layout = tuple[int, int] | str
"""``whole`` on all ranks, ``own`` of each, or cut along a mesh axis at a dimension."""


@dataclasses.dataclass(frozen=True)
class Composition:
    """``calls`` on values of ``shapes`` and a counter. ``moved``: two values more come at this place than before."""

    shapes: Sequence[tuple[int, ...]]
    calls: list[Call]
    mesh: tuple[int, ...] = ()
    layouts: Sequence[Layout] = ("whole",) * 3
    moved: int | None = None

    @property
    def places(self) -> list[tuple[int, ...]]:
        """The coordinates of all ranks."""
        return [*itertools.product(*map(range, self.mesh))]

    def leaves(self, seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        shapes = [self._shape(*held) for held in zip(self.shapes, self.layouts, strict=True)]
        return {f"x{k}": torch.randn(s, dtype=torch.float64, generator=generator) for k, s in enumerate(shapes)}

    def _shape(self, shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
        if isinstance(layout, str):
            return shape if layout == "whole" else (*self.mesh, *shape)
        axis, dim = layout
        return (*shape[:dim], self.mesh[axis] * shape[dim], *shape[dim + 1 :])

    def inputs(self, seed: int) -> list[Ranks]:
        found: list[Ranks] = []
        for leaf, shape, layout in zip(self.leaves(seed).values(), self.shapes, self.layouts, strict=True):
            if isinstance(layout, str):
                found.append([leaf if layout == "whole" else leaf[place] for place in self.places])
            else:
                axis, dim = layout
                found.append([leaf.narrow(dim, place[axis] * shape[dim], shape[dim]) for place in self.places])
        return [*found, [torch.arange(3) for _ in self.places]]

    def values(self, seed: int) -> list[Ranks]:
        """All values. Raises RuntimeError or IndexError where torch takes a call not."""
        values = self.inputs(seed)
        for call in self.calls:
            values += self.results(call, values)
        return values

    def results(self, call: Call, values: Sequence[Ranks]) -> list[Ranks]:
        """What a call gives on all ranks."""
        target, arguments = call
        given = [_resolved(arguments, values, rank, place) for rank, place in enumerate(self.places)]
        if target not in COLLECTIVES:
            return [*zip(*(_tensors(target(*own)) for own in given), strict=True)]
        found: dict[tuple[int, ...], torch.Tensor] = {}
        number = {place: rank for rank, place in enumerate(self.places)}
        for group in members(self.mesh, GROUPS[arguments[-1]]):
            inputs = [given[number[place]][0] for place in group]
            for k, place in enumerate(group):
                found[place] = COLLECTIVES[target](inputs, k, *arguments[1:-1])
        return [[found[place] for place in self.places]]

    def first_views(self, pool: TermPool) -> list[View]:
        views: list[View] = []
        for k, (shape, layout) in enumerate(zip(self.shapes, self.layouts, strict=True)):
            leaf, others = pool.leaf(f"x{k}", self._shape(shape, layout)), range(len(self.mesh))
            if layout == "own":
                others = range(0)
            elif not isinstance(layout, str):
                axis, dim = layout
                parts = relabel.split_dim(leaf, dim, self.mesh[axis], shape[dim])
                leaf = relabel.permute(parts, [dim, *(d for d in range(parts.rank) if d != dim)])
                others = [a for a in others if a != axis]
            for axis in others:
                leaf = relabel.insert_dim(leaf, axis, self.mesh[axis])
            views.append(leaf)
        counter = self.lowered((aten.arange.default, (3,)), [torch.arange(3)], [], [], pool)
        return views + counter  # pyright: ignore[reportReturnType]  # the counter is lowered

    def lowered(
        self, call: Call, results: Sequence[torch.Tensor], values: Sequence[Ranks], views: Sequence[View | None], pool: TermPool
    ) -> list[View | None]:
        """What a call with these results on the first rank is lowered to. Raises RefusedError."""
        target, arguments = call
        operands = [views[place] for place in places_of(arguments)]
        if None in operands:
            raise RefusedError("VC206", "an operand was refused")
        recorded = results[0] if len(results) == 1 and not isinstance(target._schema.returns[0].type, torch.ListType) else [*results]
        return lower_call(
            Sample(target, _resolved(arguments, values, 0, None)), operands, recorded, pool=pool, mesh=self.mesh,  # pyright: ignore[reportArgumentType]
            groups=GROUPS, coordinates=dict(zip(COORDINATES, range(len(self.mesh)), strict=False)), validated=False,
        )  # fmt: skip

    def views(self, pool: TermPool) -> list[View | None]:
        """What all values are lowered to; None where a call is refused."""
        values, views = self.inputs(0), [*self.first_views(pool)]
        for call in self.calls:
            results = self.results(call, values)
            try:
                views += self.lowered(call, [ranks[0] for ranks in results], values, views, pool)
            except RefusedError:
                views += [None] * len(results)
            values += results
        return views  # pyright: ignore[reportReturnType]


def _tensors(found: Any) -> list[torch.Tensor]:
    return [value for value in flat_results(found) if value is not None]


def _resolved(argument: Any, values: Sequence[Ranks], rank: int, place: tuple[int, ...] | None) -> Any:
    """The argument on one rank. ``place``: coordinates for numbers that are read from them; None: they stay symbols."""
    if isinstance(argument, list | tuple):
        return type(argument)(_resolved(item, values, rank, place) for item in argument)
    if isinstance(argument, sympy.Expr) and place is not None:
        return int(argument.subs(dict(zip(COORDINATES, place, strict=False))))
    return values[argument.place][rank] if isinstance(argument, Ref) else argument


def places_of(argument: Any) -> Iterator[int]:
    """The values that arguments name."""
    for item in argument:
        if isinstance(item, Ref):
            yield item.place
        elif isinstance(item, list):
            yield from places_of(item)


def is_kept(results: Sequence[Ranks]) -> bool:
    return all(value.numel() <= LARGEST and value.double().isfinite().all() for ranks in results for value in ranks)


def empty(draw: random.Random, mesh: tuple[int, ...] = ()) -> Composition:
    """A composition without calls."""
    shapes = ((draw.randrange(1, 4), draw.randrange(1, 4)), (draw.randrange(1, 5),), (3, 2))
    ways: list[Layout] = ["whole", "own", *((axis, 0) for axis in range(len(mesh)))]
    return Composition(shapes, [], mesh, [draw.choice(ways) for _ in shapes] if mesh else ("whole",) * 3)


def next_call(draw: random.Random, whole: Composition, values: Sequence[Ranks]) -> Call | None:
    """A further call, if what is drawn fits."""
    steps = (*STEPS, *RANK_STEPS * 2) if whole.mesh else STEPS
    try:
        return draw.choice(steps)(Drawn(values, draw, whole.mesh))
    except IndexError:
        return None


@dataclasses.dataclass(frozen=True)
class Difference:
    """``calls``: what was composed, the last of which is lowered to something else than torch computes."""

    calls: tuple[str, ...]
    torch_computes: Ranks
    lowered: torch.Tensor


def composed(draw: random.Random, length: int, mesh: tuple[int, ...] = ()) -> tuple[int, Difference | None]:
    """Composes up to ``length`` calls; how many of them were lowered, and the first that was lowered wrongly."""
    whole, pool, seed = empty(draw, mesh), TermPool(), draw.randrange(1000)
    values, views = whole.inputs(seed), whole.first_views(pool)
    evaluator = Evaluator(whole.leaves(seed))
    calls: list[str] = []
    for _ in range(length):
        call = next_call(draw, whole, values)
        results = [] if call is None else whole.results(call, values)
        if call is None or not is_kept(results):
            continue
        try:
            lowered = whole.lowered(call, [ranks[0] for ranks in results], values, views, pool)
        except RefusedError:
            continue
        calls.append(f"#{len(values)} = {call[0]}{call[1]}")
        for ranks, view in zip(results, lowered, strict=True):
            if view is None:
                continue
            found = evaluator.view(view).reshape(-1, *ranks[0].shape)
            if not all(is_close(*pair) for pair in zip(found, ranks, strict=True)):
                return len(calls), Difference(tuple(calls), ranks, found)
            values.append(ranks)
            views.append(view)
    return len(calls), None


def is_close(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.shape == right.shape and torch.allclose(left.double(), right.double(), rtol=1e-7, atol=1e-9, equal_nan=True)
