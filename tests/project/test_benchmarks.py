"""The commands of ``benchmarks/`` start: they are run by hand, and nothing else would notice that one does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("command", [[], ["coverage"], ["neighbours"], ["operators"], ["comparison"], ["first-call"]], ids=lambda command: " ".join(command) or "costs")
def test_command_starts(command: list[str]) -> None:
    arguments = [sys.executable, "-m", "benchmarks", *command, "--help"]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage:")
