"""Operators that read a dimension wholly: right where another one is sharded, never where that one is.

Nor do they verify where the implementation calls them with another attribute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate, Shard

from tests.support import fake_mesh_world
from verifycompile import Report, Verdict, verify

Function = Callable[..., torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Case:
    """``right``: a function; ``wrong``: another one. Dimensions by operand: those of a batch, and those read wholly."""

    name: str
    right: Function
    wrong: Function
    operands: tuple[torch.Tensor, ...]
    batch: tuple[int | None, ...]
    wholly: tuple[int | None, ...]


class Called(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        return self.function(*operands)


def check(case: Case, function: Function, dims: tuple[int | None, ...]) -> Report:
    local: list[torch.Tensor] = []
    placements: dict[str, Any] = {}
    with fake_mesh_world((2,), ("x",)) as mesh:
        for position, (operand, dim) in enumerate(zip(case.operands, dims, strict=True)):
            part = operand if dim is None else operand.chunk(2, dim)[0]
            local.append(part.detach().clone().requires_grad_(operand.requires_grad))
            placements[f"operands.{position}"] = (Replicate() if dim is None else Shard(dim),)
        return verify(Called(function), tuple(local), spec=Called(case.right), mesh=mesh, in_placements=placements)


def real(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


def whole(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(1))


def spectrum(norm: str) -> Function:
    return lambda x: torch.fft.rfft(x, norm=norm).abs()


def filtered(norm: str) -> Function:
    return lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * torch.arange(5), s=(6, 8), norm=norm)


def reduced(reduce: str, include_self: bool) -> Function:
    return lambda x, index, source: x.scatter_reduce(1, index, source, reduce, include_self=include_self)


def sampled(mode: str, align_corners: bool) -> Function:
    return lambda x, grid: F.grid_sample(x, grid, mode=mode, align_corners=align_corners)


GRID = (whole(100, 4, 5, 6, 2) / 50 - 1).requires_grad_()
MASK = whole(2, 4, 6).bool()
CASES = [
    Case("rfft", spectrum("backward"), spectrum("ortho"), (real(4, 8),), (0,), (1,)),
    Case("irfft2", filtered("backward"), filtered("forward"), (real(4, 6, 8),), (0,), (1,)),
    Case(
        "scatter_reduce",
        reduced("amax", True),
        reduced("amax", False),
        (real(4, 6), whole(6, 4, 6), real(4, 6)),
        (0, 0, 0),
        (None, 1, 1),
    ),
    Case(
        "grid_sample",
        sampled("bilinear", False),
        sampled("bilinear", True),
        (real(4, 3, 6, 8), GRID),
        (0, 0),
        (2, None),
    ),
    Case(
        "bicubic",
        sampled("bicubic", False),
        sampled("bilinear", False),
        (real(4, 2, 6, 8), GRID.detach()),
        (1, None),
        (3, None),
    ),
    Case(
        "masked_scatter",
        lambda x, mask, source: x.masked_scatter(mask[..., None], source),
        lambda x, mask, source: x.masked_scatter(~mask[..., None], source),
        (real(4, 6, 8), MASK, real(24, 8)),
        (2, None, 1),
        (0, 0, 0),
    ),
    Case(
        "cdist",
        lambda x, y: torch.cdist(x, y, p=1.0),
        lambda x, y: torch.cdist(x, y, p=3.0),
        (real(4, 6, 8), real(4, 2, 8) * 2),
        (0, 0),
        (2, 2),
    ),
    Case(
        "bucketize",
        lambda x, boundaries: torch.bucketize(x, boundaries) * 1.0,
        lambda x, boundaries: torch.bucketize(x, boundaries, right=True) * 1.0,
        (whole(6, 4, 6), torch.arange(6)),
        (0, None),
        (None, 0),
    ),
    Case("mode", lambda x: x.mode(1)[0], lambda x: x.median(1)[0], (real(4, 6),), (0,), (1,)),
    Case(
        "index_fill",
        lambda x, index: x.index_fill(1, index, 0.5),
        lambda x, index: x.index_fill(1, index, 0.25),
        (real(4, 6), whole(6, 3)),
        (0, None),
        (1, None),
    ),
    Case(
        "bags",
        lambda table, indices: F.embedding_bag(indices, table, mode="mean"),
        lambda table, indices: F.embedding_bag(indices, table, mode="sum"),
        (real(10, 6), whole(5, 4, 3)),
        (1, None),
        (0, None),
    ),
    Case(
        "circular padding",
        lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"),
        lambda x: F.pad(x, (1, 1, 1, 1)),
        (real(4, 3, 4, 4),),
        (0,),
        (2,),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_read_wholly(case: Case) -> None:
    report = check(case, case.right, case.batch)
    assert report.verdict is Verdict.VERIFIED, str(report)
    for function, dims in ((case.wrong, case.batch), (case.right, case.wholly)):
        assert check(case, function, dims).verdict is not Verdict.VERIFIED
