"""``python -m benchmarks.operator_ranks NAME INDEX...``: pairs of an operator in eager mode, on real ranks over gloo.

What one process says of all ranks is torch's simulation of them. Before a refuted pair counts as a bug of DTensor's it
is run as users run it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime as dt
import json
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from benchmarks.operator_samples import (
    Pair,
    database,
    different,
    first_line,
    pairs,
    placed_cotangents,
    run,
    whole_cotangents,
    whole_values,
)

ROOT = Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True)
class OnRanks:
    """``differs``: what has other numbers on some rank than on one device; ``error``: why a rank did not finish."""

    index: int
    differs: str = ""
    error: str = ""


def on_ranks(name: str, indices: Sequence[int], degree: int, samples: int, placements: int) -> dict[int, OnRanks]:
    """The outcome of each pair, by its place in ``pairs``; a pair whose ranks hang or die has none."""
    command = [sys.executable, "-m", "benchmarks.operator_ranks", name, *map(str, indices)]
    command += ["--degree", str(degree), "--samples", str(samples), "--placements", str(placements)]
    found: list[OnRanks] = []
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=120)
        found = [OnRanks(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
    results: dict[int, OnRanks] = {}
    for item in found:
        if item.index not in results or item.differs or item.error:
            results[item.index] = item
    return results


def _work(rank: int, port: int, name: str, indices: Sequence[int], counts: tuple[int, int, int]) -> None:
    degree, samples, placements = counts
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    patience = dt.timedelta(seconds=20)
    dist.init_process_group("gloo", rank=rank, world_size=degree, timeout=patience)
    mesh = init_device_mesh("cpu", (degree,), mesh_dim_names=("x",))
    operator = database()[name]
    for index, pair in enumerate(pairs(operator, degree, samples, placements)):
        if index not in indices:
            continue
        try:
            differs = _differs(operator.op, pair, mesh) or _differs(operator.op, pair.backwards(), mesh)
            result = OnRanks(index, differs=differs)
        except Exception as error:  # noqa: BLE001 - whatever DTensor raises for what it does not do
            result = OnRanks(index, error=first_line(error))
        # One write, since the ranks share the standard output.
        os.write(1, (json.dumps(dataclasses.asdict(result)) + "\n").encode())
    dist.destroy_process_group()


def _differs(operator: Callable[..., Any], pair: Pair, mesh: DeviceMesh) -> str:
    expected = run(operator, *pair.whole(), whole_cotangents, written=True)
    found = run(operator, *pair.placed(mesh, gradients=True), placed_cotangents(expected, mesh), written=True)
    return different(whole_values(found), expected)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator_ranks", description=__doc__)
    parser.add_argument("operator")
    parser.add_argument("indices", nargs="+", type=int)
    parser.add_argument("--degree", type=int, default=2)
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--placements", type=int, default=6)
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    counts = (options.degree, options.samples, options.placements)
    given = port, options.operator, options.indices, counts
    mp.start_processes(_work, given, nprocs=options.degree, start_method="forkserver")


if __name__ == "__main__":
    main()
