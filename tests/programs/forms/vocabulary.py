"""Vocabulary parallelism and losses over a sharded vocabulary, by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from tests.programs.forms import comm
from tests.programs.forms.form import S0, S1, Form, R

VOCABULARY, WIDTH = 16, 4


def words() -> torch.Tensor:
    return torch.tensor([[0, 5, 4, 9], [15, 1, 4, 8]])


class Table(nn.Module):
    """A shard of the embedding; ``style`` says how the lookup is written."""

    def __init__(self, mesh: DeviceMesh, style: str, mistake: str) -> None:
        super().__init__()
        self.group = mesh.get_group("tp")
        self.mesh, self.style, self.mistake = mesh, style, mistake
        self.rows = VOCABULARY // mesh["tp"].size()
        self.weight = nn.Parameter(torch.randn(self.rows, WIDTH))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        start = self.mesh.get_local_rank("tp") * self.rows
        if self.mistake == "start of the next rank":
            start += self.rows
        if self.mistake == "start of the last rank":
            start = VOCABULARY - self.rows
        stop = start + self.rows - (self.mistake == "last row missing")
        mine = (ids >= start) & (ids < stop)
        found = getattr(self, self.style)(ids, mine, start)
        if self.mistake == "not reduced":
            return found
        if self.mistake == "reduced twice":
            return comm.leave(comm.leave(found, self.group), self.group)
        return comm.leave(found, self.group)

    def masked_index(self, ids: torch.Tensor, mine: torch.Tensor, start: int) -> torch.Tensor:
        local = (ids - start).masked_fill(~mine, 0)
        return self.weight[local] * mine.unsqueeze(-1).to(self.weight.dtype)

    def clamped(self, ids: torch.Tensor, mine: torch.Tensor, start: int) -> torch.Tensor:
        local = torch.clamp(ids - start, min=0, max=self.rows - 1)
        return torch.where(mine[..., None], F.embedding(local, self.weight), 0.0)

    def one_hot(self, ids: torch.Tensor, mine: torch.Tensor, start: int) -> torch.Tensor:
        local = torch.where(mine, ids - start, 0)
        hot = F.one_hot(local, self.rows).to(self.weight.dtype) * mine[..., None]
        return hot @ self.weight

    def compared(self, ids: torch.Tensor, mine: torch.Tensor, start: int) -> torch.Tensor:
        return (ids.unsqueeze(-1) - start == torch.arange(self.rows)).float() @ self.weight

    def limited(self, ids: torch.Tensor, mine: torch.Tensor, start: int) -> torch.Tensor:
        """Indices of other ranks are limited to numbers that no row has; ``mine`` is not asked."""
        least = 0 if self.mistake == "limited to the first row" else -1
        return ((ids - start).clamp(least, self.rows)[..., None] == torch.arange(self.rows)).float() @ self.weight

    def selected(self, ids: torch.Tensor, mine: torch.Tensor, start: int) -> torch.Tensor:
        local = ((ids - start) * mine).reshape(-1)
        rows = torch.index_select(self.weight, 0, local).view(*ids.shape, WIDTH)
        return rows.masked_fill(~mine[..., None], 0)

    def taken(self, ids: torch.Tensor, mine: torch.Tensor, start: int) -> torch.Tensor:
        local = torch.where(mine, ids - start, torch.zeros_like(ids)).flatten()
        rows = self.weight.gather(0, local[:, None].expand(-1, WIDTH)).view(*ids.shape, WIDTH)
        return torch.mul(rows, mine.float().unsqueeze(2))

    def zero_row(self, ids: torch.Tensor, mine: torch.Tensor, start: int) -> torch.Tensor:
        table = torch.cat([self.weight, self.weight.new_zeros(1, WIDTH)])
        return F.embedding(torch.where(mine, ids - start, self.rows), table)

    def zero_row_behind(self, ids: torch.Tensor, mine: torch.Tensor, start: int) -> torch.Tensor:
        """Indices of other ranks are limited to the row of zeros; ``mine`` is not asked."""
        local = ids - start
        table = torch.cat([self.weight, self.weight.new_zeros(1, WIDTH)])
        return F.embedding(torch.where(local < 0, self.rows, local).clamp(max=self.rows), table)

    def zero_row_in_front(self, ids: torch.Tensor, mine: torch.Tensor, start: int) -> torch.Tensor:
        table = F.pad(self.weight, (0, 0, 1, 0))
        return F.embedding(torch.where(mine, ids - start + 1, 0), table)

    def padded(self, ids: torch.Tensor, mine: torch.Tensor, start: int) -> torch.Tensor:
        return F.pad(self.weight, (0, 0, start, VOCABULARY - start - self.rows))[ids]

    def joined(self, ids: torch.Tensor, mine: torch.Tensor, start: int) -> torch.Tensor:
        ends = self.weight.new_zeros(VOCABULARY, WIDTH).tensor_split([start, start + self.rows])
        return F.embedding(ids, torch.cat([ends[0], self.weight, ends[2]]))

    def remainder(self, ids: torch.Tensor, mine: torch.Tensor, start: int) -> torch.Tensor:
        rows = F.embedding(torch.remainder(ids, self.rows), self.weight)
        return rows * (torch.div(ids, self.rows, rounding_mode="floor") == start // self.rows)[..., None]

    def truncated(self, ids: torch.Tensor, mine: torch.Tensor, start: int) -> torch.Tensor:
        rows = F.embedding(ids % self.rows, self.weight)
        return rows * (ids.div(self.rows, rounding_mode="trunc") == start // self.rows).unsqueeze(-1).type_as(rows)


class WholeTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self.weight)


def embedding(style: str, ranks: int, *mistakes: str) -> Form:
    return Form(
        f"embedding-{style}-{ranks}",
        {"tp": ranks},
        WholeTable,
        lambda mesh, mistake: Table(mesh, style, mistake),
        lambda: (words(),),
        {"param_placements": {"weight": (S0,)}, "out_placements": {"output.0": (R,)}},
        mistakes,
    )


class RowLookup(torch.autograd.Function):
    """The lookup with a backward of its own: gradients are added to the rows that this rank has."""

    @staticmethod
    def forward(  # noqa: PLR0917 - as autograd calls it
        ctx: Any, ids: torch.Tensor, weight: torch.Tensor, start: int, group: Any, mistake: str
    ) -> Any:
        rows = weight.shape[0]
        outside = torch.logical_or(ids < start, ids >= start + rows)
        local = torch.where(outside, 0, ids - start)
        found = weight[local]
        found = torch.where(outside[..., None], torch.zeros_like(found), found)
        ctx.save_for_backward(local, outside)
        ctx.rows, ctx.mistake = rows, mistake
        return funcol_sum(found, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        local, outside = ctx.saved_tensors
        if ctx.mistake != "gradient of others kept":
            grad = grad.masked_fill(outside[..., None], 0.0)
        result = grad.new_zeros(ctx.rows, grad.shape[-1])
        if ctx.mistake == "last gradient wins":
            result[local.flatten()] = grad.flatten(0, -2)
            return None, result, None, None, None
        result = result.index_add(0, local.flatten(), grad.flatten(0, -2))
        return None, result * (2 if ctx.mistake == "gradient doubled" else 1), None, None, None


def funcol_sum(x: torch.Tensor, group: Any) -> torch.Tensor:
    return comm.total(x, group)


class OwnBackwardTable(nn.Module):
    def __init__(self, mesh: DeviceMesh, mistake: str) -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake
        self.weight = nn.Parameter(torch.randn(VOCABULARY // mesh["tp"].size(), WIDTH))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        start = self.mesh["tp"].get_local_rank() * self.weight.shape[0]
        found: Any = RowLookup.apply(ids, self.weight, start, self.mesh.get_group("tp"), self.mistake)
        return found


def own_backward(ranks: int) -> Form:
    return Form(
        f"embedding-own-backward-{ranks}",
        {"tp": ranks},
        WholeTable,
        OwnBackwardTable,
        lambda: (words(),),
        {"param_placements": {"weight": (S0,)}, "out_placements": {"output.0": (R,)}},
        ("gradient of others kept", "last gradient wins", "gradient doubled"),
    )


# ------------------------------------------------------------------------------------------------ losses

ROWS = 6
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def logits_and_labels(ranks: int) -> tuple[torch.Tensor, ...]:
    labels = torch.tensor([0, 5, 15, 7, 9, 3])
    return torch.randn(ROWS, VOCABULARY // ranks, requires_grad=True), labels


def negative_log_probability(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.log_softmax(x, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1).neg()


class Parts:
    """What every sharded loss needs: the shifted logits, their log-sum-exp, and the target's logit."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, mesh: DeviceMesh, mistake: str) -> None:
        self.group = mesh.get_group("tp")
        self.size = x.shape[-1]
        rank = mesh.get_local_rank("tp")
        first = rank * self.size
        largest = x.detach().max(dim=-1, keepdim=True).values
        if mistake != "own maximum":
            largest = comm.total(largest, self.group, "max")
        self.largest = largest
        self.shifted = x - largest
        power = torch.exp(self.shifted).sum(-1)
        power = power if mistake == "own divisor" else comm.leave(power, self.group)
        self.log_sum = power.log()
        columns = torch.arange(first, first + self.size)
        if mistake == "own columns":
            columns = torch.arange(self.size)
        hits = y.unsqueeze(-1) == columns
        self.hits = hits
        target = (self.shifted * hits).sum(-1)
        self.target = target if mistake == "own target" else comm.leave(target, self.group)


