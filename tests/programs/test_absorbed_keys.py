"""Latent attention: the spec writes keys and values out, each rank multiplies its queries by their weights instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

import verifycompile
from tests.programs.forms import comm
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict, check_certificate

SIZE = 3
"""Of a head, without the part of its query that has a position."""
Attention = Callable[..., torch.Tensor]


def queries(x: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    return (x @ query.flatten(0, 1).T).unflatten(-1, (-1, SIZE + 1))[..., :SIZE]  # the last one has a position


def written_out(
    x: torch.Tensor, latent: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    keys, values = (torch.einsum("btc,hec->bthe", latent, weight) for weight in (key, value))
    scores = torch.einsum("bshe,bthe->bhst", queries(x, query), keys) / SIZE**0.5
    return torch.einsum("bhst,bthe->bshe", scores.softmax(-1), values)


def absorbed(group: Any, mistake: str) -> Attention:
    def attention(
        x: torch.Tensor, latent: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        x, latent = comm.enter(x, group), latent if mistake == "shared gradient" else comm.enter(latent, group)
        absorbed = torch.einsum("bshe,hec->bshc", queries(x, query), value if mistake == "other weight" else key)
        scores = torch.einsum("bshc,btc->bsht", absorbed, latent) / (SIZE + (mistake == "scale")) ** 0.5
        found = torch.einsum("bsht,btc->bshc", scores.softmax(1 if mistake == "other dimension" else -1), latent)
        return torch.einsum("bshc,hec->bshe", found, value)

    return attention


def by_matrices(group: Any, mistake: str) -> Attention:
    def attention(
        x: torch.Tensor, latent: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        x, latent = comm.enter(x, group), comm.enter(latent, group)
        of_latent = queries(x, query).transpose(1, 2) @ key  # b h s c
        scores = of_latent @ latent.unsqueeze(1).mT * SIZE**-0.5
        found = scores.softmax(-1) @ (latent.unsqueeze(1) if not mistake else latent.unsqueeze(1).roll(1, 2))
        return (found @ value.mT).transpose(1, 2)

    return attention


def verified(program: Callable[[Any, str], Attention], mistake: str) -> Report:
    shapes = ((2, 2, 4), (2, 5, 4), (4, SIZE + 1, 4), (4, SIZE, 4), (4, SIZE, 4))
    with fake_mesh_world((2,), ("tp",)) as mesh:
        whole = [torch.randn(shape, requires_grad=True) for shape in shapes[:2]]
        parts = [torch.randn((shape[0] // 2, *shape[1:]), requires_grad=True) for shape in shapes[2:]]
        placements = {"x": (Replicate(),), "latent": (Replicate(),)}
        placements |= dict.fromkeys(("query", "key", "value"), (Shard(0),))
        return verifycompile.verify(
            program(mesh.get_group(), mistake), (*whole, *parts), spec=written_out, mesh=mesh,
            in_placements=placements, out_placements={"output.0": (Shard(2),)},
        )  # fmt: skip


@pytest.mark.parametrize("program", [absorbed, by_matrices])
def test_association_within_a_softmax(program: Callable[[Any, str], Attention]) -> None:
    report = verified(program, "")
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert report.certificate is not None
    assert check_certificate(report.certificate)


@pytest.mark.parametrize(
    ("program", "mistake"),
    [
        (absorbed, "shared gradient"),
        (absorbed, "other weight"),
        (absorbed, "scale"),
        (absorbed, "other dimension"),
        (by_matrices, "values turned by one"),
    ],
)
def test_what_is_associated_otherwise_is_refuted(program: Callable[[Any, str], Attention], mistake: str) -> None:
    assert verified(program, mistake).verdict is Verdict.REFUTED
