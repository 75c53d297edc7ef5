"""``verifycompile run`` and ``verifycompile coverage`` on scripts that never import us."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

import verifycompile
from tests.warm import python
from verifycompile import cli
from verifycompile.command.coverage import Operators
from verifycompile.command.formats import FORMATS
from verifycompile.command.job import CheckedFrame, Job
from verifycompile.command.run import judged
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.severity import Severity
from verifycompile.program import SourceLocation

SCRIPTS = pathlib.Path(__file__).parents[1] / "backends" / "scripts"
PERCEPTRON = SCRIPTS / "perceptron.py"
LINE = next(n for n, text in enumerate(PERCEPTRON.read_text().splitlines(), 1) if "layer_norm(y" in text)
REMOVED = ("VERIFYCOMPILE", "VERIFYCOMPILE_REPORT", "TORCH_COMPILE_OVERRIDE_BACKENDS")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in REMOVED}
    return subprocess.run(
        [python(), "-m", "verifycompile", *arguments],
        env={**inherited, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


def test_a_right_script_ends_with_0_and_keeps_its_reports(tmp_path: pathlib.Path) -> None:
    done = command("run", "--report", str(tmp_path / "kept"), str(PERCEPTRON), "aot_eager", "infer", "right")
    assert done.returncode == 0, done.stderr
    assert "ran (4, 8)" in done.stdout
    assert {path.suffix for path in (tmp_path / "kept").iterdir()} == {".json", ".html", ".jsonl"}
    assert f"reports in {tmp_path / 'kept'}\n" in done.stderr


def test_a_wrong_script_ends_with_1_after_its_report() -> None:
    done = command("run", str(PERCEPTRON), "aot_eager", "infer", "wrong")
    assert done.returncode == 1
    assert done.stderr.count("RefinementError: error[VC101]: partial sum used where the full value is needed") == 1
    assert done.stdout == ""


def test_json_is_all_that_is_printed_and_the_script_prints_elsewhere() -> None:
    done = command("run", "--keep-going", "--format", "json", str(PERCEPTRON), "aot_eager", "infer", "wrong")
    assert done.returncode == 1
    assert "ran (4, 8)" in done.stderr
    found = json.loads(done.stdout)
    assert (found["schema"], found["script_status"]) == (1, 0)
    refuted, *others = found["frames"]
    assert (refuted["function"], refuted["verdict"]) == ("Block.forward", "refuted")
    assert refuted["findings"][0]["impl_location"]["line"] == LINE
    assert [frame["verdict"] for frame in others] == ["not checked"]


FINDING = Finding("VC101", Severity.ERROR, "a partial sum", impl_location=SourceLocation("model.py", 7))


def test_every_form_that_the_command_takes_is_there() -> None:
    assert tuple(FORMATS) == cli.FORMATS


@pytest.mark.parametrize(
    ("form", "begins"),
    [
        ("concise", "model.py:7:1: unproved[VC101]: a partial sum"),
        ("github", "::error file=model.py,line=7,col=1,title=VC101::unproved[VC101]: a partial sum"),
        ("full", "unproved[VC101]: partial sum used where the full value is needed (suspected)"),
    ],
)
def test_ranks_that_find_the_same_are_one_finding(form: str, begins: str) -> None:
    ranks = tuple(CheckedFrame({"verdict": "unproved", "report": "", "rank": rank}, (FINDING,)) for rank in range(2))
    printed = FORMATS[form](Job(1, ranks))
    assert printed.startswith(begins)
    assert printed.count("VC101]") == 1


def test_sarif_is_one_log_of_all_frames() -> None:
    other = dataclasses.replace(FINDING, code="VC107")
    frames = (CheckedFrame({"verdict": "unproved"}, (FINDING,)), CheckedFrame({"verdict": "unproved"}, (other,)))
    (run,) = json.loads(FORMATS["sarif"](Job(1, frames)))["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["VC101", "VC107"]


def test_operators_without_a_declaration_are_named_with_their_first_line() -> None:
    found = Operators({"aten.add.Tensor": 3, "aten.lu.default": 2}, {"aten.lu.default": "model.py:7"}, 1)
    assert str(found) == (
        "model.py:7: `aten.lu.default` has no declaration (2 calls)\n1 graph, 2 operators: 1 declared, 1 not"
    )


COMPILED_NOTHING = (
    "nothing was checked: the script compiled nothing, and `run` checks what `torch.compile` builds; a script that asks "
    "`verifycompile.verify` itself gets its report there: run it with `python`."
)


def frame(verdict: str) -> CheckedFrame:
    return CheckedFrame({"verdict": verdict, "report": ""}, ())


@pytest.mark.parametrize(
    ("verdicts", "script", "status", "said"),
    [
        (["verified", "not checked"], 0, 0, ""),
        (["verified", "unproved"], 1, 1, ""),
        (["refuted", "failed"], 1, 1, ""),
        (["verified", "failed"], 0, 2, "a graph could not be checked; the script's own messages say why."),
        ([], 1, 2, "the script ended with status 1 before it compiled anything."),
        (["verified"], 3, 2, "the script ended with status 3; what it compiled until then was verified."),
        (["not checked"], -9, 2, "the script was ended by SIGKILL; what it compiled until then was not parallel."),
        (["not checked"], 0, 2, "nothing was checked: no graph that the script compiled is parallel."),
        ([], 0, 2, COMPILED_NOTHING),
    ],
)
def test_exit_status(verdicts: list[str], script: int, status: int, said: str) -> None:
    assert judged(Job(script, tuple(map(frame, verdicts)))) == (status, said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "verifycompile run: name a script to run, or a module after -m."),
        (["run", "-m"], "verifycompile run: name a script to run, or a module after -m."),
        (["coverage", "absent.py"], "verifycompile coverage: there is no script `absent.py`."),
        (["run", "--format", "yaml", "x.py"], "invalid choice: 'yaml'"),
        (["run", "--report", __file__, __file__], "option `--report` takes a folder to write to; `"),
        (["check-certificate", "."], "`.`: Is a directory; name the file that holds what `certificate.to_json()` returns."),
    ],
)
def test_misuse_ends_with_2_and_says_what_to_type(arguments: list[str], said: str) -> None:
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_an_interrupted_script_ends_itself(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import time\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(300)\n"
        "except KeyboardInterrupt:\n"
        "    time.sleep(1)\n"
        "    print('put away', flush=True)\n"
        "    raise\n"
    )
    typed = [sys.executable, "-m", "verifycompile", "run", str(script)]
    with subprocess.Popen(
        typed,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # What a shell starts in the background ignores interrupts, and so does all that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - there is one thread
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        printed, said = process.communicate(timeout=120)
    assert (process.returncode, printed) == (2, "put away\n")
    assert "verifycompile: waiting for the script to end; interrupt again to terminate it\n" in said
    assert said.endswith("verifycompile run: the script was ended by SIGINT before it compiled anything.\n")


def test_options_of_a_module_are_its_own() -> None:
    typed = ["run", "--format", "json", "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py", "-m", "x"]
    options = cli._parser().parse_args(typed)
    assert options.format == "json"
    assert cli._target(options) == ["-m", *typed[4:]]


def test_version() -> None:
    assert command("--version").stdout == f"verifycompile {verifycompile.__version__}\n"


def test_coverage_of_a_script_without_a_proof() -> None:
    done = command("coverage", str(PERCEPTRON), "aot_eager", "infer", "wrong")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("1 graph, ")
    assert done.stdout.splitlines()[-1].endswith(" declared, 0 not")
    assert "error[" not in done.stderr
