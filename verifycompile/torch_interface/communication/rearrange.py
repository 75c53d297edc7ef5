"""The rearrangement around an all-gather or reduce-scatter of a dimension other than the first, as views.

A collective works on the first dimension. For another one torch cuts the tensor into as many pieces as there are
ranks and concatenates them again, which puts several nodes a rank into every graph. torch documents the operation as
``flatten(movedim(unflatten(...)))``; captured in that form, a graph has the same size on two ranks and on a thousand.

The same for DTensor's change of the sharded dimension: on CPU meshes torch gathers and keeps this rank's piece, by a
number that is baked into the graph; its own operator for all other devices is defined as just that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence

import torch
import torch.distributed._functional_collectives as functional_collectives
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Shard

from verifycompile.torch_interface.replaced import replaced


def gathered(tensor: torch.Tensor, group_size: int, gather_dim: int) -> torch.Tensor:
    """``cat(chunk(tensor, group_size, 0), gather_dim)`` where the first dimension is a multiple of the group size."""
    pieces = torch.unflatten(tensor, 0, (group_size, tensor.shape[0] // group_size))
    return torch.flatten(torch.movedim(pieces, 0, gather_dim), gather_dim, gather_dim + 1)


def to_scatter(tensor: torch.Tensor, group_size: int, scatter_dim: int) -> torch.Tensor:
    """``cat(chunk(tensor, group_size, scatter_dim), 0)`` where that dimension is a multiple of the group size."""
    pieces = torch.unflatten(tensor, scatter_dim, (group_size, tensor.shape[scatter_dim] // group_size))
    return torch.flatten(torch.movedim(pieces, scatter_dim, 0), 0, 1)


@contextlib.contextmanager
def collectives_rearrange_by_views() -> Generator[list[str]]:
    """While entered, torch's functional collectives rearrange by views; yields the rearrangements made, by name."""
    made: list[str] = []
    view_chunk_cat = functional_collectives._maybe_view_chunk_cat
    narrow_cat = functional_collectives._chunk_or_narrow_cat

    def gather(res: torch.Tensor, group_size: int, gather_dim: int) -> torch.Tensor:
        if gather_dim <= 0 or not _is_multiple(res.shape[0], group_size):
            return view_chunk_cat(res, group_size, gather_dim)
        made.append("all_gather")
        return gathered(res, group_size, gather_dim)

    def scatter(tensor: torch.Tensor, num_chunks: int, narrow_dim: int, cat_dim: int = 0) -> torch.Tensor:
        if narrow_dim <= 0 or cat_dim != 0 or not _is_multiple(tensor.shape[narrow_dim], num_chunks):
            return narrow_cat(tensor, num_chunks, narrow_dim, cat_dim)
        made.append("reduce_scatter")
        return to_scatter(tensor, num_chunks, narrow_dim)

    to_new_shard_dim = Shard._to_new_shard_dim

    def exchange(  # noqa: PLR0917 - the method's own signature
        self: Shard,
        local_tensor: torch.Tensor,
        mesh: DeviceMesh,
        mesh_dim: int,
        current_logical_shape: Sequence[int | torch.SymInt],
        new_shard_dim: int,
    ) -> torch.Tensor:
        sizes = [current_logical_shape[dim] for dim in (self.dim, new_shard_dim)]
        if not all(_is_multiple(size, mesh.size(mesh_dim)) for size in sizes):
            return to_new_shard_dim(self, local_tensor, mesh, mesh_dim, current_logical_shape, new_shard_dim)
        made.append("all_to_all")
        group = functional_collectives._group_or_group_name(functional_collectives._resolve_group((mesh, mesh_dim)))
        return torch.ops._dtensor.shard_dim_alltoall(local_tensor, self.dim, new_shard_dim, group)

    by_views = (
        (Shard, "_to_new_shard_dim", exchange),
        (functional_collectives, "_maybe_view_chunk_cat", gather),
        (functional_collectives, "_chunk_or_narrow_cat", scatter),
    )
    with replaced(by_views):
        yield made


def _is_multiple(size: int | torch.SymInt, divisor: int) -> bool:
    # A symbolic size would get a guard that the program's own trace does not have.
    return isinstance(size, int) and size % divisor == 0
