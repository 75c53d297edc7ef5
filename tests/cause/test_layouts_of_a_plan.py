"""A plan with a layout that a value does not have, or does not need: the line of the style, and what mends it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
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
from verifycompile.diagnostics.finding import Finding

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


def line_with(function: Callable[..., Any], text: str) -> int:
    """The line of a function that has ``text``, counted from 1 in its file."""
    lines, first = inspect.getsourcelines(function)
    return first + next(at for at, line in enumerate(lines) if text in line)


def place_of(finding: Finding) -> int:
    assert finding.impl_location is not None
    assert finding.impl_location.file == __file__
    return finding.impl_location.line


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
def test_a_wrong_layout_is_told_at_its_style(name: str) -> None:
    kind, styles, placement, code, spelled, hint = WRONG[name]
    report = report_on(kind, styles, placement)
    assert report.verdict is Verdict.REFUTED, str(report)
    finding = report.findings[0]
    line = line_with(kind.forward, "self.up")
    assert (finding.code, place_of(finding)) == (code, line_with(plan, "return {")), str(report)
    assert finding.hint == hint.format(line=line), str(report)
    told = f"the plan gives `up` the style `ColwiseParallel` with `input_layouts={spelled}`"
    assert finding.label == f"{told}, which says how the ranks hold its input"
    assert finding.labels[0].location.line == line, str(report)


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
    assert (finding.code, place_of(finding)) == ("VC104", line_with(plan, "return {")), str(report)
    assert finding.hint == hint.format(finding.labels[0].location.line), str(report)
    right = plan(placement, ROWS if returned else Replicate())
    assert report_on(Returned, right, placement, returned).verdict is Verdict.VERIFIED


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_layout_is_proved(name: str) -> None:
    report = report_on(*RIGHT[name])
    assert report.verdict is Verdict.VERIFIED, str(report)


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x + self.down(self.up(x).relu()))
        logits = self.head(h)
        return logits.softmax(-1)


class HeadByHand(Head):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x + self.down(self.up(x).relu()))
        logits = self.head(h)
        return logits.softmax(-1) * 1  # a line of the model alone: it may be wrong itself


def report_on_head(kind: type[Head], *, sums: Placement, parts: Placement) -> verifycompile.Report:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        styles: dict[str, Any] = {
            "up": ColwiseParallel(),
            "down": RowwiseParallel(output_layouts=sums),
            "head": ColwiseParallel(output_layouts=parts),
        }
        model = parallelize_module(kind(), mesh, styles)
        return verifycompile.verify(
            model.requires_grad_(False), (torch.randn(3, WIDTH),), spec=Head().requires_grad_(False), mesh=mesh
        )


GIVEN_IN_PARTS = (
    "the plan gives `head` the style `ColwiseParallel` with `output_layouts=Shard(-1)`, which leaves each rank a part of "
    "its result; with `Replicate()` the style gathers it"
)
GIVEN_AS_SUMS = (
    "the plan gives `down` the style `RowwiseParallel` with `output_layouts=Partial()`, which leaves its result a partial "
    "sum; with `Replicate()` the style all-reduces it"
)


@pytest.mark.parametrize("kind", [Head, HeadByHand])
def test_results_that_are_whole_are_proved(kind: type[Head]) -> None:
    assert report_on_head(kind, sums=Replicate(), parts=Replicate()).verdict is Verdict.VERIFIED


def test_a_result_that_the_plan_leaves_in_parts_is_told_at_its_style() -> None:
    report = report_on_head(Head, sums=Replicate(), parts=Shard(-1))
    assert report.verdict is Verdict.REFUTED, str(report)
    (finding,) = report.findings
    assert (finding.code, place_of(finding)) == ("VC114", line_with(report_on_head, '"head"')), str(report)
    assert (finding.label, finding.message) == (GIVEN_IN_PARTS, GIVEN_IN_PARTS)
    assert finding.labels[0].location.line == line_with(Head.forward, "softmax")
    assert finding.hint is not None


def test_a_partial_sum_is_told_where_it_is_used_and_where_it_became_one() -> None:
    report = report_on_head(Head, sums=Partial(), parts=Replicate())
    assert report.verdict is Verdict.REFUTED, str(report)
    (finding,) = report.findings
    assert (finding.code, place_of(finding)) == ("VC101", line_with(Head.forward, "self.norm")), str(report)
    assert GIVEN_AS_SUMS in finding.notes
    assert finding.hint is not None


def test_a_line_of_the_model_alone_is_told_itself() -> None:
    (finding,) = report_on_head(HeadByHand, sums=Replicate(), parts=Shard(-1)).findings
    assert place_of(finding) == line_with(HeadByHand.forward, "softmax")
    assert GIVEN_IN_PARTS in finding.notes


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
