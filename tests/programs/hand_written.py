"""Programs whose collectives are written by hand, on plain tensors and process groups, each with its mistakes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard

from tests.programs import autograd_collectives as pairs

R = Replicate()
P = Partial()
ROWS, COLUMNS = Shard(0), Shard(1)


def WORLD() -> Any:  # noqa: N802 - named as in torch, where it has a value only inside of a world
    return dist.group.WORLD


def real(*shape: int, grad: bool = True) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_(grad)


@dataclasses.dataclass(frozen=True)
class HandWritten:
    """``model`` builds what every rank runs, inside its world; ``mutants`` build what must be refuted.

    ``options`` are those of ``verifycompile.verify``. ``rank``: the one that is captured.
    """

    name: str
    world: int
    model: Callable[[], nn.Module]
    spec: Callable[[], nn.Module]
    args: Callable[[], tuple[torch.Tensor, ...]]
    options: Mapping[str, Any]
    mutants: Mapping[str, Callable[[], nn.Module]]
    mutant_options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    rank: int = 0


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.ones(8))
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(F.layer_norm(x, (8,), self.norm))))


class TensorParallelMLP(nn.Module):
    """Column-parallel, then row-parallel; the bias is added once, after the reduction."""

    def __init__(self, ranks: int, copy: Any = pairs.Copy, reduce: Any = pairs.Reduce, bias: str = "after") -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.ones(8))
        self.up = nn.Linear(8, 16 // ranks)
        self.down = nn.Linear(16 // ranks, 8)
        self.copy, self.reduce, self.bias = copy, reduce, bias

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.copy is None else self.copy.apply(x, dist.group.WORLD)

    def leave(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.reduce is None else self.reduce.apply(x, dist.group.WORLD)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(F.gelu(self.up(self.enter(F.layer_norm(x, (8,), self.norm)))), self.down.weight)
        if self.bias == "inside":
            return x + self.leave(y + self.down.bias)
        if self.bias == "divided":
            return x + self.leave(y + pairs.Copy.apply(self.down.bias, dist.group.WORLD) / dist.get_world_size())
        return x + self.leave(y) + self.down.bias


class ReduceTwice(pairs.Reduce):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        return functional.all_reduce(functional.all_reduce(x, "sum", group), "sum", group)


class ReducePlainly:
    """The gradient of a plain all-reduce is an all-reduce: too much where every rank starts from the whole loss."""

    @staticmethod
    def apply(x: torch.Tensor, group: Any) -> torch.Tensor:
        return functional.all_reduce(x, "sum", group)


MLP_LAYOUT = {"up.*": (ROWS,), "down.weight": (COLUMNS,)}


def with_(classes: Mapping[str, Any], **changed: Any) -> dict[str, Any]:
    return {**classes, **changed}


def tensor_parallel(ranks: int, kind: str, **classes: Any) -> HandWritten:
    return HandWritten(
        f"tensor-parallel-{kind}-{ranks}",
        ranks,
        lambda: TensorParallelMLP(ranks, **classes),
        MLP,
        lambda: (real(4, 8),),
        {"param_placements": MLP_LAYOUT, "in_placements": {"x": (R,)}, "out_placements": {"output.0": (R,)}},
        {
            "gradient not reduced": lambda: TensorParallelMLP(ranks, **with_(classes, copy=None)),
            "not reduced": lambda: TensorParallelMLP(ranks, **with_(classes, reduce=None)),
            "reduced twice": lambda: TensorParallelMLP(ranks, **with_(classes, reduce=ReduceTwice)),
            "gradient reduced twice": lambda: TensorParallelMLP(ranks, **with_(classes, reduce=ReducePlainly)),
            "largest for sum": lambda: TensorParallelMLP(ranks, **with_(classes, reduce=pairs.ReduceMax)),
            "bias on every rank": lambda: TensorParallelMLP(ranks, **with_(classes, bias="inside")),
        },
    )


class SequenceParallelMLP(TensorParallelMLP):
    """Rows are sharded outside of the tensor-parallel region; replicated parameters used there need a reduction."""

    def __init__(
        self, ranks: int, gather: Any = pairs.GatherRows, scatter: Any = pairs.ScatterRows, norm: str = "once"
    ) -> None:
        super().__init__(ranks, gather, scatter)
        self.norm_gradient = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def replicated(parameter: torch.Tensor) -> torch.Tensor:
            for _ in range({"never": 0, "once": 1, "twice": 2}[self.norm_gradient]):
                parameter = pairs.Copy.apply(parameter, dist.group.WORLD)
            return parameter

        normed = F.layer_norm(x, (8,), replicated(self.norm))
        y = F.linear(F.gelu(self.up(self.enter(normed))), self.down.weight)
        return x + self.leave(y) + pairs.Copy.apply(self.down.bias, dist.group.WORLD)


class ScatterUnsummed(pairs.ScatterRows):
    """Wrong: this rank's rows of its own summand."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        rows = x.shape[0] // dist.get_world_size(group)
        return x.narrow(0, dist.get_rank(group) * rows, rows).contiguous()


