"""The fourteen bugs of TTrace (table 1) as small programs, each with its right twin.

``wrong`` makes the bug; the line that has it is marked, and the one that the finding names, by the number of the bug:
the first operation whose value or gradient is off, else the module's call or forward. A program takes the dtype of its
parameters and inputs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard

from tests.comparison.programs import CopyTo, ReduceFrom, all_gather, all_reduce, reduce_scatter
from verifycompile import Verdict

WIDTH, VOCABULARY = 8, 16


@dataclasses.dataclass(frozen=True)
class Bug:
    """``module``: the one that a finding must name. ``options``: of ``compare``, from the mesh's placements.

    ``verdict``: on the wrong program. ``found_in``: dtypes whose rounding explains less than the bug makes.
    """

    spec: Callable[[], nn.Module]
    build: Callable[[DeviceMesh, bool], nn.Module]
    inputs: Callable[[torch.dtype], tuple[torch.Tensor, ...]]
    module: str
    shape: tuple[int, ...] = (2,)
    names: tuple[str, ...] = ("tp",)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    verdict: Verdict = Verdict.REFUTED
    found_in: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)


def drawn(*shape: int, seed: int = 7) -> Callable[[torch.dtype], tuple[torch.Tensor, ...]]:
    return lambda dtype: (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype),)


# 1. Vocabulary-parallel embedding: the mask is computed again on the ids that are masked already (slapo 80).


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # named: 26
        return F.embedding(ids, self.weight)


class Language(nn.Module):
    def __init__(self, embedding: nn.Module | None = None) -> None:
        super().__init__()
        self.embedding = embedding or Embedding()
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embedding(ids)))


class VocabularyParallelEmbedding(nn.Module):
    def __init__(self, mesh: DeviceMesh, wrong: bool) -> None:
        super().__init__()
        self.group, self.wrong = mesh.get_group("tp"), wrong
        self.rows = VOCABULARY // mesh.size()
        self.start = mesh.get_local_rank("tp") * self.rows
        self.weight = nn.Parameter(torch.randn(self.rows, WIDTH))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        outside = (ids < self.start) | (ids >= self.start + self.rows)
        local = (ids - self.start).masked_fill(outside, 0)
        if self.wrong:
            outside = (local < self.start) | (local >= self.start + self.rows)  # wrong
        rows = F.embedding(local, self.weight).masked_fill(outside.unsqueeze(-1), 0.0)  # named: 1
        return ReduceFrom.apply(rows, self.group)


def token_ids(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return (torch.arange(12).reshape(3, 4) % VOCABULARY,)


# 2. Activation recomputation reads the input of another block (Megatron 371).


class Recompute(torch.autograd.Function):
    """Runs ``block`` again in backward, on the input that ``kept`` has under ``key``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, block: nn.Module, kept: dict[Any, torch.Tensor], key: Any) -> torch.Tensor:
        ctx.block, ctx.kept, ctx.key = block, kept, key
        kept[key] = x.detach()
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x = ctx.kept[ctx.key].requires_grad_()
        with torch.enable_grad():
            torch.autograd.backward(ctx.block(x), gradients[0])
        return x.grad, None, None, None


class Tanh(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # named: 2
        return torch.tanh(self.linear(x))  # named: 16, 17, 32


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Tanh() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


class Recomputed(Stack):
    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, kept = self.first(x), {}
        for index, block in enumerate(self.blocks):
            key = "buffer" if self.wrong else index  # wrong: one buffer for all blocks
            x = Recompute.apply(x, block, kept, key)
        return x


# 3. Context parallelism: the gradient of the loss is multiplied by the size of the group (Megatron 673).


class ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] * ctx.factor, None


