"""Causes in a user's own ``backward``: shown there, where it is written in the file of the line that calls it."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Replicate, Shard

from tests.support import fake_mesh_world
from verifycompile import Report, Verdict, verify

ROWS, COLUMNS, WHOLE = (Shard(0),), (Shard(1),), (Replicate(),)


def reduced(gradient: torch.Tensor, mesh: DeviceMesh, operation: str = "sum") -> torch.Tensor:
    return funcol.all_reduce(gradient.contiguous(), operation, mesh)


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mesh: DeviceMesh, mistake: str) -> torch.Tensor:
        ctx.mesh, ctx.mistake = mesh, mistake
        return funcol.all_gather_tensor(x, 0, mesh)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        (gradient,) = grad_outputs
        count, rank = gradient.shape[0] // ctx.mesh.size(), ctx.mesh.get_local_rank()
        if ctx.mistake:
            return gradient[rank * count : (rank + 1) * count], None, None
        return funcol.reduce_scatter_tensor(gradient, "sum", 0, ctx.mesh), None, None


class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mesh: DeviceMesh, mistake: str) -> torch.Tensor:
        ctx.mesh, ctx.mistake = mesh, mistake
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        (gradient,) = grad_outputs
        summed = reduced(gradient.T, ctx.mesh, "avg" if ctx.mistake == "averaged" else "sum").T
        return gradient if ctx.mistake == "forgotten" else summed, None, None


def spec(x: torch.Tensor, gain: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * gain) @ w


def report(kind: type[torch.autograd.Function], mistake: str) -> Report:
    with fake_mesh_world((2,), ("tp",)) as mesh:

        def program(x: torch.Tensor, gain: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return kind.apply(torch.tanh(x * gain), mesh, mistake) @ w

        parts = ROWS if kind is Gathered else WHOLE
        layouts = {"x": parts, "gain": parts, "w": COLUMNS}
        inputs = torch.randn(2, 4, requires_grad=True), torch.randn(2, 4, requires_grad=True), torch.randn(4, 3)
        return verify(
            program, inputs, spec=spec, mesh=mesh, in_placements=layouts, out_placements={"output.0": COLUMNS}
        )


WRONG = {
    "cut": (Gathered, "VC101", "return gradient[", "all-reduce the gradient over `tp` (sum) before line {} takes it"),
    "averaged": (Copied, "VC103", "summed = reduced(", 'use "sum" in the place of "avg" at line {}'),
    "forgotten": (
        Copied,
        "VC101",
        "summed = reduced(",
        "all-reduce the gradient over `tp` (sum) before line {} takes it",
    ),
}


@pytest.mark.parametrize("kind", [Gathered, Copied])
def test_the_right_backward_is_proved(kind: type[torch.autograd.Function]) -> None:
    assert report(kind, "").verdict is Verdict.VERIFIED


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_backward_is_shown(mistake: str) -> None:
    kind, code, line, hint = WRONG[mistake]
    found = report(kind, mistake)
    assert found.verdict is Verdict.REFUTED, str(found)
    (finding,) = found.findings
    place = finding.impl_location
    assert place is not None
    assert (finding.code, finding.hint) == (code, f"{hint.format(place.line)} (checked)"), str(found)
    assert linecache.getline(place.file, place.line).strip().startswith(line), str(found)
    called = [label.location.line for label in finding.labels if label.text == "called here"]
    assert len(called) == (kind is Copied), str(found)  # what computes is not passed over
