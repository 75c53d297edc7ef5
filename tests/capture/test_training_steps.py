"""``verify_step``: right training steps verify as a whole, and one mistake anywhere in them is found."""

from __future__ import annotations

import dataclasses
import linecache
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.support import fake_mesh_world
from verifycompile import Report, UsageError, Verdict, verify_step

ROWS = {"x": (Shard(0),), "y": (Shard(0),)}


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.1)


def batch(rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 4), torch.randn(rows, 4)


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with fake_mesh_world((2,), ("ranks",)) as made:
        yield made


# ------------------------------------------------------------------------------------------------ a loop by hand


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, clip: bool = True) -> Callable[..., Any]:
    """The step of one device; also that of DTensors, which communicate by themselves."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def silent(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    """The step of one device that returns nothing."""

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def data_parallel(model: nn.Module, optimizer: torch.optim.Optimizer, mistake: str = "") -> Callable[..., Any]:
    parameters = list(model.parameters())  # kept outside of the step, as loops do

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        if mistake == "clipped before the reduction":
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for parameter in parameters if mistake != "one is not reduced" else parameters[1:]:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            if mistake != "not divided":
                parameter.grad.div_(dist.get_world_size())
        if mistake != "clipped before the reduction":
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def report_of(
    parallel: Callable[[nn.Module, torch.optim.Optimizer], Callable[..., Any]],
    single: Callable[[nn.Module, torch.optim.Optimizer], Callable[..., Any]] = plain,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
    **options: Any,
) -> Report:
    model, spec = wrap(Perceptron()), Perceptron()
    step, spec_step = parallel(model, optimizer(model)), single(spec, optimizer(spec))
    return verify_step(step, batch(), spec=spec_step, **options)


MISTAKES = {
    "not divided": ("VC103", "dist.all_reduce(parameter.grad)", ()),
    "clipped before the reduction": ("VC101", "loss.backward()", ("down.weight", "up.bias", "up.weight")),
    "one is not reduced": ("VC101", "loss.backward()", ("up.weight",)),
}
"""Code and line of the finding, and the gradients that are to be reduced."""


@pytest.mark.parametrize("optimizer", [sgd, adamw])
def test_loop_by_hand_verifies(optimizer: Any, mesh: DeviceMesh) -> None:
    report = report_of(data_parallel, optimizer=optimizer, in_placements=ROWS)
    assert report.verdict is Verdict.VERIFIED, str(report)
    states = 1 if optimizer is sgd else 3
    assert len(report.relations) == 1 + 3 + 3 * states
    assert report.relations["output.0"] == "mean(output.0, over=world)"
    assert report.relations["mutation.up.weight"] == "mutation.up.weight"


@pytest.mark.causes
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("optimizer", [sgd, adamw])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_in_a_loop_by_hand_is_refuted(mistake: str, optimizer: Any, mesh: DeviceMesh) -> None:
    report = report_of(lambda m, o: data_parallel(m, o, mistake), optimizer=optimizer, in_placements=ROWS)
    assert report.verdict is Verdict.REFUTED, str(report)
    (finding,) = report.findings
    assert finding.location is not None
    assert finding.location.file == __file__
    line = linecache.getline(__file__, finding.location.line).strip()
    assert (finding.code, line) == MISTAKES[mistake][:2]
    reduced = "all-reduce the gradient of `{}` over `world` (avg) after line {}"
    hints = [reduced.format(name, finding.location.line) for name in MISTAKES[mistake][2]]
    assert finding.hint == "; ".join(hints or [f'use "avg" in the place of "sum" at line {finding.location.line}']) + (
        " (checked)"
    )


@pytest.mark.causes
def test_numbers_of_an_optimizer_are_told_together(mesh: DeviceMesh) -> None:
    """The learning rate is in two numbers of each update: alone, neither of them mends an output."""

    def faster(model: nn.Module, _: torch.optim.Optimizer) -> Callable[..., Any]:
        return data_parallel(model, torch.optim.AdamW(model.parameters(), lr=0.2))

    report = report_of(faster, optimizer=adamw, in_placements=ROWS)
    assert report.verdict is Verdict.REFUTED, str(report)
    (finding,) = report.findings
    assert finding.hint is not None
    told = "compute with 0.999 and 0.1 in the place of 0.998 and 0.2, or with what these come from (checked)"
    assert finding.hint.endswith(told)


@pytest.mark.parametrize("setting", ["fused", "foreach"])
def test_an_optimizer_that_updates_all_at_once(setting: str, mesh: DeviceMesh) -> None:
    def with_rate(rate: float) -> Any:
        def made(model: nn.Module, _: torch.optim.Optimizer) -> Callable[..., Any]:
            optimizer = torch.optim.AdamW(model.parameters(), lr=rate, **{setting: True})
            optimizers.append(optimizer)
            return data_parallel(model, optimizer)

        return made

    optimizers: list[torch.optim.Optimizer] = []
    right, wrong = (report_of(with_rate(rate), optimizer=adamw, in_placements=ROWS) for rate in (0.1, 0.2))
    assert right.verdict is Verdict.VERIFIED, str(right)
    listed = "optimizers that are `fused` or `foreach` compute what they compute for one parameter after the other"
    assert listed in right.assumptions
    assert wrong.verdict is Verdict.REFUTED, str(wrong)
    assert all(group[setting] is True for optimizer in optimizers for group in optimizer.param_groups)


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_rank_that_is_asked_for_before_the_step(is_inside: bool, mesh: DeviceMesh) -> None:
    """Inside of it each rank is another one, and the scale wrong; before it nobody knows what the others were told."""

    def scaled(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
        told = 0 if is_inside else dist.get_rank()

        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            ((1 + (dist.get_rank() if is_inside else told)) * F.mse_loss(model(x), y)).backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
                parameter.grad.div_(dist.get_world_size())
            optimizer.step()
            optimizer.zero_grad()

        return step

    report = report_of(scaled, silent, in_placements=ROWS)
    if is_inside:
        assert report.verdict is Verdict.REFUTED, str(report)
        return
    assert report.verdict is Verdict.UNPROVED, str(report)
    (finding,) = report.findings
    assert finding.code == "VC207"
    assert finding.message.endswith(
        "This process alone stands for all ranks, whose steps may hold other numbers. Ask for the rank inside of the "
        "step alone, which is traced as each rank, or let the ranks of a job be compared by `verifycompile.compare`."
    )


# ------------------------------------------------------------------------------------------------ DTensors


def tensor_parallel(mesh: DeviceMesh) -> Callable[[nn.Module], nn.Module]:
    plan: dict[str, ParallelStyle] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return lambda model: parallelize_module(model, mesh, plan)


@pytest.mark.parametrize("optimizer", [sgd, adamw])
def test_tensor_parallel_step_with_clipping_verifies(optimizer: Any, mesh: DeviceMesh) -> None:
    report = report_of(plain, optimizer=optimizer, wrap=tensor_parallel(mesh))
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert report.relations["mutation.up.weight"] == "concat(mutation.up.weight, dim=0, over=ranks)"


class PartialGradient(torch.autograd.Function):
    """Identity; whatever arrives backwards is said to be whole."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient


