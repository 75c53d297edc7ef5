"""``cross_check``: TrainVerify's method as a second opinion on a program."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from verifycompile import bounds
from verifycompile.bounds import RanOut
from verifycompile.capture import arguments_of_call, capture_model, model_or_built
from verifycompile.capture.data_parallel.own_losses import with_multiplied_sums, with_own_losses
from verifycompile.counterexamples import counterexample_of
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.options import Options
from verifycompile.program import Blocker, Program
from verifycompile.rank_programs import programs_of_all_ranks
from verifycompile.reduction import Reduced, reduce_sizes
from verifycompile.reduction.search import described_sizes, find_difference
from verifycompile.symbolic.compare import Compared, compare_elements
from verifycompile.symbolic.report import CrossCheckReport, OutputCheck
from verifycompile.torch_interface.dynamo.backend import without_override
from verifycompile.torch_interface.operators.evaluation import size_hint
from verifycompile.within_limits import limits_of
from verifycompile.witness import EvaluationError

MOST_OPERATIONS = 1_000_000
"""Of single elements, on all ranks together."""
_FEW_OPERATIONS = 20_000
_KEPT = (2, 4, 8)
"""Numbers up to these stay when sizes are reduced. Where the programs differ more stays, as the reduction may err."""
_SHARE = 0.5
"""Of the time that is left, for each choice of sizes."""
_UNDECIDED = "VC212"
_STAGE = "the comparison element by element"


def cross_check(
    model: Callable[..., Any] | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> CrossCheckReport:
    """Whether ``model`` computes what its spec computes, element by element on all ranks: a second opinion.

    Both programs are captured as for ``verify``, their sizes are reduced where they are large, and every element of
    every value is an expression in the elements of the inputs. Expressions that are not the same are asked of z3. Of
    the proof behind ``verify`` nothing is used, and what is found holds for the sizes compared, for all real inputs,
    and for the whole numbers and flags that were drawn. ``options`` are those of the backend.
    Raises ``UsageError`` where the question is incomplete or contradictory.
    """
    checked = Options.from_mapping(options)
    positional, named = arguments_of_call(args, kwargs)
    with without_override(), model_or_built(model, checked) as own:
        spec, implementation = capture_model(own, positional, named, checked)
    return cross_check_programs(spec, implementation, checked)


def cross_check_programs(spec: Program, implementation: Program, options: Options) -> CrossCheckReport:
    """``cross_check`` of two captured programs."""
    started = time.perf_counter()
    mesh = implementation.mesh
    with bounds.limited(limits_of(options, spec.seconds + implementation.seconds)):
        found = bounds.attempt(_STAGE, lambda: _checked(spec, implementation))
    if isinstance(found, RanOut):
        found = CrossCheckReport(Verdict.UNPROVED, findings=(_undecided(f"{found.describe()}"),))
    return dataclasses.replace(
        found,
        ranks=1 if mesh is None else len(mesh.ranks),
        seconds=time.perf_counter() - started,
        assumptions=tuple(dict.fromkeys((*spec.assumptions, *implementation.assumptions))),
    )


def _checked(spec: Program, implementation: Program) -> CrossCheckReport:
    blocked = _blockers(spec, implementation)
    if blocked and not implementation.ranks:
        return CrossCheckReport(Verdict.UNPROVED, findings=tuple(_undecided(b.message, b.code) for b in blocked))
    if implementation.ranks:
        merged = programs_of_all_ranks(spec, implementation)
        if isinstance(merged, str):
            return CrossCheckReport(Verdict.UNPROVED, findings=(_undecided(merged),))
        spec, implementation = merged
    last: CrossCheckReport | None = None
    for first, second, sizes in _at_some_sizes(spec, implementation):
        try:
            compared = bounds.attempt(_STAGE, functools.partial(compare_elements, first, second), _SHARE)
        except EvaluationError as error:
            return CrossCheckReport(Verdict.UNPROVED, findings=(_undecided(f"{error}."),), sizes=sizes)
        if isinstance(compared, RanOut):
            last = CrossCheckReport(Verdict.UNPROVED, findings=(_undecided(f"{compared.describe()}"),), sizes=sizes)
            continue
        own = with_own_losses(implementation, compared.relations)
        if own is not None:
            return _checked(spec, own)
        last = _report(compared, sizes)
        outside = with_multiplied_sums(implementation, compared.relations)
        if last.verdict is not Verdict.VERIFIED and outside is not None and _checked(spec, outside.program):
            finding = dataclasses.replace(_undecided(f"{outside.note}.", "VC103"), hint=outside.hint)
            return dataclasses.replace(last, findings=(finding, *last.findings))
        if last.verdict is Verdict.VERIFIED or not any(output.different for output in last.outputs):
            return last
    if last is None:
        message = "the programs are too large to compare element by element, and no smaller sizes were found."
        return CrossCheckReport(Verdict.UNPROVED, findings=(_undecided(message),))
    return _with_input(last, spec, implementation) if last.outputs else last


def _blockers(spec: Program, implementation: Program) -> list[Blocker]:
    """What makes the captured graphs other programs than the question is about."""
    return [blocker for blocker in (*spec.blockers, *implementation.blockers) if blocker.node is None]


def _at_some_sizes(spec: Program, implementation: Program) -> Iterator[tuple[Program, Program, str]]:
    """The programs at their own sizes where these are small, else at reduced ones, the smallest first."""
    own = operations(spec) + operations(implementation)
    if own <= _FEW_OPERATIONS:
        yield spec, implementation, ""
        return
    tried: list[tuple[tuple[int, int], ...]] = []
    for kept in _KEPT:
        reduced: Reduced | None = reduce_sizes(spec, implementation, kept=kept)
        if reduced is None or reduced.sizes in tried:
            continue
        tried.append(reduced.sizes)
        if operations(reduced.spec) + operations(reduced.implementation) <= MOST_OPERATIONS:
            sizes = f"at reduced sizes ({described_sizes(reduced)})"
            yield reduced.spec, reduced.implementation, sizes
    if own <= MOST_OPERATIONS:
        yield spec, implementation, ""


def operations(program: Program) -> int:
    """How many operations on single elements a comparison of the program takes, roughly."""
    ranks = len(program.mesh.ranks) if program.mesh is not None else 1
    total = 0
    for node in program.graph.graph.nodes:
        value = node.meta.get("val")
        values = value if isinstance(value, (list, tuple)) else [value]
        count = sum(_elements(item) for item in values)
        if "mm" in str(node.target) and node.all_input_nodes:
            operand = node.all_input_nodes[-1].meta.get("val")
            count *= int(operand.shape[-2]) if isinstance(operand, torch.Tensor) and operand.dim() > 1 else 1
        total += count
    return ranks * total


def _elements(value: Any) -> int:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return 0
    return math.prod(size_hint(size, {}) or 1 for size in value.shape)


def _report(compared: Compared, sizes: str) -> CrossCheckReport:
    outputs = compared.outputs
    if outputs and all(output.is_equal for output in outputs):
        return CrossCheckReport(Verdict.VERIFIED, outputs, sizes=sizes, questions=compared.questions)
    findings = tuple(_undecided(_described(output)) for output in outputs if not output.is_equal)
    findings = findings or (_undecided("there is no output to compare."),)
    return CrossCheckReport(Verdict.UNPROVED, outputs, findings, sizes, questions=compared.questions)


def _described(output: OutputCheck) -> str:
    if output.detail:
        return f"`{output.name}` was not compared: {output.detail}."
    return (
        f"`{output.name}`: {output.different} of {output.elements} elements differ, {output.undecided} are undecided."
    )


def _undecided(message: str, code: str = _UNDECIDED) -> Finding:
    return Finding(code=code, severity=Severity.ERROR, message=message)


def _with_input(report: CrossCheckReport, spec: Program, implementation: Program) -> CrossCheckReport:
    """The report as refuted, where a concrete input shows the difference."""
    name = next(output.name for output in report.outputs if output.different)
    search = find_difference(spec, implementation, output=name)
    if search.witness is None:
        return report
    finding = Finding(
        code="VC107",
        severity=Severity.ERROR,
        message=f"`{search.witness.output}` differs from the spec's",
        output=search.witness.output,
        verdict=Verdict.REFUTED,
        counterexample=counterexample_of(search.witness, search.implementation),
        notes=(search.note,) if search.note else (),
    )
    return dataclasses.replace(report, verdict=Verdict.REFUTED, findings=(finding, *report.findings))
