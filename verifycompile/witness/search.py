"""Looks for a concrete input on which the implementation's outputs differ from the spec's."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
import torch.fx
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate

from verifycompile.program import OutputKind, Program, ProgramInput, ProgramOutput
from verifycompile.torch_interface.evaluation import is_view, real_tensors, size_hint
from verifycompile.witness.comparison import (
    PERTURBATION,
    RELATIVE_TOLERANCE,
    Agreement,
    OutputComparison,
    Reference,
    compare,
    rounding_of,
    tolerance_of,
)
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.ignored import ignored_classes
from verifycompile.witness.inputs import (
    Distribution,
    Inputs,
    draw,
    perturbed,
    placements_of,
    rank_values,
    size_values,
    tangent_inputs,
    tensor_inputs,
    with_traced_strides,
)
from verifycompile.witness.interpreter import Interpreter, ancestors

DEFAULT_MAX_ELEMENTS = 50_000_000
_LARGEST_PRINTED_INPUT = 16
_ELEMENTS_OF_A_CALL = 128
"""Calling an operator takes the time of about so many elements, however small its result is."""
_ATTEMPTS: tuple[tuple[Distribution, int | None], ...] = (
    (Distribution.NORMAL, None),
    (Distribution.POSITIVE, None),
    (Distribution.POSITIVE_UNSET, None),
    (Distribution.NORMAL, 1),
)
"""Distribution and largest integer of each attempt; later ones only where the ones before could not be evaluated."""
_AGAIN: tuple[tuple[Distribution, int | None, int], ...] = (
    (Distribution.REVERSED, None, 0),
    (Distribution.NORMAL, None, 1),
    (Distribution.NORMAL, None, 2),
)
"""Distribution, largest integer and what is added to the seed of further attempts with programs of few elements: an
error may show on some inputs alone, as where the largest element is not on the first rank.
"""
_CHEAP = 100_000


@dataclasses.dataclass(frozen=True)
class Witness:
    """An input on which the implementation is wrong.

    ``output``: name of the program output. ``rank``: the rank that holds (or, for a partial value, takes part in) the
    element ``index`` of the spec's output, which should be ``spec_value`` and is ``impl_value``; both are NaN where
    the shapes differ (see ``detail``). ``inputs``: name -> values as nested lists where there are few, else a summary.
    ``seed``: reproduces the inputs. ``tolerance``: largest difference that rounding could explain.
    """

    output: str
    rank: int
    index: tuple[int, ...]
    spec_value: float
    impl_value: float
    inputs: Mapping[str, object]
    seed: int
    max_abs_difference: float
    tolerance: float = 0.0
    detail: str = ""


def find_witness(
    spec: Program, implementation: Program, *, seed: int = 0, max_elements: int = DEFAULT_MAX_ELEMENTS
) -> Witness | None:
    """A witness that the implementation does not refine the spec, or None where none was found.

    Both graphs are evaluated in float64 on the CPU, the implementation on all ranks. None does not mean equality:
    the graphs may be too large (more than ``max_elements`` elements over all ranks), random, or not evaluable.
    """
    if max(elements(spec), elements(implementation)) > max_elements:
        return None
    cost = max(elements(spec), elements(implementation))
    further = ((distribution, None, 0) for distribution in _further(spec, implementation))
    again = _AGAIN if cost <= _CHEAP else ()
    first = tuple((*attempt, 0) for attempt in _ATTEMPTS)
    agreed = False
    with real_tensors():
        for distribution, index_limit, shift in (*first, *further, *again):
            if agreed and (distribution, index_limit, shift) in first:
                continue
            try:
                inputs = draw(spec, implementation, seed + shift, distribution, index_limit)
                results = _compare(spec, implementation, inputs, seed + shift)
            except EvaluationError:
                continue
            wrong = [result for result in results.values() if result.agreement is Agreement.DIFFERENT]
            if wrong:
                return _witness(wrong[0], inputs, implementation, seed + shift)
            agreed = agreed or all(result.agreement is Agreement.EQUAL for result in results.values())
    return None


def _further(spec: Program, implementation: Program) -> tuple[Distribution, ...]:
    """What is tried where the programs agree on ordinary inputs."""
    ignored = (Distribution.IGNORED,) if ignored_classes(spec, implementation) else ()
    return (*ignored, Distribution.SMALL)


def compare_outputs(spec: Program, implementation: Program, seed: int = 0) -> dict[str, OutputComparison]:
    """How each output of the spec compares on one random input. Raises :class:`EvaluationError`."""
    with real_tensors():
        inputs = draw(spec, implementation, seed, Distribution.NORMAL, None)
        return _compare(spec, implementation, inputs, seed)


def elements(program: Program) -> int:
    """What an evaluation costs: the number of elements of all values on all ranks, small values rounded up.

    A view of another value costs no more than the call.
    """
    ranks = len(program.mesh.ranks) if program.mesh is not None else 1
    nodes = program.graph.graph.nodes
    sizes = [0 if is_view(node.target) else _elements_of(node.meta.get("val")) for node in nodes]
    return ranks * sum(max(size, _ELEMENTS_OF_A_CALL) for size in sizes)


def _elements_of(value: object) -> int:
    if isinstance(value, (list, tuple)):
        return sum(_elements_of(item) for item in value)
    if not isinstance(value, torch.Tensor):
        return 0
    count = 1
    for dim in value.shape:
        count *= size_hint(dim, {}) or 1
    return count


def _compare(spec: Program, implementation: Program, inputs: Inputs, seed: int) -> dict[str, OutputComparison]:
    reference = _spec_interpreter(spec, inputs)
    disturbed = _spec_interpreter(spec, perturbed(inputs, seed, PERTURBATION), filling=1)
    rounded = _spec_interpreter(spec, inputs, rounded=torch.Generator().manual_seed(seed + 3))
    ranks = _implementation_interpreter(implementation, inputs, seed)
    comparison = _Comparison(spec, implementation, reference, disturbed=disturbed, rounded=rounded, ranks=ranks)
    results: dict[str, OutputComparison] = {}
    for name in comparison.forward_names:
        results[name] = comparison.output(name)
    for name, entry in tangent_inputs(implementation).items():
        layout = _tangent_placements(entry, results.get(name))
        if layout is None or name not in inputs.tangents:
            continue
        # A tangent of another shape than its output's: the gradients that need it cannot be compared, all else can.
        with contextlib.suppress(EvaluationError):
            ranks.provide(entry.node, rank_values(entry, inputs.tangents[name], implementation, layout, seed))
    forward = [result.relation for result in results.values() if result.relation is not None]
    for name in comparison.backward_names:
        results[name] = comparison.output(name, forward)
    for name in comparison.missing_gradients:
        results[name] = comparison.missing(name)
    return results


class _Comparison:
    """Outputs of the two programs side by side."""

    def __init__(
        self,
        spec: Program,
        implementation: Program,
        reference: Interpreter,
        *,
        disturbed: Interpreter,
        rounded: Interpreter,
        ranks: Interpreter,
    ) -> None:
        self._spec = {output.name: output for output in spec.outputs}
        self._implementation = {output.name: output for output in implementation.outputs}
        self._mesh = implementation.mesh
        self._mesh_shape = implementation.mesh.shape if implementation.mesh is not None else ()
        self._reference, self._disturbed, self._rounded, self._ranks = reference, disturbed, rounded, ranks
        self._scale = 0.0
        tangents = {entry.node for entry in tangent_inputs(implementation).values()}
        # How a blocked output lies on the ranks is not known, so its numbers say nothing.
        blocked = {blocker.node for blocker in implementation.blockers if blocker.node is not None}
        common = [
            name
            for name in self._spec
            if name in self._implementation and self._implementation[name].node not in blocked
        ]
        late = {name for name in common if ancestors([self._implementation[name].node]) & tangents}
        self.forward_names = sorted((name for name in common if name not in late), key=self._order)
        self.backward_names = sorted(late, key=self._order)
        # Where a backward pass runs, what it computes no gradient for gets none, which an optimizer takes for zero.
        gradients = {output.name for output in spec.outputs if output.kind is OutputKind.GRADIENT}
        runs = any(output.kind is OutputKind.GRADIENT for output in implementation.outputs)
        self.missing_gradients = sorted(gradients - self._implementation.keys()) if runs else []

    def missing(self, name: str) -> OutputComparison:
        """How no gradient at all compares with the spec's."""
        try:
            value, response = (_tensor(p.value(self._spec[name].node)[0]) for p in (self._reference, self._disturbed))
        except EvaluationError as error:
            return OutputComparison(name, Agreement.UNKNOWN, detail=str(error))
        if self._reference.uninitialised and _differ(value, response):
            return OutputComparison(name, Agreement.UNKNOWN, detail="the spec reads uninitialised memory")
        reference = Reference(name, value, tolerance_of(value, response, self._scale))
        nothing = [torch.zeros_like(value)] * math.prod(self._mesh_shape)
        reference = self._uncertain(reference, self._spec[name].node)
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
        value = _tensor(self._reference.value(spec.node)[0])
        response = _tensor(self._disturbed.value(spec.node)[0])
        if self._reference.uninitialised and _differ(value, response):
            return OutputComparison(name, Agreement.UNKNOWN, detail="the spec reads uninitialised memory")
        largest = value.abs().max().item() if value.numel() and value.dtype != torch.bool else 1.0
        self._scale = max(self._scale, float(largest))
        scale = 1 if self._mesh is None else implementation.scale(forward, self._mesh)
        parts = [_at_scale(part, scale) for part in self._ranks.value(implementation.node)]
        reference = Reference(name, value, tolerance_of(value, response, self._scale))
        required = implementation.required(forward)
        # As in the proof: a gradient that stays a partial sum is an error unless someone declared it.
        partial = implementation.kind is not OutputKind.GRADIENT
        result = compare(reference, parts, self._mesh_shape, required, implementation.open_axes, partial=partial)
        if result.agreement is Agreement.DIFFERENT:
            reference = self._uncertain(reference, spec.node)
            result = compare(reference, parts, self._mesh_shape, required, implementation.open_axes, partial=partial)
        no_number = result.agreement is Agreement.DIFFERENT and math.isnan(result.impl_value)
        if not no_number or not self._ranks.uninitialised:
            return result
        # What is no number whatever the memory holds does not come from there.
        filled = [_at_scale(part, scale) for part in self._ranks.with_filling(1).value(implementation.node)]
        result = compare(reference, filled, self._mesh_shape, required, implementation.open_axes, partial=partial)
        if result.agreement is Agreement.DIFFERENT and math.isnan(result.impl_value):
            return result
        return OutputComparison(name, Agreement.UNKNOWN, detail="the implementation reads uninitialised memory")

    def _uncertain(self, reference: Reference, node: torch.fx.Node) -> Reference:
        """``reference`` with what rounding may explain besides; only a difference makes this worth its cost."""
        moved = _tensor(self._rounded.value(node)[0])
        return dataclasses.replace(reference, tolerance=reference.tolerance + rounding_of(reference.value, moved))


