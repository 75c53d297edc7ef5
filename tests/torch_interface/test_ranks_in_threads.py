"""Ranks as threads of one process: collectives communicate, runs repeat, and ranks that hang are told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.distributed_c10d import _get_default_group
from torch.nn.parallel import DistributedDataParallel

from tests.support import fake_mesh_world, fake_world
from verifycompile.torch_interface.rank_threads.ranks_in_threads import RanksInThreads, RanksWaitError
from verifycompile.torch_interface.ranks.mesh import RootMesh

# torch 2.13 has other names for the collectives that most programs still call.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def run(function: Any, size: int = 3) -> dict[int, Any]:
    with fake_world(size):
        return RanksInThreads(RootMesh(None), 0).run(function)


def own(rank: int, size: int = 6) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float32) + 10 * rank


def in_place(operation: str, rank: int) -> torch.Tensor:
    x, out = own(rank), torch.zeros(6)
    if operation == "all_reduce":
        dist.all_reduce(x)
        return x
    if operation == "max":
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        return x
    if operation == "broadcast":
        dist.broadcast(x, src=1)
        return x
    if operation == "reduce":
        dist.reduce(x, dst=2)
        return x if rank == 2 else torch.zeros(6)
    if operation == "all_gather":
        parts = [torch.zeros(6) for _ in range(3)]
        dist.all_gather(parts, x)
        return torch.stack(parts).sum(0)
    if operation == "reduce_scatter":
        part = torch.zeros(2)
        dist.reduce_scatter_tensor(part, x)
        return part
    if operation == "all_to_all":
        dist.all_to_all_single(out, x)
        return out
    if operation == "scatter":
        part = torch.zeros(2)
        dist.scatter(part, list(own(7).chunk(3)) if rank == 0 else None, src=0)
        return part
    if operation == "gather":
        parts = [torch.zeros(6) for _ in range(3)]
        dist.gather(x, parts if rank == 0 else None, dst=0)
        return torch.cat(parts) if rank == 0 else torch.zeros(18)
    if operation == "send":
        if rank == 0:
            dist.send(x, 1)
            return x
        if rank == 1:
            dist.recv(out, 0)
        return out
    raise AssertionError(operation)


WHOLE = sum((own(rank) for rank in range(3)), torch.zeros(6))
EXPECTED = {
    "all_reduce": [WHOLE] * 3,
    "max": [own(2)] * 3,
    "broadcast": [own(1)] * 3,
    "reduce": [torch.zeros(6), torch.zeros(6), WHOLE],
    "all_gather": [WHOLE] * 3,
    "reduce_scatter": list(WHOLE.chunk(3)),
    "all_to_all": [torch.cat([own(other).chunk(3)[rank] for other in range(3)]) for rank in range(3)],
    "scatter": list(own(7).chunk(3)),
    "gather": [torch.cat([own(rank) for rank in range(3)]), torch.zeros(18), torch.zeros(18)],
    "send": [own(0), own(0), torch.zeros(6)],
}


@pytest.mark.parametrize("operation", EXPECTED)
def test_collectives_in_place(operation: str) -> None:
    found = run(lambda rank: in_place(operation, rank))
    for rank, expected in enumerate(EXPECTED[operation]):
        assert torch.equal(found[rank], expected)


def test_functional_collectives() -> None:
    def program(rank: int) -> list[torch.Tensor]:
        group: Any = _get_default_group()
        return [
            functional.wait_tensor(functional.all_reduce(own(rank), "avg", group)),
            functional.wait_tensor(functional.all_gather_tensor(own(rank), 0, group)),
            functional.wait_tensor(functional.reduce_scatter_tensor(own(rank), "sum", 0, group)),
            functional.wait_tensor(functional.all_to_all_single(own(rank), None, None, group)),
        ]

    found = run(program)
    for rank in range(3):
        expected = [WHOLE / 3, torch.cat([own(0), own(1), own(2)]), WHOLE.chunk(3)[rank], EXPECTED["all_to_all"][rank]]
        assert all(torch.equal(one, other) for one, other in zip(found[rank], expected, strict=True))


def test_groups_of_a_mesh_are_those_of_the_rank() -> None:
    with fake_mesh_world((2, 2), ("dp", "tp")) as mesh:

        def program(rank: int) -> torch.Tensor:
            x = torch.tensor([float(rank)])
            dist.all_reduce(x, group=mesh.get_group("tp"))
            return x

        found = RanksInThreads(RootMesh(mesh), 0).run(program)
    assert [found[rank].item() for rank in range(4)] == [1.0, 1.0, 5.0, 5.0]


def test_random_streams_are_each_ranks_own_and_begin_alike() -> None:
    def program(rank: int) -> torch.Tensor:
        first = torch.rand(2)
        dist.barrier()
        return torch.cat([first, torch.rand(2)])

    before = torch.get_rng_state()
    found = run(program)
    assert torch.equal(found[0], found[2])
    assert torch.equal(torch.get_rng_state(), before)


def test_ranks_that_wait_for_a_rank_that_is_gone() -> None:
    def program(rank: int) -> None:
        if rank != 1:
            dist.barrier()

    expected = r"^the ranks wait without end: rank 0 for barrier, rank 2 for barrier$"
    with pytest.raises(RanksWaitError, match=expected):
        run(program)


def test_ranks_that_meet_in_different_collectives() -> None:
    def program(rank: int) -> None:
        dist.all_reduce(own(rank)) if rank else dist.broadcast(own(rank), src=0)

    expected = (
        r"^the ranks meet in different collectives: rank 0 calls broadcast\(0\), rank 1 calls all_reduce\(sum\), rank 2"
    )
    with pytest.raises(RanksWaitError, match=expected):
        run(program)


def test_an_error_of_one_rank_ends_all() -> None:
    def program(rank: int) -> None:
        if rank == 1:
            raise ValueError("one")
        dist.barrier()

    with pytest.raises(ValueError, match=r"^one$"):
        run(program)


class Summed(nn.Module):
    """Communicates in its forward, and says there whose forward torch takes to run."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
        seen = [DistributedDataParallel._get_active_ddp_module()]
        for _ in range(2):
            x = functional.wait_tensor(functional.all_reduce(x * self.weight, "sum", _get_default_group()))
            seen.append(DistributedDataParallel._get_active_ddp_module())
        return x, seen


