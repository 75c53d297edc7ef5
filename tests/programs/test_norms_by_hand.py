"""Layer norms written by hand on a residual stream, under tensor and sequence parallelism, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard

import verifycompile
from tests.programs.forms import comm
from tests.support import fake_mesh_world
from verifycompile import Verdict

Tensor = torch.Tensor
Norm = Callable[[Tensor, Tensor, Tensor], Tensor]
WIDTH, INNER, EPSILON = 4, 3, 1e-5


def torchs(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (WIDTH,), weight, bias, EPSILON)


def by_squares(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + EPSILON) * weight + bias


def by_variance(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.sum(-1, keepdim=True) / x.shape[-1]
    return bias + weight * centred * torch.rsqrt(torch.var(x, -1, correction=0, keepdim=True) + EPSILON)


def of_the_sample(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + EPSILON) * weight + bias


def blocks(norm: Norm, enter: Callable[[Tensor], Tensor], leave: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def stream(x: Tensor, weight: Tensor, bias: Tensor, up: Tensor, down: Tensor) -> Tensor:
        for layer in range(2):
            x = x + leave(F.gelu(enter(norm(x, weight[layer], bias[layer])) @ up[layer]) @ down[layer])
        return norm(x, weight[0], bias[1])

    return stream


def parallel(norm: Norm, mistake: str, group: Any) -> Callable[..., Tensor]:
    def enter(x: Tensor) -> Tensor:
        return x if mistake == "the gradient stays a part" else comm.enter(x, group)

    return blocks(norm, enter, lambda x: x if mistake == "a sum is missing" else comm.leave(x, group))


def in_sequence(norm: Norm, mistake: str, group: Any) -> Callable[..., Tensor]:
    stream = blocks(norm, lambda x: comm.gather(x, 1, group), lambda x: comm.scatter(x, 1, group))

    def program(x: Tensor, weight: Tensor, bias: Tensor, up: Tensor, down: Tensor) -> Tensor:
        if mistake != "the gradient stays a part":
            weight, bias = comm.enter(weight, group), comm.enter(bias, group)
        return stream(x, weight, bias, up, down)

    return program


@pytest.mark.parametrize(
    ("form", "norm", "mistake"),
    [
        (parallel, by_squares, ""),
        (parallel, by_variance, ""),
        (parallel, of_the_sample, "another norm"),
        (parallel, by_squares, "the gradient stays a part"),
        (parallel, by_variance, "a sum is missing"),
        (in_sequence, by_squares, ""),
        (in_sequence, by_variance, ""),
        (in_sequence, by_squares, "the gradient stays a part"),
    ],
)
def test_norms_by_hand(form: Callable[..., Callable[..., Tensor]], norm: Norm, mistake: str) -> None:
    shapes = (2, 4, WIDTH), (2, WIDTH), (2, WIDTH), (2, WIDTH, INNER), (2, INNER, WIDTH)
    every, rows = (Replicate(),), (Shard(1),) if form is in_sequence else (Replicate(),)
    with fake_mesh_world((2,), ("tp",)) as mesh:
        report = verifycompile.verify(
            form(norm, mistake, mesh.get_group()),
            tuple(torch.randn(shape, requires_grad=True) for shape in shapes),
            spec=blocks(torchs, lambda x: x, lambda x: x),
            mesh=mesh,
            in_placements={"x": rows, "weight": every, "bias": every, "up": (Shard(2),), "down": (Shard(1),)},
            out_placements={"output.0": rows},
        )
    assert report.verdict is (Verdict.REFUTED if mistake else Verdict.VERIFIED), str(report)