def _tensor(value: object) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise EvaluationError(f"an output is no tensor but {type(value).__name__}")
    return value


def _at_scale(value: object, scale: int) -> torch.Tensor:
    return _tensor(value) if scale == 1 else _tensor(value) / scale


def _differ(value: torch.Tensor, response: torch.Tensor) -> bool:
    """Whether an output changes with what uninitialised memory holds; far more than the perturbed inputs change it."""
    if not value.is_floating_point() and not value.is_complex():
        return not torch.equal(value, response)
    if not bool(torch.isfinite(value).all()) or not bool(torch.isfinite(response).all()):
        return True
    scale = float(value.abs().max().item()) if value.numel() else 0.0
    return not torch.allclose(value, response, rtol=0.0, atol=RELATIVE_TOLERANCE * scale)


def _spec_interpreter(
    spec: Program, inputs: Inputs, filling: int | None = None, rounded: torch.Generator | None = None
) -> Interpreter:
    values: dict[torch.fx.Node, Sequence[object]] = {
        entry.node: [with_traced_strides(inputs.spec[name], entry.node)] for name, entry in tensor_inputs(spec).items()
    }
    for name, entry in tangent_inputs(spec).items():
        values[entry.node] = [with_traced_strides(inputs.tangents[name], entry.node)]
    for node, size in size_values(spec, inputs.sizes).items():
        values[node] = [size]
    return Interpreter(spec, values, filling, rounded)


