"""Collectives written by hand: the right programs verify, forward and backward, and the wrong ones are refuted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from torch import nn

from tests.programs.hand_written import DEFAULT, SWEEP, HandWritten
from tests.support import fake_world
from verifycompile import Verdict
from verifycompile.capture import capture_model
from verifycompile.diagnostics.report import Report
from verifycompile.options import Options
from verifycompile.pipeline import verify_captured
from verifycompile.program import OutputKind
from verifycompile.witness import find_witness

PROGRAMS = [(program, ()) for program in DEFAULT] + [(program, (pytest.mark.sweep,)) for program in SWEEP]
MUTANTS = [
    pytest.param(program, build, program.mutant_options.get(name, {}), id=f"{program.name}: {name}", marks=marks)
    for program, marks in PROGRAMS
    for name, build in program.mutants.items()
]


def judged(program: HandWritten, build: Callable[[], nn.Module], changed: Mapping[str, Any]) -> tuple[Report, bool]:
    """The report, and whether numbers refute the program."""
    with fake_world(program.world, program.rank):
        options = Options.from_mapping({**program.options, **changed, "spec": program.spec(), "build": build})
        spec, implementation = capture_model(build(), program.args(), {}, options)
        report = verify_captured(spec, implementation, options)
        gradients = {output.name for output in spec.outputs if output.kind is OutputKind.GRADIENT}
        if report:
            assert gradients <= report.relations.keys()
        assert {f"grad.{name}" for name, _ in program.spec().named_parameters()} <= gradients
        return report, not implementation.ranks and find_witness(spec, implementation) is not None


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("program", [pytest.param(p, id=p.name, marks=marks) for p, marks in PROGRAMS])
def test_verifies(program: HandWritten) -> None:
    report, refuted = judged(program, program.model, {})
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert not refuted
    assert len(program.mutants) >= 3


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize(("program", "build", "changed"), MUTANTS)
def test_mistake_is_refuted(program: HandWritten, build: Callable[[], nn.Module], changed: Mapping[str, Any]) -> None:
    report, _ = judged(program, build, changed)
    assert report.verdict is Verdict.REFUTED, str(report)
