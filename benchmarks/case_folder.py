"""A folder of programs: ``python FILE bad`` is the wrong form of one, ``python FILE good`` its right twin.

The last line that a program prints which begins with ``@@`` is JSON with ``verdict``, ``findings`` and ``error``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

SECONDS = 600
"""That one program may take."""


@dataclasses.dataclass(frozen=True)
class Ran:
    """``answer``: empty where there is none, and ``reason`` is what came in its place. ``lines``: what was printed."""

    answer: Mapping[str, Any]
    reason: str = ""
    lines: Sequence[str] = ()


def programs_in(folder: pathlib.Path) -> list[pathlib.Path]:
    """The programs of a folder, in the order of their names."""
    return sorted(folder.glob("[A-Z]*.py"))


def run(file: pathlib.Path, *arguments: str, path: str = "") -> Ran:
    """Runs Python with ``arguments`` in the folder of ``file``; ``path``: a folder whose modules are found as well."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **({"PYTHONPATH": path} if path else {})}
    command = [sys.executable, *arguments]
    try:
        done = subprocess.run(
            command, cwd=file.parent, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return Ran({}, f"{SECONDS} s are over")
    lines = done.stdout.splitlines()
    said = [line.removeprefix("@@") for line in lines if line.startswith("@@")]
    if not said:
        return Ran({}, (done.stderr.strip() or "nothing is printed").splitlines()[-1], lines)
    return Ran(json.loads(said[-1]), "", lines)
