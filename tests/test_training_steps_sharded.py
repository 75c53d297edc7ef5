"""``verify_step`` under ``fully_shard``: what its hooks gather, keep and reduce is part of the one question."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

from tests.support import fake_mesh_world
from verifycompile import Report, Verdict, verify_step

Change = Callable[[nn.Module], object]
Make = Callable[[nn.Module, torch.optim.Optimizer], Callable[..., Any]]


class Block(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.up = nn.Linear(4, rows)
        self.down = nn.Linear(rows, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self, rows: int = 8, recomputes: bool = False) -> None:
        super().__init__()
        self.recomputes = recomputes
        self.block = Block(rows)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(self.block, x, use_reentrant=False) if self.recomputes else self.block(x)
        return self.head(y)


def sharded(model: nn.Module, mesh: DeviceMesh | None, **options: Any) -> FSDPModule:
    assert isinstance(model, Model)
    fully_shard(model.block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        F.mse_loss(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def clipped_under_a_softmax(limit: float) -> Make:
    """The squares of its gradients are multiplied out to differences of products."""

    def made(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            F.cross_entropy(model(x), y[:, 0].long(), reduction="none").mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            optimizer.zero_grad()

        return step

    return made


def without_clipping(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def accumulated(is_synchronized: Callable[[int], bool], share: int = 2) -> Make:
    def made(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            for number, (part, target) in enumerate(zip(x.chunk(2), y.chunk(2), strict=True)):
                cast("FSDPModule", model).set_requires_gradient_sync(is_synchronized(number))
                (F.mse_loss(model(part), target) / share).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return made


def clipped_by_its_own_norm(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        F.mse_loss(model(x), y).backward()
        gradients = [cast("DTensor", parameter.grad).to_local() for parameter in model.parameters()]
        norm = torch.stack([gradient.pow(2).sum() for gradient in gradients]).sum().sqrt()
        for gradient in gradients:
            gradient.mul_(torch.clamp(1.0 / (norm + 1e-6), max=1.0))
        optimizer.step()
        optimizer.zero_grad()

    return step


def report_of(
    wrap: Change, parallel: Make = plain, single: Make = plain, rows: int = 8, recomputes: bool = False, **options: Any
) -> Report:
    model, spec = Model(rows, recomputes), Model(rows)
    wrap(model)
    step = parallel(model, torch.optim.AdamW(model.parameters(), lr=0.1))
    spec_step = single(spec, torch.optim.AdamW(spec.parameters(), lr=0.1))
    return verify_step(step, (torch.randn(4, 4), torch.randn(4, 2)), spec=spec_step, **options)


@pytest.fixture
def events_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As streams of a GPU do; those of the CPU take anything for an event."""
    monkeypatch.setattr(torch.cpu.Stream, "wait_event", lambda stream, event: event.wait(stream))


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with fake_mesh_world((2,), ("ranks",)) as made:
        yield made


# ------------------------------------------------------------------------------------------------ right steps


@pytest.mark.usefixtures("events_are_waited_for")
def test_a_step_with_clipping_and_adam_says_what_it_rests_on(mesh: DeviceMesh) -> None:
    report = report_of(lambda model: sharded(model, mesh))
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert report.relations["mutation.block.up.weight"] == "concat(mutation.block.up.weight, dim=0, over=ranks)"
    assert (
        "under `fully_shard` inputs are the ranks' own samples, Shard(0) over ranks, by default: `x`, `y`"
        in report.assumptions
    )
    assert "fully_shard gathers parameters and reduces gradients one by one, over its 2 ranks" in report.assumptions


