"""A loss and samples that leave one data-parallel graph: their cotangents are brought to one scale.

Under a wrapper that takes means, a rank differentiates its own loss. Where the graph returns it, gradients of
parameters are parts of a mean. Where it returns samples, the loss is outside, and with the spec's cotangents gradients
are parts of a sum (``ProgramOutput.outer_mean``). Where it returns both, a loss outside is a rank's own as well: the
cotangent of samples is that of a mean over the ranks, taken as often as there are ranks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate

from verifycompile.capture.numbers.known_positions import copied
from verifycompile.program import Mesh, Program, ProgramOutput, Role


def with_own_losses(implementation: Program, placements: Mapping[str, Sequence[Placement]]) -> Program | None:
    """The program with cotangents and gradients of each rank's own loss; None where its results are of one kind.

    ``placements``: those found for the forward outputs.
    """
    mesh = implementation.mesh
    means = _means(implementation)
    flowing = {item.name for item in implementation.inputs if item.role is Role.TANGENT}
    if mesh is None or not flowing <= placements.keys():
        return None
    cut = {axis for axis in means if any(_is_cut(placements[name][axis]) for name in flowing)}
    mixed = {axis for axis in cut if not all(_is_cut(placements[name][axis]) for name in flowing)}
    if not mixed:
        return None
    changed, _ = copied(implementation)
    for item in changed.inputs:
        if item.role is Role.TANGENT:
            axes = {axis for axis in mixed if _is_cut(placements[item.name][axis])}
            _read_multiplied(changed.graph.graph, item.node, _ranks(mesh, axes))
    outputs = [_of_own_loss(changed.graph.graph, item, mixed, mesh) for item in changed.outputs]
    return dataclasses.replace(changed, outputs=tuple(outputs))


@dataclasses.dataclass(frozen=True)
class Multiplied:
    """A program whose losses that leave it as sums over ranks are multiplied by the ranks: ``output`` by ``factor``."""

    program: Program
    output: str
    factor: int

    @property
    def note(self) -> str:
        """What is right where code outside of the graph multiplies, and what is where it does not."""
        return (
            f"`{self.output}` leaves the graph as a rank's part of a sum, of which the wrapper takes the mean: the "
            f"gradients are those of the spec if the code outside multiplies it by {self.factor}, the number of ranks, "
            f"before `backward()`, and {self.factor} times too small if not"
        )

    @property
    def hint(self) -> str:
        where = "within what is compiled, and no longer outside of it (checked)"
        return f"multiply `{self.output}` by {self.factor} {where}"


def with_multiplied_sums(implementation: Program, placements: Mapping[str, Sequence[Placement]]) -> Multiplied | None:
    """The program as code outside of it makes it right that multiplies a loss by the number of ranks, or None."""
    mesh, means = implementation.mesh, _means(implementation)
    flowing = (item.name for item in implementation.inputs if item.role is Role.TANGENT and item.name in placements)
    sums = {name: {axis for axis in means if placements[name][axis] == Partial("sum")} for name in flowing}
    factors = {name: _ranks(mesh, axes) for name, axes in sums.items() if axes} if mesh is not None else {}
    if not factors:
        return None
    changed, _ = copied(implementation)
    graph = changed.graph.graph
    for item in changed.inputs:
        if item.role is Role.TANGENT:
            _read_multiplied(graph, item.node, factors.get(item.name, 1))
    outputs = [
        dataclasses.replace(item, node=_returned(graph, item, torch.ops.aten.mul.Tensor, factors[item.name]))
        if item.name in factors
        else item
        for item in changed.outputs
    ]
    return Multiplied(dataclasses.replace(changed, outputs=tuple(outputs)), *next(iter(factors.items())))


def _means(implementation: Program) -> frozenset[int]:
    """Mesh axes over which a wrapper takes the mean of a gradient."""
    return frozenset[int]().union(*(item.outer_mean for item in implementation.outputs))


def _is_cut(placement: Placement) -> bool:
    return not isinstance(placement, Replicate | Partial)


def _ranks(mesh: Mesh, axes: Collection[int]) -> int:
    return math.prod(mesh.axes[axis].size for axis in axes)


def _read_multiplied(graph: torch.fx.Graph, tangent: torch.fx.Node, factor: int) -> None:
    if factor == 1:
        return
    with graph.inserting_after(graph.find_nodes(op="placeholder")[-1]):
        multiplied = graph.call_function(torch.ops.aten.mul.Tensor, (tangent, factor))
    multiplied.meta = dict(tangent.meta)
    tangent.replace_all_uses_with(multiplied, delete_user_cb=lambda user: user is not multiplied)


def _of_own_loss(graph: torch.fx.Graph, output: ProgramOutput, mixed: Collection[int], mesh: Mesh) -> ProgramOutput:
    """The gradient of what another graph returned starts there from such cotangents as here: it is divided again."""
    axes = output.outer_mean & frozenset(mixed)
    kept = output.outer_mean - frozenset(mixed)
    factor = _ranks(mesh, [axis for axis in axes if not isinstance((output.placements or ())[axis], Partial)])
    if factor == 1:
        return dataclasses.replace(output, outer_mean=kept)
    divided = _returned(graph, output, torch.ops.aten.div.Tensor, factor)
    return dataclasses.replace(output, node=divided, outer_mean=kept)


def _returned(graph: torch.fx.Graph, output: ProgramOutput, operator: Any, factor: int) -> torch.fx.Node:
    """The operator of the output and ``factor``, which the graph returns in the output's place."""
    with graph.inserting_after(output.node):
        made = graph.call_function(operator, (output.node, factor))
    made.meta = dict(output.node.meta)
    results = next(iter(graph.find_nodes(op="output")))
    results.update_arg(0, tuple(made if k == output.index else item for k, item in enumerate(results.args[0])))
    return made
