"""A witness at reduced sizes, for programs whose own sizes are too large to evaluate."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager

from verifycompile.program import Program
from verifycompile.reduction.constants import Number, unexplained
from verifycompile.reduction.reduce import KEPT, Reduced, reduce_sizes
from verifycompile.reduction.rewrite import UnreducibleError
from verifycompile.torch_interface.operators.elements import real_tensors
from verifycompile.torch_interface.rank_threads.operator_threads import one_thread
from verifycompile.witness import Agreement, EvaluationError, Witness, compare_outputs, find_witness
from verifycompile.witness.comparison import PERMUTED
from verifycompile.witness.cost import DEFAULT_MAX_ELEMENTS, elements, most_elements
from verifycompile.witness.draw import Distribution, draw
from verifycompile.witness.inputs import Inputs, tangent_inputs, tensor_inputs, traced_shape
from verifycompile.witness.side_by_side import compare_programs

UNPROVED = "so this is unproved, not refuted"
NOT_REFUTED = f"no concrete input was found on which the programs differ, {UNPROVED}"
TOO_LARGE = "the programs are too large to evaluate"
_MOST_NAMED = 8
_RAISED = ("out of range", "out of bounds", "is invalid for input of size", "must match the size", "size mismatch")
"""What torch's operators say of indices and shapes that do not fit."""
_SMALLEST = 2
_CHEAP = 1_000_000
"""Elements of an evaluation up to which it can be repeated often enough to make a difference small."""
_MOST_READINGS = 32
_FAR = (KEPT // _SMALLEST) ** 2
"""A second look goes no further where two dimensions of every value would have to become as small as they can."""


@dataclasses.dataclass(frozen=True)
class Search:
    """What a search for a difference found.

    ``witness``: of a difference of ``spec`` and ``implementation``, or None. These are the programs themselves, or the
    ones at reduced sizes; ``note`` says which sizes were reduced, or why no difference is shown.
    """

    witness: Witness | None
    spec: Program
    implementation: Program
    note: str = ""


def find_difference(
    spec: Program,
    implementation: Program,
    proved: Collection[str] = (),
    *,
    output: str = "",
) -> Search:
    """A difference of the programs at their own sizes, or at reduced ones where those are too large to evaluate.

    ``proved``: names of the outputs that are proved equal. ``output``: the one to be shown where it differs. A
    difference at reduced sizes has a control: what is proved agrees there too, and the programs differ however the
    numbers in them that may come from sizes are read.
    """
    max_elements = most_elements()
    if max(elements(spec), elements(implementation)) <= max_elements:
        with _threads(spec, implementation):
            return _at_own_sizes(spec, implementation, output, max_elements)
    found = Search(None, spec, implementation, f"{TOO_LARGE}, and no smaller sizes were found; {UNPROVED}")
    for apart, joined in ((False, False), (True, False), (False, True)):
        reduced = evaluable(spec, implementation, max_elements, apart=apart, joined=joined)
        if reduced is not None:
            with _threads(reduced.spec, reduced.implementation):
                found = _at_reduced_sizes(reduced, proved, output, max_elements)
        if found.witness is not None:
            break
    return found


def _threads(spec: Program, implementation: Program) -> AbstractContextManager[None]:
    """How an evaluation of both programs uses the machine."""
    is_cheap = max(elements(spec), elements(implementation)) <= _CHEAP
    return one_thread() if is_cheap else contextlib.nullcontext()


def _at_reduced_sizes(reduced: Reduced, proved: Collection[str], output: str, max_elements: int) -> Search:
    programs, sizes = (reduced.spec, reduced.implementation), described_sizes(reduced)
    witness = find_witness(*programs, max_elements=max_elements, output=output)
    if witness is None:
        return Search(None, *programs, f"{TOO_LARGE}; at reduced sizes ({sizes}) {_not_refuted(*programs)}")
    doubt = _doubt(reduced, witness, proved, max_elements)
    if doubt:
        may = f"that they differ at reduced sizes ({sizes}) may come from the reduction: {doubt}"
        return Search(None, *programs, f"{TOO_LARGE}; {may}; {UNPROVED}")
    return Search(witness, *programs, f"{TOO_LARGE}: the difference is shown at reduced sizes ({sizes})")


def programs_to_evaluate(spec: Program, implementation: Program) -> tuple[Program, Program] | None:
    """The programs, at reduced sizes where their own are too large to evaluate; None where there are none."""
    if max(elements(spec), elements(implementation)) <= DEFAULT_MAX_ELEMENTS:
        return spec, implementation
    reduced = evaluable(spec, implementation, DEFAULT_MAX_ELEMENTS)
    return None if reduced is None else (reduced.spec, reduced.implementation)


def _at_own_sizes(spec: Program, implementation: Program, output: str, max_elements: int) -> Search:
    """Of programs that can be evaluated. Where many evaluations would take long, it is shown at reduced sizes."""
    is_cheap = max(elements(spec), elements(implementation)) <= _CHEAP
    witness = find_witness(spec, implementation, max_elements=max_elements, output=output, simplify=is_cheap)
    if witness is None:
        return Search(None, spec, implementation, _not_refuted(spec, implementation))
    if is_cheap:
        return Search(witness, spec, implementation)
    reduced = evaluable(spec, implementation, _CHEAP, apart=False)
    shown = None
    if reduced is not None:
        shown = find_witness(reduced.spec, reduced.implementation, output=witness.output)
    if reduced is None or shown is None or shown.output != witness.output:
        witness = find_witness(spec, implementation, max_elements=max_elements, output=witness.output)
        return Search(witness, spec, implementation)
    sizes = described_sizes(reduced)
    note = f"the programs differ at their own sizes; the numbers shown are those at reduced sizes ({sizes})"
    return Search(shown, reduced.spec, reduced.implementation, note)


def _not_refuted(spec: Program, implementation: Program) -> str:
    """Why no difference is shown: there may be one in the order of elements."""
    with contextlib.suppress(EvaluationError):
        for name, result in compare_outputs(spec, implementation).items():
            if result.detail == PERMUTED:
                order = f"`{name}` has the spec's elements in another order, and no layout of it is asked for"
                return f"{order}, {UNPROVED}; pass its layout (`out_placements`, `out_relations` of graphs)"
    return NOT_REFUTED


def described_sizes(reduced: Reduced) -> str:
    """The sizes that changed, the largest first."""
    changed = [f"{old} -> {new}" for old, new in reversed(reduced.sizes)]
    rest = len(changed) - _MOST_NAMED
    return ", ".join(changed[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def evaluable(
    spec: Program,
    implementation: Program,
    max_elements: int = DEFAULT_MAX_ELEMENTS,
    pinned: Mapping[int, str] | None = None,
    *,
    apart: bool = True,
    joined: bool = False,
    kinds: int | None = None,
) -> Reduced | None:
    """Both programs at reduced sizes that can be evaluated, or None.

    ``kinds``: how many kinds of ranks there are, where some share an evaluation.
    ``apart``: whether different sizes stay different where they can, which hides fewer errors than the smallest sizes.
    ``joined``: whether equal sizes stay equal everywhere.
    """
    for kept in (KEPT, _SMALLEST):
        reduced = reduce_sizes(spec, implementation, kept=kept, pinned=pinned, apart=apart, joined=joined)
        if reduced is None:
            continue
        cost = max(elements(reduced.spec), elements(reduced.implementation, kinds))
        if cost <= max_elements:
            return reduced
        if kinds is not None and cost > _FAR * max_elements:
            return None
    return None


def _doubt(reduced: Reduced, witness: Witness, proved: Collection[str], max_elements: int) -> str:
    """Why a difference at reduced sizes may be none at the programs' own; empty where it is one."""
    broken = sorted(_broken(reduced, witness, proved))
    if broken:
        return f"`{broken[0]}` is proved equal, and differs at the reduced sizes"
    count = math.prod(len(reading.alternatives()) for reading in reduced.readings)
    if count > _MOST_READINGS:
        return f"{len(reduced.readings)} numbers of the programs may come from sizes that were reduced"
    for chosen in _further_readings(reduced):
        try:
            programs = reduced.read_as(chosen)
        except UnreducibleError:
            continue
        if _differ_as_shown(*programs, witness) or _is_impossible(*programs):
            continue
        if not _differ_on_any(*programs, max_elements):
            return f"the programs agree at the reduced sizes where {_described(reduced, chosen)}"
    return _unrestored(reduced, witness, max_elements)


def _broken(reduced: Reduced, witness: Witness, proved: Collection[str]) -> frozenset[str]:
    """Outputs that are proved equal and differ at the reduced sizes."""
    suspected = (witness.suspected | {witness.output}) & frozenset(proved)
    if not suspected:
        return suspected
    try:
        agreements = compare_outputs(reduced.spec, reduced.implementation)
    except EvaluationError:
        agreements = {}
    differing = frozenset(name for name, result in agreements.items() if result.agreement is Agreement.DIFFERENT)
    return (differing | {witness.output}) & frozenset(proved)


def _differ_as_shown(spec: Program, implementation: Program, witness: Witness) -> bool:
    """Whether the programs differ in one output on the inputs that are known, or on ordinary ones: quickly seen."""
    output, known = witness.output, None if witness.shown is None else witness.shown.inputs
    with real_tensors():
        for given in (known, None) if known is not None and _fit(known, spec) else (None,):
            with contextlib.suppress(EvaluationError):
                inputs = given or draw(spec, implementation, 0, Distribution.NORMAL, None)
                found = compare_programs(spec, implementation, inputs, 0, only=output).outputs.get(output)
                if found is not None and found.agreement is Agreement.DIFFERENT:
                    return True
    return False


def _differ_on_any(spec: Program, implementation: Program, max_elements: int) -> bool:
    return find_witness(spec, implementation, max_elements=max_elements, simplify=False) is not None


def _fit(inputs: Inputs, spec: Program) -> bool:
    """Whether inputs are of the sizes of a program."""
    entries = {**tensor_inputs(spec), **{f"cotangent {name}": entry for name, entry in tangent_inputs(spec).items()}}
    values = {**inputs.spec, **{f"cotangent {name}": value for name, value in inputs.tangents.items()}}
    return entries.keys() == values.keys() and all(
        traced_shape(entry, inputs.sizes) == tuple(values[name].shape) for name, entry in entries.items()
    )


def _is_impossible(spec: Program, implementation: Program) -> bool:
    """Whether a program raises on inputs that its sizes allow: then its numbers are not what they were read as."""
    results = compare_outputs(spec, implementation).values()
    return any(raised in result.detail for result in results for raised in _RAISED)


def _further_readings(reduced: Reduced) -> Iterator[dict[Number, Number]]:
    """Every reading of the numbers but the one that was taken: each may be a size, or no more than a number."""
    choices = [reading.alternatives() for reading in reduced.readings]
    for chosen in itertools.islice(itertools.product(*choices), 1, None):
        yield {number: new for reading in chosen for number, new in reading.items()}


def _described(reduced: Reduced, chosen: Mapping[Number, Number]) -> str:
    """A reading in words."""
    taken = {number: new for reading in reduced.readings for number, new in reading.taken.items()}
    changes = [
        f"{number} stays" if number == new else f"{number} becomes {new}"
        for number, new in chosen.items()
        if new != taken[number]
    ]
    return f"in their arithmetic {', '.join(changes)}"


def _unrestored(reduced: Reduced, witness: Witness, max_elements: int) -> str:
    """Whether a number that only one of the programs has may come from a size in a way that is not understood.

    Then the programs must differ also where each size in turn is the real one.
    """
    known = {number for reading in reduced.readings for number in reading.numbers}
    numbers = unexplained(reduced.source, reduced.solution, known)
    if not numbers:
        return ""
    for size, _ in reduced.sizes:
        restored = evaluable(*reduced.source, max_elements, {size: "restored"})
        if restored is None:
            return f"the number {numbers[0]} may come from the size {size}, and with that size they cannot be evaluated"
        programs = restored.spec, restored.implementation
        if not (_differ_as_shown(*programs, witness) or _differ_on_any(*programs, max_elements)):
            return f"the programs agree where the size {size} stays"
    return ""
