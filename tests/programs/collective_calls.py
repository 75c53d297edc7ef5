"""Every call of ``torch.distributed`` that programs make by hand, right and wrong, as functions of one tensor.

A program runs on ``WORLD`` ranks; ``spec`` is what they compute together. Mistakes are programs of the same kind that
must not verify; each changes a number, or what is read is undefined until the program waits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as autograd
from torch import nn
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.tensor import Partial, Replicate, Shard

WORLD = 2
ROWS, WHOLE = Shard(0), Replicate()
Function = Callable[[torch.Tensor], Any]


class Of(nn.Module):
    """A module that is one function."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@dataclasses.dataclass(frozen=True)
class Calls:
    """``x``: how the input lies; ``grad``: whether it requires a gradient. Outputs (a pair of them) lie as ``out`` says."""

    name: str
    program: Function
    spec: Function
    mistakes: Mapping[str, Function]
    x: Any = ROWS
    out: Any = None
    grad: bool = False
    pair: bool = False

    @property
    def options(self) -> dict[str, Any]:
        names = ("output.0", "output.1") if self.pair else ("output.0",)
        outputs = {name: (self.out,) for name in names if self.out is not None}
        return {"in_placements": {"x": (self.x,)}, "out_placements": outputs}


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.tanh()


def total(x: torch.Tensor) -> torch.Tensor:
    return x.tanh().sum(0)


def parts(x: torch.Tensor, dim: int = 0) -> list[torch.Tensor]:
    return [part.contiguous() for part in x.chunk(WORLD, dim)]


def rank() -> int:
    return dist.get_rank()


# ------------------------------------------------------------------------------------------------ from and to one rank


def broadcast(source: int = 0, own: bool = True) -> Function:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.tanh()
        if not own and rank() == 0:
            y = y * 2
        dist.broadcast(y, source)
        return y

    return program


def reduced_and_sent(target: int = 0, source: int = 0, op: Any = dist.ReduceOp.SUM) -> Function:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = total(x)
        dist.reduce(y, target, op=op)
        if source >= 0:
            dist.broadcast(y, source)
        return y

    return program


def gathered_and_sent(order: int = 1, source: int = 0) -> Function:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.tanh()
        rows = [torch.empty_like(y) for _ in range(WORLD)] if rank() == 0 else None
        dist.gather(y, rows, dst=0)
        z = torch.cat(rows[::order]) if rows is not None else x.new_zeros(WORLD * x.shape[0], x.shape[1])
        dist.broadcast(z, source)
        return z

    return program


def scattered(source: int = 0, order: int = 1, scale: float = 1.0) -> Function:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.tanh() if rank() == source else x.tanh() * 0
        out = torch.empty_like(parts(y)[0])
        dist.scatter(out, parts(y * scale)[::order] if rank() == source else None, src=source)
        return out

    return program


# ------------------------------------------------------------------------------------------------ lists of tensors


def gathered(order: int = 1, scale: float = 1.0) -> Function:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.tanh() * scale
        rows = [torch.empty_like(y) for _ in range(WORLD)]
        dist.all_gather(rows, y)
        return torch.cat(rows[::order])

    return program


def reduce_scattered(order: int = 1, op: Any = dist.ReduceOp.SUM) -> Function:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = parts(x.tanh())[::order]
        out = torch.empty_like(y[0])
        dist.reduce_scatter(out, y, op=op)
        return out

    return program


def exchanged(order: int = 1, dim: int = 0) -> Function:
    def program(x: torch.Tensor) -> torch.Tensor:
        sent = parts(x.tanh(), 1)[::order]
        received = [torch.empty_like(part) for part in sent]
        dist.all_to_all(received, sent)
        return torch.cat(received, dim)

    return program


# ------------------------------------------------------------------------------------------------ asynchronous


def summed_later(wait: bool = True, early: bool = False, scale: float = 1.0) -> Function:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = total(x) * scale
        work = dist.all_reduce(y, async_op=True)
        other = y * 1 if early else None
        assert work is not None
        if wait:
            work.wait()
        return y if other is None else other

    return program


def gathered_later(changed: bool = False, wait: bool = True, op: str = "gather") -> Function:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.tanh()
        out = x.new_empty(WORLD, *x.shape)
        work = dist.all_gather_into_tensor(out, y, async_op=True)  # pyright: ignore[reportDeprecated]
        if changed:
            y.mul_(0)
        assert work is not None
        if wait:
            work.wait()
        return out.flatten(0, 1) if op == "gather" else out.transpose(0, 1).flatten(0, 1)

    return program