def cross_entropy(mesh: DeviceMesh, mistake: str) -> Loss:
    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        parts = Parts(x, y, mesh, mistake)
        return (parts.log_sum - parts.target).sum()

    return loss


def smoothed(mesh: DeviceMesh, mistake: str) -> Loss:
    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        parts = Parts(x, y, mesh, mistake)
        everything = parts.shifted.sum(-1)
        everything = everything if mistake == "own mean" else comm.leave(everything, parts.group)
        count = parts.size if mistake == "own size" else VOCABULARY
        uniform = parts.log_sum - everything / count
        return (0.9 * (parts.log_sum - parts.target) + 0.1 * uniform).sum()

    return loss


def whole_smoothed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logs = x.log_softmax(-1)
    return (0.9 * negative_log_probability(x, y) - 0.1 * logs.mean(-1)).sum()


def with_z_loss(mesh: DeviceMesh, mistake: str) -> Loss:
    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        parts = Parts(x, y, mesh, mistake)
        z = parts.log_sum if mistake == "z of the shifted" else parts.log_sum + parts.largest.squeeze(-1)
        return (parts.log_sum - parts.target + 1e-4 * z.square()).sum()

    return loss


def whole_with_z_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (negative_log_probability(x, y) + 1e-4 * torch.logsumexp(x, -1).square()).sum()


