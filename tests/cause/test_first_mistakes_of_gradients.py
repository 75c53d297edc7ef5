"""Gradients that are frozen, lost, not summed, or summed over the wrong ranks: refused by name, and mended."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Replicate, Shard

import verifycompile
from tests.programs.autograd_collectives import Copy, Reduce
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

R, S0 = Replicate(), Shard(0)


class Gain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.gain = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.first).tanh() * self.gain


class Lost(Gain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh() * self.gain + 0 * (x * self.first).sum().detach()


class Reduced(Gain):
    """A hook sums the gradient of each parameter over the ranks of an axis."""

    def __init__(self, mesh: DeviceMesh, axis: str, *names: str) -> None:
        super().__init__()
        self.group = mesh.get_group(axis)
        for name in names:
            self.get_parameter(name).register_hook(self.over_ranks)

    def over_ranks(self, gradient: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(gradient, "sum", self.group)


class Detached(Reduced):
    """The values are right, and the gradient of ``first`` takes another way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = x * self.first
        return (scaled.tanh() + scaled - scaled.detach()) * self.gain


class Stopped(Reduced):
    """``first`` takes no part in the backward pass, nor does the function that would sum its gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first.detach()
        return (x * Copy.apply(first, self.group)).tanh() * self.gain


class Ungraded(Reduced):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scaled = x * self.first
        return scaled.tanh() * self.gain


class Shifted(Reduced):
    """What is detached leaves the results again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = x * self.first
        shift = scaled.detach().amax()
        return (scaled - shift + shift).tanh() * self.gain


class Averaged(Reduced):
    """The hooks are functions without a name, which call a helper."""

    def __init__(self, mesh: DeviceMesh, *names: str) -> None:
        super().__init__(mesh, "tp")
        for name in names:
            self.get_parameter(name).register_hook(lambda gradient: over(gradient, self.group, "avg"))


def over(gradient: torch.Tensor, group: object, operation: str) -> torch.Tensor:
    return funcol.all_reduce(gradient, operation, group)


def frozen(model: nn.Module) -> nn.Module:
    model.get_parameter("gain").requires_grad_(False)
    return model


@dataclasses.dataclass(frozen=True)
class Mistake:
    """``line``: what the line that is named says; "" where no line of the program can be."""

    code: str
    wrong: Callable[[DeviceMesh], nn.Module]
    line: str
    words: str
    hint: str = ""


def everything(mesh: DeviceMesh) -> nn.Module:
    return Reduced(mesh, "tp", "first", "gain")


MISTAKES = {
    "frozen": Mistake("VC111", lambda mesh: frozen(everything(mesh)), "", "in the spec, and not in the model, `gain`"),
    "lost": Mistake(
        "VC111",
        lambda mesh: Lost(),
        "return x.tanh() * self.gain + 0 * (x * self.first).sum().detach()",
        "the implementation has no gradient `grad.first`",
    ),
    "detached": Mistake(
        "VC111",
        lambda mesh: Detached(mesh, "tp", "first", "gain"),
        "return (scaled.tanh() + scaled - scaled.detach()) * self.gain",
        "no gradient passes `scaled.detach()`, and that of `first` is not the spec's",
        "leave out `detach()` or `.data` at line {} (checked)",
    ),
    "stopped": Mistake(
        "VC111",
        lambda mesh: Stopped(mesh, "tp", "gain"),
        "first = self.first.detach()",
        "the implementation has no gradient `grad.first`",
        "leave out `detach()` or `.data` at line {} (checked)",
    ),
    "without gradients": Mistake(
        "VC111",
        lambda mesh: Ungraded(mesh, "tp", "first", "gain"),
        "scaled = x * self.first",
        "the implementation has no gradient `grad.first`",
        "compute line {} outside of `torch.no_grad()` (checked)",
    ),
    "stopped and not summed": Mistake(
        "VC111",
        lambda mesh: Ungraded(mesh, "tp", "gain"),
        "scaled = x * self.first",
        "the implementation has no gradient `grad.first`",
    ),
    "not summed": Mistake(
        "VC101",
        lambda mesh: Reduced(mesh, "tp", "first"),
        "return (x * self.first).tanh() * self.gain",
        "`grad.gain` is returned as a partial sum over tp; it must be the full value",
    ),
    "averaged in hooks": Mistake(
        "VC103",
        lambda mesh: Averaged(mesh, "first", "gain"),
        'self.get_parameter(name).register_hook(lambda gradient: over(gradient, self.group, "avg"))',
        "`all_reduce` takes the mean over tp of a value that is a partial sum over tp",
    ),
    "wrong group": Mistake(
        "VC105",
        lambda mesh: Reduced(mesh, "dp", "first", "gain"),
        'return funcol.all_reduce(gradient, "sum", self.group)',
        "`all_reduce` over dp of a value that is a partial sum over tp",
    ),
}


