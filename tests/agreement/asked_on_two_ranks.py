"""Scripts of two gloo processes: how they tell what each rank found, and how a test reads it."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from tests.forked import start_ranks
from tests.warm import python


def tell(rank_main: Callable[[int, str], None]) -> None:
    """Print, as JSON, ``{question: [rank 0, rank 1]}`` of what each rank writes to ``<rank>.json`` in a folder."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        start_ranks(rank_main, (folder,), 2)
        answers = [json.loads(pathlib.Path(folder, f"{rank}.json").read_text()) for rank in (0, 1)]
    json.dump({name: [found.get(name) for found in answers] for name in answers[0]}, sys.stdout)


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