class Scaled(nn.Module):
    """A sharded linear layer behind a scale that all ranks hold; its gradient is a sum over the ranks."""

    def __init__(self, mesh: DeviceMesh | None = None, is_reduced: bool = True) -> None:
        super().__init__()
        self.mesh, self.is_reduced = mesh, is_reduced
        self.scale = nn.Parameter(torch.ones(4))
        self.up = nn.Parameter(torch.ones(8, 4))
        if mesh is not None:
            self.scale = nn.Parameter(distribute_tensor(self.scale.detach(), mesh, [Replicate()]))
            self.up = nn.Parameter(distribute_tensor(self.up.detach(), mesh, [Shard(0)]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mesh is None:
            return torch.relu(F.linear(x * self.scale, self.up)).sum()
        assert isinstance(self.scale, DTensor)
        assert isinstance(self.up, DTensor)
        gradient = [Partial()] if self.is_reduced else [Replicate()]
        scale = self.scale.to_local(grad_placements=gradient)
        part = torch.relu(F.linear(x * scale, self.up.to_local())).sum()
        return DTensor.from_local(part, self.mesh, [Partial()]).full_tensor()


@pytest.mark.parametrize("is_reduced", [True, False])
def test_partial_gradient_in_an_update(is_reduced: bool, mesh: DeviceMesh) -> None:
    def made(model: nn.Module) -> Callable[..., Any]:
        optimizer = adamw(model)

        def step(x: torch.Tensor) -> None:
            model(x).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    report = verify_step(made(Scaled(mesh, is_reduced)), (torch.randn(3, 4),), spec=made(Scaled()))
    assert report.verdict is (Verdict.VERIFIED if is_reduced else Verdict.REFUTED), str(report)


# ------------------------------------------------------------------------------------------------ accumulation


def accumulated(model: nn.Module, optimizer: torch.optim.Optimizer, is_divided: bool = True) -> Callable[..., Any]:
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
            loss = F.mse_loss(model(part), target)
            (loss / 2 if is_divided else loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def whole_batch(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        F.mse_loss(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("is_divided", [True, False])
def test_micro_batches_of_a_tensor_parallel_model(is_divided: bool, mesh: DeviceMesh) -> None:
    report = report_of(lambda m, o: accumulated(m, o, is_divided), whole_batch, adamw, tensor_parallel(mesh))
    assert report.verdict is (Verdict.VERIFIED if is_divided else Verdict.REFUTED), str(report)


# ------------------------------------------------------------------------------------------------ clipping by hand


@pytest.mark.parametrize("is_global", [True, False])
def test_norm_over_sharded_gradients(is_global: bool, mesh: DeviceMesh) -> None:
    """Plain shards, each rank's own: the norm is of all of them. Which parameters are sharded is noted at them."""

    def made(model: nn.Module) -> Callable[..., Any]:
        optimizer = sgd(model)

        def step(x: torch.Tensor) -> None:
            assert isinstance(model, Rows)
            (model.up * x).pow(2).sum().backward()
            gradient = model.up.grad
            assert isinstance(gradient, torch.Tensor)
            square = gradient.pow(2).sum()
            if vars(model.up)["is_sharded"] and is_global:
                dist.all_reduce(square)
            gradient.mul_(torch.clamp(1.0 / (square.sqrt() + 1e-6), max=1.0))
            optimizer.step()
            optimizer.zero_grad()

        return step

    class Rows(nn.Module):
        def __init__(self, rows: int) -> None:
            super().__init__()
            self.up = nn.Parameter(torch.randn(rows, 4))
            vars(self.up)["is_sharded"] = rows == 4

    step, spec = made(Rows(4)), made(Rows(8))
    report = verify_step(step, (torch.randn(4),), spec=spec, param_placements={"up": (Shard(0),)})
    assert report.verdict is (Verdict.VERIFIED if is_global else Verdict.REFUTED), str(report)


# ------------------------------------------------------------------------------------------------ wrappers


def test_ddp_step_verifies(mesh: DeviceMesh) -> None:
    report = report_of(plain, optimizer=adamw, wrap=DistributedDataParallel)
    assert report.verdict is Verdict.VERIFIED, str(report)
    text = "DistributedDataParallel takes the mean of its gradients over its 2 ranks after backward"
    assert text in report.assumptions
    samples = (
        "under `DistributedDataParallel` inputs are the ranks' own samples, Shard(0) over world, by default: `x`, `y`"
    )
    assert samples in report.assumptions


def summed(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        F.mse_loss(model(x), y, reduction="sum").backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.causes
def test_sum_loss_under_ddp_is_refuted(mesh: DeviceMesh) -> None:
    """The division by the number of ranks is the wrapper's: nobody can leave it out."""
    report = report_of(summed, summed, wrap=DistributedDataParallel)
    assert report.verdict is Verdict.REFUTED, str(report)
    (finding,) = report.findings
    assert finding.impl_location is not None
    value, line = '`mse_loss` in `F.mse_loss(model(x), y, reduction="sum").backward()`', finding.impl_location.line
    assert finding.hint == f"multiply {value} by 2 before its backward pass at line {line} (checked)"


def summed_and_returned(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(model(x), y, reduction="sum")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


@pytest.mark.causes
def test_sum_loss_that_is_returned_as_a_mean_is_one_finding(mesh: DeviceMesh) -> None:
    """The loss is to be multiplied where it is computed: both what is returned and the gradients follow."""
    placements = {"output.0": (Partial("avg"),)}
    report = report_of(
        summed_and_returned, summed_and_returned, wrap=DistributedDataParallel, out_placements=placements
    )
    assert report.verdict is Verdict.REFUTED, str(report)
    (finding,) = report.findings
    assert finding.impl_location is not None
    assert finding.hint == f"multiply `loss` by 2 at line {finding.impl_location.line} (checked)"


def accumulated_loss(*divisors: int) -> Callable[..., Any]:
    def parallel(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            loss = torch.zeros(())
            for divisor, rows, target in zip(divisors, x.chunk(2), y.chunk(2), strict=True):
                loss = loss + F.mse_loss(model(rows), target) / divisor
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return parallel


@pytest.mark.causes
@pytest.mark.parametrize("divisor", [2, 4, 8])
def test_the_divisor_of_losses_that_are_added_is_told_with_their_gradients(divisor: int, mesh: DeviceMesh) -> None:
    """The factor of each summand is changed with its derivative, which stands behind that of the sum."""
    report = report_of(accumulated_loss(divisor, divisor), accumulated_loss(2, 2), wrap=DistributedDataParallel)
    if divisor == 2:
        assert report.verdict is Verdict.VERIFIED, str(report)
        return
    (finding,) = report.findings
    place = finding.impl_location
    assert report.verdict is Verdict.REFUTED
    assert place is not None
    assert (
        linecache.getline(place.file, place.line).strip() == "loss = loss + F.mse_loss(model(rows), target) / divisor"
    )
    assert (finding.code, finding.hint) == ("VC103", f"divide by 2 at line {place.line}, not by {divisor} (checked)")


SCALED_LOSSES = {
    "scaled": ("leave out the multiplication by 8 at line {}", "loss = F.mse_loss(model(x), y) * 8"),
    "returned": ("divide `output.0` by 8 where it is returned", "return returned.detach()"),
}
"""The hint, and the line that it is about, of a loss that is scaled, and of one whose gradients are unscaled."""


def scaled_loss(mistake: str) -> Callable[..., Any]:
    def parallel(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = F.mse_loss(model(x), y) * 8
            loss.backward()
            for parameter in model.parameters() if mistake != "scaled" else ():
                assert parameter.grad is not None
                parameter.grad.div_(8)
            optimizer.step()
            optimizer.zero_grad()
            returned = loss if mistake else loss / 8
            return returned.detach()

        return step

    return parallel


@pytest.mark.causes
@pytest.mark.parametrize("mistake", ["", *SCALED_LOSSES])
def test_a_scaled_loss_is_mended_with_its_gradients(mistake: str, mesh: DeviceMesh) -> None:
    single = partial(plain, clip=False)
    report = report_of(scaled_loss(mistake), single, wrap=DistributedDataParallel)
    if not mistake:
        assert report.verdict is Verdict.VERIFIED, str(report)
        return
    (finding,) = report.findings
    hint, text = SCALED_LOSSES[mistake]
    assert report.verdict is Verdict.REFUTED
    place = finding.impl_location
    assert place is not None
    assert linecache.getline(place.file, place.line).strip() == text
    assert (finding.code, finding.hint) == ("VC103", f"{hint.format(place.line)} (checked)")


CODES = {"": [], "not divided": ["VC103"], "never synchronized": ["VC101"]}


@pytest.mark.causes
@pytest.mark.parametrize("mistake", CODES)
def test_ddp_with_no_sync(mistake: str, mesh: DeviceMesh) -> None:
    def parallel(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
        assert isinstance(model, DistributedDataParallel)
        share = 1 if mistake == "not divided" else 2

        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            (first, last), (y_first, y_last) = x.chunk(2), y.chunk(2)
            with model.no_sync():
                (F.mse_loss(model(first), y_first) / share).backward()
                if mistake == "never synchronized":
                    (F.mse_loss(model(last), y_last) / share).backward()
            if mistake != "never synchronized":
                (F.mse_loss(model(last), y_last) / share).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    report = report_of(parallel, silent, wrap=DistributedDataParallel)
    assert report.verdict is (Verdict.REFUTED if mistake else Verdict.VERIFIED), str(report)
    assert [finding.code for finding in report.findings] == CODES[mistake]


# ------------------------------------------------------------------------------------------------ what is refused


def unproved(report: Report) -> str:
    assert report.verdict is Verdict.UNPROVED, str(report)
    (finding,) = report.findings
    assert finding.code == "VC215"
    return finding.message


def test_step_that_decides_by_a_value_is_refused(mesh: DeviceMesh) -> None:
    def careful(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            loss = F.mse_loss(model(x), y)
            if torch.isfinite(loss):
                loss.backward()
                optimizer.step()

        return step

    report = report_of(careful, wrap=tensor_parallel(mesh))
    assert unproved(report).startswith("the step cannot be captured: ")
    assert report.findings[0].location is not None


def test_replicate_is_refused_with_what_to_ask_with_instead(mesh: DeviceMesh) -> None:
    assert unproved(report_of(silent, silent, wrap=replicate)) == (
        "the step cannot be captured: the model is wrapped in `replicate`, whose hooks run outside of what is traced; ask "
        "with `DistributedDataParallel`, which reduces alike."
    )


def test_tensor_of_another_model_that_is_trained_is_refused(mesh: DeviceMesh) -> None:
    hidden = torch.zeros(4)

    def leaking(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            F.mse_loss(model(x), y).backward()
            hidden.add_(x.mean(0))
            optimizer.step()
            optimizer.zero_grad()

        return step

    report = report_of(leaking, plain, wrap=tensor_parallel(mesh))
    assert unproved(report) == (
        "the step cannot be captured: a tensor of shape [4] that is part of neither the model nor the arguments is "
        "trained or written."
    )


def test_gradients_that_are_kept_on_one_side_alone(mesh: DeviceMesh) -> None:
    def forgets(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            F.mse_loss(model(x), y).backward()
            optimizer.step()

        return step

    with pytest.raises(UsageError) as caught:
        report_of(forgets, lambda m, o: plain(m, o, clip=False), wrap=tensor_parallel(mesh))
    assert str(caught.value) == "error[VC304]: only the parallel step keeps `grad.down.weight`."
    report = report_of(forgets, forgets, wrap=tensor_parallel(mesh))
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert "mutation.grad.up.weight" in report.relations


def test_spec_that_communicates_is_an_error(mesh: DeviceMesh) -> None:
    with pytest.raises(
        UsageError, match=r"^error\[VC309\]: the spec's step communicates with `c10d.allreduce_.default`"
    ):
        report_of(data_parallel, data_parallel, in_placements=ROWS)


def test_model_that_is_not_found_is_an_error(mesh: DeviceMesh) -> None:
    def empty_step(x: torch.Tensor) -> torch.Tensor:
        return x

    with pytest.raises(UsageError) as caught:
        verify_step(empty_step, (torch.randn(2),), spec=empty_step)
    assert str(caught.value) == (
        "error[VC306]: `empty_step` refers to 0 models with parameters: pass the one that it trains as `model`, several of them in "
        "an nn.ModuleDict."
    )


# ------------------------------------------------------------------------------------------------ nothing is touched


@pytest.mark.parametrize("parallel", [False, True])
def test_model_and_optimizer_are_what_they_were(parallel: bool, mesh: DeviceMesh) -> None:
    model = Perceptron()
    if parallel:
        tensor_parallel(mesh)(model)
    optimizer = adamw(model)
    before = {name: (id(value), type(value), value.detach().clone()) for name, value in model.named_parameters()}
    model.up.weight.grad = torch.ones_like(model.up.weight)
    spec = Perceptron()
    report = verify_step(plain(model, optimizer), batch(), spec=plain(spec, adamw(spec)))
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert not optimizer.state
    for name, value in model.named_parameters():
        assert (id(value), type(value)) == before[name][:2]
        local, held = (v.to_local() if isinstance(v, DTensor) else v for v in (value.detach(), before[name][2]))
        assert torch.equal(local, held)
    assert model.up.weight.grad is not None
    assert model.down.weight.grad is None
    plain(model, optimizer)(*batch())
    assert len(optimizer.state) == 3


@dataclasses.dataclass
class Trainer:
    """A step as a method; its model and optimizer are attributes."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def step(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        loss = F.mse_loss(self.model(batch["x"]), batch["y"])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"loss": loss.detach()}


def test_step_that_is_a_method_of_a_trainer(mesh: DeviceMesh) -> None:
    model, spec = DistributedDataParallel(Perceptron()), Perceptron()
    x, y = batch()
    report = verify_step(
        Trainer(model, sgd(model)).step,
        ({"x": x, "y": y},),
        spec=Trainer(spec, sgd(spec)).step,
        in_placements={"batch.x": (Shard(0),), "batch.y": (Shard(0),)},
    )
    assert report.verdict is Verdict.VERIFIED, str(report)


def test_compiled_model_in_a_step_is_traced_as_it_is_written(mesh: DeviceMesh) -> None:
    model, spec = Perceptron(), Perceptron()
    tensor_parallel(mesh)(model)
    compiled = cast("nn.Module", torch.compile(model))
    report = verify_step(plain(compiled, adamw(model)), batch(), spec=plain(spec, adamw(spec)))
    assert report.verdict is Verdict.VERIFIED, str(report)


class Counting(Perceptron):
    """Keeps a tensor and a number from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.kept: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept is None:
            self.kept = torch.ones(4)
        self.calls += 1
        return super().forward(x) + self.kept * self.calls


def test_what_modules_keep_from_call_to_call_is_as_it_was(mesh: DeviceMesh) -> None:
    model, spec = Counting(), Counting()
    step, spec_step = data_parallel(model, sgd(model)), plain(spec, sgd(spec))
    report = verify_step(step, batch(), spec=spec_step, in_placements=ROWS)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert (model.calls, model.kept) == (0, None)


def overlapped(model: nn.Module, optimizer: torch.optim.Optimizer, waits: bool) -> Callable[..., Any]:
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        F.mse_loss(model(x), y).backward()
        handles = [dist.all_reduce(parameter.grad, async_op=True) for parameter in model.parameters()]
        for handle in handles if waits else handles[1:]:
            assert handle is not None
            handle.wait()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.div_(2)  # UNWAITED
        optimizer.step()
        optimizer.zero_grad()

    return step


def without_results(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        plain(model, optimizer, clip=False)(x, y)

    return step


@pytest.mark.parametrize("waits", [True, False])
def test_reductions_that_overlap_are_waited_for(waits: bool, mesh: DeviceMesh) -> None:
    report = report_of(lambda m, o: overlapped(m, o, waits), without_results, in_placements=ROWS)
    if waits:
        assert report.verdict is Verdict.VERIFIED, str(report)
        return
    assert report.verdict is Verdict.UNPROVED
    (finding,) = report.findings
    assert finding.message == (
        "the step cannot be captured: `aten.div_.Tensor` uses a tensor of an asynchronous `allreduce` that is not "
        "waited for."
    )
    assert finding.impl_location is not None
    assert "# UNWAITED" in linecache.getline(__file__, finding.impl_location.line)


def test_a_result_that_nobody_waits_for(mesh: DeviceMesh) -> None:
    def parallel(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
        reduced = data_parallel(model, optimizer)

        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            reduced(x, y)
            dist.all_reduce(x.new_zeros(3), async_op=True)

        return step

    report = report_of(parallel, plain, in_placements=ROWS)
    assert report.verdict is Verdict.UNPROVED
    assert report.findings[0].message == (
        "the step cannot be captured: an asynchronous `allreduce` is never waited for."
    )


def test_step_that_updates_every_other_time(mesh: DeviceMesh) -> None:
    def parallel(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
        calls: list[int] = []

        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            F.mse_loss(model(x), y).backward()
            calls.append(1)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
            if len(calls) % 2 == 0:
                optimizer.step()
            optimizer.zero_grad()

        return step

    def stateless(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    report = report_of(parallel, without_results, stateless, in_placements=ROWS)
    assert report.verdict is Verdict.UNPROVED
    assert report.findings[0].message == (
        "the step cannot be captured: its second and its third call do not call the same operators: a step must do one "
        "thing."
    )


def averaged_by_hooks(model: nn.Module, optimizer: torch.optim.Optimizer, kind: str) -> Callable[..., torch.Tensor]:
    """Gradients become means by hooks: of the parameters, or of the nodes that accumulate."""

    def average(gradient: torch.Tensor) -> torch.Tensor:
        summed = gradient.clone()
        dist.all_reduce(summed)
        return summed if kind == "sum at the node" else summed / dist.get_world_size()

    nodes = [get_gradient_edge(parameter).node for parameter in model.parameters()]
    for parameter, node in zip(model.parameters(), nodes, strict=True):
        if kind == "of the parameter":
            parameter.register_hook(average)
        else:
            node.register_prehook(lambda gradients: (average(gradients[0]),))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        assert nodes
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("of the parameter", Verdict.VERIFIED),
        ("mean at the node", Verdict.VERIFIED),
        ("sum at the node", Verdict.REFUTED),
    ],
)
def test_hooks_that_reduce(kind: str, verdict: Verdict, mesh: DeviceMesh) -> None:
    report = report_of(
        lambda m, o: averaged_by_hooks(m, o, kind), lambda m, o: plain(m, o, clip=False), in_placements=ROWS
    )
    assert report.verdict is verdict, str(report)
