"""Programs on a mesh of three axes, on parts of it and on flattened axes: right ones verify, wrong twins do not.

Each is asked about as ranks of two corners of the mesh.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import UsageError, Verdict
from verifycompile.question import Provenance

R, ROWS, COLUMNS = Replicate(), Shard(0), Shard(1)
Forward = Callable[[torch.Tensor], torch.Tensor]


def total(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x).sum()


def whole(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)


def numbered(x: torch.Tensor) -> torch.Tensor:
    return x * torch.arange(x.shape[0]).unsqueeze(1)


@dataclasses.dataclass(frozen=True)
class Case:
    """``program``: of the mesh (data, context, tensor). ``named``: the part that the option ``mesh`` names."""

    program: Callable[[DeviceMesh], Forward]
    spec: Forward
    placements: tuple[Placement, ...]
    named: Callable[[DeviceMesh], DeviceMesh] = lambda mesh: mesh
    output: tuple[Placement, ...] = (R, R, R)


def summed(*axes: str) -> Callable[[DeviceMesh], Forward]:
    """Sums over slices of the mesh, one after the other."""

    def program(mesh: DeviceMesh) -> Forward:
        def forward(x: torch.Tensor) -> torch.Tensor:
            result = total(x)
            for axis in axes:
                result = funcol.all_reduce(result, "sum", mesh[axis])
            return result

        return forward

    return program


def flattened(*axes: str) -> Callable[[DeviceMesh], DeviceMesh]:
    return lambda mesh: mesh[axes]._flatten("_".join(axes))


def summed_flat(*axes: str) -> Callable[[DeviceMesh], Forward]:
    def program(mesh: DeviceMesh) -> Forward:
        group = flattened(*axes)(mesh).get_group()
        return lambda x: funcol.all_reduce(total(x), "sum", group)

    return program


def gathered(*axes: str) -> Callable[[DeviceMesh], Forward]:
    def program(mesh: DeviceMesh) -> Forward:
        def forward(x: torch.Tensor) -> torch.Tensor:
            result = whole(x)
            for axis in axes:
                result = funcol.all_gather_tensor(result, 0, mesh[axis])
            return result

        return forward

    return program


def of_dtensor(is_summed: bool) -> Callable[[DeviceMesh], Forward]:
    def program(mesh: DeviceMesh) -> Forward:
        flat = flattened("data", "context")(mesh)

        def forward(x: torch.Tensor) -> torch.Tensor:
            result = torch.tanh(DTensor.from_local(x, flat, [ROWS], run_check=False)).sum()
            return result.full_tensor() if is_summed else result.to_local()

        return forward

    return program


def by_number(number: Callable[[DeviceMesh], int]) -> Callable[[DeviceMesh], Forward]:
    def program(mesh: DeviceMesh) -> Forward:
        def forward(x: torch.Tensor) -> torch.Tensor:
            first = number(mesh) * x.shape[0]
            return x * torch.arange(first, first + x.shape[0]).unsqueeze(1)

        return forward

    return program


def data(mesh: DeviceMesh) -> int:
    return mesh.get_local_rank("data")


def context(mesh: DeviceMesh) -> int:
    return mesh.get_local_rank("context")


def context_of(mesh: DeviceMesh) -> DeviceMesh:
    return mesh["context"]


RIGHT = {
    "sums over two axes": Case(summed("data", "context"), total, (ROWS, COLUMNS, R)),
    "a sum over flattened axes": Case(summed_flat("data", "context"), total, (ROWS, ROWS, R)),
    "a sum over flattened axes that are no neighbours": Case(summed_flat("data", "tensor"), total, (ROWS, R, ROWS)),
    "a DTensor on flattened axes": Case(of_dtensor(True), total, (ROWS, ROWS, R)),
    "gathers, the inner axis first": Case(gathered("context", "data"), whole, (ROWS, ROWS, R)),
    "the number on two axes": Case(
        by_number(lambda mesh: 2 * data(mesh) + context(mesh)), numbered, (ROWS, ROWS, R), output=(ROWS, ROWS, R)
    ),
    "a part of the mesh": Case(summed("context"), total, (ROWS,), context_of, (R,)),
    "two axes as a part": Case(summed_flat("data", "tensor"), total, (ROWS, ROWS), lambda mesh: mesh["data", "tensor"], (R, R)),
    "flattened axes as the part": Case(
        summed_flat("data", "context"), total, (ROWS,), flattened("data", "context"), (R,)
    ),
    "the number on a part": Case(by_number(context), numbered, (ROWS,), context_of, (ROWS,)),
    "the number in the job, on a part": Case(
        by_number(lambda mesh: dist.get_rank() // 2 % 2), numbered, (ROWS,), context_of, (ROWS,)
    ),
}

WRONG = {
    "a sum over one axis of two": Case(summed("data"), total, (ROWS, COLUMNS, R)),
    "a sum over two axes of three": Case(summed("data", "context"), total, (ROWS, COLUMNS, ROWS)),
    "a sum over other flattened axes": Case(summed_flat("data", "context"), total, (ROWS, R, ROWS)),
    "a DTensor on flattened axes that is not summed": Case(of_dtensor(False), total, (ROWS, ROWS, R)),
    "gathers, the outer axis first": Case(gathered("data", "context"), whole, (ROWS, ROWS, R)),
    "the number on two axes, the wrong one first": Case(
        by_number(lambda mesh: 2 * context(mesh) + data(mesh)), numbered, (ROWS, ROWS, R), output=(ROWS, ROWS, R)
    ),
    "a sum over what is no axis of the part": Case(summed("data"), total, (ROWS,), context_of, (R,)),
    "a further sum over what is no axis of the part": Case(summed("context", "data"), total, (ROWS,), context_of, (R,)),
    "the number on an axis that the part has not": Case(by_number(data), numbered, (ROWS,), context_of, (ROWS,)),
    "the number in the job as that on a part": Case(
        by_number(lambda mesh: dist.get_rank()), numbered, (ROWS,), context_of, (ROWS,)
    ),
}


def of_dtensor_on_axes(mesh: DeviceMesh) -> Forward:
    return lambda x: DTensor.from_local(x, mesh, [ROWS, COLUMNS], run_check=False).full_tensor().tanh()


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize(
    ("ranks", "axes"),
    [([[0, 1], [2, 3]], ""), ([[0, 2], [1, 3]], ""), ([[2, 3], [0, 1]], "`a`"), ([[0, 3], [2, 1]], "`a`, `b`")],
)
def test_ranks_in_another_order_than_their_groups(ranks: list[list[int]], axes: str, rank: int) -> None:
    """Torch sorts the ranks of a group: where a mesh does not, DTensor joins a tensor otherwise than it was cut."""
    with fake_mesh_world((4,), ("world",), rank=rank):
        mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("a", "b"))
        placements = {"x": (ROWS, COLUMNS)}
        text = f"(a=2, b=2) on ranks {ranks[0][0]} to {ranks[-1][-1]} has ranks along {axes} that do not ascend"
        with pytest.raises(UsageError, match=re.escape(text)) if axes else contextlib.nullcontext():
            assert verifycompile.verify(
                of_dtensor_on_axes(mesh), (torch.randn(4, 4),), spec=whole, mesh=mesh, in_placements=placements
            )


def verifies(case: Case, rank: int) -> bool:
    with fake_mesh_world((2, 2, 2), ("data", "context", "tensor"), rank=rank) as mesh:
        try:
            return bool(
                verifycompile.verify(
                    case.program(mesh), (torch.randn(4, 4),), spec=case.spec, mesh=case.named(mesh),
                    in_placements={"x": case.placements}, out_placements={"output.0": case.output},
                )
            )  # fmt: skip
        except UsageError:
            return False


@pytest.mark.parametrize("rank", [0, 5])
def test_right_programs_verify_and_wrong_ones_do_not(rank: int) -> None:
    assert [name for name, case in RIGHT.items() if not verifies(case, rank)] == []
    assert [name for name, case in WRONG.items() if verifies(case, rank)] == []


class Heads(nn.Module):
    """Its heads are divided by the size of a part of the mesh, which it asks for in each call."""

    def __init__(self, mesh: DeviceMesh, axis: str) -> None:
        super().__init__()
        self.mesh, self.axis, self.heads = mesh, axis, 4
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = self.up(x).view(*x.shape[:-1], self.heads // self.mesh[self.axis].size(), -1)
        return self.down(torch.softmax(split, -1).flatten(-2))


@pytest.mark.parametrize(("axis", "verdict"), [("tp", Verdict.VERIFIED), ("dp", Verdict.REFUTED)])
def test_the_size_of_a_part_is_one_on_a_single_device(axis: str, verdict: Verdict) -> None:
    with fake_mesh_world((1, 2), ("dp", "tp")) as mesh:
        plan: dict[str, ParallelStyle] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        model = parallelize_module(Heads(mesh, axis), mesh["tp"], plan)
        report = verifycompile.verify(model, (torch.randn(3, 8),))
    assert report.verdict is verdict, str(report)
    assert report.question.spec is Provenance.RECORDED
