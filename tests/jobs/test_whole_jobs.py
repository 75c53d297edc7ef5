"""Training jobs under a launcher and the flag: what a stranger sees on the terminal when all is well."""

from __future__ import annotations

import re

import pytest

from tests.jobs.launched import launched, told

MODEL, BLOCK, UPDATE = (r"Model\.forward \(.*train\.py:40\)", r"Block\.forward \(.*train\.py:30\)", r"SGD\.step \(.*sgd\.py:\d+\)")
VERIFIED = r" verified in \d+\.\d\d s: spec recovered (with the numbers recorded at construction|from the model as it stands); 2 ranks compared; (no|\d+) assumptions?"
PLAIN = " not checked: it holds no DTensor, mesh or collective, and runs under no data-parallel wrapper"
ALIKE = ", and does the same on all ranks"
NO_GRADIENTS = " not checked: it holds no DTensor, mesh or collective, and makes no gradients that its data-parallel wrapper reduces"

KINDS: dict[str, list[str]] = {
    "tensor parallel": [MODEL + VERIFIED, UPDATE + VERIFIED, MODEL + VERIFIED],
    "fully sharded": [BLOCK + VERIFIED, BLOCK + VERIFIED, UPDATE + VERIFIED, BLOCK + NO_GRADIENTS],
    "mixed precision": [BLOCK + VERIFIED, BLOCK + VERIFIED, UPDATE + VERIFIED, BLOCK + NO_GRADIENTS],
    "data parallel": [MODEL + NO_GRADIENTS, MODEL + VERIFIED, UPDATE + PLAIN + ALIKE],
}
"""What is told of each frame: training, the compiled optimizer's step, evaluation. ``no_sync`` needs no second look.

Under data parallelism rank 0 evaluates, before anybody trains, and the other rank does not."""


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_says_a_line_a_frame_and_trains(kind: str) -> None:
    done = launched("train.py", kind)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^loss \d\.\d{3}$", done.stdout, re.MULTILINE)) == 2
    *frames, summary = told(done)
    assert len(frames) == len(KINDS[kind]), frames
    for line, expected in zip(frames, KINDS[kind], strict=True):
        assert re.fullmatch(expected, line), line
    assert summary.startswith(f"{len(frames)} frames: ")
    assert "failed" not in summary
    assert "Traceback" not in done.stderr
