"""DTensor results whose shards are not DTensor's own chunks, or whose global shape is not the spec's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import local_map

from tests.attacks.jobs import Job, Programs, failures, outcomes

PROGRAMS = Programs()
Function = Callable[[Any], Any]
FIRST = Shard(0)


def sample(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def add(name: str, shape: tuple[int, ...], cut: int | None, function: Callable[[DeviceMesh], Function], spec: Function, *, right: bool) -> None:
    """``function(mesh)`` gets the input sharded on ``cut``, the spec the whole one."""

    def job(mesh: DeviceMesh) -> Job:
        def build() -> Function:
            run = function(mesh)

            def forward(x: torch.Tensor) -> Any:
                return run(x)

            return forward

        x = sample(*shape)
        placed = distribute_tensor(x, mesh, [Replicate() if cut is None else Shard(cut)])
        return Job(build, lambda x: spec(x), (x,), given_args=(placed,))

    # Shards of sizes that DTensor does not expect end the process in gloo: numbers are asked of even ones only.
    PROGRAMS.add(name, job, right=right, numbers=right)


def mapped(function: Function, out: Any, into: Any = FIRST, **options: Any) -> Callable[[DeviceMesh], Function]:
    return lambda mesh: lambda x: local_map(
        function, out_placements=[out], in_placements=([into],), device_mesh=mesh, **options
    )(torch.tanh(x))


def relabelled(function: Callable[[torch.Tensor, int], torch.Tensor], out: Any, **options: Any) -> Callable[[DeviceMesh], Function]:
    """A local value of this rank, given back as a DTensor."""
    return lambda mesh: lambda x: DTensor.from_local(
        function(x.to_local() * 2, mesh.get_local_rank()), mesh, [out], run_check=False, **options
    ) * 1


tanh = torch.tanh

# Right: even cuts, and DTensor's own uneven ones.
add("right_even", (4, 4), 0, mapped(lambda t: t * 2, Shard(0)), lambda x: tanh(x) * 2, right=True)
add("right_even_columns", (4, 4), 1, mapped(lambda t: t * 2, Shard(1), Shard(1)), lambda x: tanh(x) * 2, right=True)
add("right_uneven_pointwise", (5, 4), 0, lambda mesh: lambda x: tanh(x) * 2, lambda x: tanh(x) * 2, right=True)
add("right_uneven_columns", (4, 5), 1, lambda mesh: lambda x: torch.sin(x) + 1, lambda x: torch.sin(x) + 1, right=True)
add("right_relabelled", (4, 4), 0, relabelled(lambda t, rank: t, Shard(0)), lambda x: x * 2, right=True)

# Wrong: the whole that DTensor computes of its parts is another one.
add("wrong_uneven_local_map", (3, 4), 0, mapped(lambda t: t * 2, Shard(0)), lambda x: tanh(x) * 2, right=False)
add("wrong_uneven_local_map_of_five", (5, 4), 0, mapped(lambda t: t + 1, Shard(0)), lambda x: tanh(x) + 1, right=False)
add("wrong_other_dimension", (4, 4), 0, mapped(lambda t: t * 2, Shard(1)), lambda x: tanh(x) * 2, right=False)
add("wrong_partial_for_shards", (4, 4), 0, mapped(lambda t: t * 2, Partial()), lambda x: tanh(x) * 2, right=False)
add("wrong_replicated_for_shards", (4, 4), 0, mapped(lambda t: t * 2, Replicate()), lambda x: tanh(x) * 2, right=False)
add("wrong_repeated_rows", (3, 4), 0, mapped(lambda t: t.repeat_interleave(2, 0), Shard(0)), lambda x: tanh(x).repeat_interleave(2, 0), right=False)
add("wrong_relabelled_as_columns", (4, 4), 0, relabelled(lambda t, rank: t, Shard(1)), lambda x: x * 2, right=False)
add("wrong_relabelled_partial", (4, 4), 0, relabelled(lambda t, rank: t, Partial()), lambda x: x * 2, right=False)
add("wrong_relabelled_shape", (4, 4), 0, relabelled(lambda t, rank: t, Shard(0), shape=torch.Size((3, 4)), stride=(4, 1)), lambda x: (x * 2)[:3], right=False)
add("wrong_first_three_rows", (4, 4), None, relabelled(lambda t, rank: t[:3] if rank == 0 else t[3:], Shard(0), shape=torch.Size((4, 4)), stride=(4, 1)), lambda x: x * 2, right=False)
add("wrong_last_rows_first", (4, 4), None, relabelled(lambda t, rank: t[:2] if rank == 1 else t[2:], Shard(0)), lambda x: x * 2, right=False)
add("wrong_two_and_three_columns", (2, 5), None, relabelled(lambda t, rank: t[:, :2] if rank == 0 else t[:, 2:], Shard(1), shape=torch.Size((2, 5)), stride=(5, 1)), lambda x: x * 2, right=False)
add("right_three_and_two_columns", (2, 5), None, relabelled(lambda t, rank: t[:, :3] if rank == 0 else t[:, 3:], Shard(1), shape=torch.Size((2, 5)), stride=(5, 1)), lambda x: x * 2, right=True)
add("right_halves", (4, 4), None, relabelled(lambda t, rank: t[:2] if rank == 0 else t[2:], Shard(0)), lambda x: x * 2, right=True)
add("wrong_overlapping_parts", (4, 4), None, relabelled(lambda t, rank: t[:3] if rank == 0 else t[1:], Shard(0)), lambda x: x * 2, right=False)
add("wrong_reordered", (4, 4), 0, mapped(lambda t: t.flip(0), Shard(0)), lambda x: tanh(x).flip(0), right=False)


def on_three(name: str, function: Callable[[DeviceMesh], Function], spec: Function, *, right: bool) -> None:
    """Four columns on three ranks: two, two and none of them. On two ranks the program is right."""
    add(name, (2, 4, 4, 4), 3, function, spec, right=right)


on_three("pixels", lambda mesh: lambda x: F.pixel_shuffle(tanh(x), 2), lambda x: F.pixel_shuffle(tanh(x), 2), right=False)
on_three("plain", lambda mesh: lambda x: tanh(x) * 2, lambda x: tanh(x) * 2, right=True)
ON_THREE = ("pixels", "plain")


def test_two_ranks() -> None:
    programs = Programs({name: program for name, program in PROGRAMS.found.items() if name not in ON_THREE})
    assert failures(programs, outcomes(__file__, *programs.found)) == []


def test_three_ranks() -> None:
    programs = Programs({name: PROGRAMS.found[name] for name in ON_THREE})
    assert failures(programs, outcomes(__file__, *ON_THREE, world=3)) == []
