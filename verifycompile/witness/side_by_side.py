"""Both programs evaluated on the same inputs, the implementation on all ranks, and compared output by output."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import torch
import torch.fx
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate

from verifycompile.program import OutputKind, Program, ProgramInput, ProgramOutput
from verifycompile.torch_interface.operators.elements import real_tensors
from verifycompile.witness.comparison import (
    PERTURBATION,
    RELATIVE_TOLERANCE,
    Agreement,
    OutputComparison,
    Reference,
    candidate_placements,
    compare,
    rounding_of,
    tolerance_of,
    uncertainty_of,
)
from verifycompile.witness.cost import elements, most_elements
from verifycompile.witness.draw import Distribution, draw
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.inputs import (
    Inputs,
    perturbed,
    placements_of,
    rank_values,
    size_values,
    tangent_inputs,
    tensor_inputs,
    with_traced_strides,
)
from verifycompile.witness.interpreter import Interpreter, descendants
from verifycompile.witness.rounding import Rounding


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """Both programs as far as they were evaluated on ``inputs``."""

    inputs: Inputs
    spec: Interpreter
    implementation: Interpreter

    def changed(self, inputs: Inputs) -> set[str]:
        """Names of the inputs that are others now, tangents aside."""
        return {name for name, value in inputs.spec.items() if value is not self.inputs.spec.get(name)}

    def changed_tangents(self, inputs: Inputs) -> set[str]:
        """Names of the outputs whose cotangents are others now."""
        return {name for name, value in inputs.tangents.items() if value is not self.inputs.tangents.get(name)}


@dataclasses.dataclass(frozen=True)
class Compared:
    """``outputs``: how each output of the spec compares, by name. ``tangents``: how each cotangent lay on the ranks.

    ``candidates``: of an output that was compared, the placements under any of which it may be the spec's.
    ``scales``: how often the spec's value an output is. ``evaluated``: the values of both programs.
    """

    outputs: Mapping[str, OutputComparison]
    tangents: Mapping[str, tuple[Placement, ...]]
    candidates: Mapping[str, Sequence[tuple[Placement, ...]]]
    scales: Mapping[str, int]
    evaluated: Evaluated

    @property
    def work(self) -> int:
        """Elements of both programs that were computed for this."""
        return self.evaluated.spec.work + self.evaluated.implementation.work


def compare_programs(
    spec: Program,
    implementation: Program,
    inputs: Inputs,
    seed: int = 0,
    only: str | None = None,
    *,
    certain: bool = True,
    before: Compared | None = None,
    most_work: float = math.inf,
) -> Compared:
    """Both programs on ``inputs``, every output or the one called ``only``; to be called under ``real_tensors``.

    ``before``: the same on other inputs; what depends on none that changed is not computed again.
    ``certain``: measure what rounding explains, which takes several evaluations; else a difference is a suspicion.
    ``most_work``: elements of the implementation, with which its evaluation ends; what is missing is unknown.
    Raises :class:`EvaluationError` where an input cannot be laid out over the ranks.
    """
    evaluated = None if before is None else before.evaluated
    comparison = _Comparison(spec, implementation, inputs, seed, evaluated, certain=certain)
    comparison.evaluated.implementation.most_work = most_work
    results: dict[str, OutputComparison] = {}
    tangents: dict[str, tuple[Placement, ...]] = {}
    # How a cotangent lies on the ranks may follow from where its output lies.
    first = [name for name in comparison.forward_names if only in (None, name) or only in comparison.backward_names]
    for name in first:
        results[name] = comparison.output(name)
    for name, entry in tangent_inputs(implementation).items():
        layout = tangent_placements(entry, results.get(name))
        if before is not None and name in before.tangents:
            if before.tangents[name] == layout and name not in before.evaluated.changed_tangents(inputs):
                tangents[name] = before.tangents[name]
                continue
            comparison.withdraw(entry)
        if layout is None or name not in inputs.tangents:
            continue
        # A tangent of another shape than its output's: the gradients that need it cannot be compared, all else can.
        with contextlib.suppress(EvaluationError):
            comparison.provide(entry, rank_values(entry, inputs.tangents[name], implementation, layout, seed))
            tangents[name] = layout
    forward = flowing(implementation, results)
    for name in comparison.backward_names:
        if only in (None, name):
            results[name] = comparison.output(name, forward)
    for name in comparison.missing_gradients:
        if only in (None, name):
            results[name] = comparison.missing(name)
    return Compared(results, tangents, comparison.candidates, comparison.scales, comparison.evaluated)


class _Comparison:
    """Outputs of the two programs side by side."""

    def __init__(
        self,
        spec: Program,
        implementation: Program,
        inputs: Inputs,
        seed: int,
        before: Evaluated | None,
        *,
        certain: bool,
    ) -> None:
        self._certain = certain
        self._spec = {output.name: output for output in spec.outputs}
        self._implementation = {output.name: output for output in implementation.outputs}
        self._mesh = implementation.mesh
        self._mesh_shape = implementation.mesh.shape if implementation.mesh is not None else ()
        self._seed = seed
        self._reference = spec_interpreter(spec, inputs, before=before)
        self._ranks = implementation_interpreter(implementation, inputs, seed, before)
        self.evaluated = Evaluated(inputs, self._reference, self._ranks)
        self._spec_program, self._inputs = spec, inputs
        self._rounded: dict[int, tuple[Interpreter, Interpreter]] = {}
        self._scale = 0.0
        self.candidates: dict[str, Sequence[tuple[Placement, ...]]] = {}
        self.scales: dict[str, int] = {}
        later = descendants(entry.node for entry in tangent_inputs(implementation).values())
        # How a blocked output lies on the ranks is not known, so its numbers say nothing.
        blocked = {blocker.node for blocker in implementation.blockers if blocker.node is not None}
        common = [
            name
            for name in self._spec
            if name in self._implementation and self._implementation[name].node not in blocked
        ]
        late = {name for name in common if self._implementation[name].node in later}
        self.forward_names = sorted((name for name in common if name not in late), key=self._order)
        self.backward_names = sorted(late, key=self._order)
        # Where a backward pass runs, what it computes no gradient for gets none, which an optimizer takes for zero.
        gradients = {output.name for output in spec.outputs if output.kind is OutputKind.GRADIENT}
        runs = any(output.kind is OutputKind.GRADIENT for output in implementation.outputs)
        self.missing_gradients = sorted(gradients - self._implementation.keys()) if runs else []

    @functools.cached_property
    def _disturbed(self) -> Interpreter:
        """The spec on inputs that are others by a little, with other contents of uninitialised memory."""
        changed = perturbed(self._inputs, self._seed, PERTURBATION)
        return spec_interpreter(self._spec_program, changed, filling=1)

    def provide(self, entry: ProgramInput, values: Sequence[object]) -> None:
        """Gives the implementation's placeholder its values, one a rank."""
        self._rounded.clear()
        self._ranks.provide(entry.node, values)

    def withdraw(self, entry: ProgramInput) -> None:
        """Takes the values of the implementation's placeholder away."""
        self._rounded.clear()
        self._ranks.withdraw(entry.node)

    def missing(self, name: str) -> OutputComparison:
        """How no gradient at all compares with the spec's."""
        try:
            reference = self._measured(name)
            reference = self._uncertain(reference, self._spec[name].node)
        except EvaluationError as error:
            return OutputComparison(name, Agreement.UNKNOWN, detail=str(error))
        self.candidates[name] = [(Replicate(),) * len(self._mesh_shape)]
        nothing = [torch.zeros_like(reference.value)] * math.prod(self._mesh_shape)
        result = compare(reference, nothing, self._mesh_shape, (Replicate(),) * len(self._mesh_shape))
        return dataclasses.replace(result, detail="the implementation has no such gradient")

    def _order(self, name: str) -> tuple[bool, int]:
        output = self._spec[name]
        return output.kind is not OutputKind.VALUE, output.index

    def output(self, name: str, forward: Sequence[tuple[Placement, ...]] = ()) -> OutputComparison:
        """``forward``: the relations found for the forward outputs, on which that of a gradient may depend."""
        try:
            return self._output(name, self._spec[name], self._implementation[name], forward)
        except EvaluationError as error:
            return OutputComparison(name, Agreement.UNKNOWN, detail=str(error))

    def _output(
        self,
        name: str,
        spec: ProgramOutput,
        implementation: ProgramOutput,
        forward: Sequence[tuple[Placement, ...]],
    ) -> OutputComparison:
        try:
            scale = 1 if self._mesh is None else implementation.scale(forward, self._mesh)
            required = implementation.required(forward)
        except ValueError as error:
            raise EvaluationError(str(error)) from error
        parts = [at_scale(part, scale) for part in self._ranks.value(implementation.node)]
        reference = self._exactly(name)
        # As in the proof: a gradient that stays a partial sum is an error unless someone declared it.
        partial = implementation.kind is not OutputKind.GRADIENT
        candidates = candidate_placements(
            reference.value.dim(), self._mesh_shape, required, implementation.open_axes, partial=partial
        )
        self.candidates[name], self.scales[name] = candidates, scale
        if not self._reference.uninitialised:
            result = compare(reference, parts, self._mesh_shape, required, implementation.open_axes, partial=partial)
            if result.agreement is Agreement.EQUAL or not self._certain:
                return result  # what rounding explains besides need not be measured
        reference = self._measured(name)
        result = compare(reference, parts, self._mesh_shape, required, implementation.open_axes, partial=partial)
        if result.agreement is Agreement.DIFFERENT:
            reference = self._uncertain(reference, spec.node, implementation.node, scale)
            result = compare(reference, parts, self._mesh_shape, required, implementation.open_axes, partial=partial)
        no_number = result.agreement is Agreement.DIFFERENT and math.isnan(result.impl_value)
        if not no_number or not self._ranks.uninitialised:
            return result
        # What is no number whatever the memory holds does not come from there.
        filled = [at_scale(part, scale) for part in self._ranks.with_filling(1).value(implementation.node)]
        result = compare(reference, filled, self._mesh_shape, required, implementation.open_axes, partial=partial)
        if result.agreement is Agreement.DIFFERENT and math.isnan(result.impl_value):
            return result
        return OutputComparison(name, Agreement.UNKNOWN, detail="the implementation reads uninitialised memory")

    def _exactly(self, name: str) -> Reference:
        """The spec's output, of which nothing is known to be uncertain."""
        value = _tensor(self._reference.value(self._spec[name].node)[0])
        return Reference(name, value, tolerance_of(value, value, 0.0))

    def _measured(self, name: str) -> Reference:
        """The spec's output and what rounding may explain. Raises ``EvaluationError`` where it has no certain value."""
        node = self._spec[name].node
        value = _tensor(self._reference.value(node)[0])
        largest = value.abs().max().item() if value.numel() and value.dtype != torch.bool else 1.0
        self._scale = max(self._scale, float(largest))
        exact = self._exact
        response = value if exact and not self._reference.uninitialised else _tensor(self._disturbed.value(node)[0])
        if self._reference.uninitialised and _differ(value, response):
            raise EvaluationError("the spec reads uninitialised memory")
        return Reference(name, value, tolerance_of(value, value if exact else response, self._scale))

    @property
    def _exact(self) -> bool:
        """Whether only what the operators round is uncertain: the inputs are whole, and no choice among equals matters.

        Otherwise the inputs are changed a little, which shows what hangs on a choice.
        """
        return self._are_whole and not self._reference.unspecified and not self._ranks.unspecified

    @functools.cached_property
    def _are_whole(self) -> bool:
        return self._inputs.are_whole

    def _uncertain(
        self, reference: Reference, node: torch.fx.Node, impl_node: torch.fx.Node | None = None, scale: int = 1
    ) -> Reference:
        """``reference`` with what rounding may explain besides; only a difference makes this worth its cost."""
        tolerance, explained = reference.tolerance, uncertainty_of if self._exact else rounding_of
        # In both directions: what is compared with a threshold that it just reaches may fall on either side.
        for sign in (1, -1) if self._exact else (1,):
            reference_rounded, ranks_rounded = self._rounded_by(sign)
            moved = _tensor(reference_rounded.value(node)[0])
            tolerance += explained(reference.value, moved)
            if impl_node is None:
                continue
            # The implementation may lose digits where the spec does not: in differences of nearly equal values.
            before = [at_scale(part, scale) for part in self._ranks.value(impl_node)]
            after = [at_scale(part, scale) for part in ranks_rounded.value(impl_node)]
            tolerance += max(explained(*_numbers(*pair)) for pair in zip(before, after, strict=True))
        return dataclasses.replace(reference, tolerance=tolerance)

    def _rounded_by(self, sign: int) -> tuple[Interpreter, Interpreter]:
        """Both programs with their results rounded otherwise; evaluated once for all outputs, the last sign is kept."""
        if sign not in self._rounded:
            rounding = Rounding.seeded(self._seed + 3, sign)
            self._rounded = {sign: (self._reference.with_rounding(rounding), self._ranks.with_rounding(rounding))}
        return self._rounded[sign]


