"""What a line that the spec runs too computes with is told where it was made: a number, memory, a gradient's sum."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor, all_reduce
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Replicate, Shard

from tests.support import fake_mesh_world
from verifycompile import Report, Verdict, verify, verify_step

ROWS, WHOLE = (Shard(0),), (Replicate(),)


class Scores(nn.Module):
    """``is_own``: the dimension of a head is computed of a rank's own number of heads."""

    def __init__(self, heads: int, mesh: DeviceMesh | None = None, *, is_own: bool = False) -> None:
        super().__init__()
        self.heads, self.mesh = heads, mesh
        self.scale = self.root(8 // heads if is_own else 2)
        self.q = nn.Linear(8, 2 * heads, bias=False)

    def root(self, size: int) -> float:
        return size**-0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q(x).unflatten(-1, (self.heads, 2)).transpose(0, 1)
        return (q @ q.transpose(1, 2) * self.scale).softmax(-1)


class Positions(nn.Module):
    """Positions that are added behind those of the ranks before."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, 4))

    def start(self, x: torch.Tensor) -> int:
        return 0

    def added(self, x: torch.Tensor, first: int) -> torch.Tensor:
        return x + self.table[first : first + x.shape[0], None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.added(x, self.start(x))


class PositionsOnRanks(Positions):
    def __init__(self, mesh: DeviceMesh, *, dim: int) -> None:
        super().__init__()
        self.mesh, self.dim = mesh, dim

    def start(self, x: torch.Tensor) -> int:
        return self.mesh.get_local_rank() * x.shape[self.dim]


class Causal(nn.Module):
    """Means over what stands before, of keys that are gathered."""

    def core(self, q: torch.Tensor, k: torch.Tensor, start: int) -> torch.Tensor:
        rows = torch.arange(q.shape[0])[:, None] + start
        return (q @ k.T).masked_fill(rows < torch.arange(k.shape[0])[None], float("-inf")).softmax(-1) @ k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.core(x, x, 0)


class CausalOnRanks(Causal):
    def __init__(self, mesh: DeviceMesh, *, is_own: bool) -> None:
        super().__init__()
        self.mesh, self.is_own = mesh, is_own

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k = all_gather_tensor(x, 0, self.mesh)
        length = x.shape[0] if self.is_own else k.shape[0]
        first = self.mesh.get_local_rank() * length
        return self.core(x, k, first)


class Table(nn.Module):
    """Rows of a table behind those of the ranks before; ``short``: by how many rows a part is taken for too small."""

    def __init__(self, rows: int, rank: int = 0, *, short: int = 0) -> None:
        super().__init__()
        self.table, self.rows = nn.Parameter(torch.randn(6, 4)), rows
        self.begin = rank * (rows - short)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + self.table[self.begin : self.begin + self.rows])


class Tempered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self._temperature = nn.Linear(4, 6, bias=False), 2.0

    @property
    def temperature(self) -> float:
        return self._temperature

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.gate(x) / self.temperature).softmax(-1)


class Directions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.size = nn.Parameter(torch.rand(3))

    def squares(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().sum(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.size / self.squares(x).sqrt()


class DirectionsOnRanks(Directions):
    def __init__(self, mesh: DeviceMesh, *, is_reduced: bool) -> None:
        super().__init__()
        self.mesh, self.is_reduced = mesh, is_reduced

    def squares(self, x: torch.Tensor) -> torch.Tensor:
        own = super().squares(x)
        return all_reduce(own, "sum", self.mesh) if self.is_reduced else own


def scores(mesh: DeviceMesh, *, is_right: bool) -> Report:
    model = Scores(2, mesh, is_own=not is_right).requires_grad_(False)
    spec = Scores(4).requires_grad_(False)
    options: dict[str, Any] = {"param_placements": {"q.weight": ROWS}, "out_placements": {"output.0": ROWS}}
    return verify(model, (torch.randn(3, 8),), spec=spec, mesh=mesh, **options)


def positions(mesh: DeviceMesh, *, is_right: bool) -> Report:
    model = PositionsOnRanks(mesh, dim=0 if is_right else 1).requires_grad_(False)
    options: dict[str, Any] = {"in_placements": {"x": ROWS}, "out_placements": {"output.0": ROWS}}
    spec = Positions().requires_grad_(False)
    return verify(model, (torch.randn(4, 3, 4),), spec=spec, mesh=mesh, **options)


def causal(mesh: DeviceMesh, *, is_right: bool) -> Report:
    options: dict[str, Any] = {"in_placements": {"x": ROWS}, "out_placements": {"output.0": ROWS}}
    model = CausalOnRanks(mesh, is_own=is_right)
    return verify(model, (torch.randn(3, 4),), spec=Causal(), mesh=mesh, **options)


def table(mesh: DeviceMesh, *, is_right: bool) -> Report:
    options: dict[str, Any] = {"in_placements": {"x": ROWS}, "out_placements": {"output.0": ROWS}}

    def build() -> nn.Module:
        return Table(3, mesh.get_local_rank(), short=0 if is_right else 1).requires_grad_(False)

    return verify(build=build, args=(torch.randn(3, 4),), spec=Table(6).requires_grad_(False), mesh=mesh, **options)


def tempered(mesh: DeviceMesh, *, is_right: bool) -> Report:
    model = Tempered().requires_grad_(False)
    if not is_right:
        model._temperature = model._temperature / mesh.size()
    options: dict[str, Any] = {"in_placements": {"x": ROWS}, "out_placements": {"output.0": ROWS}}
    spec = Tempered().requires_grad_(False)
    return verify(model, (torch.randn(2, 4),), spec=spec, mesh=mesh, **options)


def directions(mesh: DeviceMesh, *, is_right: bool) -> Report:
    options: dict[str, Any] = {"in_placements": {"x": (Shard(1),)}, "out_placements": {"output.0": WHOLE}}
    model = DirectionsOnRanks(mesh, is_reduced=is_right).requires_grad_(False)
    spec = Directions().requires_grad_(False)
    return verify(model, (torch.randn(3, 4),), spec=spec, mesh=mesh, **options)


class Reducer:
    """Reduces the gradients of a model's parameters, of those alone that ``wants`` says."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh, wants: Callable[[nn.Parameter], bool]) -> None:
        self.parameters, self.mesh, self.wants = list(model.parameters()), mesh, wants

    def finish(self) -> None:
        for parameter in filter(self.wants, self.parameters):
            assert parameter.grad is not None
            parameter.grad = all_reduce(parameter.grad, "avg", self.mesh)


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, finish: Callable[[], None]) -> Callable[..., None]:
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        finish()
        optimizer.step()

    return step


