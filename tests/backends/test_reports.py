"""Where reports go besides the error."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys

import pytest

from verifycompile.backends import refusal, reports
from verifycompile.backends.autoload import FOLDER_VARIABLE
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.program import SourceLocation

LOCATION = SourceLocation(file="model.py", line=7)
UNPROVED = Report(
    verdict=Verdict.UNPROVED,
    findings=(Finding(code="VC201", severity=Severity.WARNING, message="no declaration", impl_location=LOCATION),),
)


@pytest.mark.parametrize("rank", [None, 0])
def test_one_process_and_rank_0_print_the_report_in_full(monkeypatch: pytest.MonkeyPatch, rank: int | None) -> None:
    monkeypatch.setattr(reports, "rank_of_job", lambda: rank)
    assert reports.text_for_this_rank(UNPROVED) == str(UNPROVED)


def test_other_ranks_print_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "rank_of_job", lambda: 3)
    line = "model.py:7:1: unproved[VC201]: no declaration (rank 3; rank 0 prints the report)"
    assert reports.text_for_this_rank(UNPROVED) == line


def test_warning_is_at_the_users_line() -> None:
    with pytest.warns(reports.VerificationWarning, match="VC201") as caught:
        reports.warn_with_report(UNPROVED)
    assert (caught[0].filename, caught[0].lineno) == ("model.py", 7)


def test_report_folder_keeps_json_and_html(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "new" / "reports"
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    monkeypatch.setattr(reports, "compile_id", lambda: "2/1")
    monkeypatch.setattr(reports, "rank_of_job", lambda: 1)
    name = f"graph-2-1-rank1-{os.getpid()}"
    verified = dataclasses.replace(UNPROVED, verdict=Verdict.VERIFIED, findings=())
    # After torch._dynamo.reset() the first graph has the name of the first again, and none takes another's place.
    assert [reports.keep_report(report) for report in (UNPROVED, verified)] == [f"{name}.json", f"{name}-2.json"]
    assert sorted(path.name for path in folder.glob("*.html")) == [f"{name}-2.html", f"{name}.html"]
    verdicts = [json.loads((folder / f"{file}.json").read_text())["verdict"] for file in (name, f"{name}-2")]
    assert verdicts == ["unproved", "verified"]


def test_without_a_folder_nothing_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    reports.keep_report(UNPROVED)
    assert list(tmp_path.iterdir()) == []


class _Printed:
    """The channel of a job in which another rank has printed the report."""

    def wait_until_printed(self, *_: object) -> None:
        return


def test_all_refused_graphs_share_one_hook_for_errors_that_nobody_catches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda _kind, value, _traceback: others.append(value))
    for module in (reports, refusal):
        monkeypatch.setattr(module, "rank_of_job", lambda: 1)
    together = refusal.Together((0, 1), "forward", _Printed())  # type: ignore[arg-type]
    first = refusal.refusal(UNPROVED, together)
    hook = sys.excepthook
    second, plain = refusal.refusal(UNPROVED, together), ValueError("something else")
    assert sys.excepthook is hook
    for error in (second, plain, first):
        hook(type(error), error, None)
    line = "verifycompile: model.py:7:1: unproved[VC201]: no declaration (rank 1; rank 0 prints the report)\n"
    assert capsys.readouterr().err == line * 2
    assert others == [plain]
