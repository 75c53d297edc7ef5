"""Mixed precision: casts between floats are identities that the report lists; other casts never are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

import verifycompile
from tests.soundness.plain import all_reduce, verify_functions
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

ROWS, WHOLE, SUM, MEAN = (Shard(0),), (Replicate(),), (Partial(),), (Partial("avg"),)


class Mixed(nn.Module):
    """Parameters in float32, arithmetic of the layers in bfloat16, the loss in float32."""

    def __init__(self, autocast: bool = True, mistake: str = "") -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)
        self.autocast = autocast
        self.mistake = mistake

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            hidden = torch.relu(self.up(x))
            if self.mistake == "whole numbers":
                hidden = hidden.long().to(hidden.dtype)
            y = self.down(hidden)
        if self.mistake == "scaled":
            y = y * 2
        return y.float().square().mean() if self.mistake != "not centered" else (y.float() - 1).square().mean()


def report_on(mistake: str = "") -> Report:
    plan: dict[str, ParallelStyle] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    with fake_mesh_world((2,), ("tp",), rank=1) as mesh:
        model = parallelize_module(Mixed(mistake=mistake), mesh, plan)
        return verifycompile.verify(model, (torch.randn(4, 4),), spec=Mixed(autocast=False))


def test_autocast_against_full_precision() -> None:
    report = report_on()
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert "cast treated as identity: float32 to bfloat16" in report.assumptions
    assert "cast treated as identity: bfloat16 to float32" in report.assumptions


@pytest.mark.parametrize("mistake", ["whole numbers", "scaled", "not centered"])
def test_mistakes_under_autocast_are_refuted(mistake: str) -> None:
    report = report_on(mistake)
    assert report.verdict is Verdict.REFUTED, str(report)


# ------------------------------------------------------------------------------------------------ loss scaling


def unscaled_step(w: torch.Tensor, g: torch.Tensor, s: torch.Tensor) -> None:
    w.sub_(0.1 * g / s)


def scaled_step(mistake: str) -> Callable[..., None]:
    def step(mesh: DeviceMesh, w: torch.Tensor, g: torch.Tensor, s: torch.Tensor) -> None:
        half = all_reduce(g.bfloat16(), mesh, operation="sum" if mistake == "not averaged" else "avg").float()
        scale = {"not unscaled": torch.ones_like(s), "unscaled twice": s * s}.get(mistake, s)
        if mistake == "in whole numbers":
            half = half.round()
        w.sub_(0.1 * half / scale)

    return step


@pytest.mark.parametrize("mistake", ["", "not unscaled", "unscaled twice", "not averaged", "in whole numbers"])
def test_loss_scaling(mistake: str) -> None:
    report = verify_functions(
        unscaled_step, scaled_step(mistake), [torch.randn(4, 4), torch.randn(4, 4), torch.tensor(8.0)],
        in_placements={"a": WHOLE, "b": MEAN, "c": WHOLE},
    )  # fmt: skip
    assert report.verdict is (Verdict.REFUTED if mistake else Verdict.VERIFIED), str(report)


def test_a_master_weight_is_copied_into_a_shorter_one() -> None:
    def step(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        a.sub_(0.1 * c)
        b.copy_(a)

    report = verify_functions(
        step, lambda mesh, a, b, c: step(a, b, c), [torch.randn(4, 4), torch.randn(4, 4).bfloat16(), torch.randn(4, 4)],
        in_placements={"a": ROWS, "b": ROWS, "c": ROWS},
    )  # fmt: skip
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert "cast treated as identity: float32 to bfloat16" in report.assumptions


# ------------------------------------------------------------------------------------------------ other casts

CASTS: dict[str, tuple[Callable[..., Any], Any]] = {
    "int64": (lambda a: (3 * a).long(), Verdict.VERIFIED),
    "int32": (lambda a: (3 * a).int() + 1, Verdict.VERIFIED),
    "bool": (lambda a: a.bool(), Verdict.VERIFIED),
    "rounding": (lambda a: torch.round(a / 0.1).clamp(-128, 127) * 0.1, Verdict.VERIFIED),
    "int8": (lambda a: a.to(torch.int8).float(), Verdict.UNPROVED),
    "float8": (lambda a: a.to(torch.float8_e4m3fn).float(), Verdict.UNPROVED),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", CASTS)
def test_casts_of_shards(name: str) -> None:
    function, verdict = CASTS[name]
    report = verify_functions(function, lambda mesh, a: function(a), [torch.randn(4, 4)], in_placements={"a": ROWS})
    assert report.verdict is verdict, str(report)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", CASTS)
def test_casts_of_summands_are_not_summands_of_the_cast(name: str) -> None:
    function, verdict = CASTS[name]
    report = verify_functions(
        function, lambda mesh, a: all_reduce(function(a).float(), mesh), [torch.randn(4, 4)], in_placements={"a": SUM}
    )
    assert report.verdict is not Verdict.VERIFIED
    assert verdict is Verdict.UNPROVED or report.verdict is Verdict.REFUTED
