"""Whole numbers in tensors that a program holds: an order of rows that all ranks hold, positions of each rank's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

Tensor = torch.Tensor
ROWS = (Shard(0),)
LENGTH = 2

# ------------------------------------------------------------------------------------------------ alike on all ranks


def zigzag(ranks: int) -> Tensor:
    """Numbers of rows by rank: a piece of the front and one of the back."""
    pieces = torch.arange(2 * ranks * LENGTH).view(2 * ranks, LENGTH)
    return torch.cat([pieces[[rank, 2 * ranks - 1 - rank]].flatten() for rank in range(ranks)])


def of_a_closure(mesh: DeviceMesh, order: Tensor, back: Tensor) -> Callable[[Tensor], Tensor]:
    """A rank takes its rows out of all, and puts those of all ranks back."""

    def program(x: Tensor) -> Tensor:
        own = x[order.view(mesh.size(), -1)[mesh.get_local_rank()]]
        return funcol.all_gather_tensor(own.sin(), 0, mesh)[back.argsort()]

    return program


class OfABuffer(nn.Module):
    order: Tensor

    def __init__(self, mesh: DeviceMesh, order: Tensor, back: Tensor) -> None:
        super().__init__()
        self.mesh = mesh
        self.register_buffer("order", order, persistent=False)
        self.inverse = back.argsort()

    def forward(self, x: Tensor) -> Tensor:
        own = x.index_select(0, self.order.view(self.mesh.size(), -1)[self.mesh.get_local_rank()])
        return funcol.all_gather_tensor(own.sin(), 0, self.mesh).index_select(0, self.inverse)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("make", [of_a_closure, OfABuffer])
def test_an_order_that_a_tensor_holds(make: Callable[..., Any], ranks: int) -> None:
    order = zigzag(ranks)
    twice = torch.cat([order[:LENGTH], order[:-LENGTH]])
    x = torch.randn(2 * ranks * LENGTH, 3)
    with fake_mesh_world((ranks,), ("cp",), rank=1) as mesh:
        right = verifycompile.verify(make(mesh, order, order), (x,), spec=lambda x: x.sin(), mesh=mesh)
        wrong = verifycompile.verify(make(mesh, twice, order), (x,), spec=lambda x: x.sin(), mesh=mesh)
    assert right.verdict is Verdict.VERIFIED, str(right)
    assert "`order` holds the whole numbers that it held when the program was captured" in right.assumptions
    assert wrong.verdict is Verdict.REFUTED, str(wrong)
    assert right.certificate is not None
    assert verifycompile.check_certificate(right.certificate.to_json())


def attention(query: Tensor, key: Tensor, value: Tensor, places: Tensor) -> Tensor:
    later = torch.arange(key.shape[0]) > places[:, None]
    return (query @ key.T).masked_fill(later, float("-inf")).softmax(-1) @ value


def test_no_difference_of_contents_that_a_program_does_not_hold_refutes() -> None:
    """With other numbers in ``order`` the programs differ; with those that it holds they do not."""
    order = zigzag(2)

    def spec(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        back = order.argsort()
        return attention(query[back], key[back], value[back], torch.arange(len(back)))[order]

    def program(mesh: DeviceMesh) -> Callable[..., Tensor]:
        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = (funcol.all_gather_tensor(x, 0, mesh)[order.argsort()] for x in (key, value))
            return attention(query, keys, values, order.view(mesh.size(), -1)[mesh.get_local_rank()])

        return attend

    layouts: dict[str, Any] = {"in_placements": dict.fromkeys(("query", "key", "value"), ROWS)}
    with fake_mesh_world((2,), ("cp",), rank=1) as mesh:
        inputs = tuple(torch.randn(4, 4) for _ in range(3))
        report = verifycompile.verify(
            program(mesh), inputs, spec=spec, mesh=mesh, out_placements={"output.0": ROWS}, **layouts
        )
    assert report.verdict is not Verdict.REFUTED, str(report)


ORDER = torch.tensor([2, 0, 3, 1])


@pytest.mark.parametrize(("of_spec", "verdict"), [([2, 0, 3, 1], Verdict.VERIFIED), ([2, 0, 1, 1], Verdict.REFUTED)])
def test_an_order_of_the_program_and_one_of_the_spec(of_spec: list[int], verdict: Verdict) -> None:
    """Two tensors of two names: nothing but what they hold says that they are the same order."""
    other = torch.tensor(of_spec)
    with fake_mesh_world((2,), ("sp",), rank=1) as mesh:
        report = verifycompile.verify(
            lambda x: funcol.all_gather_tensor(x.sin(), 0, mesh)[ORDER.clone()],
            (torch.randn(2, 3),),
            spec=lambda x: x.sin()[other],
            mesh=mesh,
            in_placements={"x": ROWS},
        )
    assert report.verdict is verdict, str(report)


class Masked(nn.Module):
    """``on`` is of the spec alone; the program knows what it holds."""

    on: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("on", torch.tensor([True, False, True]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(self.on, x, 0.0)


@pytest.mark.parametrize("factor", [0, 1])
def test_no_contents_of_a_mask_that_the_spec_does_not_hold_refute(factor: int) -> None:
    def program(x: Tensor) -> Tensor:
        return torch.cat([x[:, :1], x[:, 1:2] * factor, x[:, 2:]], 1)

    with fake_mesh_world((2,), ("sp",), rank=1) as mesh:
        x = torch.randn(4, 3)
        report = verifycompile.verify(program, (x,), spec=Masked(), mesh=mesh, in_placements={"x": ROWS})
    assert (report.verdict is Verdict.REFUTED) is (factor == 1), str(report)


# ------------------------------------------------------------------------------------------------ of each rank's own


class Positions(nn.Module):
    """``start``: of this rank's rows."""

    places: Tensor

    def __init__(self, start: int) -> None:
        super().__init__()
        self.register_buffer("places", torch.arange(start, start + LENGTH), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) + self.places[:, None]


