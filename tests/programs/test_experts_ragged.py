"""Experts whose numbers of tokens are read from the routing: loops over parts of sorted tokens, and over chosen tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

HIDDEN, INNER, EXPERTS, CHOSEN, TOKENS = 8, 12, 4, 2, 6


class Experts(nn.Module):
    """Two layers an expert, over the tokens of each expert one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, INNER, HIDDEN))
        self.bias = nn.Parameter(torch.randn(EXPERTS, INNER))
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, INNER))

    def expert(self, number: int, x: Tensor) -> Tensor:
        up, bias, down = (w.to_local() if isinstance(w, DTensor) else w for w in (self.up, self.bias, self.down))
        return F.linear(F.silu(F.linear(x, up[number], bias[number])), down[number])

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        sizes = counts.tolist()
        parts = torch.split(x[: sum(sizes)], sizes)
        done = torch.cat([self.expert(number, part) for number, part in enumerate(parts)])
        return torch.vstack((done, done.new_zeros((x.shape[0] - sum(sizes), HIDDEN))))


class Sorted(nn.Module):
    """Tokens sorted by expert, split where the next expert's begin, and put back."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.randn(HIDDEN, EXPERTS))
        self.experts = Experts()

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = (x @ self.gate).softmax(-1).topk(CHOSEN, -1)
        flat = chosen.reshape(-1)
        counts = (flat.unsqueeze(1) == torch.arange(EXPERTS)).sum(0)
        order = torch.argsort(flat, stable=True)
        done = self.experts(x[order // CHOSEN], counts)
        slots = torch.zeros_like(done)
        slots[order] = done
        return torch.bmm(weights.unsqueeze(1), slots.view(-1, CHOSEN, HIDDEN)).squeeze(1)


class Chosen(Sorted):
    """For each expert the tokens that chose it, by their places."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = (x @ self.gate).softmax(-1).topk(CHOSEN, -1)
        result = torch.zeros_like(x)
        for number in range(EXPERTS):
            token, slot = torch.where(chosen == number)
            done = self.experts.expert(number, x[token]) * weights[token, slot].unsqueeze(-1)
            result = result.index_add(0, token, done)
        return result


def _layouts(mesh: DeviceMesh, experts: Any) -> None:
    for name, placed in (("up", Shard(1)), ("bias", Shard(1)), ("down", Shard(2))):
        setattr(experts, name, nn.Parameter(distribute_tensor(getattr(experts, name).data, mesh, [placed])))


def parallel(kind: type[Sorted], mesh: DeviceMesh, bug: str) -> Sorted:
    """Every rank holds a part of each expert's inner dimension; what leaves the experts is added."""
    model = kind()
    experts: Any = model.experts
    _layouts(mesh, experts)
    own = experts.expert

    def expert(number: int, x: Tensor) -> Tensor:
        summed = Replicate() if bug == "gradient of the tokens not summed" else Partial()
        x = DTensor.from_local(x, mesh, [Replicate()]).to_local(grad_placements=[summed])
        number = (number + 1) % EXPERTS if bug == "next expert" else number
        part = own(number, x)
        if bug == "parts not summed":
            return part
        done = DTensor.from_local(part, mesh, [Partial()]).full_tensor()
        return done / mesh.size() if bug == "mean of the parts" else done

    experts.expert = expert
    return model


BUGS = ("gradient of the tokens not summed", "next expert", "parts not summed", "mean of the parts")


def verified(kind: type[Sorted], bug: str = "", ranks: int = 2) -> Report:
    with fake_mesh_world((ranks,), ("tp",)) as mesh:
        return verifycompile.verify(
            parallel(kind, mesh, bug),
            (torch.randn(TOKENS, HIDDEN, requires_grad=True),),
            spec=kind(),
            grad_placements={"gate": (Replicate(),), "x": (Replicate(),)},
            out_placements={"output.0": (Replicate(),)},
        )


@pytest.mark.sampled(every=2, of=("kind",))
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", [Sorted, Chosen])
def test_experts_with_sizes_read_from_the_routing(kind: type[Sorted], ranks: int) -> None:
    report = verified(kind, ranks=ranks)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert "grad.experts.up" in report.relations


@pytest.mark.sampled(every=4, of=("bug",))
@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("kind", [Sorted, Chosen])
def test_wrong_experts_are_refuted(kind: type[Sorted], bug: str) -> None:
    assert verified(kind, bug).verdict is Verdict.REFUTED
