"""One program for all ranks out of one a rank: graphs and boundaries that are equal up to numbers linear in the rank's
coordinates. What is proved of the one holds of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

import sympy
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard

from verifycompile.capture.ranks.common_graph import DifferentGraphsError, compare, generalize, needed_cuts
from verifycompile.capture.refine_mesh import RefinedMesh, refine
from verifycompile.program import Mesh, Program, ProgramInput, ProgramOutput
from verifycompile.torch_interface.ranks.mesh import mixed_radix
from verifycompile.torch_interface.ranks.rank_values import has_messages

_Item = TypeVar("_Item", ProgramInput, ProgramOutput)
_CUT_ALIKE = (Partial, Replicate, Shard)
"""Placements that are, on every digit of an axis, what they are on the axis."""


def common_program(
    programs: Sequence[Program], mesh: Mesh, meaning: Callable[[int, str], object] = lambda _, text: text
) -> Program:
    """The first of ``programs``, rewritten in place to be that of every rank of ``mesh``; its mesh may be cut finer.

    ``programs``: one a rank in the order of ``mesh.ranks``, or one for all. ``meaning``: see ``common_graph.compare``.
    Raises ``DifferentGraphsError``.
    """
    first = programs[0]
    boundary = _boundary(first)
    for rank, program in zip(mesh.ranks, programs, strict=False):
        if _boundary(program) != boundary:
            text = f"the inputs and outputs on rank {rank} are not those on rank {mesh.ranks[0]}"
            raise DifferentGraphsError(text, None)
    if any(has_messages(program.graph) for program in programs):
        raise DifferentGraphsError("the ranks send messages to one another", None)
    graphs = dict(zip(mesh.ranks, (program.graph for program in programs), strict=False))
    differences = compare(graphs, meaning)
    common = dataclasses.replace(first, mesh=mesh)
    cuts = needed_cuts(differences, mesh)
    refined = refine(mesh, [mesh.ranks[:stride] for stride in cuts])
    if len(refined.mesh.axes) > len(mesh.axes):
        common = _cut(common, refined) or common
    assert common.mesh is not None
    coordinates = generalize(first.graph, differences, common.mesh)
    return dataclasses.replace(common, coordinates={**common.coordinates, **coordinates})


def on_axes(program: Program, axes: Sequence[int], ranks: Sequence[int]) -> Program:
    """The program on those axes of its mesh along which anything is laid out; ``ranks`` lie along them."""
    assert program.mesh is not None
    number = {axis: position for position, axis in enumerate(axes)}

    def placed(items: Sequence[_Item]) -> tuple[_Item, ...]:
        return tuple(
            dataclasses.replace(
                item,
                placements=None if item.placements is None else tuple(item.placements[axis] for axis in axes),
                open_axes=frozenset(number[axis] for axis in item.open_axes if axis in number),
            )
            for item in items
        )

    outputs = tuple(
        dataclasses.replace(item, outer_mean=frozenset(number[axis] for axis in item.outer_mean if axis in number))
        for item in placed(program.outputs)
    )
    return dataclasses.replace(
        program,
        inputs=placed(program.inputs),
        outputs=outputs,
        mesh=Mesh(tuple(program.mesh.axes[axis] for axis in axes), tuple(ranks)),
        coordinates={symbol: number[axis] for symbol, axis in program.coordinates.items() if axis in number},
        groups={name: tuple(number[a] for a in spans if a in number) for name, spans in program.groups.items()},
    )


def _boundary(program: Program) -> tuple[object, ...]:
    """Everything about a program but its nodes."""
    inputs = tuple(dataclasses.replace(item, node=None) for item in program.inputs)
    outputs = tuple(dataclasses.replace(item, node=None) for item in program.outputs)
    tables = (dict(program.coordinates), dict(program.groups), dict(program.size_values))
    return inputs, outputs, *tables, program.guards, program.piecewise, program.by_definition


def _cut(program: Program, refined: RefinedMesh) -> Program | None:
    """The same program on the cut axes; None where a placement is not the same on each digit of an axis."""
    for item in (*program.inputs, *program.outputs):
        if item.open_axes or any(type(placement) not in _CUT_ALIKE for placement in item.placements or ()):
            return None
    parts = refined.parts

    def placements(item: ProgramInput | ProgramOutput) -> tuple[object, ...] | None:
        if item.placements is None:
            return None
        return tuple(own for own, digits in zip(item.placements, parts, strict=True) for _ in digits)

    inputs = [dataclasses.replace(item, placements=placements(item)) for item in program.inputs]
    outputs = [
        dataclasses.replace(
            item,
            placements=placements(item),
            outer_mean=frozenset(digit for axis in item.outer_mean for digit in parts[axis]),
        )
        for item in program.outputs
    ]
    coordinates: dict[sympy.Symbol, int] = {}
    values = dict(program.size_values)
    for symbol, axis in program.coordinates.items():
        if len(parts[axis]) == 1:
            coordinates[symbol] = parts[axis][0]
            continue
        digits = {sympy.Symbol(f"{symbol}_{d}", integer=True, nonnegative=True): d for d in parts[axis]}
        coordinates.update(digits)
        values[symbol] = mixed_radix([(digit, refined.mesh.axes[d].size) for digit, d in digits.items()])  # type: ignore[list-item]  # sizes of axes are whole numbers
    return dataclasses.replace(
        program,
        mesh=refined.mesh,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        coordinates=coordinates,
        groups={
            name: tuple(digit for axis in spans for digit in parts[axis]) for name, spans in program.groups.items()
        },
        size_values=values,
    )
