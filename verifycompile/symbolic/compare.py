"""Both programs evaluated on expressions, the implementation on all ranks, and compared output by output."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor.placement_types import Placement

from verifycompile import bounds
from verifycompile.program import OutputKind, Program, ProgramOutput
from verifycompile.symbolic.decide import Answer, Decider
from verifycompile.symbolic.expressions import Expressions
from verifycompile.symbolic.report import OutputCheck
from verifycompile.symbolic.tensor import symbolic, variables
from verifycompile.torch_interface.operators.elements import real_tensors
from verifycompile.witness.comparison import Agreement, OutputComparison, candidate_placements
from verifycompile.witness.draw import Distribution, draw
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.inputs import Inputs, rank_values, tangent_inputs
from verifycompile.witness.interpreter import ancestors
from verifycompile.witness.layout import assemble, sums_equal_parts
from verifycompile.witness.side_by_side import (
    at_scale,
    implementation_interpreter,
    spec_interpreter,
    tangent_placements,
)

Placements = tuple[Placement, ...]

_FAILURES = (EvaluationError, RuntimeError, IndexError, ValueError, TypeError)
_MOST_QUESTIONS = 64
"""Of one output: elements that need more are left undecided."""


@dataclasses.dataclass(frozen=True)
class Compared:
    """``questions``: that z3 was asked. ``relations``: how the forward outputs lie on the ranks."""

    outputs: tuple[OutputCheck, ...]
    questions: int
    relations: Mapping[str, Placements]


def compare_elements(spec: Program, implementation: Program) -> Compared:
    """Every output of the spec, element by element; real inputs are variables, whole numbers and flags are drawn."""
    with real_tensors():
        pool = Expressions()
        inputs = draw(spec, implementation, 0, Distribution.NORMAL, None)
        comparison = _Comparison(spec, implementation, _as_variables(pool, inputs), pool)
        outputs = tuple(comparison.outputs())
    return Compared(outputs, comparison.decider.questions, comparison.relations)


def _as_variables(pool: Expressions, inputs: Inputs) -> Inputs:
    def variable(name: str, value: torch.Tensor) -> torch.Tensor:
        return variables(pool, name, value) if value.is_floating_point() else value

    return dataclasses.replace(
        inputs,
        spec={name: variable(name, value) for name, value in inputs.spec.items()},
        tangents={name: variable(f"cotangent of {name}", value) for name, value in inputs.tangents.items()},
    )


class _Comparison:
    def __init__(self, spec: Program, implementation: Program, inputs: Inputs, pool: Expressions) -> None:
        self.pool, self.decider = pool, Decider(pool)
        self._spec, self._program, self._inputs = spec, implementation, inputs
        self._implementation = {output.name: output for output in implementation.outputs}
        self._mesh = implementation.mesh
        self._mesh_shape = implementation.mesh.shape if implementation.mesh is not None else ()
        self._reference = spec_interpreter(spec, inputs)
        self._ranks = implementation_interpreter(implementation, inputs, 0)
        self.relations: dict[str, Placements] = {}

    def outputs(self) -> Iterator[OutputCheck]:
        """Forward outputs first: how a cotangent lies on the ranks may follow from how its output does."""
        tangents = {entry.node for entry in tangent_inputs(self._program).values()}
        late: list[ProgramOutput] = []
        for output in self._spec.outputs:
            own = self._implementation.get(output.name)
            if own is None:
                yield OutputCheck(output.name, detail="the implementation has no such output")
            elif ancestors([own.node]) & tangents:
                late.append(output)
            else:
                yield self._output(output, own)
        self._provide_tangents()
        for output in late:
            yield self._output(output, self._implementation[output.name])
        known = {output.name for output in self._spec.outputs}
        for name in self._implementation.keys() - known:
            yield OutputCheck(name, detail="the spec has no such output")

    def _provide_tangents(self) -> None:
        for name, entry in tangent_inputs(self._program).items():
            relation = self.relations.get(name)
            found = None if relation is None else OutputComparison(name, Agreement.EQUAL, relation)
            layout = tangent_placements(entry, found)
            if layout is None or name not in self._inputs.tangents:
                continue
            with contextlib.suppress(EvaluationError):
                values = rank_values(entry, self._inputs.tangents[name], self._program, layout, 0)
                self._ranks.provide(entry.node, values)

    def _output(self, spec: ProgramOutput, implementation: ProgramOutput) -> OutputCheck:
        bounds.check()
        try:
            value = self._numbers(self._reference.value(spec.node)[0])
            forward = [self.relations[name] for name in tangent_inputs(self._program) if name in self.relations]
            scale = 1 if self._mesh is None else implementation.scale(forward, self._mesh)
            parts = [at_scale(part, scale) for part in self._ranks.value(implementation.node)]
            found = self._best(value, parts, implementation, forward)
        except _FAILURES as error:
            return OutputCheck(spec.name, detail=str(error).partition("\n")[0])
        if found is None:
            return OutputCheck(spec.name, detail="the ranks' values do not make up the shape of the output")
        placements, wholes = found
        check = self._decided(spec.name, value, wholes, placements)
        if check.is_equal and spec.kind is not OutputKind.GRADIENT and self._mesh is not None:
            self.relations[spec.name] = placements
        return check

    def _numbers(self, value: Any) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            raise EvaluationError(f"an output is no tensor but {type(value).__name__}")
        return symbolic(self.pool, value).numbers

    def _best(
        self,
        value: torch.Tensor,
        parts: Sequence[torch.Tensor],
        output: ProgramOutput,
        forward: Sequence[Placements],
    ) -> tuple[Placements, list[torch.Tensor]] | None:
        """The placements under which most elements are the spec's own expressions."""
        required = output.required(forward)
        partial = output.kind is not OutputKind.GRADIENT
        candidates = candidate_placements(value.dim(), self._mesh_shape, required, output.open_axes, partial=partial)
        best: tuple[Placements, list[torch.Tensor]] | None = None
        most = -1
        numbers = {position: self._numbers(part) for position, part in enumerate(parts)}
        for placements in candidates:
            if required is None and sums_equal_parts(placements, numbers, self._mesh_shape):
                continue
            try:
                wholes = [self._numbers(whole) for whole in assemble(parts, self._mesh_shape, placements)]
            except _FAILURES:
                continue
            if any(whole.shape != value.shape for whole in wholes):
                continue
            same = sum(int((whole == value).sum()) for whole in wholes)
            if same > most * len(wholes):
                best, most = (tuple(placements), wholes), same / len(wholes)
            if same == value.numel() * len(wholes):
                break
        return best

    def _decided(
        self, name: str, value: torch.Tensor, wholes: Sequence[torch.Tensor], placements: Placements
    ) -> OutputCheck:
        expected = value.reshape(-1).tolist()
        answers: dict[tuple[int, int], Answer] = {}
        worst: list[Answer] = []
        rows = list(zip(*(whole.reshape(-1).tolist() for whole in wholes), strict=True))
        for left, row in zip(expected, rows, strict=True):
            found = [self._answer(answers, left, right) for right in row]
            worst.append(max(found, key=_ORDER.index))
        return OutputCheck(
            name,
            elements=len(expected),
            same=worst.count(Answer.SAME),
            proved=worst.count(Answer.PROVED),
            different=worst.count(Answer.DIFFERENT),
            undecided=worst.count(Answer.OPEN),
            placements=self._described(placements),
        )

    def _answer(self, answers: dict[tuple[int, int], Answer], left: int, right: int) -> Answer:
        if left == right:
            return Answer.SAME
        if (left, right) not in answers:
            asked = len(answers) < _MOST_QUESTIONS
            answers[left, right] = self.decider.compare(left, right) if asked else Answer.OPEN
        return answers[left, right]

    def _described(self, placements: Placements) -> str:
        if self._mesh is None:
            return ""
        axes = zip(self._mesh.axes, placements, strict=True)
        return ", ".join(f"{axis.name}: {placement}" for axis, placement in axes)


_ORDER = [Answer.SAME, Answer.PROVED, Answer.OPEN, Answer.DIFFERENT]
