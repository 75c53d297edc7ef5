"""One rank alone is wrong: all ranks stop, its report is printed in full, once, and nothing waits without end."""

from __future__ import annotations

import re

import pytest

from tests.jobs.launched import launched, told


@pytest.mark.parametrize("rank", [1])
def test_under_a_launcher_one_rank_prints_the_report_and_the_other_a_line(rank: int) -> None:
    done = launched("one_rank_wrong.py", str(rank))
    assert done.returncode == 1
    reports = re.findall(r"^\[rank(\d)\]: verifycompile\.RefinementError: error\[VC103\]: wrong scale$", done.stderr, re.MULTILINE)
    assert len(reports) == 1
    assert done.stderr.count("see: verifycompile explain VC103") == 1
    # The launcher may end the other process before it has said its line.
    (other,) = {0, 1} - {int(reports[0])}
    for line in told(done):
        assert re.search(rf"error\[VC103\]: .* \(rank {other}; rank {reports[0]} prints the report\)$", line)
    assert done.stderr.count("Traceback (most recent call last)") == 2  # that of the rank, and the launcher's own


def test_where_one_rank_has_another_flag_the_variable_is_named() -> None:
    done = launched("one_rank_wrong.py", "1", "warn")
    assert done.returncode == 1
    assert "the option `on_unproved` is not the same on ranks 0 and 1: give all ranks the same." in done.stderr
    note = "in a job under the flag, this is said by the variable VERIFYCOMPILE: set it to the same on all ranks"
    assert f"= note: {note}" in done.stderr
