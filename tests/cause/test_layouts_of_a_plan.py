"""A plan that takes an input for another layout than it has: the module's line, the layout, and what mends it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Verdict

WIDTH = 8
LAYOUTS = {"x": [Shard(0)], "up": [Shard(1)], "down": [Shard(0)]}
ROWS = Shard(1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.tanh()
        y = self.down(F.gelu(self.up(h)))
        return y.square().sum()


class Residual(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.tanh()
        y = self.down(F.gelu(self.up(h)))
        return (x + y).square()


def report_on(
    kind: type[Block], plan: Mapping[str, Any], placement: Placement, returned: Mapping[str, Any] | None = None
) -> verifycompile.Report:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = parallelize_module(kind(), mesh, dict(plan))
        x = torch.randn(2, 4, WIDTH, requires_grad=True)
        options = {"in_placements": {"x": (placement,)}, **({"out_placements": returned} if returned else {})}
        return verifycompile.verify(model, (x,), spec=kind(), **options)


def plan(taken_for: Placement, given_as: Placement) -> dict[str, Any]:
    return {"up": ColwiseParallel(input_layouts=taken_for), "down": RowwiseParallel(output_layouts=given_as)}


WRONG = {
    "parts taken for the whole": (
        Block, plan(Replicate(), Replicate()), ROWS, "VC104", "Replicate()",
        "gather `h` over `tp` along dimension 1 before `self.up(h)` (checked)",
    ),
    "the whole taken for parts": (
        Block, plan(ROWS, Replicate()), Replicate(), "VC104", "Shard(1)",
        "leave out the gather over `tp` at line {line}, and use `h` (checked)",
    ),
    "the whole taken for a partial sum": (
        Block, plan(Partial(), Replicate()), Replicate(), "VC102", "Partial()",
        "remove the all-reduce over `tp` at line {line} (checked)",
    ),
}  # fmt: skip
RIGHT = {
    "parts": (Block, plan(ROWS, Replicate()), ROWS),
    "the whole": (Block, plan(Replicate(), Replicate()), Replicate()),
    "parts of a residual stream": (Residual, plan(ROWS, ROWS), ROWS),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_layout_is_told_at_its_module(name: str) -> None:
    kind, styles, placement, code, spelled, hint = WRONG[name]
    report = report_on(kind, styles, placement)
    assert report.verdict is Verdict.REFUTED, str(report)
    finding = report.findings[0]
    lines, first = inspect.getsourcelines(kind.forward)
    line = first + next(at for at, text in enumerate(lines) if "self.up" in text)
    assert finding.impl_location is not None
    assert (finding.code, finding.impl_location.line) == (code, line), str(report)
    assert finding.hint == hint.format(line=line), str(report)
    told = (
        f"the plan gives `up` the style `ColwiseParallel` with `input_layouts={spelled}`, which says how the ranks hold"
    )
    assert f"{told} its input" in finding.notes, str(report)


class Returned(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x.tanh())).cumsum(1))


OF_RESULTS = {
    "parts": (
        plan(Replicate(), Replicate()), ROWS, None,
        "gather `x.tanh()` over `tp` along dimension 1 before `self.up(x.tanh())` (checked)",
    ),
    "parts of what is returned in parts": (
        plan(Replicate(), Replicate()), ROWS, {"output.0": (ROWS,)},
        ("gather `x.tanh()` over `tp` along dimension 1 before `self.up(x.tanh())`, "
         "and take the rank's part of `output.0` (checked: `output.0` proved so)"),
    ),
    "the whole": (
        plan(ROWS, Replicate()), Replicate(), None,
        "leave out the gather over `tp` at line {}, and use `x.tanh()` (checked)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_RESULTS)
def test_what_is_returned_follows_the_layout_that_mends_it(name: str) -> None:
    """Its gradient comes back as wide as it is; where the plan's backward pass is another one, the forward is proved."""
    styles, placement, returned, hint = OF_RESULTS[name]
    report = report_on(Returned, styles, placement, returned)
    assert report.verdict is Verdict.REFUTED, str(report)
    finding = report.findings[0]
    assert finding.code == "VC104"
    assert finding.impl_location is not None
    assert finding.hint == hint.format(finding.impl_location.line), str(report)
    right = plan(placement, ROWS if returned else Replicate())
    assert report_on(Returned, right, placement, returned).verdict is Verdict.VERIFIED


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_layout_is_proved(name: str) -> None:
    report = report_on(*RIGHT[name])
    assert report.verdict is Verdict.VERIFIED, str(report)


def written_by_hand(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return x + F.gelu(x @ up) @ down


@pytest.mark.parametrize("is_right", [True, False])
def test_rows_that_are_neither_gathered_nor_scattered_are_told_together(is_right: bool) -> None:
    def program(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        whole = funcol.all_gather_tensor(x, 0, mesh) if is_right else x
        y = F.gelu(whole @ up) @ down
        summed = funcol.reduce_scatter_tensor(y, "sum", 0, mesh) if is_right else funcol.all_reduce(y, "sum", mesh)
        return x + summed

    with fake_mesh_world((2,), ("tp",)) as mesh:
        rank = torch.randn(4, WIDTH), torch.randn(WIDTH, 16), torch.randn(16, WIDTH)
        report = verifycompile.verify(program, rank, spec=written_by_hand, mesh=mesh, in_placements=LAYOUTS)
    assert report.verdict is (Verdict.VERIFIED if is_right else Verdict.REFUTED), str(report)
    if not is_right:
        (finding,) = report.findings
        assert finding.code == "VC104", str(report)
        assert finding.message == "`whole @ up` takes `x`, of which each rank of `tp` has a part along dimension 0, for the whole"  # fmt: skip
        assert finding.hint == (
            "gather `x` over `tp` along dimension 0 before `whole @ up`, and take the rank's part of "
            '`funcol.all_reduce(y, "sum", mesh)` (checked)'
        )
