"""``python -m benchmarks refusals``: what a refusal costs, against the proof of the program without the mistake.

Both in seconds of the processor, in one process: the proof once, then for each mistake all that follows capture (proof
attempt, search for an input, causes with the proofs of their repairs, script). The programs are those of the tests with
the mistakes of the tests, and programs of real size in whose captured graph one collective is missing.

``--cases FOLDER`` takes the programs of a folder instead (``case_folder.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import runpy
import statistics
import sys
import time
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.case_folder import programs_in, run
from benchmarks.programs import PROGRAMS
from tests.mutants.edits import ALL_REDUCE, REDUCE_SCATTER, drop, nodes_of
from tests.mutants.mutant import captured
from tests.mutants.table import MUTANTS
from verifycompile import Verdict, bounds
from verifycompile.capture import capture_model
from verifycompile.diagnostics.finding import Sparse
from verifycompile.options import Options
from verifycompile.process_memory import peak_memory
from verifycompile.program import Program
from verifycompile.refinement.check import check_refinement
from verifycompile.testing import fake_mesh
from verifycompile.two_programs import verify_programs

MOST_PROOFS = 10
LEAST_SECONDS = 10.0
"""A refusal may cost so many proofs, or so many seconds, whichever is more."""
REAL = (("mlp", 2, 8), ("llama-3-8b", 1, 8), ("llama-3-8b", 2, 8))
"""Program, layers, degree."""


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Seconds are of the processor. ``numbers``: of the counterexample that are not 0, None where there is none."""

    program: str
    mistake: str
    verdict: str
    code: str
    proof: float
    refusal: float
    numbers: int | None

    @property
    def ratio(self) -> float:
        return self.refusal / self.proof

    @property
    def is_within(self) -> bool:
        return self.refusal <= max(MOST_PROOFS * self.proof, LEAST_SECONDS)


def of_the_tests(part: str) -> Iterator[Refusal]:
    """The mistakes of the tests that the verifier refuses and whose name contains ``part``."""
    proofs: dict[str, float] = {}
    for mutant in MUTANTS:
        if part not in mutant.name:
            continue
        right = captured(mutant.original, mutant.original)
        wrong = right if mutant.changed is None else captured(mutant.changed, mutant.original)
        if mutant.edit is not None:
            wrong = (wrong[0], mutant.edit(wrong[1]))
        if mutant.original.name not in proofs:
            proofs[mutant.original.name] = _proof(*right)
        mistake = f"{mutant.kind}: {mutant.detail}"
        yield from _refused(mutant.original.name, mistake, proofs[mutant.original.name], wrong)


def of_real_size(part: str) -> Iterator[Refusal]:
    """Each reduction of programs of real size left out, one at a time."""
    for name, layers, degree in REAL:
        label = f"{name}, {layers} layers, degree {degree}"
        if part not in label:
            continue
        with fake_mesh({"tp": degree}) as mesh:
            model = PROGRAMS[name].parallel(layers, mesh)
            spec, implementation = capture_model(model, PROGRAMS[name].inputs(), {}, Options())
        proof = _proof(spec, implementation)
        for target, word in ((ALL_REDUCE, "all-reduce"), (REDUCE_SCATTER, "reduce-scatter")):
            for backward in (False, True):
                for position in range(len(nodes_of(implementation, target, backward=backward))):
                    mistake = f"drop: {word}-{'backward' if backward else 'forward'}-{position}"
                    wrong = drop(target, position, backward)(implementation)
                    yield from _refused(label, mistake, proof, (spec, wrong))


def of_folder(folder: pathlib.Path, part: str) -> Iterator[Refusal]:
    """The wrong programs of a folder that are refused, beside the proofs of their right forms."""
    for file in programs_in(folder):
        if part not in file.stem:
            continue
        (_, proof), (said, refusal) = (_run(file, form) for form in ("good", "bad"))
        if not said.get("findings"):
            continue
        verdict, code = said["verdict"].lower(), said["findings"][0]["code"]
        yield Refusal(folder.name, file.stem, verdict, code, proof, refusal, None)


