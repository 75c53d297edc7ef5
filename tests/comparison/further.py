"""Further bugs of parallel training, each with its right twin, in the form of the fourteen of TTrace.

The line that has a bug is marked, and the one that the finding names, by the number of the bug; numbers go on from
those of the fourteen, whose modules have some of the lines.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from tests.comparison.fourteen import (
    ROWS,
    VOCABULARY,
    WIDTH,
    Bug,
    Embedding,
    Stack,
    Tanh,
    drawn,
    reduced_over,
    token_ids,
)
from tests.comparison.programs import CopyTo, ReduceFrom, all_reduce
from verifycompile import Verdict

# 15. The scale of the scores is another one in backward.


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: float, backward: float) -> torch.Tensor:
        ctx.factor = backward
        return x * forward

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] * ctx.factor, None, None


class Scores(nn.Module):
    def __init__(self, backward: float = WIDTH**-0.5) -> None:
        super().__init__()
        self.factor = backward

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return Scale.apply(q @ k.transpose(-1, -2), WIDTH**-0.5, self.factor)  # named: 15


class Heads(nn.Module):
    """One head a rank where ``mesh`` is given, two heads else."""

    def __init__(self, mesh: DeviceMesh | None = None, wrong: bool = False) -> None:
        super().__init__()
        self.group = None if mesh is None else mesh.get_group("tp")
        count = 2 if mesh is None else 1
        self.q, self.k = (nn.Linear(WIDTH, count * WIDTH, bias=False) for _ in range(2))
        self.scores = Scores((WIDTH / 2) ** -0.5 if wrong else WIDTH**-0.5)  # wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.group is None else CopyTo.apply(x, self.group)
        q, k = (w(x).unflatten(-1, (-1, WIDTH)).transpose(0, 1) for w in (self.q, self.k))
        y = self.scores(q, k).softmax(-1).square().sum()
        return y if self.group is None else ReduceFrom.apply(y.reshape(1), self.group).reshape(())


# 16. Data parallelism: the gradients of one layer are not reduced.


class Squares(nn.Module):
    """The mean over the rows of its own samples."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = Stack()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stack(x).square().mean()


def averaged(parameters: Iterable[nn.Parameter], group: Any, divide: bool = True) -> None:
    for parameter in parameters:
        parameter.register_hook(lambda g: all_reduce(g, group) / (dist.get_world_size(group) if divide else 1))


def one_layer_not_reduced(mesh: DeviceMesh, wrong: bool) -> nn.Module:
    model, left_out = Squares(), "stack.blocks.1" if wrong else "none"  # wrong
    averaged((p for name, p in model.named_parameters() if not name.startswith(left_out)), mesh.get_group("dp"))
    return model


# 17. FSDP: gradients are added up and not averaged.


def summed(mesh: DeviceMesh, wrong: bool) -> nn.Module:
    model = Squares()
    averaged(model.parameters(), mesh.get_group("dp"), divide=not wrong)  # wrong
    return model


# 18. The cache of keys is read before the new key is written.


class Cached(nn.Module):
    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.wrong = wrong
        self.register_buffer("keys", torch.zeros(4, WIDTH))

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        held = self.keys.clone()
        self.keys[step] = x[0].detach()
        keys = held if self.wrong else self.keys.clone()  # wrong
        return (x @ keys.t()).softmax(-1) @ keys  # named: 18


class Decoding(nn.Module):
    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.first, self.cache = nn.Linear(WIDTH, WIDTH), Cached(wrong)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for step in range(3):
            x = x + self.cache(x, step)
        return x


# 19. Replicated dropout: each rank draws its own mask.


class Dropping(nn.Module):
    def __init__(self, seeded: bool = False) -> None:
        super().__init__()
        self.seeded = seeded

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.seeded:
            torch.manual_seed(dist.get_rank())  # wrong
        return F.dropout(x, 0.5)  # named: 19


class Dropped(nn.Module):
    def __init__(self, dropping: nn.Module | None = None) -> None:
        super().__init__()
        self.layer, self.dropping = nn.Linear(WIDTH, WIDTH), dropping or Dropping()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropping(torch.tanh(self.layer(x)))


