"""Looks for a concrete input on which the implementation's outputs differ from the spec's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch.distributed.tensor.placement_types import Placement

from verifycompile.program import Mesh, Program
from verifycompile.torch_interface.operators.elements import real_tensors
from verifycompile.witness.comparison import Agreement, OutputComparison
from verifycompile.witness.cost import DEFAULT_MAX_ELEMENTS, elements, most_elements
from verifycompile.witness.draw import Distribution, applies, draw
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.few_kinds import of_few_kinds
from verifycompile.witness.ignored import premise_of
from verifycompile.witness.inputs import Inputs
from verifycompile.witness.minimise import Found, minimised
from verifycompile.witness.placed import describe_placements
from verifycompile.witness.side_by_side import Compared, compare_programs

_ATTEMPTS: tuple[tuple[Distribution, int | None], ...] = (
    (Distribution.NORMAL, None),
    (Distribution.POSITIVE, None),
    (Distribution.POSITIVE_UNSET, None),
    (Distribution.NORMAL, 1),
)
"""Distribution and largest integer of each attempt; later ones only where the ones before could not be evaluated."""
_EDGES: tuple[tuple[Distribution, int | None, int], ...] = (
    (Distribution.IGNORED, None, 0),
    (Distribution.NEGATIVE, None, 0),
    (Distribution.EMPTY, None, 0),
    (Distribution.SMALL, None, 0),
    (Distribution.FAINT, None, 0),
    (Distribution.SPREAD, None, 0),
    (Distribution.WIDE, None, 0),
    (Distribution.SLOPED, None, 0),
)
"""Distribution, largest integer and what is added to the seed: legal inputs that most data do not have."""
_AGAIN: tuple[tuple[Distribution, int | None, int], ...] = (
    (Distribution.REVERSED, None, 0),
    (Distribution.NORMAL, None, 1),
    (Distribution.NORMAL, None, 2),
    (Distribution.WHOLE, None, 0),
    (Distribution.WHOLE, None, 1),
    (Distribution.ONE_INDEX, None, 0),
)
"""The same of further attempts with programs of few elements: an error may show on some inputs alone, as where the
largest element is not on the first rank, or where it is there twice.
"""
_CHEAP = 100_000
_DEAR = 1_000_000
"""Elements from which on the output to be shown is the one that is computed first."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """Inputs on which ``output`` differs, with what it takes to compute and compare it again.

    ``tangents``: how the cotangents lie on the ranks. ``candidates``: the placements under any of which the output may
    be the spec's. ``scale``: how often the spec's value it is. ``seed``: of the parts of partial inputs.
    """

    output: str
    inputs: Inputs
    tangents: Mapping[str, tuple[Placement, ...]]
    candidates: Sequence[tuple[Placement, ...]]
    scale: int
    tolerance: float
    seed: int


@dataclasses.dataclass(frozen=True)
class Witness:
    """An input on which the implementation is wrong.

    ``output``: name of the program output. ``rank``: the rank that holds (or, for a partial value, takes part in) the
    element ``index`` of the spec's output, which should be ``spec_value`` and is ``impl_value``; both are NaN where
    the shapes differ (see ``detail``). ``inputs``: name -> the spec's whole input.
    ``seed``: reproduces the inputs. ``tolerance``: largest difference that rounding could explain. ``premise``: what
    sets the inputs apart from those on which no difference was found. ``shown``: the inputs themselves. ``suspected``:
    all outputs that may differ on the inputs from which these were made; every other one was equal or not comparable.
    """

    output: str
    rank: int
    index: tuple[int, ...]
    spec_value: float
    impl_value: float
    inputs: Mapping[str, torch.Tensor] = dataclasses.field(compare=False)
    seed: int
    max_abs_difference: float
    tolerance: float = 0.0
    detail: str = ""
    premise: str = ""
    shown: Difference | None = dataclasses.field(default=None, compare=False, repr=False)
    suspected: frozenset[str] = dataclasses.field(default=frozenset(), compare=False, repr=False)


def find_witness(
    spec: Program,
    implementation: Program,
    *,
    seed: int = 0,
    max_elements: int = DEFAULT_MAX_ELEMENTS,
    output: str = "",
    simplify: bool = True,
) -> Witness | None:
    """A witness that the implementation does not refine the spec, or None where none was found.

    Both graphs are evaluated in float64 on the CPU, the implementation on all ranks. None does not mean equality:
    the graphs may be too large (more than ``max_elements`` elements over all ranks), random, or not evaluable.
    ``output``: the one to be shown where it is among those that differ and the programs are not large.
    ``simplify``: whether to look for inputs of fewer and smaller numbers.
    """
    cost = max(elements(spec), elements(implementation))
    if cost > min(max_elements, most_elements()):
        return None
    agreed = False
    with real_tensors():
        for distribution, index_limit, shift in attempts(spec, cost):
            if agreed and (distribution, index_limit) in _ATTEMPTS and not shift:
                continue
            try:
                inputs = draw(spec, implementation, seed + shift, distribution, index_limit)
                compared = _compared(spec, implementation, inputs, seed + shift, is_dear=cost >= _DEAR)
            except EvaluationError:
                continue
            wrong = _different(compared)
            if wrong:
                chosen = next((item for item in wrong if item.name == output), wrong[0])
                if cost >= _DEAR:
                    chosen = _computed_first(implementation, wrong)
                found = Found(inputs, compared, chosen)
                if simplify:
                    found = minimised(spec, implementation, found, seed=seed + shift, cost=cost)
                premise = premise_of(spec, found.inputs) if agreed else ""
                witness = _witness(found, implementation, seed=seed + shift, premise=premise)
                return dataclasses.replace(witness, suspected=frozenset(item.name for item in wrong))
            agreed = agreed or all(item.agreement is Agreement.EQUAL for item in compared.outputs.values())
    return None


def _different(compared: Compared) -> list[OutputComparison]:
    return [result for result in compared.outputs.values() if result.agreement is Agreement.DIFFERENT]


def _compared(spec: Program, implementation: Program, inputs: Inputs, seed: int, *, is_dear: bool) -> Compared:
    """How the outputs compare. Where they are dear, what rounding explains is measured of the one to be shown alone."""
    if not is_dear:
        return compare_programs(spec, implementation, inputs, seed)
    suspected = compare_programs(spec, implementation, inputs, seed, certain=False)
    wrong = _different(suspected)
    if not wrong:
        return suspected
    first = _computed_first(implementation, wrong).name
    measured = compare_programs(spec, implementation, inputs, seed, only=first, before=suspected)
    if measured.outputs[first].agreement is not Agreement.DIFFERENT:
        return compare_programs(spec, implementation, inputs, seed, before=suspected)
    return dataclasses.replace(
        measured,
        outputs={**suspected.outputs, **measured.outputs},
        candidates={**suspected.candidates, **measured.candidates},
        scales={**suspected.scales, **measured.scales},
    )


def attempts(spec: Program, cost: int) -> tuple[tuple[Distribution, int | None, int], ...]:
    """Distribution, largest integer and what is added to the seed, of each input to try.

    ``cost``: elements of the programs' values.
    """
    edges = tuple(attempt for attempt in _EDGES if applies(spec, attempt[0]))
    return (*((*attempt, 0) for attempt in _ATTEMPTS), *edges, *(_AGAIN if cost <= _CHEAP else ()))


def _computed_first(implementation: Program, wrong: Sequence[OutputComparison]) -> OutputComparison:
    """Of a large program's outputs that differ, the one that the fewest layers lie in front of."""
    places = {node: place for place, node in enumerate(implementation.graph.graph.nodes)}
    of_outputs = {output.name: places[output.node] for output in implementation.outputs}
    return min(wrong, key=lambda item: of_outputs.get(item.name, len(places)))


