"""Attention verifies over sharded heads and sequences, forward and backward; mistakes in it are refuted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import verifycompile
from tests.programs.attention import ATTENTION
from tests.programs.updates import Update
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

OTHER_DTYPES = (torch.float64, torch.bfloat16)
BY_NAME = {update.name: update for update in ATTENTION}
WRITTEN_OUT = BY_NAME["gathered keys written out"]


@pytest.fixture(params=OTHER_DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    usual = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(usual)


def report_on(update: Update, mistake: str = "") -> Report:
    with fake_mesh_world(update.shape, ("x",), rank=1) as mesh:
        layout = update.layouts["query"]
        return verifycompile.verify(
            update.program(mesh, mistake),
            tuple(update.inputs(mesh)),
            spec=update.spec,
            mesh=mesh,
            in_placements=update.layouts,
            out_placements={"output.0": layout},
        )


@pytest.mark.parametrize("update", ATTENTION, ids=lambda update: update.name)
def test_attention_verifies(update: Update) -> None:
    report = report_on(update)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert set(report.relations) == {"output.0", "grad.query", "grad.key", "grad.value"}


@pytest.mark.sampled(every=3, of=("mistake",))
@pytest.mark.parametrize(
    ("update", "mistake"),
    [(u, m) for u in ATTENTION for m in u.mistakes],
    ids=lambda v: v if isinstance(v, str) else v.name,
)
def test_mistake_in_attention_is_refuted(update: Update, mistake: str) -> None:
    report = report_on(update, mistake)
    assert report.verdict is Verdict.REFUTED, str(report)


@pytest.mark.usefixtures("dtype")
@pytest.mark.parametrize("mistake", ["", "scale"])
def test_attention_that_is_written_out_in_other_dtypes(mistake: str) -> None:
    assert report_on(WRITTEN_OUT, mistake).verdict is (Verdict.REFUTED if mistake else Verdict.VERIFIED)
