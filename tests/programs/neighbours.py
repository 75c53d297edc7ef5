"""Programs that join a rank's shard of a sequence with the edge of its neighbour's. ``mistake``: see each; or empty."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh

Tensor = torch.Tensor
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
Edge = Callable[[DeviceMesh, Tensor, str], Tensor]
IGNORED = -100


def _total(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")


def next_tokens(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The loss of one device: every position predicts the label of the next one."""
    logits, following = hidden @ weight, labels[:, 1:]
    return _total(logits[:, :-1], following) / (following != IGNORED).sum()


def padded_tokens(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The same, the last position predicting nothing."""
    following = F.pad(labels, (0, 1), value=IGNORED)[..., 1:]
    return _total(hidden @ weight, following) / (following != IGNORED).sum()


# ------------------------------------------------------------------------------------------------ the next rank's edge


def _first(labels: Tensor, mistake: str) -> Tensor:
    return (labels[:, 1:2] if mistake == "second label" else labels[:, :1]).contiguous()


def _neighbour(rank: int, mistake: str) -> int:
    return {"previous rank": rank - 1, "own edge": rank}.get(mistake, rank + 1)


def _ended(edge: Tensor, mesh: DeviceMesh, mistake: str) -> Tensor:
    last = dist.get_rank() == mesh.size() - 1
    return torch.full_like(edge, IGNORED) if last and mistake != "last rank goes on" else edge


def gathered(mesh: DeviceMesh, labels: Tensor, mistake: str) -> Tensor:
    edges = collectives.all_gather_tensor(_first(labels, mistake), 0, mesh)
    each = edges.view(mesh.size(), *labels[:, :1].shape)
    return _ended(each[_neighbour(dist.get_rank(), mistake) % mesh.size()], mesh, mistake)


def padded(mesh: DeviceMesh, labels: Tensor, mistake: str) -> Tensor:
    """By a slice that is linear in the rank."""
    edges = collectives.all_gather_tensor(_first(labels, mistake), 1, mesh)
    ends = edges[:, :1] if mistake == "last rank goes on" else torch.full_like(edges[:, :1], IGNORED)
    start = _neighbour(mesh.get_local_rank(), mistake)
    return torch.cat([ends, edges, ends], 1)[:, start + 1 : start + 2]


def permuted(mesh: DeviceMesh, labels: Tensor, mistake: str) -> Tensor:
    targets = [(rank * 2 - _neighbour(rank, mistake)) % mesh.size() for rank in range(mesh.size())]
    return _ended(collectives.permute_tensor(_first(labels, mistake), targets, mesh), mesh, mistake)


def sent(mesh: DeviceMesh, labels: Tensor, mistake: str) -> Tensor:
    rank, size = dist.get_rank(), mesh.size()
    edge = torch.empty_like(labels[:, :1])
    calls = []
    if rank > 0 or mistake == "last rank goes on":
        calls.append(dist.P2POp(dist.isend, _first(labels, mistake), (rank - 1) % size))
    if rank < size - 1 or mistake == "last rank goes on":
        calls.append(dist.P2POp(dist.irecv, edge, (rank + 1) % size))
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return _ended(edge, mesh, mistake)


def with_edge(edge: Edge) -> Callable[[DeviceMesh, str], Loss]:
    """The loss of a rank's positions, a partial sum of the whole, its labels ended by ``edge``."""

    def made(mesh: DeviceMesh, mistake: str) -> Loss:
        def loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
            following = torch.cat([labels[:, 1:], edge(mesh, labels, mistake)], 1)
            count = (following != IGNORED).sum()
            if mistake != "own count":
                count = collectives.all_reduce(count, "sum", mesh)
            return _total(hidden @ weight, following) / count

        return loss

    return made


def rolled(mesh: DeviceMesh, mistake: str) -> Loss:
    """All labels gathered and rolled, of which a rank takes its own positions."""

    def loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        whole = collectives.all_gather_tensor(labels, 1, mesh)
        whole = torch.roll(whole, 1 if mistake == "previous rank" else -1, 1)
        if mistake != "last rank goes on":
            whole[:, -1] = IGNORED
        start = mesh.get_local_rank() * labels.shape[1]
        following = whole[:, start : start + labels.shape[1]]
        count = collectives.all_reduce((following != IGNORED).sum(), "sum", mesh)
        return _total(hidden @ weight, following) / count

    return loss
