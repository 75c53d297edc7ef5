"""What users meet first: for each mistake a program that is refused by its name, and the mended one."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

R, S0, S1 = Replicate(), Shard(0), Shard(1)
Program = Callable[..., torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Mistake:
    """``wrong`` and ``right`` make a program of the mesh; ``line``: what the line that is named says."""

    code: str
    spec: Program
    wrong: Callable[[DeviceMesh], Program]
    right: Callable[[DeviceMesh], Program]
    inputs: Callable[[], Mapping[str, torch.Tensor]]
    placements: Mapping[str, Placement]
    line: str
    output: Placement = R


def cross_entropy(logits, labels):
    return F.cross_entropy(logits, labels)


def mean_of_own_labels(mesh):
    def loss(logits, labels):
        own = F.cross_entropy(logits, labels)
        return funcol.all_reduce(own, "avg", mesh)

    return loss


def mean_of_all_labels(mesh):
    def loss(logits, labels):
        total = F.cross_entropy(logits, labels, reduction="sum")
        count = (labels != -100).sum().to(logits.dtype)
        return funcol.all_reduce(total, "sum", mesh) / funcol.all_reduce(count, "sum", mesh)

    return loss


def masked_mean(losses, mask):
    return (losses * mask).sum() / mask.sum()


def mean_of_own_tokens(mesh):
    def loss(losses, mask):
        own = (losses * mask).sum() / mask.sum()
        return funcol.all_reduce(own, "avg", mesh)

    return loss


def mean_of_all_tokens(mesh):
    def loss(losses, mask):
        total = funcol.all_reduce((losses * mask).sum(), "sum", mesh)
        return total / funcol.all_reduce(mask.sum(), "sum", mesh)

    return loss


def batch_norm(x):
    mean = x.mean(0)
    variance = (x - mean).square().mean(0)
    return (x - mean) * (variance + 1e-5).rsqrt()


def statistics_of_own_batch(mesh):
    def norm(x):
        own = x.mean(0)
        variance = (x - own).square().mean(0)
        return (x - own) * (variance + 1e-5).rsqrt()

    return norm


def statistics_of_all(mesh):
    def norm(x):
        mean = funcol.all_reduce(x.mean(0), "avg", mesh)
        variance = funcol.all_reduce((x - mean).square().mean(0), "avg", mesh)
        return (x - mean) * (variance + 1e-5).rsqrt()

    return norm


def softmax_of_own_part(mesh):
    return lambda x: x.softmax(-1)


def softmax_of_all(mesh):
    def softmax(x):
        weights = (x - funcol.all_reduce(x.amax(-1, keepdim=True), "max", mesh)).exp()
        return weights / funcol.all_reduce(weights.sum(-1, keepdim=True), "sum", mesh)

    return softmax


def loss_of_logits(h, head, labels):
    return F.cross_entropy(h @ head, labels, reduction="sum")


def loss_of_own_classes(mesh):
    def loss(h, head, labels):
        logits = h @ head
        return F.cross_entropy(logits, labels, reduction="sum")

    return loss


def loss_of_all_classes(mesh):
    def loss(h, head, labels):
        logits = funcol.all_gather_tensor(h @ head, 1, mesh)
        return F.cross_entropy(logits, labels, reduction="sum")

    return loss


def gated(x, gate_up):
    gate, up = (x @ gate_up).chunk(2, -1)
    return F.silu(gate) * up


def cut_as_one(mesh):
    def gated_part(x, gate_up):
        own = gate_up.chunk(mesh.size(), 1)[mesh.get_local_rank()]
        gate, up = (x @ own).chunk(2, -1)
        return F.silu(gate) * up

    return gated_part


def cut_each(mesh):
    def gated_part(x, gate_up):
        shares = [part.chunk(mesh.size(), 1)[mesh.get_local_rank()] for part in gate_up.chunk(2, 1)]
        gate, up = (x @ torch.cat(shares, 1)).chunk(2, -1)
        return F.silu(gate) * up

    return gated_part


def gradient_by_hand(saved_of):
    def loss(x, y, w):
        saved, gradient = [part.tanh() for part in x.chunk(2)], torch.zeros_like(w)
        errors = [own @ w - target for own, target in zip(saved, y.chunk(2), strict=True)]
        for turn, error in enumerate(errors):
            gradient = gradient + saved[saved_of(turn)].t() @ error
        return gradient

    return loss


def stale(mesh):
    return gradient_by_hand(lambda turn: 0)


def each_its_own(mesh):
    return gradient_by_hand(lambda turn: turn)


def linear(x, w, b):
    return x @ w + b


def bias_on_every_rank(mesh):
    def row_parallel(x, w, b):
        return funcol.all_reduce(torch.addmm(b, x, w), "sum", mesh)

    return row_parallel


def bias_once(mesh):
    def row_parallel(x, w, b):
        return funcol.all_reduce(x @ w, "sum", mesh) + b

    return row_parallel


def embedding(tokens, table):
    return F.embedding(tokens, table)


def mask_of_first_rank(mesh):
    def lookup(tokens, table):
        local = tokens
        mine = (local >= 0) & (local < table.shape[0])
        own = F.embedding(local.clamp(0, table.shape[0] - 1), table) * mine[:, None]
        return funcol.all_reduce(own, "sum", mesh)

    return lookup


def mask_of_own_rank(mesh):
    def lookup(tokens, table):
        local = tokens - mesh.get_local_rank() * table.shape[0]
        mine = (local >= 0) & (local < table.shape[0])
        own = F.embedding(local.clamp(0, table.shape[0] - 1), table) * mine[:, None]
        return funcol.all_reduce(own, "sum", mesh)

    return lookup


def masked_scores(q, k):
    mask = torch.arange(k.shape[0])[None] <= torch.arange(q.shape[0])[:, None]
    return (q @ k.t()).masked_fill(~mask, -1e4).softmax(-1)


def mask_of_first_rows(mesh):
    def scores(q, k):
        position = torch.arange(q.shape[0])
        mask = torch.arange(k.shape[0])[None] <= position[:, None]
        return (q @ k.t()).masked_fill(~mask, -1e4).softmax(-1)

    return scores


def mask_of_own_rows(mesh):
    def scores(q, k):
        position = torch.arange(q.shape[0]) + mesh.get_local_rank() * q.shape[0]
        mask = torch.arange(k.shape[0])[None] <= position[:, None]
        return (q @ k.t()).masked_fill(~mask, -1e4).softmax(-1)

    return scores


MISTAKES = {
    "labels": Mistake(
        "VC113",
        cross_entropy,
        mean_of_own_labels,
        mean_of_all_labels,
        lambda: {"logits": torch.randn(4, 5), "labels": torch.tensor([1, -100, 2, 3])},
        {"logits": S0, "labels": S0},
        "own = F.cross_entropy(logits, labels)",
    ),
    "tokens": Mistake(
        "VC113",
        masked_mean,
        mean_of_own_tokens,
        mean_of_all_tokens,
        lambda: {"losses": torch.randn(4), "mask": torch.ones(4)},
        {"losses": S0, "mask": S0},
        "own = (losses * mask).sum() / mask.sum()",
    ),
    "batch": Mistake(
        "VC114",
        batch_norm,
        statistics_of_own_batch,
        statistics_of_all,
        lambda: {"x": torch.randn(4, 3)},
        {"x": S0},
        "own = x.mean(0)",
        output=S0,
    ),
    "softmax": Mistake(
        "VC114",
        lambda x: x.softmax(-1),
        softmax_of_own_part,
        softmax_of_all,
        lambda: {"x": torch.randn(3, 4)},
        {"x": S1},
        "return lambda x: x.softmax(-1)",
        output=S1,
    ),
    "logits": Mistake(
        "VC115",
        loss_of_logits,
        loss_of_own_classes,
        loss_of_all_classes,
        lambda: {"h": torch.randn(3, 4), "head": torch.randn(4, 3), "labels": torch.tensor([0, 2, 1])},
        {"h": R, "head": S1, "labels": R},
        'return F.cross_entropy(logits, labels, reduction="sum")',
    ),
    "bias": Mistake(
        "VC116",
        linear,
        bias_on_every_rank,
        bias_once,
        lambda: {"x": torch.randn(4, 2), "w": torch.randn(2, 3), "b": torch.randn(3)},
        {"x": S1, "w": S0, "b": R},
        'return funcol.all_reduce(torch.addmm(b, x, w), "sum", mesh)',
    ),
    "vocabulary": Mistake(
        "VC117",
        embedding,
        mask_of_first_rank,
        mask_of_own_rank,
        lambda: {"tokens": torch.tensor([0, 3, 2, 1]), "table": torch.randn(2, 3)},
        {"tokens": R, "table": S0},
        "own = F.embedding(local.clamp(0, table.shape[0] - 1), table) * mine[:, None]",
    ),
    "causal mask": Mistake(
        "VC117",
        masked_scores,
        mask_of_first_rows,
        mask_of_own_rows,
        lambda: {"q": torch.randn(2, 3), "k": torch.randn(4, 3)},
        {"q": S0, "k": R},
        "position = torch.arange(q.shape[0])",
        output=S0,
    ),
    "fused": Mistake(
        "VC118",
        gated,
        cut_as_one,
        cut_each,
        lambda: {"x": torch.randn(3, 4), "gate_up": torch.randn(4, 8)},
        {"x": R, "gate_up": R},
        "own = gate_up.chunk(mesh.size(), 1)[mesh.get_local_rank()]",
        output=S1,
    ),
    "micro-batches": Mistake(
        "VC119",
        gradient_by_hand(lambda turn: turn),
        stale,
        each_its_own,
        lambda: {"x": torch.randn(4, 3), "y": torch.randn(4, 2), "w": torch.randn(3, 2)},
        {"x": R, "y": R, "w": R},
        "gradient = gradient + saved[saved_of(turn)].t() @ error",
    ),
}


def verified(mistake: Mistake, program: Callable[[DeviceMesh], Program]) -> Report:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        return verifycompile.verify(
            None,
            tuple(mistake.inputs().values()),
            build=lambda: program(mesh),
            spec=mistake.spec,
            mesh=mesh,
            in_placements={name: (placement,) for name, placement in mistake.placements.items()},
            out_placements={"output.0": (mistake.output,)},
        )


def named_line(report: Report) -> str:
    place = report.findings[0].impl_location
    assert place is not None
    assert place.file == __file__
    module: Any = inspect.getmodule(named_line)
    return inspect.getsource(module).splitlines()[place.line - 1].strip()


@pytest.mark.parametrize("name", MISTAKES)
def test_the_mistake_is_refused_by_its_name_at_its_line(name: str) -> None:
    mistake = MISTAKES[name]
    report = verified(mistake, mistake.wrong)
    assert (report.verdict, report.findings[0].code) == (Verdict.REFUTED, mistake.code)
    assert named_line(report) == mistake.line


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", MISTAKES)
def test_the_mended_program_is_verified(name: str) -> None:
    mistake = MISTAKES[name]
    report = verified(mistake, mistake.right)
    assert report.verdict is Verdict.VERIFIED, str(report)