class Loss(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ScaledGradient.apply(x.square().sum() / 32, self.factor)  # wrong where it is not 1; named: 3


class Summed(nn.Module):
    def __init__(self, criterion: nn.Module | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.criterion = criterion or Loss()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.criterion(torch.tanh(self.layer(x)))


def reduced_over(model: nn.Module, group: Any) -> nn.Module:
    """The model whose gradients are summed over the group."""
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: all_reduce(gradient, group))
    return model


def context_parallel_loss(mesh: DeviceMesh, wrong: bool) -> nn.Module:
    return reduced_over(Summed(Loss(mesh.size() if wrong else 1.0)), mesh.get_group("cp"))


# 4. Data and context parallelism: gradients are divided by the data-parallel size alone (Megatron 906).


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.hidden(x)).square().mean()  # named: 4


def mean_over_both(mesh: DeviceMesh, wrong: bool) -> nn.Module:
    model = Regression()
    size = mesh["dp"].size() if wrong else mesh.size()  # wrong

    def mean(gradient: torch.Tensor) -> torch.Tensor:
        return all_reduce(all_reduce(gradient, mesh.get_group("dp")), mesh.get_group("cp")) / size

    for parameter in model.parameters():
        parameter.register_hook(mean)
    return model


# 5. ZeRO: the head's copy of the tied embedding is refreshed before the step, not after it (Megatron 656).


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = Embedding()
        self.head = TiedHead(self.embedding.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embedding(ids)), self.embedding.weight)


class Link(torch.autograd.Function):
    """The value of the copy, the gradient to the original."""

    @staticmethod
    def forward(ctx: Any, original: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
        return copy.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


class TiedHead(nn.Module):
    def __init__(self, weight: torch.Tensor | None, *, is_copy: bool = False) -> None:
        super().__init__()
        self.is_copy = is_copy
        if is_copy:
            self.copy = nn.Parameter(weight.detach().clone(), requires_grad=False)

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, Link.apply(weight, self.copy) if self.is_copy else weight)  # named: 5


class Untied(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.head = TiedHead(self.embedding.weight, is_copy=True)


class Refreshing(torch.optim.SGD):
    """Refreshes the copy of the model that was built on this rank."""

    def __init__(self, parameters: Any, model: Untied, wrong: bool) -> None:
        super().__init__(parameters, lr=0.5)
        self.model, self.wrong = model, wrong

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        if self.wrong:
            self.model.head.copy.copy_(self.model.embedding.weight)  # wrong: before the step
        super().step()
        if not self.wrong:
            self.model.head.copy.copy_(self.model.embedding.weight)


_UNTIED: dict[int, tuple[Untied, bool]] = {}


def untied(mesh: DeviceMesh, wrong: bool) -> nn.Module:
    model = Untied()
    _UNTIED[id(model.embedding.weight)] = model, wrong
    return model


def refreshing(parameters: Any) -> torch.optim.Optimizer:
    listed = list(parameters)
    model, wrong = _UNTIED[id(listed[0])]
    return Refreshing(listed, model, wrong)


# 6. Sequence parallelism: the gradient of the router's weight is not reduced (Megatron 599).


class Router(nn.Module):
    def __init__(self, group: Any = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, 3))
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # named: 6
        weight = self.weight if self.group is None else CopyTo.apply(self.weight, self.group)
        return (x @ weight).softmax(-1)