def reducer(mesh: DeviceMesh, *, is_right: bool) -> Report:
    spec, model = nn.Linear(4, 2), nn.Linear(4, 2)
    finish = Reducer(model, mesh, lambda parameter: is_right or parameter.ndim > 1).finish
    step, spec_step = (
        step_of(module, torch.optim.SGD(module.parameters(), 0.1), done)
        for module, done in ((model, finish), (spec, lambda: None))
    )
    inputs = torch.randn(2, 4), torch.randn(2, 2)
    return verify_step(step, inputs, spec=spec_step, mesh=mesh, in_placements={"x": ROWS, "y": ROWS})


class Ranks:
    """``count``: of all ranks of a mesh, or of half of them."""

    def __init__(self, mesh: DeviceMesh, *, all_of_them: bool) -> None:
        self.mesh, self.all_of_them = mesh, all_of_them

    @property
    def replicas(self) -> float:
        return self.mesh.size() / (1 if self.all_of_them else 2)

    def finish(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad = all_reduce(parameter.grad, "sum", self.mesh) / self.replicas


def replicas(mesh: DeviceMesh, *, is_right: bool) -> Report:
    spec, model, ranks = nn.Linear(4, 2), nn.Linear(4, 2), Ranks(mesh, all_of_them=is_right)
    step = step_of(model, torch.optim.SGD(model.parameters(), 0.1), lambda: ranks.finish(model))
    spec_step = step_of(spec, torch.optim.SGD(spec.parameters(), 0.1), lambda: None)
    inputs = torch.randn(2, 4), torch.randn(2, 2)
    return verify_step(step, inputs, spec=spec_step, mesh=mesh, in_placements={"x": ROWS, "y": ROWS})


def hooked(mesh: DeviceMesh, *, is_right: bool) -> Report:
    spec, model = nn.Linear(4, 2), nn.Linear(4, 2)

    def reduced(gradient: torch.Tensor) -> torch.Tensor:
        return all_reduce(gradient, "avg" if is_right else "sum", mesh)

    def after_backward(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad = reduced(parameter.grad)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(after_backward)
    step, spec_step = (
        step_of(module, torch.optim.SGD(module.parameters(), 0.1), lambda: None) for module in (model, spec)
    )
    inputs = torch.randn(2, 4), torch.randn(2, 2)
    return verify_step(step, inputs, spec=spec_step, mesh=mesh, in_placements={"x": ROWS, "y": ROWS})


class TwoHeads(nn.Module):
    """``is_detached``: the second head gives the trunk no gradient."""

    def __init__(self, *, is_detached: bool) -> None:
        super().__init__()
        self.trunk, self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)
        self.is_detached = is_detached

    def aside(self, h: torch.Tensor) -> torch.Tensor:
        return h.detach() if self.is_detached else h

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.trunk(x))
        return self.first(h).square().sum() + self.second(self.aside(h)).square().sum()


