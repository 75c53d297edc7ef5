"""A wrong program made from a correct one, and what the oracle and the verifier say of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from tests.oracle import OracleVerdict, run_module, run_program
from tests.programs.captured import capture
from tests.programs.case import Case
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict
from verifycompile.options import Options
from verifycompile.program import Program
from verifycompile.two_programs import verify_programs


@dataclasses.dataclass(frozen=True)
class Mutant:
    """``kind``: what was done, the same word for every program it was done to.

    Exactly one of ``changed`` (another user program for the same spec) and ``edit`` (a change of the captured
    graph) is set. ``codes``: diagnostic codes that name the mistake well; empty where any will do.
    """

    kind: str
    detail: str
    original: Case
    changed: Case | None = None
    edit: Callable[[Program], Program] | None = None
    codes: frozenset[str] = frozenset()

    @property
    def family(self) -> str:
        """The program without its sizes: ``llama-block`` of ``llama-block-2``."""
        return self.original.name.rpartition("-")[0]

    @property
    def name(self) -> str:
        return f"{self.original.name}:{self.kind}:{self.detail}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The two verdicts side by side."""

    mutant: Mutant
    oracle: OracleVerdict
    report: Report

    @property
    def verdict(self) -> Verdict:
        return self.report.verdict

    @property
    def code(self) -> str:
        return self.report.findings[0].code if self.report.findings else ""

    def row(self) -> tuple[str, str, str]:
        return self.mutant.name, str(self.oracle), f"{self.verdict.name} {self.code}".strip()


@functools.cache
def captured(case: Case, spec: Case) -> tuple[Program, Program]:
    """Both programs of a case against the single-device model of ``spec``; captured once a process."""
    with fake_mesh_world(case.mesh_shape, case.mesh_names) as mesh:
        # A wrong style would otherwise also be believed on how the caller lays out the inputs.
        laid_out = spec if case.batch == spec.batch else case
        return capture(case, mesh, given_spec=spec, options={"in_placements": laid_out.input_placements()})


@functools.cache
def outcome(mutant: Mutant) -> Outcome:
    """Runs the oracle and the verifier; once a process for each mutant."""
    if mutant.changed is not None:
        oracle = run_module(mutant.changed, mutant.original)
        spec, implementation = captured(mutant.changed, mutant.original)
    else:
        assert mutant.edit is not None
        spec, implementation = captured(mutant.original, mutant.original)
        implementation = mutant.edit(implementation)
        with fake_mesh_world(mutant.original.mesh_shape, mutant.original.mesh_names) as mesh:
            oracle = run_program(spec, implementation, mesh)
    return Outcome(mutant, oracle, verify_programs(spec, implementation, Options()))