RIGHT: dict[str, dict[str, Any]] = {
    "kept gathered after forward": {"wrap": lambda model: sharded(model, None, reshard_after_forward=False)},
    "mixed precision": {
        "wrap": lambda model: sharded(
            model,
            None,
            mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        )
    },
    "recomputed": {"wrap": lambda model: sharded(model, None), "recomputes": True},
    "uneven": {
        "wrap": lambda model: sharded(model, None),
        "rows": 5,
        "parallel": without_clipping,
        "single": without_clipping,
    },
    "columns": {"wrap": lambda model: sharded(model, None, shard_placement_fn=lambda p: Shard(p.ndim - 1))},
    "clipped under a softmax": {
        "wrap": lambda model: sharded(model, None),
        "parallel": clipped_under_a_softmax(1.0),
        "single": clipped_under_a_softmax(1.0),
    },
    "synchronized once": {
        "wrap": lambda model: sharded(model, None),
        "parallel": accumulated(lambda number: number == 1),
        "single": without_clipping,
    },
    "synchronized twice": {
        "wrap": lambda model: sharded(model, None),
        "parallel": accumulated(lambda number: True),
        "single": without_clipping,
    },
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_steps_verify(name: str, mesh: DeviceMesh) -> None:
    report = report_of(**RIGHT[name])
    assert report.verdict is Verdict.VERIFIED, str(report)


def test_replicas_of_shards() -> None:
    with fake_mesh_world((2, 2), ("replicas", "shards")) as mesh:
        report = report_of(lambda model: sharded(model, mesh))
    assert report.verdict is Verdict.VERIFIED, str(report)


def tensor_parallel_too(mesh: DeviceMesh) -> Change:
    def wrap(model: nn.Module) -> object:
        assert isinstance(model, Model)
        parallelize_module(model.block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        return sharded(model, mesh["dp"])

    return wrap


def test_beside_tensor_parallelism() -> None:
    with fake_mesh_world((2, 2), ("dp", "tp")) as mesh:
        report = report_of(tensor_parallel_too(mesh), without_clipping, without_clipping)
    assert report.verdict is Verdict.VERIFIED, str(report)


# ------------------------------------------------------------------------------------------------ wrong steps


def divided_by(factor: float) -> Change:
    def wrap(model: nn.Module) -> object:
        sharded(model, None)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(factor)
        return model

    return wrap


def ignoring_one(model: nn.Module) -> object:
    assert isinstance(model, Model)
    return fully_shard(model, ignored_params={cast("nn.Parameter", model.head.weight)})


WRONG: dict[str, dict[str, Any]] = {
    "divided by one": {"wrap": divided_by(1), "parallel": without_clipping, "single": without_clipping},
    "divided by four": {"wrap": divided_by(4), "parallel": without_clipping, "single": without_clipping},
    "clipped by its own norm": {"wrap": lambda model: sharded(model, None), "parallel": clipped_by_its_own_norm},
    "clipped under a softmax to twice the norm": {
        "wrap": lambda model: sharded(model, None),
        "parallel": clipped_under_a_softmax(2.0),
        "single": clipped_under_a_softmax(1.0),
    },
    "a parameter ignored": {"wrap": ignoring_one, "parallel": without_clipping, "single": without_clipping},
    "micro-batches are not divided": {
        "wrap": lambda model: sharded(model, None),
        "parallel": accumulated(lambda number: number == 1, share=1),
        "single": without_clipping,
    },
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_steps_are_refuted(name: str, mesh: DeviceMesh) -> None:
    report = report_of(**WRONG[name])
    assert report.verdict is Verdict.REFUTED, str(report)


# ------------------------------------------------------------------------------------------------ what is left for later


def unproved(report: Report) -> str:
    assert report.verdict is Verdict.UNPROVED, str(report)
    (finding,) = report.findings
    assert finding.code == "VC215"
    return finding.message


def test_gradients_that_are_never_reduced(mesh: DeviceMesh) -> None:
    report = report_of(lambda model: sharded(model, mesh), accumulated(lambda number: False), without_clipping)
    assert unproved(report) == (
        "the step cannot be captured: the step ends before `fully_shard` has reduced the gradient of "
        "`block.up.weight`, which `set_requires_gradient_sync(False)` switched off."
    )


def test_gradients_that_are_never_reduced_over_replicas() -> None:
    def wrap(model: nn.Module) -> object:
        return sharded(model, mesh).set_requires_all_reduce(False)

    with fake_mesh_world((2, 2), ("replicas", "shards")) as mesh:
        report = report_of(wrap, without_clipping, without_clipping)
    assert unproved(report) == (
        "the step cannot be captured: the step ends before `fully_shard` has reduced the gradient of "
        "`block.up.weight`, which `set_requires_all_reduce(False)` switched off."
    )


@pytest.mark.parametrize("reshards", [True, False])
def test_a_forward_after_the_backward_leaves_parameters_gathered(reshards: bool, mesh: DeviceMesh) -> None:
    def parallel(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            F.mse_loss(model(x), y).backward()
            with torch.no_grad():
                model(x)
            if reshards:
                cast("FSDPModule", model).reshard()
            optimizer.step()
            optimizer.zero_grad()

        return step

    report = report_of(lambda model: sharded(model, mesh), parallel, without_clipping)
    if reshards:
        assert report.verdict is Verdict.VERIFIED, str(report)
        return
    assert unproved(report) == (
        "the step cannot be captured: the step ends while `head.weight` is gathered, and the next one would begin with "
        "what is gathered now: call `reshard()` after a forward that no backward follows."
    )


def test_communication_of_the_users_own_is_refused(mesh: DeviceMesh) -> None:
    def wrap(model: nn.Module) -> object:
        return sharded(model, mesh).set_all_reduce_hook(lambda gradient: None)

    assert unproved(report_of(wrap)) == (
        "the step cannot be captured: what `fully_shard` does is not understood: its hook of `set_all_reduce_hook` may "
        "do anything with the gradients."
    )


# ------------------------------------------------------------------------------------------------ nothing is touched


def test_a_model_that_trains_before_and_after(mesh: DeviceMesh) -> None:
    model, spec = Model(), Model()
    sharded(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step = plain(model, optimizer)
    x, y = torch.randn(4, 4), torch.randn(4, 2)
    step(x, y)
    model(x)  # what is gathered now stays so until a backward
    held = {name: id(value) for name, value in model.named_parameters()}
    states = len(optimizer.state)
    report = verify_step(step, (x, y), spec=plain(spec, torch.optim.AdamW(spec.parameters(), lr=0.1)))
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert len(optimizer.state) == states
    assert held.keys() == dict(model.named_parameters()).keys()
    step(x, y)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
