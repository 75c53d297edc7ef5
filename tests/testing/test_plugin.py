"""The pytest plugin, in a run of its own on a user's test file."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

from tests.warm import python
from verifycompile.testing import fake_group, fake_mesh

TESTS = '''\
import torch
from torch import nn
from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from verifycompile.testing import assert_refines, over_meshes


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return x + torch.tanh(self.down(torch.relu(self.up(x))))


def parallel(mesh, layout):
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=layout)}
    return parallelize_module(Block(), mesh["tp"], plan)


@over_meshes({"tp": 2}, {"tp": 4})
def test_right(verify_mesh):
    report = assert_refines(parallel(verify_mesh, Replicate()), (torch.ones(4, 8),), spec=Block())
    assert report.question.count == verify_mesh.size()


def test_wrong(verify_mesh):
    assert_refines(parallel(verify_mesh, Partial()), (torch.ones(4, 8),), spec=Block())


def test_of_nothing_parallel(verify_group):
    verify_group(8, rank=3)
    assert torch.distributed.get_rank() == 3
'''


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_summary_reports_and_failure(workers: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_model.py").write_text(TESTS)
    done = subprocess.run(
        [python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--verify-report=reports", *workers],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert "3 passed" in lines[-1]
    assert "1 failed" in lines[-1]
    assert "3 programs: 2 verified, 1 refuted" in lines
    assert "reports: reports" in lines
    assert any(line.startswith("slowest: test_model.py::test_") for line in lines)
    assert "E       AssertionError: error[VC101]: partial sum used where the full value is needed" in lines
    assert sorted(path.name for path in (tmp_path / "reports").glob("*.json")) == [
        "test_model.py-test_right[tp2].json",
        "test_model.py-test_right[tp4].json",
        "test_model.py-test_wrong.json",
    ]


def test_without_a_proof_there_is_no_section(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_plain.py").write_text("def test_plain():\n    pass\n")
    arguments = [python(), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0
    assert "verifycompile" not in done.stdout
    arguments.append("--verify-report=test_plain.py")
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stderr.splitlines()[0] == (
        "ERROR: --verify-report=test_plain.py: there is a file of that name; name a folder."
    )


def test_a_group_that_is_there_already_and_a_rank_that_is_none() -> None:
    with fake_mesh({"dp": 2, "tp": 2}, rank=3) as mesh:
        assert mesh.get_coordinate() == (1, 1)
        with pytest.raises(RuntimeError, match="a process group is there already"), fake_group(2):
            pass
    with pytest.raises(ValueError, match=r"`rank` must be one of 0 to 1, not 2\."), fake_group(2, rank=2):
        pass
