"""Data-parallel jobs are questions: what they compute of the whole batch is verified, refused, or said not to be asked.

Under ``VERIFYCOMPILE=1`` without an option, on two gloo processes; and options that do not apply.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import verifycompile
from tests.support import fake_mesh_world
from tests.warm import python
from verifycompile import UsageError

JOB = """
import json, sys, tempfile
from datetime import timedelta
import torch, torch.distributed as dist, torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.distributed._composable.replicate import replicate
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
from tests.forked import start_ranks

WRAPS = {
    "DistributedDataParallel": lambda m, mesh: DistributedDataParallel(m),
    "replicate": lambda m, mesh: replicate(m, device_mesh=mesh),
    "fully_shard": lambda m, mesh: fully_shard(m, mesh=mesh),
}
LOSSES = {
    "mean": F.mse_loss,
    "sum": lambda z, y: F.mse_loss(z, y, reduction="sum"),
    "norm of all": lambda z, y: (z - y).square().sum().sqrt(),
    "weighted by the batch": lambda z, y: F.mse_loss(z, y) * z.shape[0],
    "centred on the batch": lambda z, y: F.mse_loss(z - z.mean(0), y),
    "contrastive": lambda z, y: F.cross_entropy(z @ y.t(), torch.arange(z.shape[0])),
    "largest": lambda z, y: (z - y).abs().max(),
}
NORMS = {"layer": lambda: nn.LayerNorm(8), "batch": lambda: nn.BatchNorm1d(8)}

class Net(nn.Module):
    def __init__(self, norm, loss):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.norm, self.last, self.loss = nn.Linear(4, 8), norm, nn.Linear(8, 4), loss
    def forward(self, x, y):
        return self.loss(self.last(F.relu(self.norm(self.first(x)))), y)

def rank_main(rank, store, cases):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    for wrap, loss, norm in cases:
        torch._dynamo.reset()
        torch.manual_seed(rank)
        x, y = torch.randn(4, 4), torch.randn(4, 4)
        model = WRAPS[wrap](Net(NORMS[norm](), LOSSES[loss]), mesh)
        did = "ran"
        try:
            torch.compile(model, backend="aot_eager")(x, y).backward()
        except Exception as error:
            did = f"{type(error).__name__}: {error}"
        everyone = [None, None]
        dist.all_gather_object(everyone, did)
        if rank == 0:
            print(json.dumps([[wrap, loss, norm], everyone]), flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        given = folder + "/store", json.loads(sys.argv[1])
        start_ranks(rank_main, given, 2)
"""

ROOT = Path(__file__).parents[2]
WRAPS = ("DistributedDataParallel", "replicate", "fully_shard")
LOSSES = ("sum", "norm of all", "weighted by the batch", "centred on the batch", "contrastive", "largest")

RIGHT = [(wrap, "mean", "layer") for wrap in WRAPS]
WRONG = [
    *((WRAPS[k % 3], loss, "layer") for k, loss in enumerate(LOSSES)),
    *((wrap, "mean", "batch") for wrap in WRAPS),  # statistics of a rank's own batch
]


def test_jobs_under_the_flag(tmp_path: Path) -> None:
    """A mean over the samples runs and leaves a report; no other loss runs, on either rank."""
    script, reports = tmp_path / "job.py", tmp_path / "reports"
    script.write_text(JOB)
    done = subprocess.run(
        [python(), str(script), json.dumps([*RIGHT, *WRONG])],
        env={**os.environ, "VERIFYCOMPILE": "1", "VERIFYCOMPILE_REPORT": str(reports), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[[")]
    found = {tuple(case): did for case, did in lines}
    for case in RIGHT:
        assert found[case] == ["ran", "ran"], case
    for case in WRONG:
        assert all("RefinementError" in did for did in found[case]), (case, found[case])
    said = "\n".join(report.read_text() for report in reports.glob("*.json"))
    for wrap in WRAPS:
        assert f"under `{wrap}` inputs are the ranks' own samples" in said


# ------------------------------------------------------------------------------------------------ options that do not apply


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.scale = nn.Linear(4, 8), nn.Linear(8, 4), nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x))) * self.scale


OPTIONS: dict[str, tuple[dict[str, object], str]] = {
    "unknown parameter": ({"param_names": {"nothing.weight": "up.weight"}}, "nothing.weight"),
    "unknown parameter of the spec": ({"param_names": {"up.weight": "nothing.weight"}}, "nothing.weight"),
    "placements of no parameter": ({"param_placements": {"nothing.weight": (Shard(0),)}}, "nothing.weight"),
    "pattern of no parameter": ({"param_placements": {"layers.*.weight": (Shard(0),)}}, "layers.*.weight"),
    "against a DTensor's own": ({"param_placements": {"up.weight": (Shard(1),)}}, "up.weight"),
    "placements of no input": ({"in_placements": {"nothing": (Shard(0),)}}, "nothing"),
    "placements of no output": ({"out_placements": {"output.7": (Shard(0),)}}, "output.7"),
    "gradient of no parameter": ({"grad_placements": {"nothing": (Replicate(),)}}, "nothing"),
    "too many placements": ({"in_placements": {"x": (Shard(0), Shard(1))}}, "x"),
    "a dimension that is not there": ({"in_placements": {"x": (Shard(5),)}}, "x"),
    "unknown option": ({"in_placement": {"x": (Shard(0),)}}, "in_placement"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_does_not_apply_is_an_error_that_names_it(name: str) -> None:
    options, named = OPTIONS[name]
    with fake_mesh_world((2,), ("tp",)) as mesh:
        spec = Model()
        model = parallelize_module(Model(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        with pytest.raises(UsageError) as raised:
            verifycompile.verify(model, (torch.randn(2, 4),), spec=spec, **options)
    assert named in str(raised.value)


def test_a_number_per_rank_that_is_none_is_an_error() -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = parallelize_module(Model(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        with pytest.raises(UsageError) as raised:
            verifycompile.verify(model, (torch.randn(2, 4),), per_rank_numbers=["nothing.at.all"])
    assert "nothing.at.all" in str(raised.value)


def test_a_mesh_of_another_world_is_an_error() -> None:
    with fake_mesh_world((2, 2), ("dp", "tp")) as mesh:
        model = parallelize_module(Model(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        with pytest.raises(UsageError) as raised:
            verifycompile.verify(model, (torch.randn(2, 4),), spec=Model(), mesh=mesh["dp"])
    assert "mesh" in str(raised.value)


@pytest.mark.parametrize("options", [{}, {"in_placements": {"x": (Replicate(),)}}, {"out_placements": {"output.0": (Replicate(),)}}])
def test_options_that_apply(options: dict[str, object]) -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = parallelize_module(Model(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        report = verifycompile.verify(model, (torch.randn(2, 4),), spec=Model(), **options)
    assert report, str(report)