class ScatterAverage(pairs.ScatterRows):
    """Wrong: the mean."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return functional.reduce_scatter_tensor(x.contiguous(), "avg", 0, group)


def sequence_parallel(ranks: int, kind: str, **classes: Any) -> HandWritten:
    return HandWritten(
        f"sequence-parallel-{kind}-{ranks}",
        ranks,
        lambda: SequenceParallelMLP(ranks, **classes),
        MLP,
        lambda: (real(2, 8),),
        {"param_placements": MLP_LAYOUT, "in_placements": {"x": (ROWS,)}, "out_placements": {"output.0": (ROWS,)}},
        {
            "norm's gradient not reduced": lambda: SequenceParallelMLP(ranks, **classes, norm="never"),
            "norm's gradient reduced twice": lambda: SequenceParallelMLP(ranks, **classes, norm="twice"),
            "gradient not scattered": lambda: SequenceParallelMLP(
                ranks, **with_(classes, gather=pairs.GatherRowsKeepingOwn)
            ),
            "own summand kept": lambda: SequenceParallelMLP(ranks, **with_(classes, scatter=ScatterUnsummed)),
            "mean for sum": lambda: SequenceParallelMLP(ranks, **with_(classes, scatter=ScatterAverage)),
        },
    )


class GatheredMLP(nn.Module):
    """The hidden layer is gathered for its norm and split again, by this rank's number."""

    def __init__(self, ranks: int, gather: Any = pairs.GatherColumns, split: Any = pairs.SplitColumns) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16 // ranks, bias=False)
        self.down = nn.Linear(16 // ranks, 8, bias=False)
        self.gather, self.split = gather, split

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        world = dist.group.WORLD
        hidden = self.gather.apply(torch.relu(self.up(pairs.Copy.apply(x, world))), world)
        hidden = self.split.apply(F.layer_norm(hidden, (16,)), world)
        return pairs.Reduce.apply(self.down(hidden), world)


class GatheredSpec(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16, bias=False)
        self.down = nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.layer_norm(torch.relu(self.up(x)), (16,)))


def gathered(ranks: int) -> HandWritten:
    return HandWritten(
        f"gather-and-split-{ranks}",
        ranks,
        lambda: GatheredMLP(ranks),
        GatheredSpec,
        lambda: (real(4, 8),),
        {"param_placements": {"up.weight": (ROWS,), "down.weight": (COLUMNS,)}},
        {
            "gradient of the other end": lambda: GatheredMLP(ranks, gather=GatherColumnsReversed),
            "every rank takes the first part": lambda: GatheredMLP(ranks, split=pairs.SplitColumnsZero),
            "gradient summed": lambda: GatheredMLP(ranks, gather=GatherColumnsSummed),
        },
        rank=ranks - 1,
    )


class GatherColumnsReversed(pairs.GatherColumns):
    """Wrong: the gradient is the columns of the rank at the other end."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        ranks = dist.get_world_size(ctx.group)
        return grad.chunk(ranks, -1)[ranks - 1 - dist.get_rank(ctx.group)].contiguous(), None


class GatherColumnsSummed(pairs.GatherColumns):
    """Wrong before a region that is replicated: the ranks' gradients are equal already."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        return pairs.own_columns(functional.all_reduce(grad.contiguous(), "sum", ctx.group), ctx.group), None


