"""Programs that join a rank's shard of a sequence with the edge of its neighbour's. ``mistake``: see each; or empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


# ------------------------------------------------------------------------------------------------ halos, with gradients


def edge_before(mesh: DeviceMesh, x: Tensor, width: int, dim: int, mistake: str = "") -> Tensor:
    """The last positions of the rank before, zeros on the first; gathered, by a slice that is linear in the rank."""
    own = x.narrow(dim, x.shape[dim] - width - (mistake == "one position off"), width).contiguous()
    edges = collectives.all_gather_tensor_autograd(own, dim, mesh)
    start = mesh.get_local_rank() + (mistake == "own edge") + 2 * (mistake == "rank behind")
    nothing = torch.zeros_like(own)
    return torch.cat([edges[(slice(None),) * dim + (slice(-width, None),)] if mistake == "goes round" else nothing,
                      edges, nothing, nothing], dim).narrow(dim, start * width, width)  # fmt: skip


class Messages(torch.autograd.Function):
    """A tensor sent ``step`` ranks on, zeros where none comes; its gradient is sent back."""

    @staticmethod
    def forward(ctx: Any, sent: Tensor, step: int, mistake: str) -> Any:
        ctx.step, ctx.mistake = step, mistake
        return _exchanged(sent, step)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        if ctx.mistake == "gradient stays":
            return torch.zeros_like(gradient), None, None
        return _exchanged(gradient, ctx.step if ctx.mistake == "gradient goes on" else -ctx.step), None, None


def _exchanged(sent: Tensor, step: int) -> Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    received = torch.zeros_like(sent)
    calls = []
    if 0 <= rank + step < size:
        calls.append(dist.P2POp(dist.isend, sent.contiguous(), rank + step))
    if 0 <= rank - step < size:
        calls.append(dist.P2POp(dist.irecv, received, rank - step))
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return received


def sent_edge(x: Tensor, width: int, dim: int, step: int, mistake: str = "") -> Tensor:
    """The edge of the rank ``step`` before, as a message."""
    start = x.shape[dim] - width if step > 0 else 0
    if mistake == "one position off":
        start -= step
    return Messages.apply(x.narrow(dim, start, width), -step if mistake == "rank behind" else step, mistake)  # type: ignore[no-any-return]


def token_shift(x: Tensor, weight: Tensor, mixed: Tensor) -> Tensor:
    """Every position mixed with the one before it."""
    before = F.pad(x, (0, 0, 1, 0))[:, :-1]
    return torch.relu(x * mixed + before * (1 - mixed)) @ weight


def token_shift_of_shards(mesh: DeviceMesh, mistake: str) -> Loss:
    def mix(x: Tensor, weight: Tensor, mixed: Tensor) -> Tensor:
        edge = edge_before(mesh, x, 1, 1, mistake)
        before = torch.cat([x[:, :1] if mistake == "own first position" else edge, x[:, :-1]], 1)
        return torch.relu(x * mixed + before * (1 - mixed)) @ weight

    return mix


def differences(x: Tensor) -> Tensor:
    """The sum of squared steps between neighbouring positions."""
    return (x[:, 1:] - x[:, :-1]).square().sum()


def differences_of_shards(mesh: DeviceMesh, mistake: str) -> Callable[[Tensor], Tensor]:
    def total(x: Tensor) -> Tensor:
        steps = x - torch.cat([sent_edge(x, 1, 1, 1, mistake), x[:, :-1]], 1)
        if dist.get_rank() == 0 and mistake != "step from nothing":
            steps = steps[:, 1:]
        return steps.square().sum()

    return total


def causal_convolution(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Depthwise over the last dimension, as in a state-space block."""
    before = weight.shape[-1] - 1
    return F.silu(F.conv1d(x, weight, bias, padding=before, groups=x.shape[1])[..., : x.shape[-1]])


def causal_convolution_of_shards(mesh: DeviceMesh, mistake: str) -> Loss:
    def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        width = weight.shape[-1] - 1
        if mistake == "no halo":
            joined = F.pad(x, (width, 0))
        else:
            joined = torch.cat([edge_before(mesh, x, width, 2, mistake), x], 2)
        return F.silu(F.conv1d(joined, weight, bias, groups=x.shape[1]))

    return convolve


def image_convolutions(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Two layers, whose second one takes the halo of the first one's result."""
    hidden = torch.relu(F.conv2d(x, weight, bias, padding=1))
    return F.conv2d(hidden, weight.transpose(0, 1), padding=1)


def image_convolutions_of_shards(mesh: DeviceMesh, mistake: str) -> Loss:
    """The rows sharded, a halo on both sides."""

    def joined(x: Tensor, mistake: str) -> Tensor:
        before, behind = sent_edge(x, 1, 2, 1, mistake), sent_edge(x, 1, 2, -1)
        return torch.cat([behind, x, before] if mistake == "sides exchanged" else [before, x, behind], 2)

    def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        first = "" if mistake == "second halo missing" else mistake
        hidden = torch.relu(F.conv2d(joined(x, first), weight, bias, padding=(0, 1)))
        if mistake == "second halo missing":
            return F.conv2d(hidden, weight.transpose(0, 1), padding=1)
        return F.conv2d(joined(hidden, ""), weight.transpose(0, 1), padding=(0, 1))

    return convolve


def projection(x: Tensor, weight: Tensor) -> Tensor:
    return torch.relu(x @ weight)


def own_part_from_the_end(mesh: DeviceMesh, mistake: str) -> Callable[[Tensor, Tensor], Tensor]:
    """All positions gathered; a rank's own ones counted from the end, where the last rank's slice has no end."""

    def project(x: Tensor, weight: Tensor) -> Tensor:
        whole, length = collectives.all_gather_tensor_autograd(x, 1, mesh), x.shape[1]
        behind = mesh.size() - mesh.get_local_rank() - (mistake == "one rank further")
        start = -behind * length - (mistake == "one position off")
        if mistake == "from the start":
            start = -start - length
        part = whole[:, start:] if start else whole
        return torch.relu(part[:, :length] @ weight)

    return project
