"""One measurement, in a process of its own: nothing is warm, and peak memory is that of this program alone."""

from __future__ import annotations

import dataclasses
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Point:
    """What is measured: a program, its number of layers, its degree of tensor parallelism."""

    program: str
    layers: int
    degree: int


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Seconds are wall-clock; memory is the process's peak in GiB, and what the process held before the capture."""

    point: Point
    verdict: str
    spec_nodes: int
    implementation_nodes: int
    spec_capture_seconds: float
    implementation_capture_seconds: float
    proof_seconds: float
    second_look_seconds: float
    peak_memory: float
    memory_before: float
    stages: Mapping[str, Mapping[str, float]]
    """``StageCost`` of every stage, as data."""

    @property
    def beyond_reading(self) -> float:
        """Seconds of the proof without those that went into reading the graphs' nodes."""
        return self.proof_seconds - self.stages["reading"]["seconds"]

    @property
    def capture_seconds(self) -> float:
        """Seconds of the capture of both graphs."""
        return self.spec_capture_seconds + self.implementation_capture_seconds


def measure_here(point: Point) -> Measurement:
    """Capture and verify one program in this process, under a fake process group."""
    import verifycompile
    from benchmarks.programs import PROGRAMS
    from verifycompile.testing import fake_mesh

    program = PROGRAMS[point.program]
    with fake_mesh({"tp": point.degree}) as mesh:
        model = program.parallel(point.layers, mesh)
        before = _peak_memory()
        report = verifycompile.verify(model, program.inputs())
    if not report:
        print(report, file=sys.stderr)
    stats = report.stats
    seconds = {stage.name: stage.seconds for stage in stats.attempts}
    return Measurement(
        point=point,
        verdict=report.verdict.value,
        spec_nodes=stats.spec_nodes,
        implementation_nodes=stats.implementation_nodes,
        spec_capture_seconds=stats.spec_capture_seconds,
        implementation_capture_seconds=stats.implementation_capture_seconds,
        proof_seconds=seconds["the proof"],
        second_look_seconds=seconds.get("the second look", 0.0),
        peak_memory=_peak_memory(),
        memory_before=before,
        stages={name: dataclasses.asdict(cost) for name, cost in stats.stages.items()},
    )


def measure(point: Point, repetitions: int) -> Measurement:
    """The medians of ``repetitions`` measurements, one process each, one after the other.

    Raises ``RuntimeError`` where a process fails.
    """
    runs = [_measure_in_subprocess(point) for _ in range(repetitions)]
    middle = sorted(runs, key=lambda run: run.proof_seconds)[len(runs) // 2]
    return dataclasses.replace(
        middle,
        spec_capture_seconds=_median(runs, "spec_capture_seconds"),
        implementation_capture_seconds=_median(runs, "implementation_capture_seconds"),
        proof_seconds=_median(runs, "proof_seconds"),
        second_look_seconds=_median(runs, "second_look_seconds"),
        peak_memory=_median(runs, "peak_memory"),
        memory_before=_median(runs, "memory_before"),
    )


def _measure_in_subprocess(point: Point) -> Measurement:
    command = [sys.executable, "-m", "benchmarks.measure", point.program, str(point.layers), str(point.degree)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
    values = json.loads(done.stdout)
    return Measurement(point=Point(**values.pop("point")), **values)


def _median(runs: Sequence[Measurement], name: str) -> float:
    return statistics.median(getattr(run, name) for run in runs)


def _peak_memory() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**30 if sys.platform == "darwin" else peak / 2**20


def main(arguments: Sequence[str]) -> None:
    """``python -m benchmarks.measure PROGRAM LAYERS DEGREE`` prints one measurement as JSON."""
    program, layers, degree = arguments
    measurement = measure_here(Point(program, int(layers), int(degree)))
    print(json.dumps(dataclasses.asdict(measurement)))


if __name__ == "__main__":
    main(sys.argv[1:])