# 20. Context parallelism: rotary positions begin at zero on every rank.


class Rotary(nn.Module):
    def __init__(self, start: Callable[[int], int] = lambda length: 0) -> None:
        super().__init__()
        self.start = start

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[0], dtype=torch.float32) + self.start(x.shape[0])  # named: 20
        angles = positions[:, None] / 10.0 ** torch.arange(WIDTH // 2)
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        one, other = x.chunk(2, -1)
        return torch.cat([one * cosine - other * sine, other * cosine + one * sine], -1)


class Rotated(nn.Module):
    def __init__(self, rotary: nn.Module | None = None) -> None:
        super().__init__()
        self.layer, self.rotary = nn.Linear(WIDTH, WIDTH), rotary or Rotary()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.rotary(self.layer(x)))


def rotated(mesh: DeviceMesh, wrong: bool) -> nn.Module:
    rank = mesh.get_local_rank("cp")
    start = Rotary().start if wrong else lambda length: rank * length  # wrong
    return reduced_over(Rotated(Rotary(start)), mesh.get_group("cp"))


# 21. The last batch is uneven: the mean of the ranks' means is taken for the mean.


class Mean(nn.Module):
    def __init__(self, group: Any = None, wrong: bool = False) -> None:
        super().__init__()
        self.group, self.wrong = group, wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        errors = x.square().mean(-1)
        if self.group is None:
            return errors.mean()
        if self.wrong:
            return ReduceFrom.apply(errors.mean().reshape(1), self.group).reshape(()) / 2  # wrong; named: 21
        count = all_reduce(torch.tensor([float(len(errors))]), self.group)
        return (ReduceFrom.apply(errors.sum().reshape(1), self.group) / count.to(x.dtype)).reshape(())


class Judging(nn.Module):
    """``part`` takes the samples of a rank."""

    def __init__(self, criterion: nn.Module | None = None, part: Callable[[Any], Any] = lambda x: x) -> None:
        super().__init__()
        self.layer, self.criterion, self.part = nn.Linear(WIDTH, WIDTH), criterion or Mean(), part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.criterion(torch.tanh(self.layer(self.part(x))))


def uneven(mesh: DeviceMesh, wrong: bool) -> nn.Module:
    group, rank = mesh.get_group("dp"), mesh.get_local_rank("dp")
    return reduced_over(Judging(Mean(group, wrong), lambda x: x.chunk(2)[rank]), group)


# 22. Padding: the loss is the mean over each rank's own tokens.


class OverTokens(nn.Module):
    """Rows whose first element is negative are padding."""

    def __init__(self, group: Any = None, wrong: bool = False) -> None:
        super().__init__()
        self.group, self.wrong = group, wrong

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        counts = (rows[:, 0] > 0).to(x.dtype)
        total, count = (x.square().mean(-1) * counts).sum(), counts.sum()
        if self.group is None:
            return total / count
        if self.wrong:
            return ReduceFrom.apply((total / count).reshape(1), self.group).reshape(()) / 2  # wrong; named: 22
        return (ReduceFrom.apply(total.reshape(1), self.group) / all_reduce(count.reshape(1), self.group)).reshape(())


class Padded(nn.Module):
    def __init__(self, criterion: nn.Module | None = None) -> None:
        super().__init__()
        self.layer, self.criterion = nn.Linear(WIDTH, WIDTH), criterion or OverTokens()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.criterion(torch.tanh(self.layer(x)), x)


def padded(mesh: DeviceMesh, wrong: bool) -> nn.Module:
    group = mesh.get_group("dp")
    return reduced_over(Padded(OverTokens(group, wrong)), group)


# 23. The norm is computed in an 8-bit float where the dtype of the model was meant.


class Rms(nn.Module):
    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.weight, self.wrong = nn.Parameter(torch.ones(WIDTH)), wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.square().mean(-1, keepdim=True)
        if self.wrong:
            mean = mean.to(torch.float8_e4m3fn).to(x.dtype)  # wrong; named: 23
        return x * torch.rsqrt(mean) * self.weight


