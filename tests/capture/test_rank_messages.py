"""Messages between ranks that wait: for what is received where the program waits, for a receiver where it sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

Exchange = Callable[[torch.Tensor, torch.Tensor, int, int], None]
"""``(sent, received, next rank, rank before)``."""


def check(exchange: Exchange, ranks: int = 2) -> Report:
    def program(x: torch.Tensor) -> torch.Tensor:
        y, received = x.tanh(), torch.empty_like(x)
        exchange(y, received, (dist.get_rank() + 1) % ranks, (dist.get_rank() - 1) % ranks)
        return y + received

    with fake_mesh_world((ranks,), ("x",)) as mesh:
        options: Any = {"mesh": mesh, "spec": lambda x: 2 * x.tanh()}
        return verifycompile.verify(None, (torch.randn(2, 3),), build=lambda: program, **options)


def sent_first(y: torch.Tensor, received: torch.Tensor, after: int, before: int) -> None:
    dist.send(y, after)
    dist.recv(received, before)


def waited_for_at_once(y: torch.Tensor, received: torch.Tensor, after: int, before: int) -> None:
    work = dist.isend(y, after)
    assert work is not None
    work.wait()
    dist.recv(received, before)


def received_first(y: torch.Tensor, received: torch.Tensor, after: int, before: int) -> None:
    dist.recv(received, before)
    dist.send(y, after)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("exchange", "ranks", "message"),
    [
        (sent_first, 2, "rank 0 waits in a send until rank 1 receives, which waits itself"),
        (sent_first, 3, "rank 0 waits in a send until rank 1 receives, which waits itself"),
        (waited_for_at_once, 2, "rank 0 waits in a send until rank 1 receives, which waits itself"),
        (received_first, 2, "rank 0 waits for a message of rank 1, which waits itself"),
    ],
)
def test_ranks_that_wait_for_ever(exchange: Exchange, ranks: int, message: str) -> None:
    report = check(exchange, ranks)
    assert report.verdict is Verdict.REFUTED
    assert [(finding.code, finding.message) for finding in report.findings] == [("VC109", message)]


def in_turns(y: torch.Tensor, received: torch.Tensor, after: int, before: int) -> None:
    (sent_first if dist.get_rank() == 0 else received_first)(y, received, after, before)


def sent_while_waiting(y: torch.Tensor, received: torch.Tensor, after: int, before: int) -> None:
    work = dist.isend(y, after)
    dist.recv(received, before)
    assert work is not None
    work.wait()


def asked_for_before(y: torch.Tensor, received: torch.Tensor, after: int, before: int) -> None:
    work = dist.irecv(received, before)
    dist.send(y, after)
    assert work is not None
    work.wait()


def asked_for_in_a_batch(y: torch.Tensor, received: torch.Tensor, after: int, before: int) -> None:
    if dist.get_rank() == 1:
        received_first(y, received, after, before)
        return
    (work,) = dist.batch_isend_irecv([dist.P2POp(dist.irecv, received, before)])
    dist.send(y, after)
    work.wait()


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("exchange", [in_turns, sent_while_waiting, asked_for_before, asked_for_in_a_batch])
def test_ranks_that_do_not(exchange: Exchange) -> None:
    report = check(exchange)
    assert report.verdict is Verdict.VERIFIED, str(report)
