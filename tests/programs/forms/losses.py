"""Losses over samples that are sharded over data parallelism, and losses that need the samples of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tests.programs.forms import comm
from tests.programs.forms.form import S0, Form, R

Function = Callable[..., torch.Tensor]
MISTAKES = ("summed means", "own mean", "gradient not reduced")


class Model(nn.Module):
    """A linear layer and a loss; over ``dp`` the rank's mean is averaged, and so is the weight's gradient."""

    def __init__(self, loss: Function, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))
        self.loss, self.mesh, self.mistake = loss, mesh, mistake

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.mesh is None:
            return self.loss(x @ self.weight, y)
        group, size = self.mesh.get_group("dp"), self.mesh["dp"].size()
        weight = self.weight if self.mistake == "gradient not reduced" else comm.enter(self.weight, group)
        mean = self.loss(x @ weight, y)
        if self.mistake == "own mean":
            return mean
        return comm.leave(mean if self.mistake == "summed means" else mean / size, group)


def real_targets() -> tuple[torch.Tensor, ...]:
    return torch.randn(2, 4, requires_grad=True), torch.randn(2, 3)


def probabilities() -> tuple[torch.Tensor, ...]:
    return torch.randn(2, 4, requires_grad=True), torch.rand(2, 3)


def over_dp(name: str, ranks: int, loss: Function, args: Callable[[], tuple[torch.Tensor, ...]]) -> Form:
    return Form(
        f"mean-{name}-{ranks}",
        {"dp": ranks},
        lambda: Model(loss),
        lambda mesh, mistake: Model(loss, mesh, mistake),
        args,
        {"in_placements": {"x": (S0,), "y": (S0,)}, "out_placements": {"output.0": (R,)}},
        MISTAKES,
    )


def focal(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    p = torch.sigmoid(logits)
    right = p * y + (1 - p) * (1 - y)
    return (F.binary_cross_entropy_with_logits(logits, y, reduction="none") * (1 - right) ** 2).mean()


def charbonnier(prediction: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sqrt((prediction - y).square() + 1e-6).mean()


def log_cosh(prediction: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.log(torch.cosh(prediction - y)).mean()


def hinge(prediction: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.clamp(1 - prediction * y, min=0).mean()


def weighted_bags(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Rows of a table under weights of their own, as in a memory that is looked up by keys."""
    table, places = y.new_tensor([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0], [-2.0, 1.0, 1.0]]), y.argsort(-1)
    return (F.embedding_bag(places, table, mode="sum", per_sample_weights=logits.softmax(-1)) - y).square().mean()


