"""Reads and writes by index: one element of each row, whose gradient is written back, and places that are known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.distributed.tensor import Shard

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Verdict

ROWS = (Shard(0),)


def picked(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x[torch.arange(x.shape[0]), index] * 2


def probability(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)[torch.arange(x.shape[0]), index]


def loss(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return -x.log_softmax(-1)[torch.arange(len(x)), index]


def column(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x.t()[index, torch.arange(x.shape[0])] * 2


def next_one(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x[torch.arange(x.shape[0]), (index + 1) % x.shape[1]] * 2


def without_gradient_of_the_divisor(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return -(x - x.detach().logsumexp(-1, keepdim=True))[torch.arange(len(x)), index]


def along(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.take_along_dim(2 * x, index[:, None], 1).squeeze(1)


def gathered(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x.gather(1, index[:, None])[:, 0] * 2


def gathered_behind(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Of fewer columns: an index that is right here says less of what the spec takes."""
    return x[:, 1:].gather(1, index[:, None])[:, 0] * 2


def log_of_probability(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return -probability(x, index).log()


def log_of_all(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return -x.softmax(-1).log()[torch.arange(len(x)), index].square()


def cubed(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x[torch.arange(len(x)), index].tanh() ** 3


def tanh_of_all(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x.tanh()[torch.arange(len(x)), index].pow(3)


def tanh_of_opposite(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x.neg().tanh()[torch.arange(len(x)), index].pow(3)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("spec", "program", "verdict"),
    [
        (picked, picked, Verdict.VERIFIED),
        (probability, probability, Verdict.VERIFIED),
        (loss, loss, Verdict.VERIFIED),
        (picked, column, Verdict.VERIFIED),
        (picked, next_one, Verdict.REFUTED),
        (picked, probability, Verdict.REFUTED),
        (loss, without_gradient_of_the_divisor, Verdict.REFUTED),
        (picked, along, Verdict.VERIFIED),
        (picked, gathered, Verdict.VERIFIED),
        (picked, gathered_behind, Verdict.REFUTED),
        (loss, log_of_probability, Verdict.VERIFIED),
        (loss, log_of_all, Verdict.REFUTED),
        (cubed, tanh_of_all, Verdict.VERIFIED),
        (cubed, tanh_of_opposite, Verdict.REFUTED),
    ],
)
def test_one_element_of_each_row(
    spec: Callable[..., torch.Tensor], program: Callable[..., torch.Tensor], verdict: Verdict
) -> None:
    with fake_mesh_world((2,), ("dp",)) as mesh:
        report = verifycompile.verify(
            program,
            (torch.randn(4, 3, requires_grad=True), torch.zeros(4, dtype=torch.int64)),
            spec=spec,
            mesh=mesh,
            in_placements={"x": ROWS, "index": ROWS},
            out_placements={"output.0": ROWS},
        )
    assert report.verdict is verdict, str(report)


COLUMNS = (Shard(1),)


def places(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


def written(x: torch.Tensor, y: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[index] = y
    return x


def negated(x: torch.Tensor, even: torch.Tensor) -> torch.Tensor:
    return torch.where(even[:, None], x, -x)


KNOWN: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    "read from a place on": (
        lambda x, y: x[2:5].tanh(),
        lambda x, y: x[torch.arange(2, 5)].tanh(),
        lambda x, y: x[torch.arange(1, 4)].tanh(),
    ),
    "read with steps": (
        lambda x, y: x[1::2].tanh(),
        lambda x, y: x.index_select(0, torch.arange(3) * 2 + 1).tanh(),
        lambda x, y: x.index_select(0, torch.arange(3) * 2).tanh(),
    ),
    "read in another order": (
        lambda x, y: torch.cat([x[4:], x[:2]]).tanh(),
        lambda x, y: x.gather(0, places(4, 5, 0, 1)[:, None].expand(-1, x.shape[1])).tanh(),
        lambda x, y: x.gather(0, places(4, 5, 1, 0)[:, None].expand(-1, x.shape[1])).tanh(),
    ),
    "copied to a place": (
        lambda x, y: torch.cat([x[:3], y, x[5:]]).tanh(),
        lambda x, y: x.index_copy(0, torch.arange(3, 5), y).tanh(),
        lambda x, y: x.index_copy(0, torch.arange(2, 4), y).tanh(),
    ),
    "put at a place": (
        lambda x, y: torch.cat([x[:3], y, x[5:]]).tanh(),
        lambda x, y: written(x, y, places(3, 4)).tanh(),
        lambda x, y: written(x, y, places(4, 3)).tanh(),
    ),
    "scattered to a place": (
        lambda x, y: torch.cat([x[:1], y, x[3:]]).tanh(),
        lambda x, y: x.scatter(0, places(1, 2)[:, None].expand(-1, x.shape[1]), y).tanh(),
        lambda x, y: x.scatter(0, places(2, 1)[:, None].expand(-1, x.shape[1]), y).tanh(),
    ),
    "zeros where it is written": (
        lambda x, y: torch.cat([x[:2], torch.zeros_like(x[2:4]), x[4:]]) + torch.cat([torch.zeros_like(x[:4]), y]),
        lambda x, y: x.index_fill(0, places(2, 3), 0.0).index_add(0, places(4, 5), y),
        lambda x, y: x.index_fill(0, places(2, 4), 0.0).index_add(0, places(4, 5), y),
    ),
    "read by a remainder": (
        lambda x, y: torch.cat([x[4:], x[:4]]).tanh(),
        lambda x, y: x[(torch.arange(6) + 4) % 6].tanh(),
        lambda x, y: x[(torch.arange(6) + 3) % 6].tanh(),
    ),
    "read where a choice says": (
        lambda x, y: torch.cat([x[4:], x[:4]]).tanh(),
        lambda x, y: x[torch.where(torch.arange(6) < 2, torch.arange(6) + 4, torch.arange(6) - 2)].tanh(),
        lambda x, y: x[torch.where(torch.arange(6) < 2, torch.arange(6) + 3, torch.arange(6) - 2)].tanh(),
    ),
    "rolled": (
        lambda x, y: x.roll(2, 0).tanh(),
        lambda x, y: x[places(4, 5, 0, 1, 2, 3)].tanh(),
        lambda x, y: x[places(5, 4, 0, 1, 2, 3)].tanh(),
    ),
    "the lowest bit": (
        lambda x, y: negated(x, torch.arange(6) % 2 == 0),
        lambda x, y: negated(x, (torch.arange(6) & 1) == 0),
        lambda x, y: negated(x, (torch.arange(6) & 1) == 1),
    ),
    "shifted": (
        lambda x, y: x + y[torch.arange(6) // 4],
        lambda x, y: x + y[torch.arange(6) >> 2],
        lambda x, y: x + y[torch.arange(6) % 2],
    ),
    "the smallest of the negated": (
        lambda x, y: x.argmax(0, keepdim=True),
        lambda x, y: (-2 * x).argmin(0, keepdim=True),
        lambda x, y: (2 * x).argmin(0, keepdim=True),
    ),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", KNOWN)
def test_places_that_are_known(name: str) -> None:
    spec, right, wrong = KNOWN[name]
    for program, verdict in ((right, Verdict.VERIFIED), (wrong, Verdict.REFUTED)):
        with fake_mesh_world((2,), ("tp",)) as mesh:
            report = verifycompile.verify(
                program,
                (torch.randn(6, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)),
                spec=spec,
                mesh=mesh,
                in_placements={"x": COLUMNS, "y": COLUMNS},
                out_placements={"output.0": COLUMNS},
            )
        assert report.verdict is verdict, str(report)