def verified(model: Callable[[DeviceMesh], nn.Module]) -> Report:
    with fake_mesh_world((2, 2), ("dp", "tp")) as mesh:
        return verifycompile.verify(
            model(mesh),
            (torch.randn(3, 4),),
            spec=Gain(),
            mesh=mesh,
            in_placements={"x": (R, S0)},
            out_placements={"output.0": (R, S0)},
        )


@pytest.mark.parametrize("name", MISTAKES)
def test_the_mistake_is_refused_by_its_name_at_its_line(name: str) -> None:
    mistake = MISTAKES[name]
    report = verified(mistake.wrong)
    finding = report.findings[0]
    assert (report.verdict is Verdict.VERIFIED, finding.code) == (False, mistake.code)
    assert mistake.words in finding.message
    place = finding.impl_location
    module: Any = inspect.getmodule(verified)
    line = "" if place is None else inspect.getsource(module).splitlines()[place.line - 1].strip()
    assert line == mistake.line
    if mistake.code == "VC111":
        assert (finding.hint or "") == mistake.hint.format(0 if place is None else place.line)


@pytest.mark.parametrize("right", [everything, lambda mesh: Shifted(mesh, "tp", "first", "gain")])
def test_the_mended_program_is_verified(right: Callable[[DeviceMesh], nn.Module]) -> None:
    report = verified(right)
    assert report.verdict is Verdict.VERIFIED, str(report)


def total(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0).tanh() + x.square().sum(0)


def total_of_parts(mesh: DeviceMesh, *, detaches: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    def program(x: torch.Tensor) -> torch.Tensor:
        largest = funcol.all_reduce(x.detach().amax(), "max", mesh)
        part = (x - largest).sum(0)
        whole = funcol.all_reduce(part.detach(), "sum", mesh) if detaches else Reduce.apply(part, mesh)
        return (whole + mesh.size() * x.shape[0] * largest).tanh() + Reduce.apply(x.square().sum(0), mesh)

    return program


@pytest.mark.parametrize("detaches", [False, True])
def test_of_two_lines_that_detach_the_one_is_told_that_loses_the_gradient(detaches: bool) -> None:
    """The other one detaches what leaves the result again, and torch has no gradient of what is behind it."""
    with fake_mesh_world((2,), ("tp",)) as mesh:
        report = verifycompile.verify(
            total_of_parts(mesh, detaches=detaches),
            (torch.randn(3, 4, requires_grad=True),),
            spec=total,
            mesh=mesh,
            in_placements={"x": (S0,)},
            out_placements={"output.0": (R,)},
        )
    if not detaches:
        assert report.verdict is Verdict.VERIFIED
        return
    assert report.verdict is Verdict.REFUTED
    finding = report.findings[0]
    place = finding.impl_location
    assert place is not None
    assert place.line == inspect.getsourcelines(total_of_parts)[1] + 4
    assert (finding.code, finding.message) == ("VC111", f"no gradient passes what is detached at line {place.line}")
    way = "and let its gradient pass the all-reduce behind it as it is"
    assert finding.hint == f"leave out `detach()` or `.data` at line {place.line}, {way} (checked)"
