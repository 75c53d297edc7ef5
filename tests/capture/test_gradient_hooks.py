"""Gradient hooks are part of the program: those on a parameter, and those that ``forward`` registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.autograd.graph import get_gradient_edge, register_multi_grad_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

HEAD_DIM = 4


class HeadNorm(nn.Module):
    """Normalizes every head by itself: its weight sees the heads of one rank only."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HEAD_DIM))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(8, 4 * HEAD_DIM, bias=False)
        self.q_norm = HeadNorm()
        self.o_proj = nn.Linear(4 * HEAD_DIM, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q_norm(self.q_proj(x).view(*x.shape[:-1], -1, HEAD_DIM))
        return self.o_proj(torch.tanh(q).flatten(-2))


def parallel(mesh: DeviceMesh) -> Heads:
    model = Heads()
    return parallelize_module(model, mesh, {"q_proj": ColwiseParallel(), "o_proj": RowwiseParallel()})  # type: ignore[return-value]


def sum_over(mesh: DeviceMesh) -> Callable[[torch.Tensor], None]:
    def hook(parameter: torch.Tensor) -> None:
        dist.all_reduce(parameter.grad, group=mesh.get_group())

    return hook


def mean_over(mesh: DeviceMesh) -> Callable[[torch.Tensor], None]:
    def hook(parameter: torch.Tensor) -> None:
        dist.all_reduce(parameter.grad, group=mesh.get_group())
        parameter.grad = parameter.grad / mesh.size()

    return hook


def register_in_forward(module: nn.Module, hook: Callable[[torch.Tensor], None]) -> None:
    original = module.forward
    hooked: dict[str, Any] = {}

    def forward(*args: Any) -> Any:
        for name, parameter in module.named_parameters():
            if name not in hooked:
                parameter.register_post_accumulate_grad_hook(hook)
                hooked[name] = parameter
        return original(*args)

    module.forward = forward  # type: ignore[method-assign]  # as packages do


def check(change: Callable[[Heads, DeviceMesh], object], degree: int = 2, **options: Any) -> Report:
    with fake_mesh_world((degree,), ("tp",)) as mesh:
        model = parallel(mesh)
        change(model, mesh)
        return verifycompile.verify(model, (torch.randn(2, 3, 8),), **options)


REDUCTIONS: dict[str, Callable[[Heads, DeviceMesh], object]] = {
    "after": lambda model, mesh: model.q_norm.weight.register_post_accumulate_grad_hook(sum_over(mesh)),
    "before": lambda model, mesh: model.q_norm.weight.register_hook(
        lambda gradient: dist._functional_collectives.all_reduce(gradient, "sum", (mesh, 0))
    ),
    "in forward": lambda model, mesh: register_in_forward(model.q_norm, sum_over(mesh)),
    "followed by what changes nothing": lambda model, mesh: (
        model.q_norm.weight.register_hook(lambda gradient: None),
        model.q_norm.weight.register_post_accumulate_grad_hook(sum_over(mesh)),
    ),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_hook_that_sums_a_gradient_is_seen(name: str) -> None:
    report = check(REDUCTIONS[name])
    assert report.verdict is Verdict.VERIFIED, str(report)


def test_a_hook_that_is_given_with_a_spec_and_another_degree() -> None:
    report = check(REDUCTIONS["in forward"], degree=4, spec=Heads())
    assert report.verdict is Verdict.VERIFIED, str(report)


def twice_at_the_node(model: Heads, mesh: DeviceMesh) -> None:
    """The node that accumulates the gradient has a hook; it lives as long as the model."""
    weight = model.q_norm.weight
    weight.register_hook(lambda gradient: functional.all_reduce(gradient, "sum", mesh.get_group()))
    weight.node = get_gradient_edge(weight).node
    weight.node.register_prehook(lambda gradients: (2 * gradients[0],))


WRONG: dict[str, tuple[Callable[[Heads, DeviceMesh], object], str]] = {
    "no hook": (lambda model, mesh: None, "VC101"),
    "mean": (lambda model, mesh: model.q_norm.weight.register_post_accumulate_grad_hook(mean_over(mesh)), "VC103"),
    "twice": (
        lambda model, mesh: [model.q_norm.weight.register_post_accumulate_grad_hook(sum_over(mesh)) for _ in "ab"],
        "VC103",
    ),
    "of the node, twice as much": (lambda model, mesh: twice_at_the_node(model, mesh), "VC103"),
    "in forward, mean": (lambda model, mesh: register_in_forward(model.q_norm, mean_over(mesh)), "VC103"),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", WRONG)
def test_a_gradient_that_ends_wrong_is_refuted_at_the_parameter(name: str) -> None:
    change, code = WRONG[name]
    report = check(change, spec=Heads())
    assert report.verdict is Verdict.REFUTED, str(report)
    assert report.findings[0].code in (code, "VC102", "VC106"), str(report)
    assert report.findings[0].counterexample is not None
    assert report.findings[0].counterexample.output == "grad.q_norm.weight"


def test_a_hook_that_does_not_communicate_belongs_to_the_recovered_spec_too() -> None:
    def change(model: Heads, mesh: DeviceMesh) -> None:
        model.q_norm.weight.register_hook(lambda gradient: 3 * gradient)
        model.q_norm.weight.register_post_accumulate_grad_hook(sum_over(mesh))

    report = check(change)
    assert report.verdict is Verdict.VERIFIED, str(report)
    report = check(change, spec=Heads())
    assert report.verdict is Verdict.REFUTED, str(report)


def test_a_gradient_that_is_declared_partial_ends_before_its_hooks() -> None:
    for change in (REDUCTIONS["in forward"], WRONG["no hook"][0]):
        report = check(change, grad_placements={"*q_norm.weight": (Partial(),)})
        assert report.verdict is Verdict.VERIFIED, str(report)
    report = check(REDUCTIONS["after"], grad_placements={"*q_norm.weight": (Replicate(),)})
    assert report.verdict is Verdict.VERIFIED, str(report)


def test_what_comes_before_the_reduction_of_a_partial_gradient_is_part_of_the_program() -> None:
    def change(model: Heads, mesh: DeviceMesh) -> None:
        model.q_norm.weight.register_hook(lambda gradient: 3 * gradient)
        model.q_norm.weight.register_post_accumulate_grad_hook(sum_over(mesh))

    options = {"grad_placements": {"*q_norm.weight": (Partial(),)}}
    report = check(change, **options)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert any("which is declared partial" in text for text in report.assumptions)
    assert check(change, spec=Heads(), **options).verdict is Verdict.REFUTED


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


@pytest.mark.parametrize(
    ("axes", "verdict"),
    [(["tp"], Verdict.VERIFIED), (["tp", "dp"], Verdict.VERIFIED), (["dp"], Verdict.REFUTED)],
    ids=["tp", "tp and dp", "dp"],
)
def test_a_hook_over_an_axis_that_is_not_declared_partial_is_part_of_the_program(
    axes: list[str], verdict: Verdict
) -> None:
    """Over ``dp`` the gradient leaves as a partial sum, so a sum over ``tp`` is the program's own."""
    with fake_mesh_world((2, 2), ("dp", "tp")) as mesh:
        model = Norm()
        for axis in axes:
            group = mesh.get_group(axis)
            model.weight.register_hook(lambda gradient, group=group: functional.all_reduce(gradient, "sum", group))
        placements = (Shard(0), Shard(1))
        report = verifycompile.verify(
            model,
            (torch.randn(2, 4, 4),),
            spec=Norm(),
            mesh=mesh,
            in_placements={"x": placements},
            out_placements={"output.0": placements},
            grad_placements={"weight": (Partial(), Replicate())},
        )
    assert report.verdict is verdict, str(report)


def test_hooks_that_do_not_trace() -> None:
    def unreadable(mesh: DeviceMesh) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            if float(parameter.grad.sum()) > mesh.size():
                dist.all_reduce(parameter.grad, group=mesh.get_group())

        return hook

    report = check(lambda model, mesh: model.q_norm.weight.register_post_accumulate_grad_hook(unreadable(mesh)))
    assert report.verdict is not Verdict.VERIFIED
    assert any("the hooks `" in finding.message for finding in report.findings), str(report)

    def of_node(model: Heads, mesh: DeviceMesh) -> None:
        REDUCTIONS["in forward"](model, mesh)
        model.nodes = [get_gradient_edge(model.o_proj.weight).node]
        model.nodes[0].register_hook(lambda *_: dist.all_reduce(model.o_proj.weight.grad, group=mesh.get_group()))

    report = check(of_node)
    assert report.verdict is not Verdict.VERIFIED
    assert any("the hooks `" in finding.message for finding in report.findings), str(report)

    def step(parameter: torch.Tensor) -> None:
        parameter.detach().sub_(parameter.grad)

    def change(model: Heads, mesh: DeviceMesh) -> None:
        REDUCTIONS["in forward"](model, mesh)
        model.o_proj.weight.register_post_accumulate_grad_hook(step)

    report = check(change)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert any("comes after what is proved" in text for text in report.assumptions)


@pytest.mark.parametrize("mode", ["all", "any"])
def test_a_hook_on_several_gradients_may_change_each(mode: Any) -> None:
    """It does not trace, and is called before what it gets is accumulated: what it writes is part of the gradient."""

    def double(gradients: Any) -> None:
        for gradient in gradients if mode == "all" else (gradients,):
            gradient.mul_(2)

    def change(model: Heads, mesh: DeviceMesh) -> None:
        REDUCTIONS["in forward"](model, mesh)
        register_multi_grad_hook((model.q_proj.weight, model.o_proj.weight), double, mode=mode)

    report = check(change)
    assert report.verdict is Verdict.UNPROVED, str(report)
    assert report.findings[0].code == "VC305"
    assert report.findings[0].message.endswith("are no part of the program: they do not trace.")


def over_norm_of_part(gradient: Any) -> torch.Tensor:
    local = gradient.to_local()
    return DTensor.from_local(local / (local.norm() + 1), gradient.device_mesh, gradient.placements, run_check=False)


OVER_NORM = lambda gradient: gradient / (gradient.norm() + 1)  # noqa: E731 - one of several hooks


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("hook", "of_spec", "verdict"),
    [
        (OVER_NORM, OVER_NORM, Verdict.VERIFIED),
        (over_norm_of_part, OVER_NORM, Verdict.REFUTED),
        (lambda gradient: gradient * 2, None, Verdict.REFUTED),
        (lambda gradient: None, None, Verdict.VERIFIED),
        (lambda gradient: gradient.redistribute(placements=[Replicate()]).redistribute(placements=[Shard(0)]), None, Verdict.VERIFIED),
    ],
)
def test_hooks_on_gradients_that_are_dtensors(hook: Any, of_spec: Any, verdict: Verdict) -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model, spec = (nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)) for _ in range(2))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
        model[0].weight.register_hook(hook)
        if of_spec is not None:
            spec[0].weight.register_hook(of_spec)
        report = verifycompile.verify(model, (torch.randn(2, 4),), spec=spec)
    assert report.verdict is verdict
    assert not [text for text in report.assumptions if "hooks" in text]
