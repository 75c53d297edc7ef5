"""The second opinion on programs of the corpus beside their proofs. ``python -m tests.symbolic.opinions [part of a name]``.

Prints the table; the exit status is 1 where an opinion contradicts a proof, which no release may have.
"""

from __future__ import annotations

import dataclasses
import sys
import time
import warnings
from collections.abc import Sequence

from tests.programs.captured import capture
from tests.programs.case import Case
from tests.programs.corpus import DEFAULT
from tests.support import fake_mesh_world
from verifycompile import Verdict
from verifycompile.options import Options
from verifycompile.refinement.check import check_refinement
from verifycompile.symbolic.check import cross_check_programs


@dataclasses.dataclass(frozen=True)
class Opinion:
    """``proof``, ``opinion``: the two verdicts. ``seconds``: of the processor, for the opinion. ``reason``: for none."""

    name: str
    proof: Verdict
    opinion: Verdict
    seconds: float
    elements: int
    questions: int
    reason: str

    @property
    def contradicts(self) -> bool:
        return {self.proof, self.opinion} == {Verdict.VERIFIED, Verdict.REFUTED}

    def row(self) -> str:
        cells = f"{self.name:28} {self.proof.value:9} {self.opinion.value:9} {self.seconds:7.1f} {self.elements:9}"
        return f"{cells} {self.questions:5} {self.reason}".rstrip()


def opinion(case: Case) -> Opinion:
    """Both verdicts on one program."""
    with fake_mesh_world(case.mesh_shape, case.mesh_names) as mesh:
        spec, implementation = capture(case, mesh)
    is_proved = check_refinement(spec, implementation).mismatch is None
    started = time.process_time()
    report = cross_check_programs(spec, implementation, Options(time_limit=1200.0))
    return Opinion(
        case.name,
        Verdict.VERIFIED if is_proved else Verdict.UNPROVED,
        report.verdict,
        time.process_time() - started,
        sum(output.elements for output in report.outputs),
        report.questions,
        report.findings[0].message if report.findings else "",
    )


def main(arguments: Sequence[str]) -> int:
    """Prints a row for each program whose name contains what is given."""
    warnings.filterwarnings("ignore")
    part = arguments[0] if arguments else ""
    sys.stdout.write(f"{'program':28} {'proof':9} {'opinion':9} {'seconds':>7} {'elements':>9} {'asked':>5} reason\n")
    found: list[Opinion] = []
    for case in DEFAULT:
        if part in case.name:
            found.append(opinion(case))
            sys.stdout.write(f"{found[-1].row()}\n")
            sys.stdout.flush()
    wrong = [item.name for item in found if item.contradicts]
    counts = {verdict.value: sum(item.opinion is verdict for item in found) for verdict in Verdict}
    seconds = sum(item.seconds for item in found)
    sys.stdout.write(
        f"{len(found)} programs: {counts}, {seconds:.0f} s; contradictions: {', '.join(wrong) or 'none'}\n"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