def cosine(prediction: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (1 - F.cosine_similarity(prediction, y, dim=-1)).mean()


def soft_targets(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, y.softmax(-1))


def kl(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.kl_div(F.log_softmax(logits, -1), F.log_softmax(y, -1), reduction="batchmean", log_target=True)


# ------------------------------------------------------------------------------------------------ weights of tokens


class Masked(nn.Module):
    """A sum over kept samples divided by their number on all ranks; ``style``: how the sums are reduced."""

    def __init__(self, style: str, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.head = nn.Linear(4, 5)
        self.style, self.mesh, self.mistake = style, mesh, mistake

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.mesh is None:
            return F.cross_entropy(self.head(x), y, ignore_index=0)
        group = self.mesh.get_group("dp")
        weight, bias = comm.enter(self.head.weight, group), comm.enter(self.head.bias, group)
        logits = F.linear(x, weight, bias)
        kept = y != 0
        if self.mistake == "mean of means":
            return comm.leave(F.cross_entropy(logits, y, ignore_index=0) / self.mesh.size(), group)
        if self.style == "sum":
            own = F.cross_entropy(logits, y, ignore_index=0, reduction="sum")
        elif self.style == "none":
            own = F.cross_entropy(logits, y, ignore_index=0, reduction="none").sum()
        else:
            own = (F.cross_entropy(logits, y, ignore_index=0, reduction="none") * kept).sum()
        count = kept.sum() if self.style != "float" else kept.to(logits.dtype).sum()
        if self.mistake == "all samples counted":
            count = torch.tensor(y.numel())
        if self.mistake != "own count":
            count = comm.total(count, group)
        if self.mistake == "divided before the reduction by its own count":
            return comm.leave(own / kept.sum(), group)
        return comm.leave(own / count, group)


def masked(style: str, ranks: int) -> Form:
    return Form(
        f"masked-{style}-{ranks}",
        {"dp": ranks},
        lambda: Masked(style),
        lambda mesh, mistake: Masked(style, mesh, mistake),
        lambda: (torch.randn(3, 4, requires_grad=True), torch.tensor([0, 2, 4])),
        {"in_placements": {"x": (S0,), "y": (S0,)}, "out_placements": {"output.0": (R,)}},
        ("mean of means", "all samples counted", "own count", "divided before the reduction by its own count"),
    )


class Weighted(nn.Module):
    """Class weights: torch's mean divides by the sum of the weights of the samples."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.head = nn.Linear(4, 5, bias=False)
        self.register_buffer("classes", torch.tensor([0.5, 1.0, 1.5, 2.0, 0.25]))
        self.mesh, self.mistake = mesh, mistake

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        classes: Any = self.classes
        if self.mesh is None:
            return F.cross_entropy(self.head(x), y, weight=classes)
        group = self.mesh.get_group("dp")
        logits = F.linear(x, comm.enter(self.head.weight, group))
        if self.mistake == "mean of means":
            return comm.leave(F.cross_entropy(logits, y, weight=classes), group) / self.mesh.size()
        own = F.cross_entropy(logits, y, weight=classes, reduction="sum")
        kept = y != -100
        if self.mistake == "samples counted":
            return comm.leave(own, group) / comm.total(kept.sum(), group)
        share = (classes[torch.where(kept, y, 0)] * (kept if self.mistake != "ignored counted" else 1)).sum()
        return comm.leave(own, group) / comm.total(share, group)


def weighted(ranks: int) -> Form:
    return Form(
        f"class-weights-{ranks}",
        {"dp": ranks},
        Weighted,
        Weighted,
        lambda: (torch.randn(3, 4, requires_grad=True), torch.tensor([0, -100, 4])),
        {"in_placements": {"x": (S0,), "y": (S0,)}, "out_placements": {"output.0": (R,)}},
        ("mean of means", "samples counted", "ignored counted"),
    )


# ------------------------------------------------------------------------------------------------ contrastive


class Contrastive(nn.Module):
    """CLIP: features of all ranks on every rank, each rank the rows of its own samples."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.image = nn.Linear(4, 6, bias=False)
        self.text = nn.Linear(4, 6, bias=False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.mesh, self.mistake = mesh, mistake

    def forward(self, images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        if self.mesh is None:
            a = F.normalize(self.image(images), dim=-1)
            b = F.normalize(self.text(texts), dim=-1)
            logits = self.scale.exp() * a @ b.t()
            labels = torch.arange(logits.shape[0])
            return (self.pairs(logits, labels) + self.pairs(logits.t(), labels)) / 2
        group, size = self.mesh.get_group("dp"), self.mesh["dp"].size()
        a = F.normalize(F.linear(images, comm.enter(self.image.weight, group)), dim=-1)
        b = F.normalize(F.linear(texts, comm.enter(self.text.weight, group)), dim=-1)
        scale = comm.enter(self.scale, group).exp()
        cut = self.mistake == "own gradient only"
        every_a, every_b = comm.gather(a, 0, group, cut), comm.gather(b, 0, group, cut)
        if self.mistake == "texts of images":
            every_b = every_a
        labels = torch.arange(a.shape[0]) + (
            0 if self.mistake == "labels of the first rank" else self.mesh.get_local_rank("dp") * a.shape[0]
        )
        loss = (self.pairs(scale * a @ every_b.t(), labels) + self.pairs(scale * b @ every_a.t(), labels)) / 2
        return comm.leave(loss if self.mistake == "summed means" else loss / size, group)

    @staticmethod
    def pairs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return -logits.log_softmax(-1).gather(1, labels[:, None]).mean()


def contrastive(ranks: int) -> Form:
    return Form(
        f"contrastive-{ranks}",
        {"dp": ranks},
        Contrastive,
        Contrastive,
        lambda: (torch.randn(2, 4), torch.randn(2, 4)),
        {"in_placements": {"images": (S0,), "texts": (S0,)}, "out_placements": {"output.0": (R,)}},
        ("own gradient only", "texts of images", "labels of the first rank", "summed means"),
    )


class Sigmoid(nn.Module):
    """SigLIP on whole features: positive pairs on the diagonal of the whole matrix."""

    def __init__(self, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if self.mesh is None:
            signs = 2 * torch.eye(a.shape[0]) - 1
            return -F.logsigmoid(signs * (a @ b.t())).sum() / a.shape[0]
        group, size = self.mesh.get_group("dp"), self.mesh["dp"].size()
        every = comm.gather(b, 0, group, cut=self.mistake == "own gradient only")
        rows = torch.arange(a.shape[0])[:, None]
        if self.mistake != "diagonal of the first rank":
            rows = rows + self.mesh.get_local_rank("dp") * a.shape[0]
        signs = torch.where(rows == torch.arange(every.shape[0]), 1.0, -1.0)
        own = -F.logsigmoid(signs * (a @ every.t())).sum()
        return comm.leave(own / (a.shape[0] * (1 if self.mistake == "own count" else size)), group)


def sigmoid(ranks: int) -> Form:
    return Form(
        f"sigmoid-pairs-{ranks}",
        {"dp": ranks},
        Sigmoid,
        Sigmoid,
        lambda: (torch.randn(2, 4, requires_grad=True), torch.randn(2, 4, requires_grad=True)),
        {"in_placements": {"a": (S0,), "b": (S0,)}, "out_placements": {"output.0": (R,)}},
        ("own gradient only", "diagonal of the first rank", "own count"),
    )


class PlacedLoss(nn.Module):
    """The model's own loss on DTensors whose batch is sharded."""

    def __init__(self, loss: Function, mesh: DeviceMesh | None = None, mistake: str = "") -> None:
        super().__init__()
        self.loss, self.mesh, self.mistake = loss, mesh, mistake

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.mesh is None:
            return self.loss(x, y)
        placement = (R,) if self.mistake == "called replicated" else (S0,)
        a = DTensor.from_local(x, self.mesh, placement, run_check=False)
        b = DTensor.from_local(y, self.mesh, placement, run_check=False)
        result: Any = self.loss(a, b)
        if self.mistake == "local":
            return result.to_local()
        if self.mistake == "doubled":
            return 2 * result.full_tensor()
        return result.full_tensor()


def placed(name: str, ranks: int, loss: Function, args: Any = real_targets) -> Form:
    return Form(
        f"placed-{name}-{ranks}",
        {"dp": ranks},
        lambda: PlacedLoss(loss),
        lambda mesh, mistake: PlacedLoss(loss, mesh, mistake),
        lambda: tuple(t[:, :3].detach().requires_grad_(t.requires_grad) for t in args()),
        {"in_placements": {"x": (S0,), "y": (S0,)}, "out_placements": {"output.0": (R,)}},
        ("called replicated", "local", "doubled"),
    )


class RelativePositions(nn.Module):
    """Attention whose logits are a sum of products: the gradient of the norm's bias meets the weights' own sum."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.position = nn.LayerNorm(4), nn.Embedding(9, 4)
        self.query, self.key, self.value = (nn.Linear(4, 4, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        query, places = self.query(x), torch.arange(x.shape[1])
        distance = self.position((places[:, None] - places).clamp(-4, 4) + 4)
        logits = query @ self.key(x).transpose(1, 2) + torch.einsum("bid,ijd->bij", query, distance)
        return logits.softmax(-1) @ self.value(x)


class Pooled(nn.Module):
    """A mean over positions of a gated or residual layer: the gradient of one of its weights meets its own sum."""

    def __init__(self, style: str, mistake: str = "") -> None:
        super().__init__()
        self.style, self.mistake = style, mistake
        self.gate = nn.Linear(4, 4)
        perceptron = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))
        self.branch = RelativePositions() if style == "positions" else perceptron

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch = self.branch(x)
        y = (x + branch).mean(1) if self.style == "mean" else x + self.gate(x[:, :1]) * branch
        if self.mistake == "about its own mean":
            y = y - y.mean(0)
        return y.square().sum() if self.mistake == "sum" else y.square().mean() * (2 if self.mistake == "scaled" else 1)


def pooled(style: str) -> Form:
    def program(mesh: DeviceMesh, mistake: str) -> Pooled:
        model = Pooled(style, mistake)
        fully_shard(model, mesh=mesh)
        return model

    return Form(
        f"pooled-{style}",
        {"dp": 2},
        lambda: Pooled(style),
        program,
        lambda: (torch.randn(2, 3, 4),),
        {},
        ("about its own mean", "sum", "scaled"),
    )


FORMS: tuple[Form, ...] = (
    pooled("mean"),
    pooled("gate"),
    pooled("positions"),
    over_dp("mse", 2, F.mse_loss, real_targets),
    over_dp("l1", 4, F.l1_loss, real_targets),
    over_dp("smooth-l1", 2, lambda x, y: F.smooth_l1_loss(x, y, beta=0.5), real_targets),
    over_dp("huber", 8, lambda x, y: F.huber_loss(x, y, delta=0.7), real_targets),
    over_dp("bce-logits", 2, F.binary_cross_entropy_with_logits, probabilities),
    over_dp("bce", 2, lambda x, y: F.binary_cross_entropy(torch.sigmoid(x), y), probabilities),
    over_dp(
        "bce-positive",
        2,
        lambda x, y: F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.tensor([1.0, 2.0, 3.0])),
        probabilities,
    ),
    over_dp("poisson", 2, F.poisson_nll_loss, probabilities),
    over_dp("soft-margin", 2, F.soft_margin_loss, real_targets),
    over_dp("cosine", 2, cosine, real_targets),
    over_dp("focal", 2, focal, probabilities),
    over_dp("charbonnier", 2, charbonnier, real_targets),
    over_dp("log-cosh", 2, log_cosh, real_targets),
    over_dp("hinge", 2, hinge, real_targets),
    over_dp("soft-targets", 4, soft_targets, real_targets),
    over_dp("kl", 2, kl, real_targets),
    over_dp("weighted-bags", 2, weighted_bags, real_targets),
    *(masked(style, ranks) for style, ranks in (("sum", 2), ("none", 4), ("mask", 2), ("float", 2))),
    weighted(2),
    contrastive(2),
    contrastive(4),
    sigmoid(4),
    placed("mse", 2, lambda x, y: F.mse_loss(x, y, reduction="sum")),
    placed("huber", 2, lambda x, y: F.huber_loss(x, y, reduction="sum")),
    placed("soft-targets", 2, soft_targets),
    placed("cosine", 2, cosine),
)
