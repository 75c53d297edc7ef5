"""Scripts of two gloo processes: how they tell what each rank found, and how a test reads it."""

from __future__ import annotations

import datetime as dt
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.forked import start_ranks
from tests.warm import python


def tell(answers: Callable[[DeviceMesh, int], dict[str, Any]], timeout: dt.timedelta | None = None) -> None:
    """Print, as JSON, ``{question: [rank 0, rank 1]}`` of what two ranks answer. ``timeout``: of their collectives."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        start_ranks(_answer, (answers, timeout, folder), 2)
        found = [json.loads(pathlib.Path(folder, f"{rank}.json").read_text()) for rank in (0, 1)]
    json.dump({name: [answered.get(name) for answered in found] for name in found[0]}, sys.stdout)


def _answer(
    rank: int, answers: Callable[[DeviceMesh, int], dict[str, Any]], timeout: dt.timedelta | None, folder: str
) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timeout)
    answered = answers(init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), rank)
    pathlib.Path(folder, f"{rank}.json").write_text(json.dumps(answered))
    dist.barrier()
    dist.destroy_process_group()


def answers_of(script: str, **variables: str) -> dict[str, list[Any]]:
    """What a script of this folder tells, run with some environment variables."""
    done = subprocess.run(
        [python(), "-W", "ignore", "-m", f"tests.agreement.scripts.{script}"],
        cwd=pathlib.Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