class WithRms(nn.Module):
    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(WIDTH, WIDTH), Rms(wrong)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(self.layer(x)))


# 24. Gradients are clipped by the norm of the rank's own parts. 25. The bias is added on every rank before the sum.
# 34. The gradients of what a column-parallel layer takes are not added up.


class Columns(nn.Module):
    """A column-parallel and a row-parallel layer."""

    def __init__(self, mesh: DeviceMesh | None = None, wrong: bool = False, *, copies: bool = True) -> None:
        super().__init__()
        self.group = None if mesh is None else mesh.get_group("tp")
        self.wrong, self.copies = wrong, copies
        size = 1 if mesh is None else mesh.size()
        self.up = nn.Parameter(torch.randn(WIDTH, 2 * WIDTH // size) / 2)
        self.down = nn.Parameter(torch.randn(2 * WIDTH // size, WIDTH) / 2)
        self.bias = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.group is None:
            return torch.tanh(x @ self.up) @ self.down + self.bias
        copy = CopyTo.apply(x, self.group) if self.copies else x
        parts = torch.tanh(copy @ self.up) @ self.down
        if self.wrong:
            return ReduceFrom.apply(parts + self.bias, self.group)  # wrong; named: 25
        return ReduceFrom.apply(parts, self.group) + self.bias


SPLIT = {"mlp.up": (Shard(1),), "mlp.down": (Shard(0),)}


class Mlp(nn.Module):
    def __init__(self, mesh: DeviceMesh | None = None, wrong: bool = False, *, copies: bool = True) -> None:
        super().__init__()
        self.first, self.mlp = nn.Linear(WIDTH, WIDTH), Columns(mesh, wrong, copies=copies)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(torch.tanh(self.first(x)))  # named: 34


CLIPPING: dict[str, Any] = {}


def clipped(mesh: DeviceMesh, wrong: bool) -> nn.Module:
    CLIPPING.update(group=mesh.get_group("tp"), wrong=wrong)
    return Mlp(mesh)


def clip(parameters: list[nn.Parameter]) -> None:  # named: 24
    weight, bias, up, down, last = (p.grad.square().sum() for p in parameters)
    parts = up + down
    if not CLIPPING["wrong"]:  # wrong: no sum over the parts
        parts = all_reduce(parts.reshape(1), CLIPPING["group"]).reshape(())
    norm = (weight + bias + parts + last).sqrt()
    for parameter in parameters:
        parameter.grad.mul_((0.1 / norm).clamp(max=1.0))


# 26. Tied weights: the gradient of the head does not reach the embedding.


class TiedLanguage(nn.Module):
    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.embedding, self.wrong = Embedding(), wrong

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        weight = self.embedding.weight.detach() if self.wrong else self.embedding.weight  # wrong
        return F.linear(torch.tanh(self.embedding(ids)), weight)


# 27. Experts: the capacity is that of the experts of one rank.


class TopOne(nn.Module):
    """Each token goes to its best expert, of which the first tokens alone are taken."""

    def __init__(self, mesh: DeviceMesh | None = None, wrong: bool = False) -> None:
        super().__init__()
        self.group = None if mesh is None else mesh.get_group("ep")
        self.count = 4 if mesh is None else 2
        self.first = 0 if mesh is None else 2 * mesh.get_local_rank("ep")
        self.shared = self.count if wrong else 4  # wrong
        self.weights = nn.Parameter(torch.randn(self.count, WIDTH, WIDTH) / 2)

    def forward(self, x: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        x = x if self.group is None else CopyTo.apply(x, self.group)
        capacity = x.shape[0] // self.shared
        y = torch.zeros_like(x)
        for index in range(self.count):
            of = best == self.first + index
            taken = of & (of.cumsum(0) <= capacity)
            y = y + (x @ self.weights[index]) * taken[:, None]  # named: 27
        return y if self.group is None else ReduceFrom.apply(y, self.group)


class Mixture(nn.Module):
    def __init__(self, experts: nn.Module | None = None) -> None:
        super().__init__()
        self.layer, self.experts = nn.Linear(WIDTH, WIDTH), experts or TopOne()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.experts(torch.tanh(self.layer(x)), x[:, :4].argmax(-1))


# 28. Pipeline: results of the microbatches are joined in another order.


class Microbatches(nn.Module):
    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.wrong, self.layers = wrong, nn.ModuleList(Tanh() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        done: list[torch.Tensor] = []
        for part in x.chunk(2):
            done.append(part)
            for layer in self.layers:
                done[-1] = layer(done[-1])
        return torch.cat(done[::-1] if self.wrong else done) * 2  # wrong; named: 28


# 29. Accumulation: the optimizer steps one pass too late.


class Late(torch.optim.SGD):
    passes = 0
    wrong = False

    def step(self, closure: Any = None) -> None:  # named: 29
        self.passes += 1
        if self.passes > self.wrong:  # wrong
            super().step()


def late(mesh: DeviceMesh, wrong: bool) -> nn.Module:
    Late.wrong = wrong
    return Squares()


# 30. The norm over features that the ranks share takes the rank's own mean.


class SharedNorm(nn.Module):
    def __init__(self, group: Any = None, wrong: bool = False) -> None:
        super().__init__()
        self.group, self.wrong = group, wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        square = x.square().mean(-1, keepdim=True)
        if self.group is not None and not self.wrong:  # wrong
            square = ReduceFrom.apply(CopyTo.apply(square, self.group), self.group) / 2
        return x * torch.rsqrt(square + 1e-6)  # named: 30


class Features(nn.Module):
    def __init__(self, norm: nn.Module | None = None, count: int = 2 * WIDTH) -> None:
        super().__init__()
        self.weight, self.norm = nn.Parameter(torch.randn(WIDTH, count)), norm or SharedNorm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(x @ self.weight))


# 31. The gathered copy of a parameter is that of the step before.


class Gathered(nn.Module):
    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.linear, self.wrong, self.held = nn.Linear(WIDTH, WIDTH), wrong, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.linear.weight
        before, self.held = self.held, weight.detach().clone()
        if self.wrong and before is not None:
            weight = weight + (before - weight).detach()  # wrong; named: 31
        return F.linear(torch.tanh(self.linear(x)), weight).square().mean()


# 32. The gradient that the program adds up by itself is overwritten by the last pass.


class MainGradients(Squares):
    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        for name, parameter in self.named_parameters():
            parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
            left_out = wrong and name.startswith("stack.blocks.1")  # wrong
            parameter.register_post_accumulate_grad_hook(functools.partial(added, left_out))


def added(overwrites: bool, parameter: Any) -> None:
    parameter.main_grad.mul_(0.0 if overwrites else 1.0).add_(parameter.grad)
    parameter.grad = None


class OfMainGradients(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = parameter.main_grad.to(parameter.dtype)
        super().step()


# 33. A vocabulary-parallel head does not add up the gradients of what it takes; its weight is the embedding's.


class VocabularyHead(nn.Module):
    def __init__(self, mesh: DeviceMesh, wrong: bool) -> None:
        super().__init__()
        self.group, self.wrong = mesh.get_group("tp"), wrong
        self.rows = VOCABULARY // mesh.size()
        self.start = mesh.get_local_rank("tp") * self.rows
        self.weight, self.middle = nn.Parameter(torch.randn(self.rows, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        outside = ((ids < self.start) | (ids >= self.start + self.rows)).unsqueeze(-1)
        rows = F.embedding((ids - self.start).masked_fill(outside[..., 0], 0), self.weight).masked_fill(outside, 0.0)
        hidden = self.middle(ReduceFrom.apply(rows, self.group))  # named: 33
        return F.linear(hidden if self.wrong else CopyTo.apply(hidden, self.group), self.weight)  # wrong


class WholeHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.middle = nn.Parameter(torch.randn(VOCABULARY, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.linear(self.middle(F.embedding(ids, self.weight)), self.weight)


SGD = functools.partial(torch.optim.SGD, lr=0.5)
FURTHER: dict[str, Bug] = {
    "15 scale in backward": Bug(
        Heads, Heads, drawn(4, WIDTH), "scores",
        options={"param_placements": {"q.weight": (Shard(0),), "k.weight": (Shard(0),)}},
    ),
    "16 one layer not reduced": Bug(
        Squares, one_layer_not_reduced, drawn(4, WIDTH), "stack.blocks.1.linear", names=("dp",), options={"in_placements": ROWS}
    ),
    "17 sum for a mean": Bug(
        Squares, summed, drawn(4, WIDTH), "stack.blocks.2.linear", names=("dp",), options={"in_placements": ROWS}
    ),
    "18 stale cache": Bug(Decoding, lambda mesh, wrong: Decoding(wrong), drawn(1, WIDTH), "cache"),
    "19 dropout": Bug(
        Dropped, lambda mesh, wrong: Dropped(Dropping(wrong)), drawn(4, WIDTH), "dropping", verdict=Verdict.UNPROVED
    ),
    "20 positions": Bug(Rotated, rotated, drawn(6, WIDTH), "rotary", names=("cp",), options={"in_placements": ROWS}),
    "21 uneven batch": Bug(Judging, uneven, drawn(5, WIDTH), "criterion", names=("dp",), found_in=(torch.float32,)),
    "22 padding": Bug(Padded, padded, drawn(10, WIDTH), "criterion", names=("dp",), options={"in_placements": ROWS}),
    "23 dtype of a norm": Bug(
        WithRms, lambda mesh, wrong: WithRms(wrong), drawn(4, WIDTH), "norm", found_in=(torch.float32,)
    ),
    "24 local norm": Bug(
        Mlp, clipped, drawn(4, WIDTH), "first",
        options={
            "param_placements": SPLIT, "optimizer": SGD, "clip": clip,
            "spec_clip": lambda p: torch.nn.utils.clip_grad_norm_(p, 0.1),
        },
    ),
    "25 bias on every rank": Bug(Mlp, Mlp, drawn(4, WIDTH), "mlp", options={"param_placements": SPLIT}),
    "26 tied gradient": Bug(TiedLanguage, lambda mesh, wrong: TiedLanguage(wrong), token_ids, "embedding"),
    "27 capacity": Bug(
        Mixture, lambda mesh, wrong: Mixture(TopOne(mesh, wrong)), drawn(12, WIDTH), "experts", names=("ep",),
        options={"param_placements": {"experts.weights": (Shard(0),)}},
    ),
    "28 order of microbatches": Bug(Microbatches, lambda mesh, wrong: Microbatches(wrong), drawn(4, WIDTH), ""),
    "29 late step": Bug(
        Squares, late, drawn(4, WIDTH), "stack.first", names=("dp",),
        options={"optimizer": functools.partial(Late, lr=0.5), "spec_optimizer": SGD, "accumulation": 2, "steps": 2},
    ),
    "30 norm of a part": Bug(
        Features, lambda mesh, wrong: Features(SharedNorm(mesh.get_group("tp"), wrong), WIDTH), drawn(4, WIDTH), "norm",
        options={"param_placements": {"weight": (Shard(1),)}, "out_placements": {"output.0": (Shard(1),)}},
    ),
    "31 stale parameter": Bug(
        Gathered, lambda mesh, wrong: Gathered(wrong), drawn(4, WIDTH), "", options={"optimizer": SGD, "steps": 2}
    ),
    "32 main gradients": Bug(
        Squares, lambda mesh, wrong: MainGradients(wrong), drawn(4, WIDTH), "stack.blocks.1.linear",
        options={
            "optimizer": functools.partial(OfMainGradients, lr=0.5), "spec_optimizer": SGD, "accumulation": 2, "steps": 2,
        },
    ),
    "33 tied head": Bug(
        WholeHead, VocabularyHead, token_ids, "middle",
        options={"param_placements": {"weight": (Shard(0),)}, "out_placements": {"output.0": (Shard(2),)}},
    ),
    "34 gradient of an input": Bug(
        Mlp, lambda mesh, wrong: Mlp(mesh, copies=not wrong), drawn(4, WIDTH), "mlp", options={"param_placements": SPLIT}
    ),
}  # fmt: skip