class PlainAttribute(Positions):
    def __init__(self, start: int) -> None:
        nn.Module.__init__(self)
        self.places = torch.tensor([start + k for k in range(LENGTH)], dtype=torch.int32)


class FirstRow(Positions):
    def __init__(self, start: int) -> None:
        nn.Module.__init__(self)
        self.start = torch.tensor(start)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) + (torch.arange(LENGTH) + self.start)[:, None]


class Ascending(Positions):
    """Written to by the program: what it holds is another number at each call."""

    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        self.places.add_(1)
        return found


def _positions(make: Callable[[int], nn.Module], step: int, ranks: int) -> Report:
    with fake_mesh_world((ranks,), ("sp",), rank=1) as mesh:
        return verifycompile.verify(
            None,
            (torch.randn(LENGTH, 3),),
            build=lambda: make(dist.get_rank() * step),
            spec=lambda x: torch.tanh(x) + torch.arange(x.shape[0])[:, None],
            mesh=mesh,
            in_placements={"x": ROWS},
            out_placements={"output.0": ROWS},
        )


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("make", [Positions, PlainAttribute, FirstRow])
def test_numbers_of_each_rank(make: Callable[[int], nn.Module], ranks: int) -> None:
    right, wrong = (_positions(make, step, ranks) for step in (LENGTH, 1))
    assert right.verdict is Verdict.VERIFIED, str(right)
    assert any(
        "holds the whole numbers that it held when the program was captured" in text for text in right.assumptions
    )
    assert wrong.verdict is Verdict.REFUTED, str(wrong)


@pytest.mark.parametrize("wrong", [0, 1])
def test_numbers_of_each_rank_that_go_on_in_no_order(wrong: int) -> None:
    numbers = torch.tensor([5, 3, 9, 1])

    class Factor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = numbers[(dist.get_rank() + wrong) % 4].clone()

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    with fake_mesh_world((4,), ("sp",), rank=1) as mesh:
        report = verifycompile.verify(
            None,
            (torch.randn(1, 3),),
            build=Factor,
            spec=lambda x: x * numbers[:, None],
            mesh=mesh,
            in_placements={"x": ROWS},
            out_placements={"output.0": ROWS},
        )
    assert report.verdict is (Verdict.REFUTED if wrong else Verdict.VERIFIED), str(report)


def test_numbers_that_a_program_writes_to_are_not_what_they_were() -> None:
    assert _positions(Ascending, LENGTH, 2).verdict is not Verdict.VERIFIED
