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
            None,
            (hidden, weight, torch.randint(3, (2, each))),
            build=lambda: FORMS[form](mesh, mistake),
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
        ("sent", neighbours.next_tokens),
    ],
)
def test_labels_of_the_next_rank(form: str, spec: Callable[..., Any]) -> None:
    report = labels_report(form, spec=spec)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert set(report.relations) == {"output.0", "grad.hidden", "grad.weight"}


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(
    ("form", "mistake"),
    [
        ("gathered", "own edge"),
        ("padded", "second label"),
        ("permuted", "previous rank"),
        ("rolled", "last rank goes on"),
    ],
)
def test_other_labels_are_refuted(form: str, mistake: str) -> None:
    report = labels_report(form, mistake)
    assert report.verdict is Verdict.REFUTED, str(report)


HALOS: dict[str, tuple[Callable[..., Any], Callable[..., Any], int, list[tuple[int, ...]]]] = {
    "token shift": (neighbours.token_shift_of_shards, neighbours.token_shift, 1, [(2, 3, 2), (2, 3), (2,)]),
    "from the end": (neighbours.own_part_from_the_end, neighbours.projection, 1, [(2, 2, 2), (2, 3)]),
    "differences": (neighbours.differences_of_shards, neighbours.differences, 1, [(2, 3)]),
    "causal convolution": (
        neighbours.causal_convolution_of_shards, neighbours.causal_convolution, 2, [(1, 2, 4), (2, 1, 3), (2,)],
    ),
    "image": (
        neighbours.image_convolutions_of_shards, neighbours.image_convolutions, 2, [(1, 2, 3, 3), (2, 2, 3, 3), (2,)],
    ),
}  # fmt: skip
"""Program, spec, dimension that is sharded, shapes of the inputs."""


def halo_report(name: str, mistake: str = "", ranks: int = 2) -> Report:
    program, spec, dim, shapes = HALOS[name]
    with fake_mesh_world((ranks,), ("x",), rank=1) as mesh:
        inputs = tuple(torch.randn(shape, requires_grad=True) for shape in shapes)
        weights = {key: (Partial(),) for key in ("weight", "mixed", "bias")}
        return verifycompile.verify(
            None,
            inputs,
            build=lambda: program(mesh, mistake),
            spec=spec,
            mesh=mesh,
            in_placements={"x": (Shard(dim),)},
            out_placements={"output.0": (Partial(),) if name == "differences" else (Shard(dim),)},
            grad_placements={key: weights[key] for key in weights if key in spec.__code__.co_varnames[: len(shapes)]},
        )


@pytest.mark.parametrize(
    "name", ["token shift", "from the end", "causal convolution", pytest.param("image", marks=pytest.mark.sweep)]
)
def test_halos(name: str) -> None:
    report = halo_report(name)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert len(report.relations) == 1 + len(HALOS[name][3])


MISTAKES = {
    "token shift": ["own edge", "goes round", "one position off", "own first position", "rank behind"],
    "from the end": ["one rank further", "one position off", "from the start"],
    "differences": ["step from nothing", "gradient stays", "one position off", "gradient goes on"],
    "causal convolution": ["no halo", "own edge", "one position off", "goes round", "rank behind"],
    "image": ["sides exchanged", "second halo missing", "gradient stays", "gradient goes on", "one position off"],
}


@pytest.mark.parametrize(
    ("name", "mistake"),
    [("token shift", "goes round"), ("differences", "gradient stays"), ("causal convolution", "own edge")],
)
def test_wrong_halo_is_refuted(name: str, mistake: str) -> None:
    report = halo_report(name, mistake)
    assert report.verdict is Verdict.REFUTED, str(report)


@pytest.mark.sweep
@pytest.mark.parametrize("name", HALOS)
def test_halos_on_more_ranks(name: str) -> None:
    assert halo_report(name, ranks=3).verdict is Verdict.VERIFIED


@pytest.mark.sweep
def test_halos_beside_data_parallel_ranks() -> None:
    with fake_mesh_world((2, 2), ("data", "x"), rank=1) as mesh:
        report = verifycompile.verify(
            neighbours.token_shift_of_shards(mesh["x"], ""),
            tuple(torch.randn(shape, requires_grad=True) for shape in [(1, 3, 2), (2, 3), (2,)]),
            spec=neighbours.token_shift,
            mesh=mesh,
            in_placements={"x": (Shard(0), Shard(1))},
            out_placements={"output.0": (Shard(0), Shard(1))},
            grad_placements={name: (Partial(), Partial()) for name in ("weight", "mixed")},
        )
    assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "mistake"), [(name, text) for name, texts in MISTAKES.items() for text in texts])
def test_every_wrong_halo_is_refuted(name: str, mistake: str) -> None:
    report = halo_report(name, mistake, ranks=3)
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