class Experts(nn.Module):
    def __init__(self, router: nn.Module | None = None) -> None:
        super().__init__()
        self.router = router or Router()
        self.register_buffer("experts", torch.randn(3, WIDTH, WIDTH, generator=torch.Generator().manual_seed(1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("te,eij,ti->tj", self.router(x), self.experts, x)


def sequence_parallel_router(mesh: DeviceMesh, wrong: bool) -> nn.Module:
    return Experts(Router(None if wrong else mesh.get_group("tp")))  # wrong: no group


# 7. Quantisation: the largest value is reduced over the wrong group (Megatron 335).


class Quantise(nn.Module):
    """To an 8-bit float and back, scaled by the largest value of the whole tensor."""

    def __init__(self, groups: tuple[Any, ...] = (), amax_over: tuple[Any, ...] = ()) -> None:
        super().__init__()
        self.groups, self.amax_over = groups, amax_over

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        largest = x.detach().abs().amax().float()  # named: 7
        for group in self.amax_over:
            largest = all_reduce(largest.reshape(1), group, "max").reshape(())
        scale = 448.0 / largest
        # The operand of the next product is whole over the last group, as after the all-gather of sequence parallelism.
        whole = all_gather(x.detach(), 1, self.groups[-1]) if self.groups else x.detach()
        scaled = (whole.float() * scale).clamp(-448.0, 448.0)
        return (scaled.to(torch.float8_e4m3fn).float() / scale).to(x.dtype)


class Quantised(nn.Module):
    """Features of growing size, as those of a trained model are."""

    def __init__(self, quantise: nn.Module | None = None, columns: slice = slice(None)) -> None:
        super().__init__()
        self.quantise = quantise or Quantise()
        self.register_buffer("sizes", torch.logspace(0, 1, 32)[columns])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.quantise(x * self.sizes) * 3.0


def quantised(mesh: DeviceMesh, wrong: bool) -> nn.Module:
    groups = (mesh.get_group("dp"), mesh.get_group("tp"))
    first = 16 * mesh.get_local_rank("tp")
    quantise = Quantise(groups, amax_over=groups[:1] if wrong else groups)  # wrong: data-parallel ranks alone
    return Quantised(quantise, slice(first, first + 16))


# 8. Recomputation uses the activation as it was cast to an 8-bit float (Megatron 539).


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, wrong: bool) -> torch.Tensor:
        ctx.save_for_backward(x.to(torch.float8_e5m2) if wrong else x)  # wrong
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x.to(gradients[0].dtype) * gradients[0], None


class Activation(nn.Module):
    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Square.apply(x, self.wrong)  # named: 8


class Activated(nn.Module):
    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.activation = Activation(wrong)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.layer(x))


# 9. ZeRO: the updated parts of the parameters are not gathered (Megatron 663).


class Zero(torch.optim.Optimizer):
    """SGD of which each rank of the group updates its rows."""

    def __init__(self, parameters: Any, lr: float, group: Any, wrong: bool) -> None:
        super().__init__(list(parameters), {"lr": lr})
        self.group, self.wrong = group, wrong

    @torch.no_grad()  # named: 9
    def step(self, closure: Any = None) -> None:
        rank, size = dist.get_rank(self.group), dist.get_world_size(self.group)
        for held in self.param_groups:
            for parameter in held["params"]:
                rows = parameter.shape[0] // size
                own = parameter[rank * rows : (rank + 1) * rows]
                own -= held["lr"] * reduce_scatter(parameter.grad, 0, self.group) / size
                if not self.wrong:  # wrong: no all-gather
                    parameter.copy_(all_gather(own, 0, self.group))


# 10. Pipeline: a stage's own layer number is taken for the model's (Megatron 468).


class FromStage(torch.autograd.Function):
    """The value that ``stage`` has; its gradient is that stage's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, stage: int, group: Any) -> torch.Tensor:
        ctx.own = dist.get_rank(group) == stage
        y = x.detach().clone()
        dist.broadcast(y, group=group, group_src=stage)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] if ctx.own else torch.zeros_like(gradients[0]), None, None


class ToNext(torch.autograd.Function):
    """Identity on the later stages; in backward the gradient comes from ``stage``, which consumes the value."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, stage: int, group: Any) -> torch.Tensor:
        ctx.stage, ctx.group = stage, group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradient = gradients[0].clone()
        dist.broadcast(gradient, group=ctx.group, group_src=ctx.stage)
        return gradient, None, None


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(index): Tanh() for index in range(4)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x


class Stage(nn.Module):
    def __init__(self, mesh: DeviceMesh, wrong: bool) -> None:
        super().__init__()
        self.group, self.rank = mesh.get_group("pp"), mesh.get_local_rank("pp")
        first = self.rank if wrong else 2 * self.rank  # wrong
        torch.manual_seed(0)
        every = [Tanh() for _ in range(4)]
        self.layers = nn.ModuleDict({str(index): every[index] for index in (first, first + 1)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        for stage in range(2):
            y = x
            if stage == 1:
                x = ToNext.apply(x, 1, self.group)
                y = x
            if self.rank == stage:
                for layer in self.layers.values():
                    y = layer(y)  # named: 10
            x = FromStage.apply(y, stage, self.group)
        return x


# 11. A buffer of the overlapped all-gather is overwritten before backward reads it (TransformerEngine 1616).


class GatherLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, buffer: torch.Tensor, how: Any) -> torch.Tensor:
        group, wrong = how
        with torch.no_grad():
            buffer.copy_(all_gather(x, 0, group))
        ctx.whole = buffer if wrong else buffer.clone()  # wrong: the next layer gathers into it
        ctx.group = group
        ctx.save_for_backward(weight)
        return buffer @ weight.t()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return reduce_scatter(gradients[0] @ weight, 0, ctx.group), gradients[0].t() @ ctx.whole, None, None


class Plain(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, WIDTH) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t()


class Gathering(Plain):
    """Rows of the input and of the output over the sequence; the weight over its outputs."""

    def __init__(self, outputs: int, mesh: DeviceMesh, wrong: bool) -> None:
        super().__init__(outputs // mesh.size())
        self.group, self.wrong, self.size = mesh.get_group("tp"), wrong, mesh.size()
        self.shared: dict[str, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # named: 11
        buffer = self.shared.setdefault("rows", torch.empty(x.shape[0] * self.size, x.shape[1], dtype=x.dtype))
        return GatherLinear.apply(x, self.weight, buffer, (self.group, self.wrong))


class TwoLayers(nn.Module):
    def __init__(self, layers: tuple[nn.Module, nn.Module] | None = None, mesh: DeviceMesh | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers or (Plain(WIDTH), Plain(WIDTH)))
        self.mesh = mesh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.layers[0](x))
        if self.mesh is not None:
            hidden = Exchange.apply(hidden, self.mesh.get_group("tp"))
        return self.layers[1](hidden)


class Exchange(torch.autograd.Function):
    """From columns to rows over the group."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        return all_gather(x, 1, group).chunk(size, 0)[rank].contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        rank, size = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        return all_gather(gradients[0], 0, ctx.group).chunk(size, 1)[rank].contiguous(), None


def overlapping(mesh: DeviceMesh, wrong: bool) -> nn.Module:
    layers = Gathering(WIDTH, mesh, wrong), Gathering(WIDTH, mesh, wrong)
    layers[1].shared = layers[0].shared
    return TwoLayers(layers, mesh)


# 12. Sequence parallelism: the gradient of the norm's weight is not reduced (Megatron 1446).


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.scale = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(x)) * self.scale  # named: 12


def sequence_parallel_norm(mesh: DeviceMesh, wrong: bool) -> nn.Module:
    model = Normed()
    group = mesh.get_group("tp")
    model.scale.register_hook(lambda gradient: all_reduce(gradient, group))
    if not wrong:  # wrong: the flag that switches the reduction on is not set
        reduced_over(model.norm, group)
    return model


# 13. Context parallelism: the kernel of backward reads a transposed gradient as if it were contiguous
# (TransformerEngine 1557).


class Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, wrong: bool) -> torch.Tensor:
        ctx.save_for_backward(q, k)
        ctx.wrong = wrong
        return (q * k).transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        q, k = ctx.saved_tensors
        gradient = gradients[0].contiguous().transpose(0, 1)
        raw = gradient if ctx.wrong else gradient.contiguous()  # wrong: not contiguous
        seen = torch.as_strided(raw, raw.shape, (raw.shape[1] * raw.shape[2], raw.shape[2], 1))
        return seen * k, seen * q, None


class Attention(nn.Module):
    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return Mix.apply(q, k, self.wrong)  # named: 13


class Attending(nn.Module):
    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attention = Attention(wrong)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.attention(self.query(x), self.key(x)))


def context_parallel_attention(mesh: DeviceMesh, wrong: bool) -> nn.Module:
    return reduced_over(Attending(wrong), mesh.get_group("cp"))


# 14. Tensor and context parallelism: the gradient of the norm is summed over tp although it is whole (TE 1677).


class Projected(nn.Module):
    def __init__(self, outputs: int, group: Any = None) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.weight = nn.Parameter(torch.randn(WIDTH, outputs))
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)  # named: 14
        return (normed if self.group is None else CopyTo.apply(normed, self.group)) @ self.weight


def tensor_and_context_parallel_norm(mesh: DeviceMesh, wrong: bool) -> nn.Module:
    model = Projected(6 // mesh["tp"].size(), mesh.get_group("tp"))
    reduced_over(model, mesh.get_group("cp"))
    if wrong:
        reduced_over(model.norm, mesh.get_group("tp"))  # wrong
    return model


ROWS = {"x": (Shard(0),)}
ZERO: dict[str, Any] = {}
BUGS: dict[str, Bug] = {
    "1 embedding mask": Bug(
        Language, lambda mesh, wrong: Language(VocabularyParallelEmbedding(mesh, wrong)), token_ids, "embedding",
        options={"param_placements": {"embedding.weight": (Shard(0),)}},
    ),
    "2 recomputed input": Bug(Stack, lambda mesh, wrong: Recomputed(wrong), drawn(4, WIDTH), "blocks.1"),
    "3 loss scale of context parallelism": Bug(
        Summed, context_parallel_loss, drawn(4, WIDTH), "criterion", names=("cp",), options={"in_placements": ROWS}
    ),
    "4 loss scale of data parallelism": Bug(
        Regression, mean_over_both, drawn(2, 4, WIDTH), "hidden", (2, 2), ("dp", "cp"),
        options={"in_placements": {"x": (Shard(0), Shard(1))}},
    ),
    "5 tied weights": Bug(
        Tied, untied, token_ids, "head", names=("dp",),
        options={"optimizer": refreshing, "spec_optimizer": functools.partial(torch.optim.SGD, lr=0.5), "steps": 2},
    ),
    "6 router": Bug(Experts, sequence_parallel_router, drawn(4, WIDTH), "router", options={"in_placements": ROWS}),
    "7 group of a quantisation": Bug(
        Quantised, quantised, drawn(16, 16), "quantise", (2, 2), ("dp", "tp"),
        options={"in_placements": {"x": (Shard(0), Shard(1))}, "param_placements": {"sizes": (Replicate(), Shard(0))}},
    ),
    "8 cast of a saved activation": Bug(Activated, lambda mesh, wrong: Activated(wrong), drawn(4, WIDTH), "activation"),
    "9 parameters not gathered": Bug(
        Stack, lambda mesh, wrong: ZERO.update(group=mesh.get_group("dp"), wrong=wrong) or Stack(), drawn(4, WIDTH),
        "first", names=("dp",),
        options={
            "optimizer": lambda parameters: Zero(parameters, 0.1, **ZERO),
            "spec_optimizer": functools.partial(torch.optim.SGD, lr=0.1),
        },
    ),
    "10 stages": Bug(Layers, Stage, drawn(4, WIDTH), "layers.1", names=("pp",)),
    "11 overlap": Bug(
        TwoLayers, overlapping, drawn(4, WIDTH), "layers.0",
        options={
            "in_placements": ROWS,
            "param_placements": {"layers.*.weight": (Shard(0),)},
            "out_placements": {"output.0": (Shard(1),)},
        },
    ),
    "12 norm": Bug(Normed, sequence_parallel_norm, drawn(4, WIDTH), "norm", options={"in_placements": ROWS}),
    "13 layout of a kernel's operand": Bug(
        Attending, context_parallel_attention, drawn(4, 2, WIDTH), "attention", names=("cp",),
        options={"in_placements": {"x": (Shard(1),)}},
    ),
    "14 norm summed twice": Bug(
        functools.partial(Projected, 6), tensor_and_context_parallel_norm, drawn(4, WIDTH), "norm", (2, 2),
        ("tp", "cp"),
        options={"in_placements": {"x": (Replicate(), Shard(0))}, "param_placements": {"weight": (Shard(1), Replicate())}},
    ),
}  # fmt: skip