def scattered_later(wait: bool = True, op: Any = dist.ReduceOp.SUM) -> Function:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.tanh()
        out = x.new_empty(x.shape[0] // WORLD, x.shape[1])
        work = dist.reduce_scatter_tensor(out, y, op=op, async_op=True)  # pyright: ignore[reportDeprecated]
        assert work is not None
        if wait:
            work.wait()
        return out

    return program


def coalesced(inside: bool = False, both: bool = True) -> Function:
    def program(x: torch.Tensor) -> Any:
        first, second = total(x), x.exp().sum(0)
        early = first
        with _coalescing_manager():
            dist.all_reduce(first)
            if inside:
                early = first * 1
            if both:
                dist.all_reduce(second)
        return early if inside else first, second

    return program


def coalesced_functional(op: str = "sum", order: int = 1) -> Function:
    def program(x: torch.Tensor) -> Any:
        group: Any = dist.group.WORLD
        sums = functional.all_reduce_coalesced([total(x), x.exp().sum(0)][::order], op, group)
        return sums[0], sums[1]

    return program


def summed_by_operator(read: str = "after", scale: float = 1.0) -> Function:
    """torch's operators themselves: what comes back is defined from ``wait_tensor`` on, for views of it as well."""

    def program(x: torch.Tensor) -> torch.Tensor:
        calls = torch.ops._c10d_functional
        name = dist.distributed_c10d._get_default_group().group_name
        under_way = calls.all_reduce(total(x) * scale, "sum", name)
        seen = under_way.view(2, 2)
        early = seen * 1 if read == "before" else seen
        done = calls.wait_tensor(under_way * 1 if read == "copied" else under_way)
        return (done if read == "after" else early).view(4)

    return program


def summed_by_columns(scale: float = 1.0, batched: bool = False) -> Function:
    """Under ``vmap`` nothing waits for what a functional collective computes."""

    def program(x: torch.Tensor) -> torch.Tensor:
        def summed(column: torch.Tensor) -> torch.Tensor:
            group: Any = dist.group.WORLD
            return functional.all_reduce(column.tanh().sum(0), "sum", group) * scale

        return torch.func.vmap(summed, in_dims=1)(x) if batched else summed(x)

    return program


# ------------------------------------------------------------------------------------------------ messages


def ring(step: int = 1, wait: bool = True, batch: bool = True, twice: bool = False) -> Function:
    def program(x: torch.Tensor) -> torch.Tensor:
        y, received = x.tanh(), torch.empty_like(x)
        target, source = (rank() + step) % WORLD, (rank() - step) % WORLD
        if batch:
            operations = [dist.P2POp(dist.isend, y, target), dist.P2POp(dist.irecv, received, source)]
            works = dist.batch_isend_irecv(operations)
        else:
            works = [dist.irecv(received, source), dist.isend(y, target)]
        if wait:
            for work in works:
                assert work is not None
                work.wait()
        return (received + (received if twice else y)).sum(0)

    return program


def forwarded(scale: float = 1.0, lost: bool = False) -> Function:
    """Rank 0 computes, rank 1 goes on."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.tanh()
        if rank() == 0:
            dist.send(y * scale, 1)
            result = torch.zeros_like(y)
        else:
            received = torch.empty_like(y)
            dist.recv(received, 0)
            result = (x if lost else received) * 2
        dist.all_reduce(result)
        return result

    return program


# ------------------------------------------------------------------------------------------------ with a gradient


def summed_with_gradient(times: int = 1, scale: float = 1.0) -> Function:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.tanh().sum(0) * scale
        for _ in range(times):
            y = autograd.all_reduce(y)
        return y.pow(2).sum() / WORLD

    return program


def exchanged_with_gradient(order: int = 1, scale: float = 1.0) -> Function:
    def program(x: torch.Tensor) -> torch.Tensor:
        sent = parts(x.tanh(), 1)[::order]
        received = autograd.all_to_all([torch.empty_like(part) for part in sent], sent)
        return torch.cat(list(received)) * scale

    return program


SUM_AND_EXP: Function = lambda x: (total(x), x.exp().sum(0))  # noqa: E731
TWICE: Function = lambda x: 2 * x.tanh()  # noqa: E731
SQUARED: Function = lambda x: total(x).pow(2).sum()  # noqa: E731

PROGRAMS = [
    Calls(
        "broadcast",
        broadcast(source=1, own=False),
        whole,
        {"own": broadcast(source=0, own=False), "scaled": lambda x: broadcast()(2 * x), "not sent": TWICE},
        x=WHOLE,
    ),
    Calls(
        "reduce, then broadcast",
        reduced_and_sent(),
        total,
        {
            "from another rank": reduced_and_sent(source=1),
            "to another rank": reduced_and_sent(target=1),
            "maximum": reduced_and_sent(op=dist.ReduceOp.MAX),
            "not sent": reduced_and_sent(source=-1),
        },
        out=WHOLE,
    ),
    Calls(
        "gather, then broadcast",
        gathered_and_sent(),
        whole,
        {
            "order": gathered_and_sent(order=-1),
            "from another rank": gathered_and_sent(source=1),
            "twice": lambda x: gathered_and_sent()(x) * 2,
        },
        out=WHOLE,
    ),
    Calls(
        "scatter",
        scattered(),
        whole,
        {"order": scattered(order=-1), "scaled": scattered(scale=2.0), "whole": lambda x: x},
        x=WHOLE,
        out=ROWS,
    ),
    Calls(
        "all_gather of a list",
        gathered(),
        whole,
        {"order": gathered(-1), "scaled": gathered(scale=2.0), "local": whole},
        out=WHOLE,
    ),
    Calls(
        "reduce_scatter of a list",
        reduce_scattered(),
        TWICE,
        {"order": reduce_scattered(-1), "mean": reduce_scattered(op=dist.ReduceOp.AVG), "local": lambda x: x[:2]},
        x=WHOLE,
        out=ROWS,
    ),
    Calls(
        "all_to_all of lists",
        exchanged(),
        whole,
        {"order": exchanged(-1), "other dimension": exchanged(dim=1), "local": whole},
        out=Shard(1),
    ),
    Calls(
        "all_reduce, waited for",
        summed_later(),
        total,
        {
            "never waited for": summed_later(wait=False),
            "read before": summed_later(early=True),
            "scaled": summed_later(scale=2),
        },
        out=WHOLE,
    ),
    Calls(
        "all_reduce by torch's operators, waited for",
        summed_by_operator(),
        total,
        {
            "read before": summed_by_operator("before"),
            "copied before": summed_by_operator("copied"),
            "scaled": summed_by_operator(scale=2),
        },
        out=WHOLE,
    ),
    Calls(
        "all_reduce by torch's operators, a view of it read",
        summed_by_operator("view"),
        total,
        {"scaled": summed_by_operator("view", scale=2)},
        out=WHOLE,
    ),
    Calls(
        "functional all_reduce",
        summed_by_columns(),
        total,
        {"scaled": summed_by_columns(scale=2), "never waited for": summed_by_columns(batched=True)},
        out=WHOLE,
    ),
    Calls(
        "all_gather_into_tensor, waited for",
        gathered_later(),
        whole,
        {
            "changed meanwhile": gathered_later(changed=True),
            "never waited for": gathered_later(wait=False),
            "transposed": gathered_later(op="transposed"),
        },
        out=WHOLE,
    ),
    Calls(
        "reduce_scatter_tensor, waited for",
        scattered_later(),
        TWICE,
        {
            "never waited for": scattered_later(wait=False),
            "mean": scattered_later(op=dist.ReduceOp.AVG),
            "maximum": scattered_later(op=dist.ReduceOp.MAX),
        },
        x=WHOLE,
        out=ROWS,
    ),
    Calls(
        "coalescing manager",
        coalesced(),
        SUM_AND_EXP,
        {"read inside": coalesced(inside=True), "only one": coalesced(both=False), "none": SUM_AND_EXP},
        out=WHOLE,
        pair=True,
    ),
    Calls(
        "all_reduce_coalesced",
        coalesced_functional(),
        SUM_AND_EXP,
        {"maximum": coalesced_functional("max"), "order": coalesced_functional(order=-1), "none": SUM_AND_EXP},
        out=WHOLE,
        pair=True,
    ),
    Calls(
        "batch_isend_irecv",
        ring(),
        total,
        {"to itself": ring(step=0), "not waited for": ring(wait=False), "own part lost": ring(twice=True)},
        out=WHOLE,
    ),
    Calls(
        "isend and irecv",
        ring(batch=False),
        total,
        {
            "not waited for": ring(wait=False, batch=False),
            "own part lost": ring(twice=True, batch=False),
            "scaled": lambda x: ring(batch=False)(x) * 2,
        },
        out=WHOLE,
    ),
    Calls(
        "send and recv",
        forwarded(),
        TWICE,
        {"scaled": forwarded(scale=2.0), "lost": forwarded(lost=True), "not forwarded": whole},
        x=WHOLE,
        out=WHOLE,
    ),
    Calls(
        "all_reduce with a gradient",
        summed_with_gradient(),
        SQUARED,
        {
            "twice": summed_with_gradient(times=2),
            "scaled": summed_with_gradient(scale=2.0),
            "maximum": lambda x: summed_with_gradient()(x * x),
        },
        out=Partial(),
        grad=True,
    ),
    Calls(
        "all_to_all with a gradient",
        exchanged_with_gradient(),
        whole,
        {
            "order": exchanged_with_gradient(order=-1),
            "scaled": exchanged_with_gradient(scale=2.0),
            "local": whole,
        },
        out=Shard(1),
        grad=True,
    ),
]