class Embedding(nn.Module):
    """A shard of the table, its offset from the rank's number."""

    def __init__(self, ranks: int, shift: int = 0, factor: int = 1, masked: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12 // ranks, 4))
        self.shift, self.factor, self.masked = shift, factor, masked

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = self.weight.shape[0]
        first = dist.get_rank() * rows * self.factor + self.shift
        outside = (tokens < first) | (tokens >= first + rows)
        local = torch.where(outside, 0, tokens - first)
        found = F.embedding(local, self.weight)
        if self.masked:
            found = found.masked_fill(outside[..., None], 0.0)
        return pairs.Reduce.apply(found, dist.group.WORLD)


class EmbeddingSpec(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, self.weight)


def embedding(ranks: int) -> HandWritten:
    return HandWritten(
        f"vocabulary-parallel-{ranks}",
        ranks,
        lambda: Embedding(ranks),
        EmbeddingSpec,
        lambda: (torch.arange(12).reshape(2, 6),),
        {"param_placements": {"weight": (ROWS,)}, "out_placements": {"output.0": (R,)}},
        {
            "offset of the next row": lambda: Embedding(ranks, shift=1),
            "every rank at the start": lambda: Embedding(ranks, factor=0),
            "rows of others not masked": lambda: Embedding(ranks, masked=False),
        },
    )


def own_group(groups: Sequence[Sequence[int]]) -> Any:
    """Every rank makes all groups and keeps its own."""
    made = [(ranks, dist.new_group(list(ranks))) for ranks in groups]
    return next(group for ranks, group in made if dist.get_rank() in ranks)


CONSECUTIVE, STRIDED = ((0, 1), (2, 3)), ((0, 2), (1, 3))


class DataAndTensorParallel(nn.Module):
    """Two kinds of groups of a world without a mesh; parameters' gradients are reduced where they are used."""

    def __init__(self, tensor: Any = CONSECUTIVE, data: Any = STRIDED, used: str = "all", scale: float = 1.0) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)
        self.down = nn.Linear(8, 8, bias=False)
        self.tensor, self.data = own_group(tensor), own_group(data)
        self.used, self.scale = used, scale

    def parameter(self, value: torch.Tensor, name: str) -> torch.Tensor:
        if self.used not in ("all", name):
            return value
        return pairs.Copy.apply(value * self.scale if name == "up" else value, self.data)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.parameter(self.up.weight, "up"), self.parameter(self.up.bias, "up")
        hidden = torch.relu(F.linear(pairs.Copy.apply(x, self.tensor), weight, bias))
        return pairs.Reduce.apply(F.linear(hidden, self.parameter(self.down.weight, "down")), self.tensor)


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def subgroups(rank: int = 0) -> HandWritten:
    return HandWritten(
        f"subgroups-without-mesh-rank-{rank}",
        4,
        DataAndTensorParallel,
        TwoLayers,
        lambda: (real(2, 8),),
        {
            "in_placements": {"x": (ROWS, R)},
            "param_placements": {"up.*": (R, ROWS), "down.weight": (R, COLUMNS)},
            "out_placements": {"output.0": (ROWS, R)},
        },
        {
            "groups exchanged": lambda: DataAndTensorParallel(STRIDED, CONSECUTIVE),
            "tensor group twice": lambda: DataAndTensorParallel(CONSECUTIVE, CONSECUTIVE),
            "one gradient not reduced": lambda: DataAndTensorParallel(used="up"),
            "wrong scale": lambda: DataAndTensorParallel(scale=0.5),
        },
        rank=rank,
    )


class RankOfGroup(nn.Module):
    """Gathers over a group and takes its own rows back, by a number that the group gives or should give."""

    def __init__(self, number: Callable[[Any], int]) -> None:
        super().__init__()
        self.group, self.number = own_group(CONSECUTIVE), number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        whole = functional.all_gather_tensor(torch.tanh(x), 0, self.group)
        return whole.narrow(0, self.number(self.group) * rows, rows)


class Tanh(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x)


