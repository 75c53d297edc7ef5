"""Hints that are applied to the source: the program is refused with the hint, and proved as the hint says."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.distributed.tensor import Placement, Replicate, Shard

import verifycompile
from tests.support import fake_mesh_world

R, ROWS, COLUMNS = (Replicate(),), (Shard(0),), (Shard(1),)

HEAD = """\
import torch
import torch.nn.functional as F
import torch.distributed._functional_collectives as collectives
"""


@dataclasses.dataclass(frozen=True)
class Applied:
    """A spec, an implementation with one wrong line, the hint of its finding, and the line that it leads to.

    The wrong line is the thirteenth of the file.
    """

    name: str
    spec: str
    arguments: str
    before: str
    wrong: str
    right: str
    after: str
    hint: str
    inputs: tuple[torch.Tensor, ...]
    placements: dict[str, tuple[Placement, ...]]
    output: tuple[Placement, ...]

    def source(self, line: str) -> str:
        spec = f"def spec({self.arguments}):\n    return {self.spec}"
        body = "\n".join(f"        {text}" for text in (self.before, line, self.after))
        return f"{HEAD}\n\n{spec}\n\n\ndef parallel(mesh):\n    def program({self.arguments}):\n{body}\n\n    return program\n"


CASES = (
    Applied(
        name="a reduction that is missing",
        spec="torch.tanh(x @ w)",
        arguments="x, w",
        before="group = mesh.get_group()",
        wrong="y = x @ w",
        right='y = collectives.all_reduce(x @ w, "sum", group)',
        after="return torch.tanh(y)",
        hint="all-reduce `y` over `tp` (sum) after line 13 (checked)",
        inputs=(torch.randn(4, 3), torch.randn(3, 5)),
        placements={"x": COLUMNS, "w": ROWS},
        output=R,
    ),
    Applied(
        name="a reduction that is needless",
        spec="torch.tanh(x @ w)",
        arguments="x, w",
        before="y = x @ w",
        wrong='y = collectives.all_reduce(y, "sum", mesh.get_group())',
        right="y = y",
        after="return torch.tanh(y)",
        hint="remove the all-reduce over `tp` at line 13 (checked)",
        inputs=(torch.randn(4, 3), torch.randn(3, 4)),
        placements={"w": COLUMNS},
        output=COLUMNS,
    ),
    Applied(
        name="a sum for a mean",
        spec="x - x.mean(0)",
        arguments="x",
        before="own = x.mean(0)",
        wrong='mean = collectives.all_reduce(own, "sum", mesh.get_group())',
        right='mean = collectives.all_reduce(own, "avg", mesh.get_group())',
        after="return x - mean",
        hint='use "avg" in the place of "sum" at line 13 (checked)',
        inputs=(torch.randn(4, 3),),
        placements={"x": ROWS},
        output=ROWS,
    ),
    Applied(
        name="a bias on every rank",
        spec="x @ w + b",
        arguments="x, w, b",
        before="y = x @ w",
        wrong='y = collectives.all_reduce(y + b, "sum", mesh.get_group())',
        right='y = collectives.all_reduce(y, "sum", mesh.get_group()) + b',
        after="return y",
        hint="add `b` after the sum over `tp`, or divided by 2 before it (checked)",
        inputs=(torch.randn(4, 3), torch.randn(3, 5), torch.randn(5)),
        placements={"x": COLUMNS, "w": ROWS},
        output=R,
    ),
    Applied(
        name="a factor",
        spec="(x ** 2).sum() / 8",
        arguments="x",
        before="own = (x ** 2).sum()",
        wrong="own = own / 4",
        right="own = own / 8",
        after='return collectives.all_reduce(own, "sum", mesh.get_group())',
        hint="divide by 8 at line 13, not by 4 (checked)",
        inputs=(torch.randn(4, 3),),
        placements={"x": ROWS},
        output=R,
    ),
    Applied(
        name="a factor too many",
        spec="(x ** 2).sum()",
        arguments="x",
        before="own = (x ** 2).sum()",
        wrong="own = own * 2",
        right="own = own",
        after='return collectives.all_reduce(own, "sum", mesh.get_group())',
        hint="leave out the multiplication by 2 at line 13 (checked)",
        inputs=(torch.randn(4, 3),),
        placements={"x": ROWS},
        output=R,
    ),
    Applied(
        name="a fused weight",
        spec="torch.mul(*(x @ w).chunk(2, -1))",
        arguments="x, w",
        before="rank = mesh.get_local_rank()",
        wrong="own = w.chunk(2, 1)[rank]",
        right="own = torch.cat([part.chunk(2, 1)[rank] for part in w.chunk(2, 1)], 1)",
        after="return torch.mul(*(x @ own).chunk(2, -1))",
        hint=(
            "cut each of the 2 components of `w` over `tp` by itself, and join the rank's parts: "
            "`torch.cat([part.chunk(2, dim)[rank] for part in weight.chunk(2, dim)], dim)` (checked)"
        ),
        inputs=(torch.randn(4, 3), torch.randn(3, 8)),
        placements={},
        output=COLUMNS,
    ),
    Applied(
        name="positions of a part",
        spec="x * torch.arange(8)[:, None]",
        arguments="x",
        before="rank = mesh.get_local_rank()",
        wrong="places = torch.arange(4)",
        right="places = torch.arange(4) + rank * 4",
        after="return x * places[:, None]",
        hint="add the rank's coordinate on `tp` times 4 to `places` (checked)",
        inputs=(torch.randn(4, 3),),
        placements={"x": ROWS},
        output=ROWS,
    ),
    Applied(
        name="a part of a table",
        spec="x * table",
        arguments="x, table",
        before="rank = mesh.get_local_rank()",
        wrong="own = table[:4]",
        right="own = table[rank * 4 : rank * 4 + 4]",
        after="return x * own",
        hint="begin `own` at the rank's own part: at the rank's coordinate on `tp` times its length (checked)",
        inputs=(torch.randn(4, 3), torch.randn(8, 3)),
        placements={"x": ROWS},
        output=ROWS,
    ),
    Applied(
        name="a dimension",
        spec="(x @ w).softmax(0)",
        arguments="x, w",
        before="y = x @ w",
        wrong="y = y.softmax(1)",
        right="y = y.softmax(0)",
        after="return y",
        hint="pass 0 in the place of 1 at line 13 (checked)",
        inputs=(torch.randn(4, 3), torch.randn(3, 4)),
        placements={"w": COLUMNS},
        output=COLUMNS,
    ),
)


def module_of(source: str, folder: Path) -> ModuleType:
    path = folder / "program.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(f"program_{abs(hash(source))}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verified(case: Applied, line: str, folder: Path) -> verifycompile.Report:
    folder.mkdir()
    module = module_of(case.source(line), folder)
    with fake_mesh_world((2,), ("tp",)) as mesh:
        return verifycompile.verify(
            module.parallel(mesh),
            case.inputs,
            {},
            spec=module.spec,
            mesh=mesh,
            build=lambda: module.parallel(mesh),
            in_placements=case.placements,
            out_placements={"output.0": case.output},
        )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hint_applied_to_the_source(case: Applied, tmp_path: Path) -> None:
    refused = verified(case, case.wrong, tmp_path / "wrong")
    assert refused.verdict is verifycompile.Verdict.REFUTED, str(refused)
    (finding,) = refused.findings
    assert finding.hint == case.hint
    assert finding.impl_location is not None
    assert finding.impl_location.line in {13, 14}
    mended = verified(case, case.right, tmp_path / "right")
    assert mended.verdict is verifycompile.Verdict.VERIFIED, str(mended)