def _implementation_interpreter(implementation: Program, inputs: Inputs, seed: int) -> Interpreter:
    mesh_dims = len(implementation.mesh.axes) if implementation.mesh is not None else 0
    ranks = len(implementation.mesh.ranks) if implementation.mesh is not None else 1
    values: dict[torch.fx.Node, Sequence[object]] = {}
    for name, entry in tensor_inputs(implementation).items():
        if name in inputs.spec:
            placements = placements_of(entry, mesh_dims)
            values[entry.node] = rank_values(entry, inputs.spec[name], implementation, placements, seed)
    for node, size in size_values(implementation, {}).items():
        values[node] = [size] * ranks
    return Interpreter(implementation, values)


def _tangent_placements(entry: ProgramInput, output: OutputComparison | None) -> tuple[Placement, ...] | None:
    """The cotangent is sharded as its output is; it is whole where the output is replicated or partial."""
    if entry.placements is not None and not entry.open_axes:
        return entry.placements
    if output is None or output.relation is None:
        return None
    found = tuple(Replicate() if isinstance(placement, Partial) else placement for placement in output.relation)
    declared = entry.placements or found
    return tuple(found[axis] if axis in entry.open_axes else item for axis, item in enumerate(declared))


def _witness(result: OutputComparison, inputs: Inputs, implementation: Program, seed: int) -> Witness:
    ranks = implementation.mesh.ranks if implementation.mesh is not None else (0,)
    summaries = {name: _summary(value) for name, value in inputs.spec.items()}
    summaries |= {f"cotangent of {name}": _summary(value) for name, value in inputs.tangents.items()}
    return Witness(
        output=result.name,
        rank=ranks[result.rank],
        index=result.index,
        spec_value=result.spec_value,
        impl_value=result.impl_value,
        inputs=summaries,
        seed=seed,
        max_abs_difference=result.max_abs_difference,
        tolerance=result.tolerance,
        detail=result.detail,
    )


def _summary(value: torch.Tensor) -> object:
    if value.numel() <= _LARGEST_PRINTED_INPUT:
        return value.tolist()
    kind = str(value.dtype).removeprefix("torch.")
    if value.dtype == torch.bool or value.is_complex():
        return f"{kind}{list(value.shape)}"
    return f"{kind}{list(value.shape)}, {value.min().item():.4g} to {value.max().item():.4g}"
