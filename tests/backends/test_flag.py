"""``VERIFYCOMPILE``: scripts that never import us, in processes of their own."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess

import pytest

from tests.warm import python

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "perceptron.py"
LINE_OF_LAYER_NORM = next(
    number for number, line in enumerate(SCRIPT.read_text().splitlines(), 1) if "layer_norm(y" in line
)
FORWARD = f"Block.forward ({SCRIPT.relative_to(pathlib.Path.cwd())}:25)"
RAN = "plain 1.0\nran (4, 8) "


def run(*arguments: str, script: pathlib.Path = SCRIPT, **environment: str) -> subprocess.CompletedProcess[str]:
    removed = ("VERIFYCOMPILE", "VERIFYCOMPILE_REPORT", "TORCH_COMPILE_OVERRIDE_BACKENDS")
    inherited = {name: value for name, value in os.environ.items() if name not in removed}
    return subprocess.run(
        [python(), str(script), *arguments],
        env={**inherited, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def told(graphs: int) -> str:
    """What is on the terminal when all is well: a line a frame and one on all of them."""
    ranks = "4 ranks assumed to run what this process captured"
    verified = f"{FORWARD} verified in SECONDS: spec recovered from the model as it stands; {ranks}; 2 assumptions"
    reason = "it holds no DTensor, mesh or collective, and runs under no data-parallel wrapper"
    lines = [verified] * graphs
    lines.append(f"<lambda> ({SCRIPT.relative_to(pathlib.Path.cwd())}:48) not checked: {reason}")
    lines.append(f"{graphs + 1} frames: {graphs} verified, 1 not checked; slowest {FORWARD}, SECONDS")
    return "".join(f"verifycompile: {line}\n" for line in lines)


@pytest.mark.sampled(every=2, of=("backend",))
@pytest.mark.parametrize("purpose", ["train", "infer"])
@pytest.mark.parametrize("backend", ["aot_eager", "custom"])
def test_right_script_passes(backend: str, purpose: str) -> None:
    done = run(backend, purpose, "right", VERIFYCOMPILE="1")
    assert done.returncode == 0, done.stderr
    assert RAN in done.stdout
    # The second block reuses the graph of the first, except where its input requires grad.
    graphs = 2 if purpose == "train" else 1
    assert done.stdout.count("custom backend called") == (graphs if backend == "custom" else 0)
    assert re.sub(r"\d+\.\d\d s", "SECONDS", done.stderr) == told(graphs)


@pytest.mark.sampled(every=2, of=("purpose",))
@pytest.mark.parametrize("purpose", ["train", "infer"])
@pytest.mark.parametrize("backend", ["aot_eager", "custom"])
def test_wrong_script_is_refused_at_its_line(backend: str, purpose: str) -> None:
    done = run(backend, purpose, "wrong", VERIFYCOMPILE="1")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "RefinementError: error[VC101]: partial sum used where the full value is needed" in done.stderr
    assert f"perceptron.py:{LINE_OF_LAYER_NORM}:" in done.stderr


def test_inductor_with_warm_caches(tmp_path: pathlib.Path) -> None:
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    unchecked = run("inductor", "infer", "wrong", **caches)
    assert unchecked.returncode == 0, unchecked.stderr
    refused = run("inductor", "infer", "wrong", VERIFYCOMPILE="1", **caches)
    assert refused.returncode == 1
    assert f"perceptron.py:{LINE_OF_LAYER_NORM}:" in refused.stderr

    for _ in ("cold", "warm"):
        right = run("inductor", "infer", "right", VERIFYCOMPILE="1", **caches)
        assert right.returncode == 0, right.stderr
        assert RAN in right.stdout


@pytest.mark.parametrize("flag", [None, "0"])
def test_off_checks_nothing(flag: str | None) -> None:
    done = run("aot_eager", "train", "wrong", **({} if flag is None else {"VERIFYCOMPILE": flag}))
    assert done.returncode == 0
    assert RAN in done.stdout


def test_warn_reports_every_graph_and_goes_on(tmp_path: pathlib.Path) -> None:
    done = run("aot_eager", "train", "wrong", VERIFYCOMPILE="warn", VERIFYCOMPILE_REPORT=str(tmp_path / "reports"))
    assert done.returncode == 0, done.stderr
    assert RAN in done.stdout
    assert f"perceptron.py:{LINE_OF_LAYER_NORM}: VerificationWarning: error[VC101]" in done.stderr
    reports = sorted((tmp_path / "reports").glob("*.json"))
    assert [json.loads(report.read_text())["verdict"] for report in reports] == ["refuted"] * len(reports)
    assert len(reports) == done.stderr.count("VerificationWarning: error[VC101]") > 0


def test_a_report_folder_that_is_a_file(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "reports"
    file.touch()
    done = run("aot_eager", "train", "right", VERIFYCOMPILE="1", VERIFYCOMPILE_REPORT=str(file))
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(
        f"verifycompile.UsageError: error[VC306]: no report can be kept: [Errno 17] File exists: '{file}'. Set the "
        "variable VERIFYCOMPILE_REPORT to a folder that can be written."
    )
    assert "During handling" not in done.stderr


@pytest.mark.parametrize("correctness", ["right", "wrong"])
def test_a_sum_that_is_missing_before_a_graph_break(correctness: str) -> None:
    done = run(correctness, script=SCRIPT.with_name("broken.py"), VERIFYCOMPILE="1")
    assert (done.returncode, "ran (4, 8)" in done.stdout) == ((0, True) if correctness == "right" else (1, False))
    refused = "RefinementError: error[VC101]: partial sum used where the full value is needed"
    assert (refused in done.stderr) is (correctness == "wrong")


def test_verify_backend_under_the_flag_checks_with_its_own_options() -> None:
    done = run("verify", "infer", "wrong", VERIFYCOMPILE="warn")
    assert done.returncode == 1
    assert "compiled nothing" not in done.stderr


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"VERIFYCOMPILE": "yes"}, "verifycompile: VERIFYCOMPILE must be 1, warn or 0, not 'yes'\n"),
        (
            {"VERIFYCOMPILE": "1", "TORCH_COMPILE_OVERRIDE_BACKENDS": ">=0:eager"},
            "verifycompile: VERIFYCOMPILE needs TORCH_COMPILE_OVERRIDE_BACKENDS, which is set to '>=0:eager': unset it\n",
        ),
    ],
)
def test_flag_that_cannot_take_effect_is_an_error(environment: dict[str, str], message: str) -> None:
    done = run("eager", "infer", "right", **environment)
    assert done.returncode == 1
    assert done.stderr == message


def test_without_autoload_the_override_can_be_set_by_hand() -> None:
    by_hand = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TORCH_COMPILE_OVERRIDE_BACKENDS": ">=0:verify_first"}
    assert run("aot_eager", "infer", "wrong", **by_hand).returncode == 1


@pytest.mark.parametrize("used", [True, False])
def test_a_job_of_which_torch_compiles_nothing_is_told(used: bool, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\n" + ("torch.compile(lambda: 1, backend='eager')()\n" if used else ""))
    done = run(script=script, VERIFYCOMPILE="1")
    told = "verifycompile: torch.compile was used and compiled nothing, so nothing was checked\n"
    assert (done.returncode, done.stderr) == (0, told if used else "")


def test_what_a_script_asks_itself_is_answered_and_is_no_frame_of_its_job() -> None:
    done = run(script=SCRIPT.with_name("asking.py"), VERIFYCOMPILE="1")
    assert (done.returncode, done.stdout) == (0, "Verdict.REFUTED\nVerdict.REFUTED\n"), done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize(("patterns", "status"), [(None, 1), ("", 0)])
def test_a_job_says_in_the_environment_which_numbers_are_per_rank(patterns: str | None, status: int) -> None:
    said = {} if patterns is None else {"VERIFYCOMPILE_PER_RANK_NUMBERS": patterns}
    done = run(script=SCRIPT.with_name("flagged.py"), VERIFYCOMPILE="1", **said)
    assert done.returncode == status, done.stderr
    if patterns is None:
        assert "unproved[VC209]: number with two readings" in done.stderr
        assert (
            "= note: in a job under the flag, set the variable VERIFYCOMPILE_PER_RANK_NUMBERS to the patterns of "
            "`per_rank_numbers`, separated by commas, or to the empty text where no number is per rank"
        ) in done.stderr


def test_a_frame_that_runs_uncompiled_has_its_line_and_is_counted() -> None:
    done = run(script=SCRIPT.with_name("never_compiled.py"), VERIFYCOMPILE="1")
    assert done.returncode == 0, done.stderr
    first, second, summary = [line for line in done.stderr.splitlines() if line.startswith("verifycompile: ")]
    assert re.fullmatch(
        r"verifycompile: Blocks\.forward \(.*never_compiled\.py:25\) not checked: it runs uncompiled: .*graph.break.*", first
    )
    assert re.search(r"Block\.forward \(.*never_compiled\.py:16\) verified in", second)
    assert "verifycompile: 2 frames: 1 not checked, 1 verified; " in summary
    assert "VerificationWarning" not in done.stderr


def test_hooks_of_the_first_module_that_is_compiled_are_part_of_its_frame() -> None:
    done = run(script=SCRIPT.with_name("root_hooks.py"), VERIFYCOMPILE="1")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("verifycompile: ")]
    assert re.match(r"verifycompile: Block\.forward \(.*root_hooks\.py:22\) verified in", line)
