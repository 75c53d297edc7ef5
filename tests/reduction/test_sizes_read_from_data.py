"""Programs of which some sizes are read from data: tokens that are sent to their experts, at the sizes of a model."""

from __future__ import annotations

import pytest

from tests.programs import test_experts_dropless as experts
from verifycompile import Verdict


@pytest.fixture(autouse=True)
def sizes_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"HIDDEN": 2048, "INNER": 4096, "EXPERTS": 16, "TOKENS": 16384}.items():
        monkeypatch.setattr(experts, name, size)


def test_a_wrong_exchange_is_refuted() -> None:
    report = experts.verified(experts.Experts, "the next expert")
    assert report.verdict is Verdict.REFUTED
    assert report.findings[0].notes[0] == (
        "the programs are too large to evaluate: the difference is shown at reduced sizes "
        "(32768 -> 8, 16384 -> 4, 8192 -> 2, 4096 -> 2, 2048 -> 2)"
    )