def rank_of_group(kind: str, number: Callable[[Any], int], rank: int) -> HandWritten:
    return HandWritten(
        f"rank-by-{kind}",
        4,
        lambda: RankOfGroup(number),
        Tanh,
        lambda: (real(4, 8, grad=False),),
        {"in_placements": {"x": (ROWS,)}, "out_placements": {"output.0": (ROWS,)}},
        {
            "rank over 2": lambda: RankOfGroup(lambda group: dist.get_rank() // 2),
            "first of all": lambda: RankOfGroup(lambda group: 0 * dist.get_rank()),
            "from the other end": lambda: RankOfGroup(lambda group: 1 - dist.get_rank(group)),
        },
        rank=rank,
    )


class Slices(nn.Module):
    """Each rank works on its own columns of a replicated input, cut by its number in the differentiated program."""

    def __init__(self, copied: bool = True, shift: int = 0, width: int = 4) -> None:
        super().__init__()
        self.copied, self.shift, self.width = copied, shift, width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank = (dist.get_rank() + self.shift) % 2 if self.shift else dist.get_rank()
        x = pairs.Copy.apply(x, dist.group.WORLD) if self.copied else x
        own = torch.tanh(x[:, rank * self.width : rank * self.width + 4])
        return pairs.Reduce.apply((own * own).sum(1), dist.group.WORLD)


class SumOfSquares(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x).pow(2).sum(1)


def slices() -> HandWritten:
    return HandWritten(
        "slices-by-rank",
        2,
        Slices,
        SumOfSquares,
        lambda: (real(4, 8),),
        {"in_placements": {"x": (R,)}, "out_placements": {"output.0": (R,)}},
        {
            "gradient not reduced": lambda: Slices(copied=False),
            "the same slice": lambda: Slices(width=0),
            "slices overlap": lambda: Slices(width=2),
        },
    )


class GatherIntoList(torch.autograd.Function):
    """The legacy gather into a list of buffers, one of which is the rank's own value itself."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, backwards: bool, piece: int) -> torch.Tensor:
        ctx.piece = piece
        rank = dist.get_rank()
        buffers = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        buffers[rank] = x
        dist.all_gather(buffers, x)
        return torch.cat(buffers[::-1] if backwards else buffers, dim=-1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        pieces = gradients[0].chunk(dist.get_world_size(), dim=-1)
        return pieces[(dist.get_rank() + ctx.piece) % len(pieces)].contiguous(), None, None


class GatheredColumns(nn.Module):
    """A projection cut by columns, gathered before it is normalized over all of them."""

    def __init__(self, backwards: bool = False, piece: int = 0, copied: bool = True) -> None:
        super().__init__()
        self.project = nn.Linear(8, 4)
        self.norm = nn.Parameter(torch.ones(8))
        self.backwards, self.piece, self.copied = backwards, piece, copied

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = pairs.Copy.apply(x, dist.group.WORLD) if self.copied else x
        gathered = GatherIntoList.apply(self.project(x), self.backwards, self.piece)
        return F.layer_norm(gathered, (8,), self.norm)


class NormalizedColumns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.norm = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(self.project(x), (8,), self.norm)


def gather_into_list() -> HandWritten:
    return HandWritten(
        "gather-into-list",
        2,
        GatheredColumns,
        NormalizedColumns,
        lambda: (real(2, 3, 8),),
        {
            "param_placements": {"project.weight": (ROWS,), "project.bias": (ROWS,)},
            "in_placements": {"x": (R,)},
            "out_placements": {"output.0": (R,)},
        },
        {
            "gathered the other way round": lambda: GatheredColumns(backwards=True),
            "gradient of another rank's part": lambda: GatheredColumns(piece=1),
            "gradient of the input not reduced": lambda: GatheredColumns(copied=False),
        },
    )


class SharedKey(nn.Module):
    """Heads over the ranks, each against one rotated key that all of them share: its gradient is a sum over ranks."""

    def __init__(self, heads: int, parallel: bool = True, turn: float = -1.0, copied: bool = True) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 4 * heads), nn.Linear(8, 4)
        self.heads, self.parallel, self.turn, self.copied = heads, parallel, turn, copied

    def forward(self, x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        key = self.key(x)
        if self.parallel:
            x = pairs.Copy.apply(x, dist.group.WORLD)
            key = pairs.Copy.apply(key, dist.group.WORLD) if self.copied else key
        query = self.query(x).unflatten(-1, (self.heads, 4)).transpose(0, 1)
        turned = torch.cat((self.turn * key[..., 2:], key[..., :2]), -1)
        key = (key * torch.cos(angle) + turned * torch.sin(angle)).expand(self.heads, -1, -1)
        scores = torch.softmax(query @ key.transpose(1, 2), -1)
        out = (scores @ query).sum(0)
        return pairs.Reduce.apply(out, dist.group.WORLD) if self.parallel else out


def shared_key() -> HandWritten:
    return HandWritten(
        "shared-rotary-key",
        2,
        lambda: SharedKey(2),
        lambda: SharedKey(4, parallel=False),
        lambda: (real(3, 8), real(3, 4, grad=False)),
        {
            "param_placements": {"query.weight": (ROWS,), "query.bias": (ROWS,)},
            "in_placements": {"x": (R,), "angle": (R,)},
            "out_placements": {"output.0": (R,)},
        },
        {
            "gradient of the key not reduced": lambda: SharedKey(2, copied=False),
            "turned the other way": lambda: SharedKey(2, turn=1.0),
            "not turned": lambda: SharedKey(2, turn=0.0),
        },
    )


class BiasOnOneRank(nn.Module):
    """A row-parallel layer: one rank adds the bias before the reduction, so the ranks run different programs."""

    def __init__(self, owner: int = 0, everywhere: bool = False, factor: float = 1.0, used: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4))
        self.bias = nn.Parameter(torch.randn(8))
        self.owner, self.everywhere, self.factor, self.used = owner, everywhere, factor, used

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, self.weight)
        bias = pairs.Copy.apply(self.bias, dist.group.WORLD)
        if dist.get_rank() == self.owner or self.everywhere:
            y = y + bias * self.factor
        elif self.used:  # every rank must take part in the reduction of the gradient
            y = y + bias * 0
        return pairs.Reduce.apply(y, dist.group.WORLD)


def one_rank() -> HandWritten:
    return HandWritten(
        "bias-on-one-rank",
        2,
        BiasOnOneRank,
        lambda: nn.Linear(8, 8),
        lambda: (real(3, 4),),
        {
            "param_placements": {"weight": (COLUMNS,)},
            "in_placements": {"x": (COLUMNS,)},
            "out_placements": {"output.0": (R,)},
        },
        {
            "on every rank": lambda: BiasOnOneRank(everywhere=True),
            "on no rank": lambda: BiasOnOneRank(owner=2),
            "on one rank twice": lambda: BiasOnOneRank(factor=2.0),
            "gradient waits without end": lambda: BiasOnOneRank(used=False),
        },
    )


class UnevenRows(nn.Module):
    """Five rows over two ranks, padded for the exchange; ``cut`` takes the padding out again."""

    def __init__(self, cut: Callable[[torch.Tensor], torch.Tensor], first: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.cut, self.first = cut, first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = x[: self.first] if dist.get_rank() == 0 else x[3:]
        padded = F.pad(torch.tanh(own), (0, 0, 0, 3 - own.shape[0]))
        return self.cut(functional.all_gather_tensor(padded, 0, WORLD())) @ self.weight


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) @ self.weight


def uneven() -> HandWritten:
    return HandWritten(
        "uneven-rows",
        2,
        lambda: UnevenRows(lambda rows: rows[:5]),
        Rows,
        lambda: (real(5, 4, grad=False),),
        {"in_placements": {"x": (R,)}, "out_placements": {"output.0": (R,)}},
        {
            "padding of the other rank cut": lambda: UnevenRows(lambda rows: torch.cat([rows[:2], rows[3:]])),
            "last rows": lambda: UnevenRows(lambda rows: rows[1:]),
            "a row too few": lambda: UnevenRows(lambda rows: rows[:5], first=2),
        },
    )


DEFAULT: tuple[HandWritten, ...] = (
    tensor_parallel(2, "functional"),
    sequence_parallel(2, "functional"),
    gathered(2),
    embedding(2),
    subgroups(),
    rank_of_group("rest", lambda group: dist.get_rank() % 2, 2),
    slices(),
    gather_into_list(),
    shared_key(),
    one_rank(),
    uneven(),
)
"""What every run of the tests verifies."""

SWEEP: tuple[HandWritten, ...] = (
    tensor_parallel(4, "functional", bias="divided"),
    tensor_parallel(2, "legacy", copy=pairs.LegacyCopy, reduce=pairs.LegacyReduce),
    sequence_parallel(4, "legacy", gather=pairs.LegacyGatherRows, scatter=pairs.LegacyScatterRows),
    gathered(4),
    embedding(4),
    subgroups(rank=3),
    rank_of_group("group", lambda group: dist.get_rank(group), 0),
    rank_of_group("list", lambda group: dist.get_process_group_ranks(group).index(dist.get_rank()), 3),
)
