"""Waived findings stop nothing and verify nothing; a waiver that is over, malformed or not needed is an error."""

from __future__ import annotations

import datetime as dt
import json
import os
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from tests.support import fake_mesh_world
from tests.warm import python
from verifycompile import RefinementError, Report, UsageError, Verdict, verify
from verifycompile.backends.reports import VerificationWarning
from verifycompile.waivers import waivers_of

SCRIPT = pathlib.Path(__file__).parent / "backends" / "scripts" / "perceptron.py"
LATER = dt.date(2999, 1, 31)
KNOWN = {"code": "VC101", "reason": "mended in the next release", "expires": LATER}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.relu(self.up(x)))
        return x + nn.functional.layer_norm(y, (4,))


LINE = Block.forward.__code__.co_firstlineno + 2


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with fake_mesh_world((2,), ("tp",)) as made:
        yield made


def block(mesh: DeviceMesh, is_right: bool = False) -> nn.Module:
    layout = Replicate() if is_right else Partial()
    plan: dict[str, ParallelStyle] = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=layout)}
    return parallelize_module(Block(), mesh, plan)


def report_on(mesh: DeviceMesh, *waivers: Any, is_right: bool = False) -> Report:
    return verify(block(mesh, is_right), (torch.randn(2, 4),), waivers=list(waivers))


@pytest.mark.parametrize(
    "speaks_of", [{"code": "VC101"}, {"node": f"test_waivers.py:{LINE}"}, {"code": "VC101", "module": "*"}]
)
def test_waived_finding_is_still_refuted(speaks_of: dict[str, str], mesh: DeviceMesh) -> None:
    report = report_on(mesh, {"reason": "known", "expires": LATER, **speaks_of})
    assert report.verdict is Verdict.REFUTED
    assert not report
    assert report.is_waived
    assert report.certificate is None
    text = "known (waiver 1 of option `waivers`, until 2999-01-31)"
    assert report.findings[0].waived == text
    assert f"= note: waived: {text}" in str(report)
    assert str(report).endswith(
        "waived: all findings above are waived, so that the program goes on; nothing of it is verified"
    )
    assert json.loads(report.to_json())["findings"][0]["waived"] == text


@pytest.mark.parametrize(
    "other",
    [{"code": "VC102"}, {"node": f"test_waivers.py:{LINE + 1}"}, {"node": f"other.py:{LINE}"}, {"module": "layers.*"}],
)
def test_waiver_of_something_else_is_an_error(other: dict[str, str], mesh: DeviceMesh) -> None:
    with pytest.raises(UsageError) as caught:
        report_on(mesh, {"reason": "known", "expires": LATER, **other})
    assert str(caught.value) == (
        "error[VC311]: waiver 1 of option `waivers` waives nothing that was found: take it out."
    )


def test_waiver_that_a_verified_model_does_not_need_is_an_error(mesh: DeviceMesh) -> None:
    with pytest.raises(UsageError, match=r"waives nothing that was found"):
        report_on(mesh, KNOWN, is_right=True)


MALFORMED: list[tuple[object, str]] = [
    ({**KNOWN, "reason": " "}, "has no reason: say why with `reason`."),
    ({**KNOWN, "expires": dt.date(2020, 1, 31)}, "expired on 2020-01-31: mend what it waives, or decide again."),
    ({**KNOWN, "expires": "soon"}, "has no date at which it ends: give `expires`, as 2027-01-31."),
    ({"code": "VC101", "reason": "known"}, "has no date at which it ends: give `expires`, as 2027-01-31."),
    ({"reason": "known", "expires": LATER}, "does not say what it waives: give `code`, `module` or `node`."),
    ({**KNOWN, "code": "VC999"}, "waives `VC999`, and there is no such code."),
    ({**KNOWN, "file": "x"}, "sets `file`; a waiver has `code`, `module`, `node`, `reason`, `expires`."),
    ("VC101", "must be a table with `reason`, `expires`, and `code`, `module` or `node`."),
]


