"""What CONTRIBUTING.md adds as examples: each diff applies, and what it adds does what the text says.

The example of a lemma is in tests/lemmas/test_contributing.py, with all checks of a lemma.
"""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import Shard

from tests.operators.call import Sample, assert_same, evaluate_call
from verifycompile import Verdict
from verifycompile.collectives import COLLECTIVES
from verifycompile.frontends import report_of
from verifycompile.options import Options
from verifycompile.rewrites import registry
from verifycompile.rewrites.operators import silu
from verifycompile.witness.collectives import evaluate

ROOT = Path(__file__).parents[2]


def applied(file: str, folder: Path) -> Path:
    """A copy of the file to which the diff of CONTRIBUTING.md is applied."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (diff,) = (found for found in re.findall(r"```diff\n(.*?)```", text, flags=re.DOTALL) if f"+++ b/{file}\n" in found)
    copy = folder / file
    copy.parent.mkdir(parents=True)
    if (ROOT / file).exists():
        copy.write_text((ROOT / file).read_text())
    subprocess.run(["git", "apply", "-"], input=diff.encode(), cwd=folder, check=True)
    return copy


def test_an_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = ast.parse(applied("rewrites/operators/silu.py", tmp_path).read_text())
    (added,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and not hasattr(silu, node.name))
    monkeypatch.setattr(registry, "_DECLARATIONS", dict(registry._DECLARATIONS))
    exec(compile(ast.Module([added], []), silu.__file__, "exec"), dict(vars(silu)))
    sample = Sample(torch.ops.aten.mish.default, (torch.randn(3, 4, dtype=torch.float64),), {})
    _, values = evaluate_call(sample)
    for value, expected in zip(values, sample.run(), strict=True):
        assert_same(value, expected, "mish")


def test_a_collective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = runpy.run_path(str(applied("verifycompile/collectives.py", tmp_path)))["COLLECTIVES"]
    (name,) = set(rows) - set(COLLECTIVES)
    monkeypatch.setitem(COLLECTIVES, name, rows[name])  # pyright: ignore[reportArgumentType]
    held = [{"input": torch.tensor([value]), "reduce_op": "sum", "group_name": "0"} for value in (1.0, 2.0)]
    assert evaluate("symm_mem.one_shot_all_reduce.default", held) == [torch.tensor([3.0])] * 2


class Doubled(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) * self.factor


def exported(factor: float, *shape: int) -> Any:
    return torch.export.export(Doubled(factor), (torch.randn(*shape),))


@pytest.mark.parametrize(("factor", "verdict"), [(2.0, Verdict.VERIFIED), (3.0, Verdict.REFUTED)])
def test_a_source_of_graphs(factor: float, verdict: Verdict, tmp_path: Path) -> None:
    source = runpy.run_path(str(applied("verifycompile/frontends/exported.py", tmp_path)))["Exported"]
    ranks = [exported(2.0, 2, 4), exported(factor, 2, 4)]
    report = report_of(source(exported(2.0, 4, 4), ranks, {"x": (Shard(0),)}), Options())
    assert report.verdict is verdict
