"""Causal masks and sliding windows by a rank's offset meet in one form, however they are written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard

import verifycompile
from tests.programs import attention
from tests.programs.causal_masks import (
    MASKS,
    MISTAKES,
    Mask,
    added,
    by_rank,
    causal,
    chosen,
    compared,
    difference,
    fused,
    halves,
    rows_of_triangle,
    shifted_triangle,
    whole,
    window,
    written_out,
)
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

SEQUENCE = (Shard(2),)


def _rank_of_group() -> int:
    return dist.get_rank()


def report_on(
    spec: Callable[..., torch.Tensor], mask: Mask, form: Callable[..., torch.Tensor], mistake: str = "", ranks: int = 2
) -> Report:
    with fake_mesh_world((ranks,), ("x",), rank=1) as mesh:
        rank = _rank_of_group if ranks > 2 else mesh.get_local_rank
        gather = lambda x: attention._Gather.apply(x, mesh, True)  # noqa: E731
        return verifycompile.verify(
            None,
            tuple(torch.randn(1, 2, 4, 6, requires_grad=True) for _ in range(3)),
            build=lambda: by_rank(mask, form, gather, rank, mistake),
            spec=spec,
            mesh=mesh,
            in_placements={"query": SEQUENCE, "key": SEQUENCE, "value": SEQUENCE},
            out_placements={"output.0": SEQUENCE},
        )


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.__name__)
def test_mask_is_the_causal_one(mask: Mask) -> None:
    report = report_on(causal, mask, fused)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert set(report.relations) == {"output.0", "grad.query", "grad.key", "grad.value"}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("spec", [compared, rows_of_triangle, halves, added], ids=lambda mask: mask.__name__)
def test_mask_of_the_spec(spec: Mask) -> None:
    report = report_on(whole(spec), difference, written_out)
    assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("mask", [difference, rows_of_triangle, shifted_triangle], ids=lambda mask: mask.__name__)
def test_four_ranks_that_read_their_number(mask: Mask) -> None:
    report = report_on(causal, mask, chosen, ranks=4)
    assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("number", range(1, len(MASKS), 2))
def test_wrong_offset_is_refuted(number: int) -> None:
    report = report_on(causal, MASKS[number], written_out, MISTAKES[number // 2 % len(MISTAKES)])
    assert report.verdict is Verdict.REFUTED, str(report)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_difference_is_refuted(mistake: str) -> None:
    assert report_on(causal, difference, fused, mistake).verdict is Verdict.REFUTED


@pytest.mark.parametrize("by_triangles", [False, True])
def test_sliding_window(by_triangles: bool) -> None:
    report = report_on(whole(window(3, not by_triangles)), window(3, by_triangles), written_out)
    assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.sampled(every=2, of=("mistake",))
@pytest.mark.parametrize(("size", "mistake"), [(2, ""), (4, ""), (3, "positions of the first rank")])
def test_other_window_is_refuted(size: int, mistake: str) -> None:
    report = report_on(whole(window(3)), window(size), written_out, mistake)
    assert report.verdict is Verdict.REFUTED, str(report)
