"""The examples for a laptop: the right form of each is verified, the wrong form is refused at the line that is wrong."""

from __future__ import annotations

import logging
import pathlib
import runpy
import subprocess
import sys

import pytest

from tests.project.documents import agrees, all_commands, shown_of
from tests.warm import python

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
IN_ONE_PROCESS = {
    "megatron_layers": ("VC101", "hidden = F.gelu(self.up(self.copy.apply(x)))", "its sum over all ranks is needed"),
    "pipeline_stages": ("VC103", "scaled = part_of_loss * scale", "makes the value 2 times too large"),
    "experts": ("VC104", "back = all_to_all_single_autograd(done.reshape", "where 4 times 2 are expected"),
    "released_bug": ("VC114", "return mask.cumsum(-1) - 1", "each rank has the result of its own part"),
}
"""Script -> what the refusal of ``--bug`` says: the code, the text of the first line that it names, its label.

``tensor_parallel_transformer``: ``tests/backends/test_two_processes.py``."""


def line_of(name: str, text: str) -> int:
    lines = (EXAMPLES / f"{name}.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def assert_shown(printed: str, name: str, *arguments: str) -> None:
    """What the documents show of this command is what it prints."""
    for shown in shown_of(" ".join(["python", f"examples/{name}.py", *arguments])):
        assert agrees(shown, printed), printed


def assert_refused_at(printed: str, name: str, expected: tuple[str, str, str]) -> None:
    code, text, label = expected
    first, place, *rest = printed.splitlines()
    assert first.startswith((f"error[{code}]: ", f"unproved[{code}]: "))
    assert f"examples/{name}.py:{line_of(name, text)}:" in place
    assert label in rest[2]


def run_here(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(f"examples/{name}.py", run_name="__main__")
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("name", IN_ONE_PROCESS)
def test_right_form(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(name, monkeypatch) == 0
    assert capsys.readouterr().out.startswith("verified: ")


@pytest.mark.parametrize("name", IN_ONE_PROCESS)
def test_wrong_form(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    logged: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger("torch._subclasses.fake_tensor"), "handle", logged.append)
    assert run_here(name, monkeypatch, "--bug") == 1
    assert logged == []  # repairs that are tried and do not fit are nobody's business
    printed = capsys.readouterr().out
    assert_refused_at(printed, name, IN_ONE_PROCESS[name])
    assert_shown(printed, name, "--bug")


@pytest.mark.parametrize("name", [*IN_ONE_PROCESS, "data_parallel", "tensor_parallel_transformer"])
def test_misuse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_here(name, monkeypatch, "--no-such-option") == 2


def test_every_example_is_tested() -> None:
    tested = {*IN_ONE_PROCESS, "data_parallel", "tensor_parallel_transformer"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested


def test_what_documents_show_of_an_example_is_compared() -> None:
    shown = {line for line in all_commands() if line.startswith("python examples/")}
    assert shown <= {f"python examples/{name}.py --bug" for name in IN_ONE_PROCESS}


def two_processes(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [python(), str(EXAMPLES / "data_parallel.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)


def test_data_parallel_trains_with_the_losses_of_one_device() -> None:
    done = two_processes("--wrapper", "fsdp")
    assert done.returncode == 0, done.stderr
    parallel, single = (line.partition("losses ")[2] for line in done.stdout.splitlines())
    assert parallel == single != ""


def test_data_parallel_with_a_sum_is_refused() -> None:
    done = two_processes("--bug")
    assert done.returncode == 1, done.stderr
    text, label = 'y, reduction="sum")', "is averaged over dp, though the ranks hold parts of a sum"
    assert_refused_at(done.stdout, "data_parallel", ("VC103", text, label))