def _tensor(value: object) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise EvaluationError(f"an output is no tensor but {type(value).__name__}")
    return value


def _numbers(before: torch.Tensor, after: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both values without the elements that are no numbers in either, which rounding does not explain."""
    neither = ~(before.isfinite() | after.isfinite())
    return before.masked_fill(neither, 0), after.masked_fill(neither, 0)


def at_scale(value: object, scale: int) -> torch.Tensor:
    """An output on a rank that is ``scale`` times the spec's. Raises :class:`EvaluationError` for what is no tensor."""
    return _tensor(value) if scale == 1 else _tensor(value) / scale


def _differ(value: torch.Tensor, response: torch.Tensor) -> bool:
    """Whether an output changes with what uninitialised memory holds; far more than the perturbed inputs change it."""
    if not value.is_floating_point() and not value.is_complex():
        return not torch.equal(value, response)
    if not bool(torch.isfinite(value).all()) or not bool(torch.isfinite(response).all()):
        return True
    scale = float(value.abs().max().item()) if value.numel() else 0.0
    return not torch.allclose(value, response, rtol=0.0, atol=RELATIVE_TOLERANCE * scale)


def spec_interpreter(
    spec: Program, inputs: Inputs, filling: int | None = None, before: Evaluated | None = None
) -> Interpreter:
    """The spec on ``inputs``, on one device. ``before``: what is known of it on others, of the same sizes."""
    names = inputs.spec.keys() if before is None else before.changed(inputs)
    tangents = inputs.tangents.keys() if before is None else before.changed_tangents(inputs)
    values: dict[torch.fx.Node, Sequence[object]] = {
        entry.node: [with_traced_strides(inputs.spec[name], entry.node)]
        for name, entry in tensor_inputs(spec).items()
        if name in names
    }
    for name, entry in tangent_inputs(spec).items():
        if name in tangents:
            values[entry.node] = [with_traced_strides(inputs.tangents[name], entry.node)]
    if before is not None:
        return before.spec.on_other_inputs(values)
    for node, size in size_values(spec, inputs.sizes).items():
        values[node] = [size]
    return Interpreter(spec, values, filling)


def implementation_interpreter(
    implementation: Program, inputs: Inputs, seed: int, before: Evaluated | None = None
) -> Interpreter:
    """The implementation on ``inputs``, laid out over its ranks; tangents are still to be provided.

    ``before``: what is known of it on others, of the same sizes.
    """
    names = inputs.spec.keys() if before is None else before.changed(inputs)
    mesh_dims = len(implementation.mesh.axes) if implementation.mesh is not None else 0
    ranks = len(implementation.mesh.ranks) if implementation.mesh is not None else 1
    values: dict[torch.fx.Node, Sequence[object]] = {}
    for name, entry in tensor_inputs(implementation).items():
        if name in names:
            placements = placements_of(entry, mesh_dims)
            values[entry.node] = rank_values(entry, inputs.spec[name], implementation, placements, seed)
    if before is not None:
        return before.implementation.on_other_inputs(values)
    for node, size in size_values(implementation, {}).items():
        values[node] = [size] * ranks
    return Interpreter(implementation, values)


def flowing(implementation: Program, results: Mapping[str, OutputComparison]) -> list[tuple[Placement, ...]]:
    """How the forward outputs lie through which gradients flow, where that was found."""
    found = [results[name].relation for name in tangent_inputs(implementation) if name in results]
    return [relation for relation in found if relation is not None]


def tangent_placements(entry: ProgramInput, output: OutputComparison | None) -> tuple[Placement, ...] | None:
    """The cotangent is sharded as its output is; it is whole where the output is replicated or partial."""
    if entry.placements is not None and not entry.open_axes:
        return entry.placements
    if output is None or output.relation is None:
        return None
    found = tuple(Replicate() if isinstance(placement, Partial) else placement for placement in output.relation)
    declared = entry.placements or found
    return tuple(found[axis] if axis in entry.open_axes else item for axis, item in enumerate(declared))


class OnOneInput:
    """Two programs of a single device on one random input. Its methods raise ``EvaluationError``.

    Also for programs of too many elements. What several values are computed from is computed once.
    """

    def __init__(self, spec: Program, implementation: Program) -> None:
        if max(elements(spec), elements(implementation)) > most_elements():
            raise EvaluationError("the programs have more elements than are evaluated")
        with real_tensors():
            inputs = draw(spec, implementation, 0, Distribution.NORMAL, None)
            self._spec, self._implementation = spec_interpreter(spec, inputs), spec_interpreter(implementation, inputs)

    def values(
        self, of_spec: torch.fx.Node, of_implementation: Sequence[torch.fx.Node]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        with real_tensors():
            expected = _tensor(self._spec.value(of_spec)[0])
            return expected, [_tensor(self._implementation.value(node)[0]) for node in of_implementation]
