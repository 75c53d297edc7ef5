"""Verified programs on real processes: gloo over loopback, two ranks."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess

import pytest

from tests.warm import python

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = pathlib.Path(__file__).parent / "scripts"
EXAMPLE = ROOT / "examples" / "tensor_parallel_transformer.py"


def run(script: pathlib.Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python(), str(script), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


KINDS = """\
vocabulary: 2 values equal
sequence_parallel_attention: 4 values equal
slice_by_rank: 5 values equal
stages_by_rank: 1 values equal
tensor_parallel: 9 values equal
data_parallel: 5 values equal
fully_sharded: 5 values equal
"""


@pytest.mark.parametrize("inner", [pytest.param("eager", marks=pytest.mark.sweep), "aot_eager", "inductor"])
def test_what_was_verified_runs_with_the_results_and_gradients_of_one_device(
    inner: str, tmp_path: pathlib.Path
) -> None:
    done = run(SCRIPTS / "kinds_of_programs.py", inner, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == KINDS


def test_example_trains_with_the_losses_of_one_device() -> None:
    done = run(EXAMPLE)
    assert done.returncode == 0, done.stderr
    parallel, single = re.findall(r"losses (.*)", done.stdout)
    assert parallel == single


def test_example_with_its_bug_is_refused_at_the_norm_that_has_no_style() -> None:
    done = run(EXAMPLE, "--bug")
    assert done.returncode == 1
    assert done.stdout == ""
    line = next(
        number for number, text in enumerate(EXAMPLE.read_text().splitlines(), 1) if "self.ffn(self.ffn_norm" in text
    )
    assert f"tensor_parallel_transformer.py:{line}:" in done.stderr
    assert "`grad.layers.0.ffn_norm.weight`" in done.stderr
    assert "counterexample (tp=2): `grad.layers.1.ffn_norm.weight` at" in done.stderr
    assert "cotangent of output.0 = -1\n           everything else is 0\n" in done.stderr


def test_under_the_flag_one_wrong_rank_stops_all_with_its_report() -> None:
    """Ranks that differ are traced again while the proof goes on, which the flag must not take for new graphs."""
    done = run(SCRIPTS / "one_rank_wrong.py", "wrong", VERIFYCOMPILE="1")
    assert done.returncode == 0, done.stderr
    ended = done.stdout.split("rank 1: ")
    assert len(ended) == 2
    line, report = ended
    assert re.fullmatch(r"rank 0: \S*one_rank_wrong.py:\d+:\d+: error\[VC103\]: .* \(rank 0; rank 1 prints the report\)\n", line)
    assert report.startswith("error[VC103]: wrong scale\n")
    assert "the implementation's value is 2 * output.0 on rank 1" in report


def test_under_the_flag_one_rank_tells_what_was_verified() -> None:
    done = run(SCRIPTS / "one_rank_wrong.py", "right", VERIFYCOMPILE="1")
    assert done.stdout == "rank 0: (4, 8)\nrank 1: (4, 8)\n"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("verifycompile: ")]
    assert "; 2 ranks compared; " in line