def detached(mesh: DeviceMesh, *, is_right: bool) -> Report:
    model, spec = TwoHeads(is_detached=not is_right), TwoHeads(is_detached=False)
    return verify(model, (torch.randn(3, 4),), spec=spec, mesh=mesh)


MISTAKES: dict[str, tuple[Callable[..., Report], str, str, str]] = {
    "an attribute, of what a method returns": (
        scores,
        "VC103",
        "self.scale = self.root(8 // heads if is_own else 2)",
        "the number that line N computes with is made here",
    ),
    "an argument, of what a method returns": (
        positions,
        "VC104",
        "return self.mesh.get_local_rank() * x.shape[self.dim]",
        "the number that line N computes with is made here",
    ),
    "an argument, of a variable": (
        causal,
        "VC117",
        "first = self.mesh.get_local_rank() * length",
        "the number that line N computes with is made here",
    ),
    "an attribute, where a slice begins": (
        table,
        "VC104",
        "self.begin = rank * (rows - short)",
        "the number that line N computes with is made here",
    ),
    "an attribute that is set afterwards, of a property": (
        tempered,
        "VC103",
        "model._temperature = model._temperature / mesh.size()",
        "the number that line N computes with is made here",
    ),
    "a partial sum, of a method that the spec does not have": (
        directions,
        "VC101",
        "own = super().squares(x)",
        "`self.squares(x).sqrt()` needs the full value of `x.square().sum(1)`, which is a partial sum over r",
    ),
    "a gradient, of those that are reduced": (
        reducer,
        "VC101",
        'parameter.grad = all_reduce(parameter.grad, "avg", self.mesh)',
        "the gradient of `weight` is communicated here, that of `bias` is not",
    ),
    "a divisor, of a property of any object": (
        replicas,
        "VC103",
        "return self.mesh.size() / (1 if self.all_of_them else 2)",
        "the number that line N computes with is made here",
    ),
    "a gradient, in the hook that a backward pass calls": (
        hooked,
        "VC103",
        "parameter.grad = reduced(parameter.grad)",
        "the collective sums over `r`, where the mean is expected",
    ),
    "a gradient, where what it is of is detached": (
        detached,
        "VC108",
        "return h.detach() if self.is_detached else h",
        "no gradient passes what is detached here",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_a_shared_line_takes_is_told_where_it_was_made(name: str) -> None:
    program, code, line, label = MISTAKES[name]
    with fake_mesh_world((2,), ("r",)) as mesh:
        report = program(mesh, is_right=False)
    assert report.verdict is Verdict.REFUTED, str(report)
    (finding,) = report.findings
    assert finding.impl_location is not None
    found = linecache.getline(finding.impl_location.file, finding.impl_location.line).strip()
    assert (finding.code, found, re.sub(r"line \d+", "line N", finding.label)) == (code, line, label), str(report)
    assert finding.hint is not None
    assert finding.hint.endswith("(checked)")


@pytest.mark.parametrize("name", MISTAKES)
def test_the_program_without_the_mistake_is_proved(name: str) -> None:
    with fake_mesh_world((2,), ("r",)) as mesh:
        report = MISTAKES[name][0](mesh, is_right=True)
    assert report.verdict is Verdict.VERIFIED, str(report)
