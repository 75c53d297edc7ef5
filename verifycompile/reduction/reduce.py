"""Both programs at the smallest sizes that their operators, and what ties them together, allow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch.fx

from verifycompile.program import Program, ProgramInput, ProgramOutput, Size
from verifycompile.reduction.constants import Constants, Number, Reading, readings
from verifycompile.reduction.constraints import Constraints
from verifycompile.reduction.dimensions import Dimensions
from verifycompile.reduction.operators import collect
from verifycompile.reduction.recorded import dimensions_of
from verifycompile.reduction.rewrite import UnreducibleError, rewrite, whole_node
from verifycompile.reduction.solve import Sizes, solve
from verifycompile.torch_interface.operators.resized import WithoutMemory

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
        constants, without_memory = Constants(chosen), WithoutMemory()
        spec, implementation = (
            rewrite(program, self.source[0], self.solution, constants, without_memory=without_memory, checked=checked)
            for program, checked in zip(self.source, (self.spec, self.implementation), strict=True)
        )
        return spec, implementation

    def also(self, program: Program, spec: Program) -> Program:
        """A further program, at these sizes. Raises ``UnreducibleError``.

        The programs were reduced with equal sizes as one everywhere (``joined``), so that a number is enough to know a
        size by. ``spec``: the one of whose inputs and outputs those of ``program`` are parts.
        """
        constants = Constants({number: new for reading in self.readings for number, new in reading.taken.items()})
        return rewrite(program, spec, self.solution, constants, without_memory=WithoutMemory())


def reduce_sizes(
    spec: Program,
    implementation: Program,
    *,
    kept: int = KEPT,
    pinned: Mapping[int, str] | None = None,
    apart: bool = False,
    joined: bool = False,
) -> Reduced | None:
    """Both programs at smaller sizes; None where no size changes.

    ``kept``: numbers up to this one stay as they are. ``pinned``: further sizes that stay -> why. ``apart``: whether
    different sizes stay different where they can. ``joined``: whether equal sizes stay equal everywhere.
    """
    constraints = Constraints(Dimensions(spec, implementation, joined=joined))
    for program in (spec, implementation):
        collect(program, constraints)
    _tie(spec, implementation, constraints)
    for dimension in constraints.sizes:
        if dimension.number in (pinned or {}):
            constraints.pinned.setdefault(dimension, (pinned or {})[dimension.number])
    without_memory = WithoutMemory()
    for _ in range(_ROUNDS):
        solution = solve(constraints, kept, apart=apart)
        if solution is None:
            return None
        changed = tuple((old, new) for old, found in solution.changed.items() for new in found)
        if not changed:
            return None
        found = readings((spec, implementation), solution)
        constants = Constants({number: new for reading in found for number, new in reading.taken.items()})
        try:
            small = [
                rewrite(program, spec, solution, constants, without_memory=without_memory)
                for program in (spec, implementation)
            ]
        except UnreducibleError as error:
            reason = f"`{error.node.name}` takes no other sizes: {error.message}"
            if not constraints.pin_results(error.node, reason):
                constraints.pin_node(error.node, reason)
            continue
        pins = [f"{size.number}: {why}" for size, why in sorted(constraints.pinned.items()) if size.number > kept]
        reasons = tuple(dict.fromkeys(pins))
        return Reduced(small[0], small[1], changed, reasons, found, (spec, implementation), solution)
    return None


def _tie(spec: Program, implementation: Program, constraints: Constraints) -> None:
    """A part of an input or an output is the same share of the whole as before."""
    wholes = {entry.name: entry.node for entry in (*spec.inputs, *spec.outputs)}
    for entry in (*implementation.inputs, *implementation.outputs):
        parts = dimensions_of(entry.node)
        if not parts:
            continue
        whole = wholes.get(entry.name)
        shapes = [] if entry.global_shape is None else [entry.global_shape]
        shapes += [] if whole is None else dimensions_of(whole)[:1]
        for shape in shapes:
            _share(entry, parts[0], shape, whole_node(entry, shape, wholes), constraints)
        for placement in entry.placements or ():
            pieces, dim = getattr(placement, "split_factor", 1), getattr(placement, "dim", None)
            size = None if dim is None else parts[0][dim]
            if pieces != 1 and size is not None:
                constraints.node = entry.node
                constraints.multiple(size, pieces)


def _share(
    entry: ProgramInput | ProgramOutput,
    part: Sequence[Size | None],
    whole: Sequence[Size | None],
    node: torch.fx.Node,
    constraints: Constraints,
) -> None:
    """``node``: where the sizes of the whole tensor are looked up."""
    if len(part) != len(whole):
        return
    for size, total in zip(part, whole, strict=True):
        if not isinstance(size, int) or not isinstance(total, int) or size == total or 0 in (size, total):
            continue
        own, all_of_it = constraints.note(size, entry.node), constraints.note(total, node)
        small, large = sorted((own, all_of_it))
        if large.number % small.number:
            for dimension in (small, large):
                constraints.pinned.setdefault(dimension, f"the ranks' parts of `{entry.name}` are not of one size")
        else:
            constraints.product_of([small], [large], large.number // small.number)
