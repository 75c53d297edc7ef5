"""What a report says of the question that it answers."""

from __future__ import annotations

import pytest

from verifycompile.question import Provenance, Question

ASSUMED = "assumed to run what this process captured"


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (Question(Provenance.GIVEN, Provenance.OBSERVED, 2, 2), "spec given; 2 ranks compared"),
        (Question(Provenance.GIVEN, Provenance.OBSERVED, 2, 4), "spec given; 2 ranks of the job's 4 compared"),
        (Question(Provenance.GIVEN, Provenance.ASSUMED, 1, 2), f"spec given; 1 rank of the job's 2 {ASSUMED}"),
        (Question(Provenance.GIVEN, Provenance.ASSUMED, 1), f"spec given; 1 rank {ASSUMED}"),
    ],
)
def test_ranks_of_which_a_report_does_not_speak(question: Question, text: str) -> None:
    assert question.describe() == text
