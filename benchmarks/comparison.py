"""``python -m benchmarks comparison``: what ``compare`` costs, and its thresholds against fixed ones.

Cost: a tensor-parallel model on two ranks against both programs run by themselves, in processor time and in peak
memory above what the process had. Thresholds: TTrace's fourteen bugs and their right twins, over seeds and dtypes, with
the estimated thresholds and with ``torch.allclose`` of fixed tolerances: how many false alarms, how many missed bugs.
``--further``: of other bugs, which were written once the rules for the thresholds were settled, instead.
``--models``: ten models of Hugging Face transformers under their own plans instead, in which nothing may be found.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import verifycompile
from benchmarks.__main__ import table
from benchmarks.real_programs import transformers
from tests.comparison.fourteen import BUGS, Bug
from tests.comparison.further import FURTHER
from tests.comparison.programs import Model, on_ranks, tensor_parallel
from tests.support import fake_mesh_world
from verifycompile.comparison.judge import Judged
from verifycompile.comparison.report import CompareReport
from verifycompile.torch_interface.rank_threads.ranks_in_threads import RanksInThreads
from verifycompile.torch_interface.ranks.mesh import RootMesh

FIXED = (("rtol 1e-5", 1e-5), ("rtol 1e-3", 1e-3), ("rtol 1e-2", 1e-2), ("rtol 1e-1", 1e-1))
"""Of the norm of the difference, relative to the spec's."""

REPETITIONS = 3
"""Of which the one with the least processor time counts: others wait for memory that other processes use."""


def peak() -> int:
    """Kibibytes that the process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measured(run: Callable[[], object]) -> tuple[float, int]:
    """Processor seconds, and by how many kibibytes the peak grew."""
    before, started = peak(), time.process_time()
    run()
    return time.process_time() - started, peak() - before


def inputs(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 32, (batch, length)), torch.randint(0, 32, (batch, length))


def costs(width: int, layers: int, batch: int, length: int) -> tuple[str, ...]:
    """A row: both programs by themselves, then compared."""
    args = inputs(batch, length)
    spec = Model(layers, width)

    def both(mesh: DeviceMesh) -> None:
        spec(*args).backward()

        def rank_program(_: int) -> None:
            tensor_parallel(Model(layers, width), mesh)(*args).backward()

        RanksInThreads(RootMesh(mesh), 0).run(rank_program)
        spec.zero_grad(set_to_none=True)

    with fake_mesh_world((2,), ("tp",)) as mesh:
        _, memory = measured(lambda: both(mesh))
        alone = min(measured(lambda: both(mesh))[0] for _ in range(REPETITIONS))
        model = tensor_parallel(Model(layers, width), mesh)
        _, more = measured(lambda: verifycompile.compare(model, args, spec=spec))
        seconds = min(measured(lambda: verifycompile.compare(model, args, spec=spec))[0] for _ in range(REPETITIONS))
    name = f"{layers} layers, width {width}, {batch} x {length}"
    return name, f"{alone:.2f}", f"{seconds:.2f}", f"{seconds / alone:.1f}", str(memory), str(more)


def beyond(tensors: Sequence[Judged], relative: float) -> bool:
    """Whether a fixed tolerance calls a tensor different."""
    return any(item.error > relative * item.norm for item in tensors)


def compared(bug: Bug, wrong: bool, dtype: torch.dtype, seed: int) -> CompareReport:
    """The bug, or its right twin, on all ranks."""

    def build(mesh: DeviceMesh) -> torch.nn.Module:
        torch.manual_seed(seed)
        return bug.build(mesh, wrong).to(dtype)

    torch.manual_seed(seed)
    spec = bug.spec().to(dtype)
    return on_ranks(build, bug.inputs(dtype), bug.shape, bug.names, spec=spec, seed=seed, **bug.options)


def answers(bug: Bug, wrong: bool, dtype: torch.dtype, seed: int) -> tuple[bool, ...]:
    """Whether a difference is told: by the estimated thresholds, and by each of the fixed ones."""
    found = compared(bug, wrong, dtype, seed)
    return not found, *(beyond(found.tensors, relative) for _, relative in FIXED)


def thresholds(seeds: int, bugs: Sequence[Bug]) -> list[tuple[str, ...]]:
    """Rows: false alarms and missed bugs of each way, by dtype."""
    rows: list[tuple[str, ...]] = []
    for dtype in (torch.float32, torch.bfloat16):
        right = [answers(bug, False, dtype, seed) for bug in bugs for seed in range(seeds)]
        wrong = [answers(bug, True, dtype, seed) for bug in bugs for seed in range(seeds)]
        for index, name in enumerate(("estimated", *(name for name, _ in FIXED))):
            alarms, missed = sum(one[index] for one in right), sum(not one[index] for one in wrong)
            rows.append((str(dtype), name, f"{alarms} of {len(right)}", f"{missed} of {len(wrong)}"))
    return rows


def models(seeds: int) -> list[tuple[str, ...]]:
    """Rows: of a training step of each model on two ranks, in how many seeds something was found."""
    rows: list[tuple[str, ...]] = []
    for name in transformers.SAMPLE:
        for dtype in (torch.float32, torch.bfloat16):
            found = [of_model(name, dtype, seed) for seed in range(seeds)]
            alarms = sum(not report for report in found)
            largest = max(item.ratio for report in found for item in report.tensors)
            rows.append((name, str(dtype), str(len(found[0].tensors)), f"{alarms} of {seeds}", f"{largest:.2f}"))
    return rows


def of_model(name: str, dtype: torch.dtype, seed: int) -> CompareReport:
    """A model with the weights of its spec, of which each rank has its part."""
    torch.manual_seed(seed)
    spec = transformers.single(name, "eager")
    transformers.start(2)
    try:
        model = transformers.distributed(transformers.single_empty(name, "eager", None), {"tp": 2}, spec)
        tokens = torch.randint(3, 64, (2, 8))
        arguments = {"input_ids": tokens, "labels": tokens.clone(), "use_cache": False}
        return verifycompile.compare(model.to(dtype), (), arguments, spec=spec.to(dtype), seed=seed)
    finally:
        dist.destroy_process_group()


_THRESHOLDS = ("dtype", "threshold", "false alarms", "missed bugs")


def main(arguments: Sequence[str]) -> int:
    """Both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks comparison", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="of each bug and twin")
    parser.add_argument("--further", action="store_true", help="further bugs instead")
    parser.add_argument("--models", action="store_true", help="models of transformers instead")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    if options.models:
        header = ("model", "dtype", "tensors", "false alarms", "largest ratio to a threshold")
        print(table(header, models(options.seeds)))
        return 0
    if options.further:
        print(table(_THRESHOLDS, thresholds(options.seeds, tuple(FURTHER.values()))))
        return 0
    rows = [costs(*sizes) for sizes in ((512, 4, 8, 256), (256, 4, 8, 128), (64, 2, 8, 64))]
    print(table(("model", "both s", "compare s", "ratio", "both KiB", "compare KiB more"), rows))
    print()
    print(table(_THRESHOLDS, thresholds(options.seeds, tuple(BUGS.values()))))
    return 0
