"""One wrong program, from ``torch.compile`` to the text that its author reads."""

from __future__ import annotations

import importlib.util
import re
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.distributed.tensor import Partial, Placement, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Verdict

SOURCE = """\
import torch.nn as nn
import torch.nn.functional as F


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16, bias=False)
        self.down = nn.Linear(16, 8, bias=False)

    def forward(self, x):
        h = F.relu(self.up(x))
        y = self.down(h)
        return x + F.gelu(y)
"""
REFUTED = """\
error[VC101]: partial sum used where the full value is needed
  --> model.py:14:20
   |
14 |         return x + F.gelu(y)
   |                    ^^^^^^^^^ `F.gelu(y)` needs the full value of `y`, which is a partial sum over tp
13 |         y = self.down(h)
   |             ------------ the value became partial over tp here
"""
COUNTEREXAMPLE = """
   = note: counterexample (tp=4): `output.0` at [0, 0] is 2.9545 in the spec, 1.84134 on rank 0 (under no clean relation)
           up.weight[0, 0] = 1, up.weight[8, 0] = 1
           x[0, 0] = 1
           down.weight[0, 0] = 1, down.weight[0, 8] = 1
           everything else is 0
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A user's file in a folder of its own, which is the working directory."""
    (tmp_path / "model.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("model", tmp_path / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parallel(model: ModuleType, mesh: torch.distributed.DeviceMesh, output: Placement) -> torch.nn.Module:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=output)}
    return parallelize_module(model.MLP(), mesh, plan)


def test_a_missing_reduction_is_a_compile_error_at_its_line(model: ModuleType) -> None:
    with fake_mesh_world((4,), ("tp",)) as mesh:
        program = torch.compile(parallel(model, mesh, Partial()), backend="verify")
        with pytest.raises(verifycompile.RefinementError) as caught:
            program(torch.randn(4, 8))
    report = caught.value.report
    assert report.verdict is Verdict.REFUTED
    text = str(caught.value)
    assert text == str(report)
    assert text.startswith(REFUTED)
    assert COUNTEREXAMPLE in text
    assert "   = see: verifycompile explain VC101\n" in text


def test_verify_reports_and_raises_nothing(model: ModuleType) -> None:
    with fake_mesh_world((4,), ("tp",)) as mesh:
        wrong = verifycompile.verify(parallel(model, mesh, Partial()), (torch.randn(4, 8),))
        right = verifycompile.verify(parallel(model, mesh, Replicate()), (torch.randn(4, 8),))
    assert not wrong
    assert str(wrong).startswith(REFUTED)
    assert right
    assert list(right.relations) == ["output.0", "grad.up.weight", "grad.down.weight"]
    assert re.sub(r"\d+(\.\d+)?", "N", str(right)) == textwrap.dedent(
        """\
        verified: every output of the spec is a clean expression of the parallel program's outputs
         = compared: spec recovered from the model as it stands; N ranks assumed to run what this process captured
         = relations: N, over the real numbers (rounding is outside of the proof)
         = nodes: spec N, implementation N; proved by memo N, normal form N, ring N, e-graph N, solver N
         = seconds: capture N (spec) + N (implementation), verification N, ratio N
         = second look: both programs agree on one input, on all N ranks, in N of N outputs
         = assumption: the model object is the one that rank N built, and stands for all N ranks
         = assumption: `x` is placed (R) by default"""
    )


def test_a_certificate_can_be_stored(model: ModuleType) -> None:
    with fake_mesh_world((4,), ("tp",)) as mesh:
        report = verifycompile.verify(parallel(model, mesh, Replicate()), (torch.randn(4, 8),))
    certificate = report.certificate
    assert certificate is not None
    assert set(certificate.relations) == set(report.relations)
    assert type(certificate).from_json(certificate.to_json()).to_json() == certificate.to_json()