def _run(file: pathlib.Path, form: str) -> tuple[Mapping[str, Any], float]:
    """What one form of a program of a folder says, and the seconds that it took after capture."""
    program = f"from benchmarks import refusals; refusals.measure({file.name!r}, {form!r})"
    ran = run(file, "-c", program, path=str(pathlib.Path(__file__).parents[1]))
    seconds = [float(line.removeprefix(_SECONDS)) for line in ran.lines if line.startswith(_SECONDS)]
    return ran.answer, sum(seconds)


_SECONDS = "seconds of the processor after capture: "


def measure(file: str, form: str) -> None:
    """Runs a program of a folder in this process, and prints what everything that is limited takes of the processor."""
    limited = bounds.limited

    @contextlib.contextmanager
    def measured(limits: bounds.Limits) -> Generator[bounds.Bounds]:
        is_outermost, started = bounds.current() is None, time.process_time()
        with limited(limits) as found:
            yield found
        if is_outermost:
            print(f"{_SECONDS}{time.process_time() - started}", flush=True)

    bounds.limited = measured
    sys.argv = [file, form]
    sys.path.insert(0, "")
    runpy.run_path(file, run_name="__main__")


def _proof(spec: Program, implementation: Program) -> float:
    """Seconds of the proof of a right program, the second time, when nothing is imported on the way."""
    seconds = 0.0
    for _ in range(2):
        started = time.process_time()
        if check_refinement(spec, implementation).mismatch is not None:
            raise ValueError("a program that should be right is not proved")
        seconds = time.process_time() - started
    return seconds


def _refused(program: str, mistake: str, proof: float, wrong: tuple[Program, Program]) -> Iterator[Refusal]:
    started = time.process_time()
    report = verify_programs(*wrong, Options())
    seconds = time.process_time() - started
    if report.verdict is Verdict.VERIFIED:
        return
    finding = report.findings[0]
    found = finding.counterexample
    numbers = None if found is None else sum(_numbers(value) for value in found.inputs.values())
    yield Refusal(program, mistake, report.verdict.value, finding.code, proof, seconds, numbers)


def _numbers(value: object) -> int:
    if isinstance(value, Sparse):
        return len(value.elements)
    if isinstance(value, (list, tuple)):
        return sum(_numbers(item) for item in value)
    return 1 if isinstance(value, str) or value else 0


HEADER = (
    "program",
    "mistakes",
    "refuted",
    "proof s",
    "median refusal s",
    "largest s",
    "largest ratio",
    "over",
    "numbers",
)


def rows(refusals: Iterable[Refusal]) -> list[tuple[str, ...]]:
    """One row for each program, in the order of ``HEADER``."""
    of_program: dict[str, list[Refusal]] = {}
    for refusal in refusals:
        of_program.setdefault(refusal.program, []).append(refusal)
    return [
        (
            name,
            str(len(found)),
            str(sum(item.verdict == Verdict.REFUTED.value for item in found)),
            f"{found[0].proof:.2f}",
            f"{statistics.median(item.refusal for item in found):.2f}",
            f"{max(item.refusal for item in found):.2f}",
            f"{max(item.ratio for item in found):.1f}",
            str(sum(not item.is_within for item in found)),
            str(max((item.numbers or 0 for item in found), default=0)),
        )
        for name, found in of_program.items()
    ]


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 where every refusal costs no more than it may."""
    from benchmarks.__main__ import table

    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(prog="python -m benchmarks refusals", description=__doc__)
    parser.add_argument("--only", default="", metavar="PART", help="programs and mistakes whose name contains PART")
    parser.add_argument("--cases", type=pathlib.Path, metavar="FOLDER", help="programs of a folder instead")
    parser.add_argument("--json", action="store_true", help="one JSON object for each refusal instead of the table")
    chosen = parser.parse_args(arguments)
    found: list[Refusal] = []
    refusals = _all(chosen.only) if chosen.cases is None else of_folder(chosen.cases, chosen.only)
    for refusal in refusals:
        found.append(refusal)
        line = {**dataclasses.asdict(refusal), "ratio": refusal.ratio, "within": refusal.is_within}
        print(json.dumps(line), file=sys.stdout if chosen.json else sys.stderr, flush=True)
    if not chosen.json:
        print(table(HEADER, rows(found)))
        print(f"\npeak memory: {peak_memory() / 2**30:.2f} GiB")
    return 0 if all(refusal.is_within for refusal in found) else 1


def _all(part: str) -> Iterator[Refusal]:
    yield from of_the_tests(part)
    yield from of_real_size(part)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
