"""Shards joined with the edge of a neighbour's: verified forward and backward; a wrong edge is refuted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Partial, Shard

import verifycompile
from tests.programs import neighbours
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

SEQUENCE = (Shard(1),)
FORMS = {
    "gathered": neighbours.with_edge(neighbours.gathered),
    "padded": neighbours.with_edge(neighbours.padded),
    "permuted": neighbours.with_edge(neighbours.permuted),
    "sent": neighbours.with_edge(neighbours.sent),
    "rolled": neighbours.rolled,
}


def labels_report(
    form: str, mistake: str = "", ranks: int = 3, spec: Callable[..., Any] = neighbours.next_tokens, each: int = 2
) -> Report:
    with fake_mesh_world((ranks,), ("x",), rank=1) as mesh:
        hidden, weight = torch.randn(2, each, 2, requires_grad=True), torch.randn(2, 3, requires_grad=True)
        return verifycompile.verify(
            FORMS[form](mesh, mistake),
            (hidden, weight, torch.randint(3, (2, each))),
            spec=spec,
            mesh=mesh,
            in_placements={"hidden": SEQUENCE, "labels": SEQUENCE},
            out_placements={"output.0": (Partial(),)},
            grad_placements={"weight": (Partial(),)},
        )


@pytest.mark.parametrize(
    ("form", "spec"),
    [
        ("gathered", neighbours.next_tokens),
        ("padded", neighbours.padded_tokens),
        ("permuted", neighbours.padded_tokens),
        ("sent", neighbours.next_tokens),
        ("rolled", neighbours.next_tokens),
    ],
)
def test_labels_of_the_next_rank(form: str, spec: Callable[..., Any]) -> None:
    report = labels_report(form, spec=spec)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert set(report.relations) == {"output.0", "grad.hidden", "grad.weight"}


@pytest.mark.parametrize(
    ("form", "mistake"),
    [
        ("gathered", "previous rank"),
        ("gathered", "own edge"),
        ("gathered", "own count"),
        ("padded", "second label"),
        ("permuted", "previous rank"),
        ("sent", "last rank goes on"),
        ("rolled", "last rank goes on"),
    ],
)
def test_other_labels_are_refuted(form: str, mistake: str) -> None:
    report = labels_report(form, mistake)
    assert report.verdict is Verdict.REFUTED, str(report)


@pytest.mark.sweep
@pytest.mark.parametrize("spec", [neighbours.next_tokens, neighbours.padded_tokens])
@pytest.mark.parametrize("form", FORMS)
def test_other_sizes(form: str, spec: Callable[..., Any]) -> None:
    for ranks, each in ((2, 5), (4, 2), (4, 3)):
        report = labels_report(form, "", ranks, spec, each)
        assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.sweep
@pytest.mark.parametrize("mistake", ["previous rank", "own edge", "own count", "second label", "last rank goes on"])
@pytest.mark.parametrize("form", FORMS)
def test_all_mistakes(form: str, mistake: str) -> None:
    if form == "rolled" and mistake not in ("previous rank", "last rank goes on"):
        return
    for ranks in (3, 4):
        report = labels_report(form, mistake, ranks, neighbours.padded_tokens)
        assert report.verdict is not Verdict.VERIFIED, str(report)
