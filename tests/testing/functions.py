"""Functions that ranks run: a process that is started anew imports them by name."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist


def sum_of_ranks(rank: int, factor: int) -> int:
    value = torch.tensor(factor * rank)
    dist.all_reduce(value)
    return int(value)


def rank_1_raises(rank: int) -> None:
    if rank == 1:
        raise ValueError("this rank is wrong")
    dist.barrier()


def rank_1_ends(rank: int, collective: bool) -> int:
    if rank == 1:
        os._exit(3)
    if collective:
        dist.barrier()
    return rank
