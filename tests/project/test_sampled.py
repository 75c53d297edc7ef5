"""Which rows of long tables every run takes."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.sampled import taken

ROWS = [(name, count) for name in "abcd" for count in range(4)]
ROOT = pathlib.Path(__file__).parents[2]


def test_each_kind_has_a_row_and_neighbouring_kinds_have_different_ones() -> None:
    assert taken(ROWS, 4, lambda row: row[0]) == [("a", 0), ("b", 1), ("c", 2), ("d", 3)]
    assert taken(ROWS, 9, lambda row: row[0]) == [("a", 0), ("b", 1), ("c", 2), ("d", 3)]
    assert taken(ROWS, 2, lambda row: row[0])[:4] == [("a", 0), ("a", 2), ("b", 1), ("b", 3)]
    assert taken(ROWS, 1, lambda row: row[0]) == ROWS
    assert taken(range(7), 3) == [0, 3, 6]


CONFTEST = """
import pytest
from tests.sampled import leave_the_rest_to_the_sweep

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    leave_the_rest_to_the_sweep(items)
"""
TABLE = """
import pytest

@pytest.mark.sampled(every=3, of=("name",))
@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("name", ["a", "b", "c", "d"])
def test_table(name, count): pass
"""


@pytest.mark.parametrize(
    ("chosen", "rows"),
    [("not sweep", {"a-1", "b-2", "c-8", "d-1"}), ("sweep", {"a-2", "a-8", "b-1", "b-8", "c-1", "c-2", "d-2", "d-8"})],
)
def test_every_row_is_in_the_default_run_or_in_the_sweep(chosen: str, rows: set[str], tmp_path: pathlib.Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_table.py").write_text(TABLE)
    (tmp_path / "own.ini").write_text("[pytest]")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "own.ini", "--collect-only", "-q", "-m", chosen, "."],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert set(re.findall(r"test_table\[(.*)\]", done.stdout)) == rows, done.stdout
