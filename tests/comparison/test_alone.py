"""Modules that are wrong by themselves are a finding each; what follows from one of them is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint

from tests.comparison.programs import on_ranks, tensor_parallel
from verifycompile import Verdict


class DoublesGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride] - torch's own signature is open
        return gradient * 2


class Block(nn.Module):
    def __init__(self, bug: str, recomputed: bool) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.bug, self.recomputed = bug, recomputed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, use_reentrant=False) if self.recomputed else self.block(x)

    def block(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(x) * (1.5 if self.bug == "scale" else 1)
        y = self.down(nn.functional.gelu(self.up(hidden)))
        if self.bug == "gradient":
            y = DoublesGradient.apply(y)
        return x + (y + y if self.bug == "twice" else y)


class Blocks(nn.Module):
    def __init__(self, bugs: tuple[str, ...] = ("", "", "", ""), *, recomputed: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(bug, recomputed) for bug in bugs)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()


@pytest.mark.parametrize(
    ("bugs", "named"),
    [
        (("", "", "", ""), []),
        (("", "twice", "", ""), ["blocks.1.output.0"]),
        (("scale", "", "", "twice"), ["blocks.0.up.input.0", "blocks.3.output.0"]),
        (("", "twice", "scale", "twice"), ["blocks.1.output.0", "blocks.2.up.input.0", "blocks.3.output.0"]),
        (("", "gradient", "", ""), ["grad.blocks.1.down.output.0"]),
        (("gradient", "", "gradient", ""), ["grad.blocks.2.down.output.0", "grad.blocks.0.down.output.0"]),
        # A program whose forward is wrong is not asked about its backward.
        (("twice", "", "", "gradient"), ["blocks.0.output.0"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_each_module_that_is_wrong_by_itself_is_named(bugs: tuple[str, ...], named: list[str]) -> None:
    # What is called again in backward is right or wrong as in forward: half of the programs have it.
    recomputed = len(named) % 2 == 1
    torch.manual_seed(0)

    def build(mesh: DeviceMesh) -> nn.Module:
        return tensor_parallel(Blocks(bugs, recomputed=recomputed), mesh)

    report = on_ranks(build, (torch.randn(4, 8),), spec=Blocks(recomputed=recomputed))
    assert [finding.output for finding in report.findings] == named
    assert report.verdict is (Verdict.REFUTED if named else Verdict.VERIFIED)
