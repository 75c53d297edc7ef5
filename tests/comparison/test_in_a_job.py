"""In a running job every rank calls ``compare``: the model runs on its real ranks, and on its device; one report."""

from __future__ import annotations

import json
import pathlib
import socket
import subprocess
from typing import Any

import pytest

from tests.warm import python

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "two_ranks.py"


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python(), "-W", "ignore", "-m", "tests.comparison.scripts.two_ranks", str(port)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=SCRIPT.parents[3]
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_program_on_another_device_than_the_spec() -> None:
    command = [python(), "-W", "ignore", "-m", "tests.comparison.scripts.other_device"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=SCRIPT.parents[3])
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == ["verified", "refuted mlp.output.0"]


@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        ("right", "verified"),
        ("wrong", "refuted"),
        ("data parallel", "verified"),
        ("sharded", "verified"),
        ("other values", "refuted"),
        ("compiled", "verified"),
        ("compiled wrongly", "refuted"),
    ],
)
def test_all_ranks_get_one_report(answers: dict[str, Any], program: str, verdict: str) -> None:
    first, second = answers[program]
    assert first["verdict"] == verdict, first["text"]
    assert first == second
    assert first["how"] == "on the ranks of the running job"


def test_the_users_model_is_as_before(answers: dict[str, Any]) -> None:
    assert all(rank.get("kept", True) for ranks in answers.values() for rank in ranks)


def test_the_first_wrong_tensor_is_named(answers: dict[str, Any]) -> None:
    assert answers["wrong"][0]["output"] == "blocks.0.output.0"


def test_what_is_compiled_is_compared_as_it_is_compiled(answers: dict[str, Any]) -> None:
    for program in ("compiled", "compiled wrongly"):
        text = answers[program][0]["text"]
        assert "note: compared uncompiled, with all its modules, and then as it is compiled" in text
    assert "compiled, `output.0` differs from the spec's by" in text


def test_replicas_that_begin_with_other_values_are_told(answers: dict[str, Any]) -> None:
    text = answers["other values"][0]["text"]
    assert "error[VC121]: replicas that differ" in text
    assert (
        "parameter `embedding.weight` should be the same on all ranks that hold it, and rank 1 holds other values"
        in text
    )


@pytest.mark.parametrize(
    ("program", "line", "message"),
    [
        ("raises", 'raise ValueError("no such expert")', "raises an error on rank 1: ValueError: no such expert"),
        ("never comes", "", "does not end on rank 0: another rank ended it 4 seconds ago"),
        ("cannot be made", "", "raises an error on rank 0: ZeroDivisionError: integer division or modulo by zero"),
    ],
)
def test_every_rank_ends_where_one_does_not_go_on(
    answers: dict[str, Any], program: str, line: str, message: str
) -> None:
    for answer in answers[program]:
        assert answer["verdict"] == "unproved"
        assert answer["message"] == f"the parallel program {message}"
        assert answer.get("line", "") == line
        assert answer.get("seconds", 0.0) < 60.0
