"""One line a frame under the flag, one summary at exit, one record a frame in the report folder."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from verifycompile.backends import frames
from verifycompile.backends.autoload import FOLDER_VARIABLE
from verifycompile.backends.frames import Frames, Outcome

VERIFIED = Outcome("Block.forward", "model.py", 7, "verified", "spec given; 2 ranks compared", 0.25, assumptions=1)
PLAIN = Outcome("loss", "train.py", 40, "not checked", "it holds no DTensor", 0.0)
REFUTED = Outcome("Block.forward", "model.py", 9, "refuted", "spec given; 2 ranks compared", 1.5)


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_a_line_says_what_was_compared_and_how_much_is_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    record = Frames()
    for outcome in (VERIFIED, PLAIN):
        record.add(outcome)
    assert told(capsys) == [
        "verifycompile: Block.forward (model.py:7) verified in 0.25 s: spec given; 2 ranks compared; 1 assumption",
        "verifycompile: loss (train.py:40) not checked: it holds no DTensor",
    ]


def test_the_summary_counts_what_an_error_has_told_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    record = Frames()
    for outcome in (VERIFIED, PLAIN, REFUTED):
        record.add(outcome, says=outcome is not REFUTED)
    told(capsys)
    record.tell_summary()
    assert told(capsys) == [
        "verifycompile: 3 frames: 1 verified, 1 not checked, 1 refuted; slowest Block.forward (model.py:9), 1.50 s"
    ]


def test_one_frame_needs_no_summary(capsys: pytest.CaptureFixture[str]) -> None:
    record = Frames()
    record.add(VERIFIED)
    told(capsys)
    record.tell_summary()
    assert told(capsys) == []


@pytest.mark.parametrize(("rank", "lines"), [(None, 1), (0, 0), (2, 1), (3, 0)])
def test_of_ranks_that_run_a_frame_together_the_first_tells_it(
    rank: int | None, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(frames, "rank_of_job", lambda: rank)
    Frames().add(VERIFIED, first_rank=2)
    assert len(told(capsys)) == lines


def test_every_rank_keeps_a_record_in_the_report_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "reports"))
    monkeypatch.setattr(frames, "rank_of_job", lambda: 1)
    record = Frames()
    record.add(VERIFIED)
    record.add(PLAIN)
    (file,) = (tmp_path / "reports").iterdir()
    assert re.fullmatch(r"frames-\d+\.jsonl", file.name)
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["function"], line["verdict"], line["rank"]) for line in kept] == [
        ("Block.forward", "verified", 1),
        ("loss", "not checked", 1),
    ]
