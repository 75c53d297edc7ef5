"""Random programs of DTensors, right by construction, most with one mistake; what is wrong must not verify.

A program is written once, for one device. On a mesh its parameters are distributed and its values are laid out anew
between steps, which changes nothing. The mistakes are those that DTensor cannot see: local tensors that are said to
lie otherwise than they do, local computations of what needs the whole, gradients of which `to_local` is told nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

import verifycompile
from tests.attacks.generated import Answer, Numbers
from tests.oracle import run_module
from tests.programs.case import Case
from tests.support import fake_mesh_world
from verifycompile import UsageError, Verdict

SIZE, WEIGHTS = 8, 3
MESHES = ((2,), (2,), (4,), (2, 2))
LAYOUTS: dict[str, Placement] = {"R": Replicate(), "S0": Shard(0), "S1": Shard(1)}
Function = Callable[[torch.Tensor], torch.Tensor]

ELEMENTWISE: dict[str, Function] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": F.gelu,
    "square": lambda h: h * h,
    "shift": lambda h: h + 0.5,
    "halve": lambda h: h / 2,
}
OF_ALL: dict[str, Function] = {
    "rows centred": lambda h: h - h.mean(1, keepdim=True),
    "columns centred": lambda h: h - h.mean(0, keepdim=True),
    "normalized": lambda h: F.layer_norm(h, h.shape[-1:]),
    "softmax": lambda h: torch.softmax(h, -1),
    "sum of all": lambda h: h * h.sum(),
    "sum of columns": lambda h: h * h.sum(0, keepdim=True),
    "transposed": lambda h: h.t(),
}
PRODUCTS = tuple(f"product {number}" for number in range(WEIGHTS))
SCALES = tuple(f"scaled by row {number}" for number in range(WEIGHTS))
OTHERS = ("residual", "own rows")
MISTAKES = ("as whole", "as a sum", "rows turned around", "on the part", "times the rank", "no word on gradients", "detached")


@dataclasses.dataclass(frozen=True)
class Step:
    """``layout``: in which the value is laid out before; None where it stays."""

    operation: str
    layout: tuple[str, ...] | None
    is_local: bool


@dataclasses.dataclass(frozen=True)
class Question:
    """``weights``: layouts. ``mistake``: the step where it is made, and which; None where there is none."""

    mesh: tuple[int, ...]
    input: tuple[str, ...]
    weights: tuple[tuple[str, ...], ...]
    steps: tuple[Step, ...]
    is_returned_whole: bool
    mistake: tuple[int, str] | None


@st.composite
def questions(draw: st.DrawFn) -> Question:
    mesh = draw(st.sampled_from(MESHES))
    layouts = st.tuples(*[st.sampled_from(list(LAYOUTS))] * len(mesh))
    operations = st.sampled_from([*ELEMENTWISE, *OF_ALL, *PRODUCTS * 2, *SCALES, *OTHERS])
    steps = st.builds(Step, operations, st.none() | layouts, st.booleans())
    listed = tuple(draw(st.lists(steps, min_size=1, max_size=5)))
    mistake = draw(st.none() | st.tuples(st.integers(0, len(listed) - 1), st.sampled_from(MISTAKES)))
    return Question(
        mesh,
        draw(layouts),
        tuple(draw(layouts) for _ in range(WEIGHTS)),
        listed,
        draw(st.booleans()),
        mistake,
    )


class Program(nn.Module):
    """``mesh``: None for the program of one device."""

    def __init__(self, question: Question) -> None:
        super().__init__()
        self.question = question
        self.mesh: DeviceMesh | None = None
        self.weights = nn.ParameterList(torch.randn(SIZE, SIZE) / 2 for _ in range(WEIGHTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        question = self.question
        h = x if self.mesh is None else DTensor.from_local(x, self.mesh, _placements(question.input), run_check=False)
        first = h
        for number, step in enumerate(question.steps):
            mistake = "" if question.mistake is None or question.mistake[0] != number else question.mistake[1]
            if isinstance(h, DTensor):
                h = self._laid_out(h, step, mistake)
            h = self._stepped(h, first, step, mistake)
        # Gradients reach all parameters.
        h = h + sum(weight.sum() for weight in self.weights)
        if not isinstance(h, DTensor):
            return h
        is_whole = question.is_returned_whole or any(isinstance(item, Partial) for item in h.placements)
        return h.full_tensor() if is_whole else h.to_local()

    def _stepped(self, h: torch.Tensor, first: torch.Tensor, step: Step, mistake: str) -> torch.Tensor:
        kind, _, number = step.operation.rpartition(" ")
        if kind == "product":
            return h @ self.weights[int(number)]
        if kind == "scaled by row":
            return h * self.weights[int(number)][0]
        if step.operation == "residual":
            return h + first
        if step.operation == "own rows":
            return self._own_rows(h, mistake)
        function = {**ELEMENTWISE, **OF_ALL}[step.operation]
        is_on_part = mistake == "on the part" or (step.operation in ELEMENTWISE and step.is_local)
        if not isinstance(h, DTensor) or not is_on_part:
            return function(h)
        if any(isinstance(item, Partial) for item in h.placements) and mistake != "on the part":
            h = h.redistribute(placements=_placements(("R",) * len(h.placements)))
        return DTensor.from_local(function(h.to_local()), h.device_mesh, h.placements, run_check=False)

    def _own_rows(self, h: torch.Tensor, mistake: str) -> torch.Tensor:
        """The rows of this rank, cut out by hand on the last mesh axis."""
        if not isinstance(h, DTensor):
            return h
        axes = len(h.placements)
        h = h.redistribute(placements=[Replicate()] * axes)
        others = [Replicate()] * (axes - 1)
        whole = h.to_local() if mistake == "no word on gradients" else h.to_local(grad_placements=[*others, Partial()])
        rows = SIZE // h.device_mesh.size(axes - 1)
        part = whole.narrow(0, h.device_mesh.get_local_rank(axes - 1) * rows, rows)
        return DTensor.from_local(part, h.device_mesh, [*others, Shard(0)], run_check=False)

    def _laid_out(self, h: DTensor, step: Step, mistake: str) -> DTensor:
        claimed: dict[str, Placement] = {"as whole": Replicate(), "as a sum": Partial()}
        if mistake in claimed:
            said = [claimed[mistake]] * len(h.placements)
            return DTensor.from_local(h.to_local(), h.device_mesh, said, run_check=False)
        if mistake == "rows turned around":
            return DTensor.from_local(h.to_local().flip(0), h.device_mesh, h.placements, run_check=False)
        if mistake == "detached":
            h = DTensor.from_local(h.to_local().detach(), h.device_mesh, h.placements, run_check=False)
        if mistake == "times the rank":
            local = h.to_local() * (1 + h.device_mesh.get_local_rank(0))
            h = DTensor.from_local(local, h.device_mesh, h.placements, run_check=False)
        return h if step.layout is None else h.redistribute(placements=_placements(step.layout))


def _placements(layout: tuple[str, ...]) -> list[Placement]:
    return [LAYOUTS[kind] for kind in layout]


def _distributed(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    assert isinstance(model, Program)
    model.mesh = mesh
    model.weights = nn.ParameterList(
        nn.Parameter(distribute_tensor(weight.detach(), mesh, _placements(layout), src_data_rank=None))
        for weight, layout in zip(model.weights, model.question.weights, strict=True)
    )
    return model


@dataclasses.dataclass(frozen=True)
class _Case(Case):
    layout: tuple[str, ...] = ()

    def input_placements(self) -> dict[str, tuple[Placement, ...]]:
        return {"x": tuple(_placements(self.layout))}


def case_of(question: Question) -> Case:
    names = ("a", "b")[: len(question.mesh)]
    return _Case(
        "generated", tuple(zip(names, question.mesh, strict=True)), lambda: Program(question), _distributed,
        lambda: (torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(1)),), layout=question.input,
    )  # fmt: skip


def ask(question: Question) -> Answer | None:
    """What the verifier says and what the numbers say.

    None where the mistake makes no program, or one that computes the same.
    """
    case = case_of(question)
    try:
        numbers = Numbers.EQUAL if run_module(case).equal else Numbers.WRONG
    except (RuntimeError, IndexError, ValueError, TypeError, AssertionError):
        return None
    mistake = None if question.mistake is None else question.mistake[1]
    if mistake is not None and numbers is Numbers.EQUAL:
        return None
    verdict, _ = report_of(question)
    return Answer(verdict, numbers, mistake, "DTensors")


def report_of(question: Question) -> tuple[Verdict, str]:
    case = case_of(question)
    with fake_mesh_world(case.mesh_shape, case.mesh_names) as mesh:
        try:
            report = verifycompile.verify(
                case.build(mesh), case.rank_inputs(0), spec=case.spec(), in_placements=case.input_placements()
            )
        except UsageError as error:
            return Verdict.UNPROVED, str(error)
        return report.verdict, "" if report else str(report)


