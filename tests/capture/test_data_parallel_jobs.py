"""Data-parallel jobs are questions: under a wrapper plain inputs are the ranks' own samples, unless said otherwise."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pathlib
import subprocess
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

import verifycompile
from tests.programs import mlp
from tests.programs.data_parallel import Regression, pairs
from tests.support import fake_mesh_world
from tests.warm import python
from verifycompile import Report, UsageError, Verdict

# Torch warns of gradients of tensors that are no leaves where Dynamo resumes inside of its own hooks.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "backends" / "scripts" / "data_parallel_job.py"
LINE_OF_NORM = next(n for n, line in enumerate(SCRIPT.read_text().splitlines(), 1) if "self.norm(self.layer" in line)

Wrap = Callable[[nn.Module, DeviceMesh], Any]
WRAPPERS: dict[str, Wrap] = {
    "DistributedDataParallel": lambda m, mesh: DistributedDataParallel(m, device_mesh=mesh),
    "replicate": lambda m, mesh: replicate(m, device_mesh=mesh),
    "fully_shard": lambda m, mesh: fully_shard(m, mesh=mesh),
}


class Summed(Regression):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(super(Regression, self).forward(x), y, reduction="sum")


class BatchNormed(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(x), y)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Report]:
    """The reports of the gate, in the order of its frames."""
    found: list[Report] = []
    monkeypatch.setattr("verifycompile.backends.verify.keep_report", found.append)
    return found


def call(model: nn.Module, wrap: Wrap, *, inner_first: bool = False, **options: Any) -> None:
    """One call of a wrapped model under the gate."""
    options = {"inner": "eager", "on_unproved": "warn", **options}
    with fake_mesh_world((4,), ("dp",)) as mesh, contextlib.suppress(verifycompile.RefinementError):
        if inner_first:
            wrap(torch.compile(model, backend="verify", options=options), mesh)(*pairs())
        else:
            torch.compile(wrap(model, mesh), backend="verify", options=options)(*pairs())


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("inner_first", [False, True])
@pytest.mark.parametrize("name", WRAPPERS)
def test_the_gate_asks_about_a_job_without_dtensors(name: str, inner_first: bool, reports: list[Report]) -> None:
    call(Regression(), WRAPPERS[name], inner_first=inner_first)
    (found,) = reports
    assert found.verdict is Verdict.VERIFIED, str(found)
    own = f"under `{name}` inputs are the ranks' own samples, Shard(0) over dp, by default: `x`, `y`"
    assert own in found.assumptions
    assert "`x` is placed (S(0)) by default" in found.assumptions


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_sum_under_a_mean_is_right_only_by_code_outside(name: str, reports: list[Report]) -> None:
    call(Summed(), WRAPPERS[name])
    (found,) = reports
    assert found.verdict is Verdict.UNPROVED
    (finding,) = found.findings
    assert finding.code == "VC103"
    assert finding.message == "`grad.up.weight` is averaged over dp, though the ranks hold parts of a sum"
    assert finding.notes[-1] == (
        "`output.0` leaves the graph as a rank's part of a sum, of which the wrapper takes the mean: the gradients are "
        "those of the spec if the code outside multiplies it by 4, the number of ranks, before `backward()`, and 4 times "
        "too small if not"
    )
    assert finding.hint == "multiply `output.0` by 4 within what is compiled, and no longer outside of it (checked)"


@pytest.mark.parametrize("model", [Summed, Regression])
def test_the_second_opinion_on_a_sum_under_a_mean_is_the_same(model: type[nn.Module]) -> None:
    with fake_mesh_world((4,), ("dp",)) as mesh:
        opinion = verifycompile.cross_check(WRAPPERS["fully_shard"](model(), mesh), pairs())
    if model is Regression:
        assert opinion.verdict is Verdict.VERIFIED, str(opinion)
        return
    assert opinion.verdict is Verdict.UNPROVED
    first = opinion.findings[0]
    assert first.code == "VC103"
    assert first.message.startswith("`output.0` leaves the graph as a rank's part of a sum, of which the wrapper takes ")
    assert first.hint == "multiply `output.0` by 4 within what is compiled, and no longer outside of it (checked)"


@pytest.mark.parametrize("name", WRAPPERS)
def test_statistics_of_a_ranks_own_batch_are_refused(name: str, reports: list[Report]) -> None:
    call(BatchNormed(), WRAPPERS[name])
    (found,) = reports
    assert found.verdict is Verdict.REFUTED


def test_what_the_user_says_is_taken(reports: list[Report]) -> None:
    call(Summed(), WRAPPERS["fully_shard"], in_placements={"x": (Replicate(),), "y": (Replicate(),)})
    (found,) = reports
    assert found.verdict is Verdict.VERIFIED, str(found)
    assert not any("own samples" in line for line in found.assumptions)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return x + self.layer(x) * table[: x.shape[1]]


class Blocks(nn.Module):
    """Blocks that take a table of positions of the whole model, as rotary embeddings are."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.register_buffer("table", torch.randn(32, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, self.table)
        return x


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.linear(x))


