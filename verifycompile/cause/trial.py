"""What a change of a program does to its outputs, on one input: only what depends on the change is evaluated again."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Collection, Mapping, Sequence

import torch
import torch.fx
from torch.distributed.tensor.placement_types import Placement

from verifycompile.program import OutputKind, Program, ProgramOutput
from verifycompile.witness.comparison import Agreement, OutputComparison, Reference, compare, tolerance_of
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.inputs import Inputs, rank_values, tangent_inputs
from verifycompile.witness.interpreter import Interpreter, descendants
from verifycompile.witness.side_by_side import flowing, implementation_interpreter, spec_interpreter, tangent_placements

Layout = tuple[Placement, ...]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How the outputs compare after a change.

    ``right`` and ``wrong``: names of the outputs that are the spec's and that are not. What could not be compared, as
    a gradient where the layout of its cotangent is not known, is in neither.
    """

    program: Program
    values: Interpreter
    results: Mapping[str, OutputComparison]
    tangents: Mapping[str, Layout]
    backward: frozenset[str]
    """The outputs that depend on a cotangent."""

    @property
    def right(self) -> frozenset[str]:
        return frozenset(name for name, found in self.results.items() if found.agreement is Agreement.EQUAL)

    @property
    def wrong(self) -> frozenset[str]:
        return frozenset(name for name, found in self.results.items() if found.agreement is Agreement.DIFFERENT)


_NEXT = 6
"""Of the outputs that are computed next behind a change, so many show whether it mends any."""


class Trial:
    """Both programs on one input. Called under ``real_tensors``. Raises ``EvaluationError``."""

    def __init__(self, spec: Program, inputs: Inputs, seed: int) -> None:
        self.spec, self.inputs, self.seed = spec, inputs, seed
        self.reference = spec_interpreter(spec, inputs)
        self._references: dict[str, Reference] = {}
        self._scale = 0.0
        self.outputs_of_spec = {output.name: output for output in spec.outputs}

    def with_outputs_of(self, spec: Program) -> Trial:
        """The same trial where the outputs of the spec's graph are read in other ways."""
        other = copy.copy(self)
        other.spec, other.outputs_of_spec = spec, {output.name: output for output in spec.outputs}
        return other

    def outcome(
        self,
        implementation: Program,
        before: Outcome | None = None,
        changed: Collection[torch.fx.Node] = (),
        wanted: frozenset[str] = frozenset(),
    ) -> Outcome | None:
        """How the outputs compare; given ``before``, of the same graph in which ``changed`` nodes are others now.

        None, as early as that is known, where none of the outputs ``wanted`` is right or one that was is no longer.
        """
        later = descendants(changed)
        if before is not None and before.program.inputs is implementation.inputs:
            values = before.values.again(implementation, later)
        else:
            values = implementation_interpreter(implementation, self.inputs, self.seed)
            before = None if before is None else dataclasses.replace(before, tangents={})
            later = set(implementation.graph.graph.nodes)
        outputs = {output.name: output for output in implementation.outputs}
        tangents = tangent_inputs(implementation)
        names = [name for name in self.outputs_of_spec if name in outputs]
        late = _dependent(implementation, outputs) if before is None else before.backward
        backward, forward = ([name for name in names if (name in late) == after] for after in (True, False))
        results: dict[str, OutputComparison] = {}
        for name in forward:
            results[name] = self._compared(outputs[name], values, _unchanged(outputs[name], before, later), ())
            if _is_worse(name, results, before):
                return None
        layouts: dict[str, Layout] = {}
        for name, entry in tangents.items():
            layout = tangent_placements(entry, results.get(name))
            if layout is None or name not in self.inputs.tangents:
                continue
            layouts[name] = layout
            if before is not None and before.tangents.get(name) == layout:
                continue
            later |= descendants([entry.node])
            values.forget(later)
            with contextlib.suppress(EvaluationError):
                parts = rank_values(entry, self.inputs.tangents[name], implementation, layout, self.seed)
                values.provide(entry.node, parts)
        if wanted and not wanted.intersection(backward) and not _any_right(wanted, results):
            return None
        found = flowing(implementation, results)
        places = _places(implementation)
        ordered = sorted(backward, key=lambda name: (name not in wanted, places[outputs[name].node]))
        changed_ones = 0
        for position, name in enumerate(ordered):
            known = _unchanged(outputs[name], before, later)
            results[name] = self._compared(outputs[name], values, known, found)
            if _is_worse(name, results, before):
                return None
            changed_ones += known is None
            last = position + 1 == len(ordered) or ordered[position + 1] not in wanted
            if wanted and (last or changed_ones == _NEXT) and not _any_right(wanted, results):
                return None
        return Outcome(implementation, values, results, layouts, late)

    def _compared(
        self, output: ProgramOutput, values: Interpreter, known: OutputComparison | None, forward: Sequence[Layout]
    ) -> OutputComparison:
        name = output.name
        if known is not None and known.agreement is not Agreement.UNKNOWN:
            return known
        try:
            return self._comparison(name, output, values, forward)
        except EvaluationError as error:
            return OutputComparison(name, Agreement.UNKNOWN, detail=str(error))

    def _comparison(
        self, name: str, output: ProgramOutput, values: Interpreter, forward: Sequence[Layout]
    ) -> OutputComparison:
        reference = self._reference(name)
        mesh = values.mesh
        try:
            scale, required = 1 if mesh is None else output.scale(forward, mesh), output.required(forward)
        except ValueError as error:
            raise EvaluationError(str(error)) from error
        parts: list[torch.Tensor] = []
        for part in values.value(output.node):
            if not isinstance(part, torch.Tensor):
                raise EvaluationError(f"`{name}` is no tensor")
            parts.append(part if scale == 1 else part / scale)
        partial = output.kind is not OutputKind.GRADIENT
        shape = () if mesh is None else mesh.shape
        return compare(reference, parts, shape, required, output.open_axes, partial=partial)

    def _reference(self, name: str) -> Reference:
        if name not in self._references:
            value = self.reference.value(self.outputs_of_spec[name].node)[0]
            if not isinstance(value, torch.Tensor):
                raise EvaluationError(f"`{name}` is no tensor")
            numbers = value.numel() and value.dtype != torch.bool
            self._scale = max(self._scale, float(value.abs().max().item()) if numbers else 1.0)
            self._references[name] = Reference(name, value, tolerance_of(value, value, self._scale))
        return self._references[name]


def _dependent(implementation: Program, outputs: Mapping[str, ProgramOutput]) -> frozenset[str]:
    """The outputs that depend on a cotangent. A change makes no forward output depend on one."""
    later = descendants(entry.node for entry in tangent_inputs(implementation).values())
    return frozenset(name for name, output in outputs.items() if output.node in later)


def _places(program: Program) -> dict[torch.fx.Node, int]:
    """Where in the program a node is computed."""
    return {node: place for place, node in enumerate(program.graph.graph.nodes)}


def _unchanged(
    output: ProgramOutput, before: Outcome | None, later: Collection[torch.fx.Node]
) -> OutputComparison | None:
    """How an output compared before, where it is what it was."""
    if before is None or output.node in later or output not in before.program.outputs:
        return None
    return before.results.get(output.name)


def _is_worse(name: str, results: Mapping[str, OutputComparison], before: Outcome | None) -> bool:
    """Whether an output was right before and is no longer."""
    return before is not None and name in before.right and results[name].agreement is not Agreement.EQUAL


def _any_right(wanted: frozenset[str], results: Mapping[str, OutputComparison]) -> bool:
    return any(name in wanted and found.agreement is Agreement.EQUAL for name, found in results.items())
