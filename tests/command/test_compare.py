"""``verifycompile compare`` on a file that holds a question."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest

from tests.warm import python
from verifycompile.cli import main

QUESTION = """
import json
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
import torch.distributed as dist

class Block(nn.Module):
    def __init__(self, bug=False):
        super().__init__()
        self.up, self.down, self.bug = nn.Linear(4, 8), nn.Linear(8, 4), bug

    def forward(self, x):
        return self.down(torch.relu(self.up(x))) * (dist.get_world_size() if self.bug else 1)

def question(bug=False):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = parallelize_module(Block(bug), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return {"model": model, "args": (torch.ones(2, 4),), "spec": Block()}

def wrong():
    return question(bug=True)

def stop():
    if dist.get_rank() == 1:
        raise ValueError("no such expert")

def raises():
    asked = question()
    asked["model"].down.register_forward_pre_hook(lambda *_: stop())
    return asked

def nothing():
    return None

def fails():
    raise KeyError("no such model")

def passes_on():
    json.loads("")
"""


@pytest.fixture
def file(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "two_layers.py"
    path.write_text(QUESTION)
    return str(path)


@pytest.mark.parametrize(("function", "status", "verdict"), [("question", 0, "verified"), ("wrong", 1, "refuted")])
def test_a_question_in_a_file(
    file: str, function: str, status: int, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", f"{file}:{function}", "--ranks", "4", "--format", "json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["ranks"]) == (verdict, 4)


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("nowhere.py:question", "`nowhere.py:question` must be FILE.py:FUNCTION, with a file that is there."),
        ("{file}:absent", "`{file}` has no function `absent`."),
        ("{file}:fails", "`fails` fails at two_layers.py:39: KeyError: 'no such model'"),
        ("{file}:passes_on", "`passes_on` fails at two_layers.py:42: JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        ("{training}:question", "`{training}`, which is imported here (what trains stands under `if __name__ == \"__main__\"`), fails at train.py:2: ValueError: trying to initialize the default process group twice!"),
        ("{file}:nothing", "`nothing` must return the arguments of `verifycompile.compare` as a dictionary."),
    ],
)
def test_misuse(file: str, target: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    training = pathlib.Path(file).with_name("train.py")
    training.write_text("import torch.distributed\ntorch.distributed.init_process_group('gloo')\n")
    assert main(["compare", target.format(file=file, training=training)]) == 2
    assert capsys.readouterr().err.rstrip().endswith(sentence.format(file=file, training=training))


def test_a_number_of_ranks_that_is_none(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", f"{file}:question", "--ranks", "0"]) == 2
    said = "option `--ranks` must be a number of ranks greater than zero, not 0."
    assert capsys.readouterr().err == f"verifycompile compare: error[VC306]: {said}\n"


@pytest.mark.parametrize(
    ("function", "status", "told"),
    [
        ("question", 0, "on the ranks of the running job"),
        ("raises", 1, "the parallel program raises an error on rank 1: ValueError: no such expert"),
    ],
)
def test_under_a_launcher_the_processes_are_the_ranks(file: str, function: str, status: int, told: str) -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "verifycompile"]
    done = subprocess.run(
        [python(), *command, "compare", f"{file}:{function}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == status, done.stderr
    assert done.stdout.count("compare: ") == 1
    assert told in done.stdout