def ahead(mesh: DeviceMesh, mistake: str) -> Loss:
    """One loss of the next label, and one of the third behind."""

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        behind = y[1:4] if mistake == "the next label twice" else y[3:]
        next_one, second = (Parts(x[: len(labels)], labels, mesh, mistake) for labels in (y[1:], behind))
        return (next_one.log_sum - next_one.target).mean() + 0.3 * (second.log_sum - second.target).mean()

    return loss


def whole_ahead(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return negative_log_probability(x[:5], y[1:]).mean() + 0.3 * negative_log_probability(x[:3], y[3:]).mean()


def ignoring(mesh: DeviceMesh, mistake: str) -> Loss:
    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kept = y.ne(-100)
        parts = Parts(x, torch.where(kept, y, torch.zeros_like(y)), mesh, mistake)
        each = (parts.log_sum - parts.target) * (torch.ones_like(kept) if mistake == "ignored kept" else kept)
        count = torch.tensor(ROWS) if mistake == "all counted" else kept.sum()
        return each.sum() / count

    return loss


def distilled(mesh: DeviceMesh, mistake: str) -> Loss:
    """Kullback-Leibler divergence of the student from a teacher whose logits are sharded as well."""

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        group = mesh.get_group("tp")

        def log_probabilities(logits: torch.Tensor, temperature: float) -> torch.Tensor:
            logits = logits / temperature
            shift = comm.total(logits.detach().amax(-1, keepdim=True), group, "max")
            power = (logits - shift).exp().sum(-1, keepdim=True)
            power = power if mistake == "own divisor" else comm.leave(power, group)
            if mistake != "divisor's gradient not reduced":
                power = comm.enter(power, group)
            return logits - shift - power.log()

        student = log_probabilities(x, 2.0)
        teacher = log_probabilities(y, 1.0 if mistake == "teacher without temperature" else 2.0)
        each = (teacher.exp() * (teacher - student)).sum(-1)
        each = each if mistake == "not reduced" else comm.leave(each, group)
        return each.mean() * 4.0

    return loss


def whole_distilled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.kl_div((x / 2).log_softmax(-1), (y / 2).softmax(-1), reduction="batchmean") * 4


class FusedLoss(torch.autograd.Function):
    """Forward and backward by hand: the gradient is softmax minus one-hot, made by scatter_add."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, group: Any, mistake: str) -> torch.Tensor:
        ctx.mistake = mistake
        first = dist.get_rank(group) * x.shape[-1]
        shift = comm.total(x.max(-1).values, group, "max").unsqueeze(-1)
        power = torch.exp(x - shift)
        divisor = comm.total(power.sum(-1), group)
        mine = (y >= first) & (y < first + x.shape[-1])
        index = torch.where(mine, y - first, 0).unsqueeze(-1)
        target = torch.where(mine, (x - shift).gather(-1, index).squeeze(-1), 0)
        ctx.save_for_backward(power / divisor.unsqueeze(-1), index, mine)
        return torch.log(divisor) - (target if mistake == "own target" else comm.total(target, group))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        softmax, index, mine = ctx.saved_tensors
        ones = torch.ones_like(mine, dtype=softmax.dtype) if ctx.mistake == "every rank's target" else mine.to(softmax)
        gradient = softmax.scatter_add(-1, index, -ones.unsqueeze(-1))
        return gradient * (1.0 if ctx.mistake == "gradient not scaled" else grad.unsqueeze(-1)), None, None, None


def fused(mesh: DeviceMesh, mistake: str) -> Loss:
    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        each: Any = FusedLoss.apply(x, y, mesh.get_group("tp"), mistake)
        return each.mean()

    return loss


def sharded_loss(name: str, ranks: int, program: Callable[[DeviceMesh, str], Loss], spec: Loss, *mistakes: str) -> Form:
    return Form(
        f"loss-{name}-{ranks}",
        {"tp": ranks},
        lambda: spec,
        program,
        lambda: logits_and_labels(ranks),
        {"in_placements": {"x": (S1,), "y": (R,)}, "out_placements": {"output.0": (R,)}},
        mistakes,
    )


def distillation(ranks: int) -> Form:
    return Form(
        f"loss-distilled-{ranks}",
        {"tp": ranks},
        lambda: whole_distilled,
        distilled,
        lambda: (torch.randn(ROWS, VOCABULARY // ranks, requires_grad=True), torch.randn(ROWS, VOCABULARY // ranks)),
        {"in_placements": {"x": (S1,), "y": (S1,)}, "out_placements": {"output.0": (R,)}},
        ("own divisor", "divisor's gradient not reduced", "teacher without temperature", "not reduced"),
    )


class HeadAndLoss(nn.Module):
    """Rows over dp, vocabulary over tp; the head is used by both, and the loss is the sum over the global count."""

    def __init__(self, mesh: DeviceMesh, mistake: str) -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake
        self.head = nn.Linear(WIDTH, VOCABULARY // mesh["tp"].size(), bias=False)

    def forward(self, h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        dp, tp = self.mesh.get_group("dp"), self.mesh.get_group("tp")
        weight = self.head.weight if self.mistake == "head over dp" else comm.enter(self.head.weight, dp)
        h = h if self.mistake == "states over tp" else comm.enter(h, tp)
        parts = Parts(F.linear(h, weight), y, self.mesh, self.mistake)
        kept = y != -100
        each = torch.where(kept, parts.log_sum - parts.target, 0.0).sum()
        count = kept.sum() if self.mistake == "own count" else comm.total(kept.sum(), dp)
        return comm.leave(each, dp) / count


class WholeHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(h), y)


def head_and_loss(dp: int, tp: int) -> Form:
    return Form(
        f"head-and-loss-{dp}x{tp}",
        {"dp": dp, "tp": tp},
        WholeHead,
        HeadAndLoss,
        lambda: (torch.randn(4, WIDTH, requires_grad=True), torch.tensor([3, -100, 9, 0])),
        {
            "in_placements": {"h": (S0, R), "y": (S0, R)},
            "param_placements": {"head.weight": (R, S0)},
            "out_placements": {"output.0": (R, R)},
        },
        ("head over dp", "states over tp", "own count", "own divisor"),
    )


WORDS = 13
"""Of a vocabulary that is padded: behind them there are rows that stand for no word."""


def padded_model(ids: torch.Tensor, y: torch.Tensor, table: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    logits = torch.tanh(F.embedding(ids, table)) @ head.t()
    return negative_log_probability(logits.masked_fill(torch.arange(len(head)) >= WORDS, float("-inf")), y).mean()


def padded_model_on_ranks(mesh: DeviceMesh, mistake: str) -> Callable[..., Any]:
    def program(ids: torch.Tensor, y: torch.Tensor, table: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        group, rows = mesh.get_group("tp"), len(table)
        start = mesh.get_local_rank("tp") * rows
        local = ids - start
        mine = (local >= 0) & (local < rows)
        found = F.embedding(torch.where(mine, local, 0), table) * mine[..., None]
        logits = comm.enter(torch.tanh(comm.leave(found, group)), group) @ head.t()
        places = torch.arange(rows) + (0 if mistake == "own places" else start)
        padding = places > WORDS if mistake == "one word more" else places >= WORDS
        if mistake != "not masked":
            logits = torch.where(padding, -torch.inf, logits)
        parts = Parts(logits, y, mesh, mistake)
        label = y - start
        inside = (label >= 0) & (label < rows)
        target = logits.gather(-1, torch.where(inside, label, 0)[:, None])[:, 0]
        return (parts.log_sum + parts.largest[:, 0] - comm.leave(torch.where(inside, target, 0.0), group)).mean()

    return program


def padded_vocabulary(ranks: int) -> Form:
    """Tables and heads padded to a multiple of the ranks; no padding has a probability."""
    return Form(
        f"padded-vocabulary-{ranks}",
        {"tp": ranks},
        lambda: padded_model,
        padded_model_on_ranks,
        lambda: (
            torch.tensor([3, 0, 12, 7]),
            torch.tensor([1, 12, 9, 0]),
            *(torch.randn(VOCABULARY // ranks, WIDTH, requires_grad=True) for _ in range(2)),
        ),
        {"in_placements": {"table": (S0,), "head": (S0,)}, "out_placements": {"output.0": (R,)}},
        ("not masked", "one word more", "own places", "own divisor"),
    )


MASKS = ("start of the next rank", "last row missing", "not reduced", "reduced twice")
COMMON = ("own maximum", "own divisor", "own target", "own columns")

FORMS: tuple[Form, ...] = (
    *(
        embedding(style, ranks, *MASKS)
        for style, ranks in (
            ("masked_index", 2), ("clamped", 4), ("one_hot", 2), ("selected", 8), ("taken", 2), ("zero_row", 4),
            ("zero_row_in_front", 2),
        )
    ),
    embedding("zero_row_behind", 2, "start of the next rank", "not reduced", "reduced twice"),
    *(embedding(style, 4, "start of the next rank", "not reduced", "reduced twice") for style in ("remainder", "truncated")),
    embedding("compared", 4, "start of the next rank", "not reduced", "reduced twice"),
    embedding("limited", 4, "limited to the first row", "start of the next rank", "not reduced"),
    *(embedding(style, 4, "start of the last rank", "not reduced", "reduced twice") for style in ("padded", "joined")),
    own_backward(4),
    sharded_loss("cross-entropy", 4, cross_entropy, lambda x, y: negative_log_probability(x, y).sum(), *COMMON),
    sharded_loss("ahead", 2, ahead, whole_ahead, "the next label twice", *COMMON),
    sharded_loss("smoothed", 2, smoothed, whole_smoothed, "own mean", "own size", *COMMON),
    sharded_loss("z", 2, with_z_loss, whole_with_z_loss, "z of the shifted", *COMMON),
    sharded_loss("ignoring", 2, ignoring, F.cross_entropy, "all counted", "ignored kept", *COMMON),
    sharded_loss(
        "fused",
        4,
        fused,
        lambda x, y: negative_log_probability(x, y).mean(),
        "own target",
        "every rank's target",
        "gradient not scaled",
    ),
    distillation(2),
    head_and_loss(2, 2),
    padded_vocabulary(4),
)  # fmt: skip
