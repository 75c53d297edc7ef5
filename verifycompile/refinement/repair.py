"""Where no node can be named by its relation: which change of one node makes the failed output right?

A program and its spec that are written in different ways share few values, so a fault shows at the output alone. One
node at a time is then changed as a missing, needless or mistaken collective would change it, and what depends on it is
lowered again. The change after which the output has its relation says what is wrong, and where.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import torch
import torch.fx

from verifycompile.ir.relabel import UnalignedError
from verifycompile.ir.term import View
from verifycompile.lowering.lower import Lowering
from verifycompile.program import ProgramOutput
from verifycompile.refinement.diagnose import operator_name
from verifycompile.refinement.relations import Diagnosis, NodeRelations
from verifycompile.refinement.result import Mismatch
from verifycompile.rewrites.builder import Call
from verifycompile.rewrites.collective import REDUCTION_ARGUMENT, c10d, reduce_over
from verifycompile.rewrites.registry import UnsupportedError
from verifycompile.rewrites.values import Group
from verifycompile.torch_interface.evaluation import is_view
from verifycompile.torch_interface.value_names import names_of_inputs, value_name

MAX_NODES = 3000
"""How many nodes may be lowered again in all: a few seconds at most, for a program that is refused anyway."""

ALL_REDUCE = c10d.all_reduce.default

Relates = Callable[[ProgramOutput, ProgramOutput], bool]


@dataclasses.dataclass(frozen=True)
class _Repair:
    """``node`` with another value, and what that says: a code, and a message about the node that shows the fault."""

    node: torch.fx.Node
    value: View
    code: str
    message: str
    at: torch.fx.Node
    note: str


def repaired(case: Diagnosis, mismatch: Mismatch, relates: Relates) -> Mismatch:
    """``mismatch``, which names an output alone, at the node whose change makes this output right."""
    mesh = case.implementation.program.mesh
    spec_output, impl_output = case.failed[0]
    if mesh is None or mismatch.impl_node is not impl_output.node:
        return mismatch
    trial = _Trial(case.implementation)
    for repair in _Candidates(case).all():
        if trial.left <= 0:
            break
        if trial.holds(repair, spec_output, impl_output, relates):
            return dataclasses.replace(
                mismatch,
                code=repair.code,
                message=repair.message,
                impl_label=repair.message,
                impl_node=repair.at,
                origin_node=repair.node if repair.node is not repair.at else None,
                origin_label="the value is computed here",
                notes=(*mismatch.notes, repair.note),
            )
    return mismatch


class _Trial:
    """Lowers what depends on a changed node again, and leaves the lowering as it was."""

    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering
        self.left = MAX_NODES

    def holds(self, repair: _Repair, spec: ProgramOutput, implementation: ProgramOutput, relates: Relates) -> bool:
        lowering = self.lowering
        later = _dependents(repair.node)
        values, blockers = lowering.values, lowering.blockers
        lowering.values = {node: value for node, value in values.items() if node not in later}
        lowering.blockers = {node: blocker for node, blocker in blockers.items() if node not in later}
        lowering.values[repair.node] = repair.value
        before = len(lowering.values)
        try:
            lowering.lower([implementation.node])
            return relates(spec, implementation)
        except (UnsupportedError, UnalignedError, ValueError):
            return False
        finally:
            self.left -= len(lowering.values) - before
            lowering.values, lowering.blockers = values, blockers


@dataclasses.dataclass(frozen=True)
class _Collective:
    """A sum or mean over the mesh axes ``group``: its operand, and what it makes of it."""

    node: torch.fx.Node
    source: View
    value: View
    operation: str
    group: tuple[int, ...]


class _Candidates:
    def __init__(self, case: Diagnosis) -> None:
        self.relations = NodeRelations(case)
        self.lowering = case.implementation
        mesh = case.implementation.program.mesh
        self.axes = () if mesh is None else mesh.axes
        self.inputs = names_of_inputs(case.implementation.program)
        self.nodes = [n for n in self.relations.impl_order if n.op == "call_function" and self._view(n) is not None]

    def all(self) -> Iterator[_Repair]:
        """Collectives first, which are few, the most telling change before others; then what none was applied to."""
        collectives = [n for n in self.nodes if n.target in REDUCTION_ARGUMENT]
        for change in (self._needless, self._elsewhere, self._scaled):
            for node in collectives:
                collective = self._collective(node)
                if collective is not None:
                    yield from change(collective)
        movable = [n for n in self.nodes if not is_view(n.target) and n not in collectives]
        for node in reversed(movable):
            yield from self._missing(node)

    def _view(self, node: torch.fx.Node) -> View | None:
        return self.lowering.view(node)

    def _names(self, axes: Sequence[int]) -> str:
        return ", ".join(self.axes[axis].name for axis in axes)

    def _collective(self, node: torch.fx.Node) -> _Collective | None:
        source, value, group = self._view(node.all_input_nodes[0]), self._view(node), self._group(node)
        operation = str(node.args[REDUCTION_ARGUMENT[node.target]])
        if source is None or value is None or not group or operation not in ("sum", "avg"):
            return None
        return _Collective(node, source, value, operation, group)

    def _needless(self, found: _Collective) -> Iterator[_Repair]:
        """No collective, over ranks that all hold the same."""
        if found.node.target is ALL_REDUCE and not any(found.source.uses(axis) for axis in found.group):
            over = self._names(found.group)
            message = f"{operator_name(found.node)} over {over} of a value that is no partial sum over {over}"
            yield self._repair(found.node, found.source, "VC102", message, "its operand")

    def _elsewhere(self, found: _Collective) -> Iterator[_Repair]:
        """The same collective over another axis."""
        for axis in range(len(self.axes) if found.node.target is ALL_REDUCE else 0):
            other = None if (axis,) == found.group else self._reduced(found.source, found.operation, (axis,))
            if other is not None:
                expected = self._names((axis,))
                message = f"{operator_name(found.node)} over {self._names(found.group)}, where {expected} is expected"
                yield self._repair(found.node, other, "VC105", message, f"that over {expected}")

    def _scaled(self, found: _Collective) -> Iterator[_Repair]:
        """A mean for a sum, or a sum for a mean."""
        value, over = found.value, self._names(found.group)
        ranks = Fraction(math.prod(self.axes[axis].size for axis in found.group))
        if found.operation == "sum":
            message = f"{operator_name(found.node)} sums over {over}, where the mean is expected"
            yield self._repair(found.node, value.scaled(1 / ranks), "VC103", message, "the mean")
        else:
            message = f"{operator_name(found.node)} takes the mean over {over}, where the sum is expected"
            yield self._repair(found.node, value.scaled(ranks), "VC103", message, "the sum")

    def _missing(self, node: torch.fx.Node) -> Iterator[_Repair]:
        """A reduction that is missing behind a node whose ranks hold different values."""
        value = self._view(node)
        used = () if value is None else tuple(axis for axis in range(len(self.axes)) if value.uses(axis))
        if value is None or not used:
            return
        for axes in [used] if len(used) == 1 else [used, *((axis,) for axis in used)]:
            over, reader = self._names(axes), self._reader(node)
            for operation, wanted, message in (
                ("sum", "full value", f"which is a partial sum over {over}"),
                ("avg", "mean over all ranks", f"which is each rank's own over {over}"),
                ("max", "maximum over all ranks", f"which is each rank's own over {over}"),
                ("min", "minimum over all ranks", f"which is each rank's own over {over}"),
            ):
                reduced = self._reduced(value, operation, axes)
                if reduced is not None:
                    text = f"{operator_name(reader)} needs the {wanted} of `{value_name(node, self.inputs)}`, {message}"
                    note = f"an all-reduce ({operation}) of it over {over}"
                    yield dataclasses.replace(self._repair(node, reduced, "VC101", text, note), at=reader)

    def _repair(self, node: torch.fx.Node, value: View, code: str, message: str, instead: str) -> _Repair:
        return _Repair(node, value, code, message, node, f"with {instead} in its place the output is right")

    def _reduced(self, view: View, operation: str, axes: tuple[int, ...]) -> View | None:
        self.lowering.builder.call = Call()
        try:
            return reduce_over(self.lowering.builder, view, operation, Group(axes))
        except (UnsupportedError, UnalignedError, ValueError):
            return None

    def _group(self, node: torch.fx.Node) -> tuple[int, ...]:
        group = node.args[-1]
        name = group.name if isinstance(group, torch.fx.Node) else str(group)
        return tuple(self.lowering.program.groups.get(name, ()))

    def _reader(self, node: torch.fx.Node) -> torch.fx.Node:
        """The first operator that computes with the value; the node itself where only an output takes it."""
        holders = {node}
        for later in self.relations.impl_order:
            if later in holders or holders.isdisjoint(later.all_input_nodes):
                continue
            if later.op == "call_function" and not is_view(later.target):
                return later
            holders.add(later)
        return node


def _dependents(node: torch.fx.Node) -> set[torch.fx.Node]:
    found = {node}
    for later in iter(node.graph.nodes):
        if not found.isdisjoint(later.all_input_nodes):
            found.add(later)
    return found
