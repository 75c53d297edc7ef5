"""One measurement: capture and verification of one program, in the process that runs it."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.programs import EIGHT_BILLION, Dimensions, parallel_mlp, parallel_transformer, small
from verifycompile import verify


@dataclasses.dataclass(frozen=True)
class Setting:
    """One row of the table. ``program``: mlp, transformer or transformer-8b."""

    program: str
    layers: int
    degree: int


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Seconds are wall-clock. ``peak_gib``: largest resident memory of the process."""

    setting: Setting
    verdict: str
    nodes_spec: int
    nodes_implementation: int
    capture_spec: float
    capture_implementation: float
    verification: float
    whole: float
    peak_gib: float

    @property
    def ratio(self) -> float:
        """Verification over the capture of both graphs."""
        return self.verification / (self.capture_spec + self.capture_implementation)


def build(setting: Setting, mesh: DeviceMesh) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The parallel model and one rank's inputs."""
    if setting.program == "mlp":
        return parallel_mlp(setting.degree, mesh), (torch.empty(8, 64),)
    d: Dimensions = EIGHT_BILLION if setting.program == "transformer-8b" else small(setting.degree)
    tokens = torch.zeros(d.batch, d.sequence, dtype=torch.int64)
    # Real dimensions, no real weights: parameters are allocated, never initialised nor read.
    with torch.device("meta") if setting.program == "transformer-8b" else torch.device("cpu"):
        if setting.program == "transformer-8b":
            model = parallel_transformer(d, setting.layers, mesh)
            return model.to_empty(device="cpu"), (tokens, tokens)
        return parallel_transformer(d, setting.layers, mesh), (tokens, tokens)


def measure(setting: Setting, repetitions: int) -> Measurement:
    """Median by verification time of several runs in this process; the process group is fake."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=setting.degree)
    mesh = init_device_mesh("cpu", (setting.degree,), mesh_dim_names=("tp",))
    model, inputs = build(setting, mesh)
    runs: list[Measurement] = []
    for _ in range(repetitions):
        torch._dynamo.reset()
        started = time.perf_counter()
        report = verify(model, inputs)
        whole = time.perf_counter() - started
        stats = report.stats
        runs.append(
            Measurement(
                setting,
                report.verdict.name,
                stats.spec_nodes,
                stats.implementation_nodes,
                stats.spec_capture_seconds,
                stats.implementation_capture_seconds,
                stats.verification_seconds,
                whole,
                stats.peak_memory / 2**30,
            )
        )
    middle = statistics.median_low([run.verification for run in runs])
    return next(run for run in runs if run.verification == middle)


def main() -> None:
    """``python -m benchmarks.measure PROGRAM LAYERS DEGREE REPETITIONS``: one measurement as JSON."""
    warnings.filterwarnings("ignore")
    program, layers, degree, repetitions = sys.argv[1:]
    result = measure(Setting(program, int(layers), int(degree)), int(repetitions))
    print(json.dumps(dataclasses.asdict(result)))


if __name__ == "__main__":
    main()