def compare_outputs(
    spec: Program, implementation: Program, seed: int = 0, kinds: int | None = None, most_work: float = math.inf
) -> dict[str, OutputComparison]:
    """How each output of the spec compares on one random input. Raises :class:`EvaluationError`.

    ``kinds``: how many kinds of parts the ranks along an axis hold, of each its own where that is None. ``most_work``:
    elements of the implementation, with which the evaluation ends; outputs that are missing then are unknown.
    """
    with real_tensors():
        inputs = draw(spec, implementation, seed, Distribution.NORMAL, None)
        inputs = inputs if kinds is None else of_few_kinds(inputs, implementation, kinds)
        return dict(compare_programs(spec, implementation, inputs, seed, most_work=most_work).outputs)


def _witness(found: Found, implementation: Program, *, seed: int, premise: str) -> Witness:
    result, compared, inputs = found.result, found.compared, found.inputs
    ranks = implementation.mesh.ranks if implementation.mesh is not None else (0,)
    values = {**inputs.spec, **{f"cotangent of {name}": value for name, value in inputs.tangents.items()}}
    shown = Difference(
        output=result.name,
        inputs=inputs,
        tangents=compared.tangents,
        candidates=compared.candidates[result.name],
        scale=compared.scales.get(result.name, 1),
        tolerance=result.tolerance,
        seed=seed,
    )
    return Witness(
        output=result.name,
        rank=ranks[result.rank],
        index=result.index,
        spec_value=result.spec_value,
        impl_value=result.impl_value,
        inputs=values,
        seed=seed,
        max_abs_difference=result.max_abs_difference,
        tolerance=result.tolerance,
        detail=_detail(result, implementation.mesh),
        premise=premise,
        shown=shown,
    )


def _detail(result: OutputComparison, mesh: Mesh | None) -> str:
    """How the output was compared, on the axes of the user's mesh."""
    if result.under is None or mesh is None:
        return result.detail
    placed = describe_placements(result.under, mesh)
    return f"{result.detail}, with {placed}" if result.detail else placed
