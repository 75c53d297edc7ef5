"""Both programs at the smallest sizes that their operators, and what ties them together, allow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from verifycompile.program import Program
from verifycompile.reduction.constants import Constants, Number, Reading, readings
from verifycompile.reduction.constraints import Constraints, Multiple, collect, shapes_of
from verifycompile.reduction.rewrite import UnreducibleError, rewrite
from verifycompile.reduction.solve import Sizes, solve

KEPT = 8
"""Numbers up to this one stay as they are."""
_ROUNDS = 8


@dataclasses.dataclass(frozen=True)
class Reduced:
    """Two programs at smaller sizes.

    ``spec``, ``implementation``: their nodes have the names, the order and the ``meta`` of the nodes they come from,
    except for the recorded values. ``sizes``: each size that changed, and what it became. ``pinned``: what stayed, and
    why. ``readings``: how the numbers in the programs' arithmetic that may come from a size may be read.
    """

    spec: Program
    implementation: Program
    sizes: tuple[tuple[int, int], ...]
    pinned: tuple[str, ...]
    readings: tuple[Reading, ...]
    source: tuple[Program, Program]
    solution: Sizes

    def read_as(self, chosen: Mapping[Number, Number]) -> tuple[Program, Program]:
        """The programs at the same sizes with another reading of their numbers; what is not in ``chosen`` stays."""
        spec, implementation = (rewrite(program, self.solution, Constants(chosen)) for program in self.source)
        return spec, implementation


def reduce_sizes(
    spec: Program, implementation: Program, *, kept: int = KEPT, pinned: Mapping[int, str] | None = None
) -> Reduced | None:
    """Both programs at smaller sizes; None where no size changes.

    ``kept``: numbers up to this one stay as they are. ``pinned``: further sizes that stay -> why.
    """
    constraints = Constraints()
    for program in (spec, implementation):
        collect(program, constraints)
    _tie(spec, implementation, constraints)
    for number, reason in (pinned or {}).items():
        constraints.pin([number], reason)
    for _ in range(_ROUNDS):
        solution = solve(constraints, kept)
        if solution is None:
            return None
        changed = tuple((old, new) for old, new in sorted(solution.sizes.items()) if old != new)
        if not changed:
            return None
        found = readings((spec, implementation), solution)
        constants = Constants({number: new for reading in found for number, new in reading.taken.items()})
        try:
            small = [rewrite(program, solution, constants) for program in (spec, implementation)]
        except UnreducibleError as error:
            reason = f"`{error.node.name}` takes no other sizes: {error.message}"
            if not constraints.pin_results(error.node, reason):
                constraints.pin_node(error.node, reason)
            continue
        reasons = tuple(f"{number}: {reason}" for number, reason in sorted(constraints.pinned.items()) if number > kept)
        return Reduced(small[0], small[1], changed, reasons, found, (spec, implementation), solution)
    return None


def _tie(spec: Program, implementation: Program, constraints: Constraints) -> None:
    """A part of an input or an output is the same share of the whole as before."""
    whole = {entry.name: shapes_of(entry.node) for entry in spec.inputs}
    for entry in implementation.inputs:
        shapes, parts = whole.get(entry.name), shapes_of(entry.node)
        if not parts:
            continue
        if entry.global_shape is not None:
            _share(parts[0], entry.global_shape, constraints, entry.name)
        if shapes:
            _share(parts[0], shapes[0], constraints, entry.name)
        for placement in entry.placements or ():
            pieces, dim = getattr(placement, "split_factor", 1), getattr(placement, "dim", None)
            if pieces != 1 and dim is not None and len(parts[0]) == len(entry.node.meta["val"].shape):
                constraints.add(Multiple(parts[0][dim], pieces))
    results = {output.name: shapes_of(output.node) for output in spec.outputs}
    for output in implementation.outputs:
        shapes, parts = results.get(output.name), shapes_of(output.node)
        if shapes and parts:
            _share(parts[0], shapes[0], constraints, output.name)


def _share(part: Sequence[Any], whole: Sequence[Any], constraints: Constraints, name: str) -> None:
    if len(part) != len(whole):
        return
    for size, total in zip(part, whole, strict=True):
        if not isinstance(size, int) or not isinstance(total, int) or size == total or 0 in (size, total):
            continue
        constraints.numbers.update(number for number in (size, total) if number > 1)
        small, large = sorted((size, total))
        if large % small:
            constraints.pin((size, total), f"the ranks' parts of `{name}` are not of one size")
        else:
            constraints.product([small], [large], large // small)