@pytest.mark.parametrize("fails", [False, True])
def test_each_rank_is_in_the_forward_of_its_own_wrapper(fails: bool) -> None:
    """torch keeps one for a process, which ranks that take turns would leave to one another."""
    held: dict[int, DistributedDataParallel] = {}

    def forward(rank: int) -> list[Any]:
        held[rank] = DistributedDataParallel(Summed())
        _, seen = held[rank](own(rank))
        if fails and rank == 1:
            raise ValueError("of rank 1")
        return seen

    if fails:
        with pytest.raises(ValueError, match="of rank 1"):
            run(forward)
    else:
        assert run(forward) == {rank: [held[rank]] * 3 for rank in range(3)}
    assert DistributedDataParallel._get_active_ddp_module() is None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_traced_in_the_forward_of_a_wrapper_communicates_once_it_runs() -> None:
    """There Dynamo leaves the modes of the thread on."""
    met: list[str] = []

    def compiled(graph: torch.fx.GraphModule, _: Any) -> Any:
        met.append("compiled")
        return graph

    def total(x: torch.Tensor) -> torch.Tensor:
        return functional.wait_tensor(functional.all_reduce(x, "sum", _get_default_group())) * 2

    class Compiled(Summed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # another result
            return torch.compile(total, backend=compiled)(x * self.weight)

    def forward(rank: int) -> torch.Tensor:
        return DistributedDataParallel(Compiled())(own(rank))

    torch._dynamo.reset()
    found = run(forward)
    assert all(torch.equal(value, WHOLE * 2) for value in found.values())
    assert met == ["compiled"]  # by the first rank, whose graph the others run