@pytest.mark.parametrize(("waiver", "why"), MALFORMED)
def test_malformed_waiver_is_one_sentence(waiver: object, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        waivers_of([KNOWN, waiver])
    assert str(caught.value) == f"error[VC311]: waiver 2 of option `waivers` {why}"


@pytest.mark.parametrize(
    ("waiver", "why"),
    [
        ({**KNOWN, "node": "model.py"}, '`node` must be a line of a file, as "model.py:41".'),
        ({**KNOWN, "module": 3}, "`module` must be a text."),
    ],
)
def test_field_of_a_wrong_form_is_one_sentence(waiver: object, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        waivers_of([waiver])
    assert str(caught.value) == f"error[VC311]: waiver 1 of option `waivers`: {why}"


TABLE = '{}\ncode = "VC101"\nreason = "mended in the next release"\nexpires = 2999-01-31\n'


@pytest.mark.parametrize(
    ("name", "head"), [("verifycompile.toml", "[[waivers]]"), ("pyproject.toml", "[[tool.verifycompile.waivers]]")]
)
def test_waivers_of_a_file(name: str, head: str, tmp_path: pathlib.Path) -> None:
    file = tmp_path / name
    file.write_text(TABLE.format(head))
    (waiver,) = waivers_of(file)
    assert (waiver.code, waiver.expires, waiver.origin) == ("VC101", LATER, f"waiver 1 of `{file}`")


def test_file_that_is_none_is_one_sentence(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UsageError, match=r"^error\[VC311\]: the waivers of `.*none.toml` cannot be read: "):
        waivers_of(str(tmp_path / "none.toml"))
    (tmp_path / "v.toml").write_text("[waviers]\n")
    with pytest.raises(UsageError, match=r"sets `waviers`, and verifycompile knows `waivers` alone\.$"):
        waivers_of(tmp_path / "v.toml")


# ------------------------------------------------------------------------------------------------ the gate


def test_gate_goes_on_with_a_line(mesh: DeviceMesh) -> None:
    model = block(mesh)
    with pytest.raises(RefinementError):
        torch.compile(model, backend="verify", options={"inner": "eager"})(torch.randn(2, 4))
    torch._dynamo.reset()
    options: Any = {"inner": "eager", "waivers": [KNOWN]}
    waived = torch.compile(model, backend="verify", options=options)
    with pytest.warns(VerificationWarning) as told:
        waived(torch.randn(2, 4))
    (line,) = [str(item.message) for item in told if item.category is VerificationWarning]
    assert line.startswith(f"tests/test_waivers.py:{LINE}:")
    assert "error[VC101]: " in line
    assert line.endswith("(waived: mended in the next release (waiver 1 of option `waivers`, until 2999-01-31))")
    assert "\n" not in line


def run(folder: pathlib.Path, waivers: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    removed = ("VERIFYCOMPILE", "VERIFYCOMPILE_REPORT", "TORCH_COMPILE_OVERRIDE_BACKENDS")
    inherited = {name: value for name, value in os.environ.items() if name not in removed}
    (folder / "pyproject.toml").write_text(waivers)
    root = str(pathlib.Path(__file__).parents[1])
    command = [python(), "-m", "verifycompile", "run", *arguments, str(SCRIPT), "aot_eager", "infer"]
    return subprocess.run(
        [*command, "wrong" if waivers else "right"],
        env={**inherited, "OMP_NUM_THREADS": "1", "PYTHONPATH": root, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_job_goes_on_and_its_summary_counts_what_is_waived(tmp_path: pathlib.Path) -> None:
    done = run(tmp_path, TABLE.format("[[tool.verifycompile.waivers]]"))
    assert done.returncode == 0, done.stderr
    assert "ran (4, 8)" in done.stdout
    lines = done.stderr.splitlines()
    assert " waived in " in lines[0]
    assert "error[VC101] mended in the next release (waiver 1 of `pyproject.toml`, until 2999-01-31)" in lines[0]
    assert lines[-1] == "verifycompile run: 1 frame waived and not verified."
    assert any(line.startswith("verifycompile: 2 frames: 1 waived, 1 not checked; slowest ") for line in lines)


def test_waiver_that_no_frame_needs_is_a_finding_of_the_job(tmp_path: pathlib.Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(TABLE.format("[[waivers]]").replace("VC101", "VC109"))
    done = run(tmp_path, "", "--format", "json", VERIFYCOMPILE_WAIVERS=str(other))
    sentence = f"waiver 1 of `{other}` waives nothing that was found: take it out."
    assert done.returncode == 1, done.stderr
    assert done.stderr.count(sentence) == 1
    assert done.stderr.splitlines()[-1] == f"verifycompile run: {sentence}"