def test_blocks_past_the_recompile_limit_share_what_was_verified(reports: list[Report]) -> None:
    limit = torch._dynamo.config.recompile_limit
    with fake_mesh_world((4,), ("dp",)) as mesh:
        model = nn.Sequential(*(Layer() for _ in range(limit + 2)))
        for block in model:
            block.compile(backend="verify", options={"inner": "eager"})
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model(torch.randn(2, 8)).sum().backward()
        assert [found.verdict for found in reports] == [Verdict.VERIFIED] * 2  # whether the input requires grad
        # A block that is set otherwise is another question.
        cast("FSDPModule", model[3]).set_gradient_divide_factor(1.0)
        model(torch.randn(2, 8)).sum().backward()
    assert len(reports) == 3


def test_blocks_that_are_compiled_one_by_one(reports: list[Report]) -> None:
    with fake_mesh_world((4,), ("dp",)) as mesh:
        model = Blocks()
        for block in model.blocks:
            block.compile(backend="verify", options={"inner": "eager"})
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model(torch.randn(2, 4, 8)).sum().backward()
    assert reports
    for found in reports:
        assert found.verdict is Verdict.VERIFIED
        assert (
            "under `fully_shard` inputs are the ranks' own samples, Shard(0) over dp, by default: `x`"
        ) in found.assumptions
        assert "`table` is the same on all ranks, since it is a buffer of the model" in found.assumptions


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_after_the_model(reduction: str, reports: list[Report]) -> None:
    with fake_mesh_world((4,), ("dp",)) as mesh:
        model = DistributedDataParallel(mlp.MLP(), device_mesh=mesh)

        @torch.compile(backend="verify", options={"inner": "eager"})
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.mse_loss(model(x), y, reduction=reduction)

        if reduction == "mean":
            step(*pairs())
        else:
            with pytest.raises(verifycompile.RefinementError):
                step(*pairs())
    first, loss = reports
    assert first.verdict is Verdict.VERIFIED
    assert (
        "under the wrapper of the graph before inputs are the ranks' own samples, Shard(0) over dp, by default: `y`"
    ) in loss.assumptions
    if reduction == "mean":
        assert loss.verdict is Verdict.VERIFIED
    else:
        assert loss.findings[0].message.endswith(
            "is the gradient of a loss that is summed over the ranks; it must be their mean"
        )


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)

    def forward(self, mask: torch.Tensor, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        query = self.query(x)
        return F.softmax(query @ query.transpose(1, 2) * scale + mask, -1) @ x


def verified(model: nn.Module, *arguments: torch.Tensor, **options: Any) -> Report:
    with fake_mesh_world((4,), ("dp",)) as mesh:
        return verifycompile.verify(fully_shard(model, mesh=mesh), arguments, **options)


def test_inputs_that_are_the_same_on_all_ranks() -> None:
    found = verified(Masked(), torch.zeros(6, 6), torch.randn(2, 6, 8), torch.tensor(2.0))
    assert found.verdict is Verdict.VERIFIED, str(found)
    assert "under `fully_shard` inputs are the ranks' own samples, Shard(0) over dp, by default: `x`" in (
        found.assumptions
    )
    assert "`scale` is the same on all ranks, since it has no dimension" in found.assumptions
    assert (
        "`mask` is the same on all ranks, since the program does not run on one device with it as samples"
    ) in found.assumptions


def test_a_mask_as_long_as_the_batch_must_be_said() -> None:
    arguments = (torch.zeros(6, 6), torch.randn(6, 6, 8), torch.tensor(2.0))
    with pytest.raises(UsageError) as raised:
        verified(Masked(), *arguments)
    assert str(raised.value).endswith(
        "By default `x`, `mask` were taken as the ranks' own samples, sharded on dimension 0; say otherwise with "
        "`in_placements`."
    )
    found = verified(Masked(), *arguments, in_placements={"mask": (Replicate(),)})
    assert found.verdict is Verdict.VERIFIED, str(found)


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + y


def test_two_readings_are_both_named() -> None:
    with pytest.raises(UsageError) as raised:
        verified(Sum(), torch.randn(1, 8), torch.randn(4, 8))
    assert raised.value.message == (
        "the ranks' own samples are `x` or `y`: the program runs on one device either way. Say it with `in_placements`."
    )


def test_one_rank_is_not_parallel(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "verifycompile.backends.verify")
    with fake_mesh_world((1,), ("dp",)) as mesh:
        model = DistributedDataParallel(Summed(), device_mesh=mesh)
        torch.compile(model, backend="verify", options={"inner": "eager"})(*pairs())
    line = Summed.forward.__code__.co_firstlineno
    said = [record.getMessage() for record in caplog.records if record.name.startswith("verifycompile")]
    assert said == [
        (
            f"`Summed.forward` ({__file__}:{line}) is not checked: it holds no DTensor, mesh or collective, and runs under no "
            "data-parallel wrapper."
        )
    ]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python(), str(SCRIPT), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


def test_two_processes_train_as_one_device_does() -> None:
    done = run("layer", VERIFYCOMPILE="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "equal: 4 gradients, 2 of 3 steps accumulated\n"


def test_two_processes_with_statistics_of_their_own_are_both_stopped() -> None:
    done = run("batch", VERIFYCOMPILE="1")
    assert done.returncode == 1
    assert done.stdout == "stopped: [0, 1]\n"
    assert f"data_parallel_job.py:{LINE_OF_NORM}:" in done.stderr


def test_shards_may_be_said_for_a_sequence_first_model() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).cumsum(0)

    assert verified(Last(), torch.randn(6, 2, 8)).verdict is Verdict.REFUTED
    found = verified(Last(), torch.randn(6, 2, 8), in_placements={"x": (Shard(1),)})
    assert found.verdict is Verdict.VERIFIED, str(found)


def built(build: Callable[[DeviceMesh, int], nn.Module]) -> Report:
    with fake_mesh_world((2,), ("dp",)) as mesh:
        return verifycompile.verify(None, pairs(), build=lambda: build(mesh, mesh.get_local_rank()))


def _alike(name: str, mesh: DeviceMesh, rank: int) -> nn.Module:
    return WRAPPERS[name](Regression(), mesh)


def _by_rank(name: str, mesh: DeviceMesh, rank: int) -> nn.Module:
    return WRAPPERS[name](Regression(), mesh) if rank == 0 else Regression()


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_of_models_that_are_built_for_each_rank(name: str) -> None:
    found = built(functools.partial(_alike, name))
    assert found.verdict is Verdict.VERIFIED, str(found)
    with pytest.raises(UsageError) as refused:
        built(functools.partial(_by_rank, name))
    assert str(refused.value).startswith(
        "error[VC306]: option `build` does not wrap the models of all ranks alike: what becomes of the gradient of `"
    )
    assert str(refused.value).endswith("` outside of the program is another on rank 1 than on rank 0.")


def test_a_step_that_one_rank_alone_synchronizes_is_refused() -> None:
    def build(mesh: DeviceMesh, rank: int) -> nn.Module:
        model: FSDPModule = fully_shard(Regression(), mesh=mesh)
        model.set_requires_gradient_sync(rank == 0)
        return cast("nn.Module", model)

    with pytest.raises(UsageError, match="does not wrap the models of all ranks alike"):
        built(build)
