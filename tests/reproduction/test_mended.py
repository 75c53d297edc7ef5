"""The script of a finding with a checked help holds the mended program too: it passes where the captured one fails."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import verifycompile
from tests.support import fake_mesh_world
from verifycompile.diagnostics.verdict import Verdict


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.gelu(self.down(F.relu(self.up(x))))


def reported(width: int, output: torch.distributed.tensor.Placement) -> verifycompile.Report:
    with fake_mesh_world((2,), ("tp",)) as mesh, torch.device("meta"):
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=output)}
        model = parallelize_module(MLP(width), mesh, plan)
        with torch.device("cpu"):
            return verifycompile.verify(model.to_empty(device="cpu"), (torch.zeros(256, width),), mesh=mesh)


@pytest.mark.parametrize("width", [8, 1024])
def test_the_script_fails_and_its_mended_program_passes(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the model's own sizes, and at reduced ones."""
    assert reported(width, Replicate()).verdict is Verdict.VERIFIED
    report = reported(width, Partial())
    assert report.findings[0].hint is not None
    assert report.counterexample is not None
    report.counterexample.save(tmp_path / "repro.py")
    monkeypatch.setattr(sys, "argv", ["repro.py"])
    try:
        with pytest.raises(AssertionError, match=r"output.0 at \[0, 0\] is 2.9545 in the spec"):
            runpy.run_path(str(tmp_path / "repro.py"), run_name="__main__")
        monkeypatch.setattr(sys, "argv", ["repro.py", "mended"])
        runpy.run_path(str(tmp_path / "repro.py"), run_name="__main__")
    finally:
        torch.set_default_dtype(torch.float32)
    assert capsys.readouterr().out == "output.0 agrees on this input\n"
    text = (tmp_path / "repro.py").read_text()
    assert "= me.all_reduce(mm_1, 'sum', \"tp\")  # <- changed\n" in text
    assert "`python FILE mended` passes." in text.replace("\n# ", " ")
