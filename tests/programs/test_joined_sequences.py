"""Sequences that stand behind each other: documents in one row, and pairs of answers that one pass computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard

import verifycompile
from tests.programs.forms import comm
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

SEQUENCE = (Shard(1),)


def _documents(query: Tensor, key: Tensor, value: Tensor, documents: Tensor) -> Tensor:
    """Attention within documents, written out."""
    place = torch.arange(query.size(1))
    seen = (documents[:, None] == documents[None, :]) & (place[:, None] >= place[None, :])
    scores = torch.einsum("hsd,htd->hst", query, key).masked_fill(~seen, float("-inf"))
    return scores.softmax(-1) @ value


def _documents_of_ranks(mesh: Any, mistake: str) -> Callable[..., Tensor]:
    """Fused attention of a rank's own queries with all keys."""
    group, rank = mesh.get_group(), mesh.get_local_rank()

    def program(query: Tensor, key: Tensor, value: Tensor, documents: Tensor) -> Tensor:
        key, value = comm.gather(key, 1, group), comm.gather(value, 1, group)
        everywhere = funcol.all_gather_tensor(documents, 0, group)
        own = torch.arange(query.size(1)) + (0 if mistake == "own positions" else rank * query.size(1))
        place = torch.arange(query.size(1) * mesh.size())
        before = place < own[:, None] if mistake == "not itself" else place <= own[:, None]
        seen = documents[:, None].eq(everywhere) & before
        return F.scaled_dot_product_attention(query[None], key[None], value[None], attn_mask=seen, scale=1.0)[0]

    return program


def _on_documents(mistake: str) -> Report:
    with fake_mesh_world((2,), ("cp",), rank=1) as mesh:
        return verifycompile.verify(
            None,
            (*(torch.randn(2, 2, 2, requires_grad=True) for _ in range(3)), torch.randint(0, 3, (2,))),
            build=lambda: _documents_of_ranks(mesh, mistake),
            spec=_documents,
            mesh=mesh,
            in_placements={"query": SEQUENCE, "key": SEQUENCE, "value": SEQUENCE, "documents": (Shard(0),)},
            out_placements={"output.0": SEQUENCE},
        )


def test_each_position_of_a_document_sees_itself() -> None:
    """So no row is masked wholly, and fused attention is the softmax that is written out."""
    report = _on_documents("")
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert set(report.relations) == {"output.0", "grad.query", "grad.key", "grad.value"}


@pytest.mark.parametrize("mistake", ["own positions", "not itself"])
def test_other_masks_of_documents(mistake: str) -> None:
    report = _on_documents(mistake)
    assert report.verdict is not Verdict.VERIFIED
    assert mistake == "not itself" or report.verdict is Verdict.REFUTED, str(report)


def _likelihood(hidden: Tensor, table: Tensor, target: Tensor) -> Tensor:
    return (hidden @ table.t()).log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)


def _preference(chosen: Tensor, rejected: Tensor, table: Tensor, first: Tensor, second: Tensor) -> Tensor:
    margin = _likelihood(chosen, table, first) - _likelihood(rejected, table, second)
    return -F.logsigmoid(0.1 * margin).mean()


def _preference_of_ranks(mesh: Any, mistake: str) -> Callable[..., Tensor]:
    """Both answers in one pass, over a sharded vocabulary and the ranks' own samples."""
    samples, parts = mesh.get_group("dp"), mesh.get_group("tp")

    def likelihood(hidden: Tensor, table: Tensor, target: Tensor) -> Tensor:
        first = mesh.get_local_rank("tp") * table.size(0)
        logits = comm.enter(hidden, parts) @ table.t()
        logits = logits - comm.total(logits.detach().amax(-1, keepdim=True), parts, "max")
        outside = (target < first) | (target >= first + table.size(0))
        index = torch.where(outside, 0, target - first)
        own = logits.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        own = own if mistake == "not masked" else own * ~outside
        return comm.leave(own, parts) - comm.leave(logits.exp().sum(-1), parts).log()

    def program(chosen: Tensor, rejected: Tensor, table: Tensor, first: Tensor, second: Tensor) -> Tensor:
        table = comm.enter(table, samples)
        targets = [second, first] if mistake == "exchanged" else [first, second]
        both = likelihood(torch.cat([chosen, rejected]), table, torch.cat(targets))
        one, other = both.chunk(2)
        loss = F.softplus(-0.1 * (one - other)).sum() / (one.numel() * mesh.size(0))
        return comm.leave(loss, samples)

    return program


@pytest.mark.parametrize("mistake", ["", "not masked", "exchanged"])
def test_pairs_in_one_pass(mistake: str) -> None:
    with fake_mesh_world((2, 2), ("dp", "tp"), rank=3) as mesh:
        report = verifycompile.verify(
            None,
            (
                *(torch.randn(2, 4, requires_grad=True) for _ in range(2)),
                torch.randn(3, 4, requires_grad=True),
                *(torch.randint(0, 6, (2,)) for _ in range(2)),
            ),
            build=lambda: _preference_of_ranks(mesh, mistake),
            spec=_preference,
            mesh=mesh,
            in_placements={
                **{name: (Shard(0), Replicate()) for name in ("chosen", "rejected", "first", "second")},
                "table": (Replicate(), Shard(0)),
            },
            out_placements={"output.0": (Replicate(), Replicate())},
        )
    assert report.verdict is (Verdict.REFUTED if mistake else Verdict.VERIFIED), str(report)


@pytest.mark.parametrize("mistake", ["", "one more"])
def test_running_sum_by_the_parts_before(mistake: str) -> None:
    """Each rank adds the totals of as many ranks as its number says: sums of parts of several lengths."""

    def of_rank(mesh: Any) -> Callable[[Tensor], Tensor]:
        def program(x: Tensor) -> Tensor:
            own = x.cumsum(1)
            totals = funcol.all_gather_tensor(own[:, -1:], 1, mesh.get_group())
            return own + totals[:, : mesh.get_local_rank() + bool(mistake)].sum(1, keepdim=True)

        return program

    with fake_mesh_world((4,), ("cp",), rank=1) as mesh:
        report = verifycompile.verify(
            None,
            (torch.randn(2, 2),),
            build=lambda: of_rank(mesh),
            spec=lambda x: x.cumsum(1),
            mesh=mesh,
            in_placements={"x": SEQUENCE},
            out_placements={"output.0": SEQUENCE},
        )
    assert report.verdict is (Verdict.REFUTED if mistake else Verdict.VERIFIED), str(report)


@pytest.mark.parametrize("mistake", ["", "from zero"])
def test_positions_that_a_sum_of_ones_counts(mistake: str) -> None:
    def of_rank(mesh: Any) -> Callable[[Tensor], Tensor]:
        first = 0 if mistake else mesh.get_local_rank() * 2
        return lambda x: x * torch.sin(0.1 * (torch.arange(x.size(1)) + first))

    def spec(x: Tensor) -> Tensor:
        return x * torch.sin(0.1 * (torch.ones_like(x).cumsum(1) - 1))

    with fake_mesh_world((4,), ("cp",), rank=1) as mesh:
        report = verifycompile.verify(
            None,
            (torch.randn(2, 2, requires_grad=True),),
            build=lambda: of_rank(mesh),
            spec=spec,
            mesh=mesh,
            in_placements={"x": SEQUENCE},
            out_placements={"output.0": SEQUENCE},
        )
    assert report.verdict is (Verdict.REFUTED if mistake else Verdict.VERIFIED), str(report)
