"""One rank's part of a program, parallelized rightly by construction, and with one unsound edit.

A :class:`Rank` holds values as local tensors with a layout: per mesh axis ``"R"`` (replicated), ``"P"`` (a partial
sum) or the dimension that is sharded. Before an operator reads a value in another layout than it can, the value is
converted by a collective whose backward is the right one: the gradient of a replicated or partial value is whole on
every rank, that of a shard is the shard. On a mesh without axes the same code is the single-device program.

Every decision that can be got wrong asks :meth:`Rank.edited` first: the one whose number is ``edit.place`` is got
wrong in the way ``edit.way``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

c10d = torch.ops._c10d_functional
Layout = tuple[Any, ...]
SIZE = 8
"""Values are square matrices of this size, so that most mistakes fit."""


@dataclasses.dataclass(frozen=True)
class Edit:
    """``rank``: the only rank that makes the mistake, None where all do."""

    place: int
    way: int
    rank: int | None = None


@dataclasses.dataclass(frozen=True)
class Value:
    local: torch.Tensor
    layout: Layout


class _Call(torch.autograd.Function):
    """A function with a backward of its own."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, there: Callable[..., Any], back: Callable[..., Any]) -> torch.Tensor:
        context.back = back
        return there(value)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return context.back(gradient), None, None


def call(value: torch.Tensor, there: Callable[..., Any], back: Callable[..., Any]) -> torch.Tensor:
    return _Call.apply(value, there, back)  # pyright: ignore[reportReturnType]


@dataclasses.dataclass
class Rank:
    """``number``: of this rank on ``mesh``, the sizes of the axes. ``asked``: decisions so far, by their kind.

    ``reads_its_place``: whether what it ran depends on its number.
    """

    number: int
    mesh: tuple[int, ...]
    edit: Edit | None = None
    asked: list[str] = dataclasses.field(default_factory=list)
    reads_its_place: bool = False

    @property
    def place(self) -> tuple[int, ...]:
        """Coordinates of this rank."""
        self.reads_its_place = True
        found: list[int] = []
        rest = self.number
        for size in reversed(self.mesh):
            found.append(rest % size)
            rest //= size
        return tuple(reversed(found))

    def edited(self, kind: str, ways: Sequence[str]) -> str | None:
        """How this decision is to be got wrong, None where it is not."""
        self.asked.append(kind)
        edit = self.edit
        if edit is None or len(self.asked) - 1 != edit.place:
            return None
        if edit.rank is not None:
            self.reads_its_place = True
            if edit.rank != self.number:
                return None
        return ways[edit.way % len(ways)]

    # ------------------------------------------------------------------------------------------ collectives

    def group(self, axis: int) -> str:
        """The name of this rank's group along an axis: the axis and the group's first rank."""
        return f"{axis}.{members(self.mesh, axis, self.number)[0]}"

    def _sum(self, value: torch.Tensor, axis: int, operation: str = "sum") -> torch.Tensor:
        return c10d.wait_tensor(c10d.all_reduce(value.contiguous(), operation, self.group(axis)))

    def _gather(self, value: torch.Tensor, axis: int, dim: int) -> torch.Tensor:
        size = self.mesh[axis]
        parts = c10d.wait_tensor(c10d.all_gather_into_tensor(value.contiguous(), size, self.group(axis)))
        return torch.cat(parts.chunk(size, 0), dim) if dim else parts

    def _scatter(self, value: torch.Tensor, axis: int, dim: int, operation: str = "sum") -> torch.Tensor:
        size = self.mesh[axis]
        if dim:
            value = torch.cat(value.chunk(size, dim), 0)
        return c10d.wait_tensor(c10d.reduce_scatter_tensor(value.contiguous(), operation, size, self.group(axis)))

    def _own(self, value: torch.Tensor, axis: int, dim: int, shift: int = 0) -> torch.Tensor:
        size = self.mesh[axis]
        part = value.shape[dim] // size
        return value.narrow(dim, (self.place[axis] + shift) % size * part, part)

    def _other_axis(self, axis: int) -> int:
        return (axis + 1) % len(self.mesh)

    def reduced(self, value: torch.Tensor, axis: int) -> torch.Tensor:
        """The sum of partial values; the gradient passes."""
        way = self.edited("all-reduce", ("dropped", "twice", "avg", "max", "backward", "other axis", "scaled", "detached"))
        there: Callable[..., Any] = lambda v: self._sum(v, axis)  # noqa: E731
        back: Callable[..., Any] = lambda g: g  # noqa: E731
        if way == "dropped":
            return value
        if way == "twice":
            there = lambda v: self._sum(self._sum(v, axis), axis)  # noqa: E731
        if way in ("avg", "max"):
            there = lambda v: self._sum(v, axis, way)  # noqa: E731
        if way == "backward":
            back = lambda g: self._sum(g, axis)  # noqa: E731
        if way == "other axis":
            there = lambda v: self._sum(v, self._other_axis(axis))  # noqa: E731
        if way == "scaled":
            there = lambda v: self._sum(v, axis) / self.mesh[axis]  # noqa: E731
        found = call(value, there, back)
        return found.detach() if way == "detached" else found

    def scattered(self, value: torch.Tensor, axis: int, dim: int) -> torch.Tensor:
        way = self.edited("reduce-scatter", ("no sum", "avg", "other dim", "gradient of another part", "max"))
        there: Callable[..., Any] = lambda v: self._scatter(v, axis, dim)  # noqa: E731
        back: Callable[..., Any] = lambda g: self._gather(g, axis, dim)  # noqa: E731
        if way == "no sum":
            there = lambda v: self._own(v, axis, dim)  # noqa: E731
        if way in ("avg", "max"):
            there = lambda v: self._scatter(v, axis, dim, way)  # noqa: E731
        if way == "other dim":
            back = lambda g: self._gather(g.t(), axis, dim).t() if g.shape[0] == g.shape[1] else self._gather(g, axis, dim) * 2  # noqa: E731
        if way == "gradient of another part":
            back = lambda g: torch.cat([g] * self.mesh[axis], dim)  # noqa: E731
        return call(value, there, back)

    def gathered(self, value: torch.Tensor, axis: int, dim: int) -> torch.Tensor:
        way = self.edited("all-gather", ("copies", "order", "interleaved", "gradient summed", "gradient of the next", "other dim"))
        size = self.mesh[axis]
        there: Callable[..., Any] = lambda v: self._gather(v, axis, dim)  # noqa: E731
        back: Callable[..., Any] = lambda g: self._own(g, axis, dim)  # noqa: E731
        if way == "copies":
            there = lambda v: torch.cat([v] * size, dim)  # noqa: E731
        if way == "order":
            there = lambda v: torch.cat(list(reversed(self._gather(v, axis, dim).chunk(size, dim))), dim)  # noqa: E731
        if way == "interleaved":
            there = lambda v: torch.stack(self._gather(v, axis, dim).chunk(size, dim), dim + 1).flatten(dim, dim + 1)  # noqa: E731
        if way == "gradient summed":
            back = lambda g: self._scatter(g, axis, dim)  # noqa: E731
        if way == "gradient of the next":
            back = lambda g: self._own(g, axis, dim, 1)  # noqa: E731
        if way == "other dim":
            there = lambda v: self._gather(v, axis, 1 - dim).reshape([n * (size if d == dim else 1) for d, n in enumerate(v.shape)])  # noqa: E731
        return call(value, there, back)

    def split(self, value: torch.Tensor, axis: int, dim: int) -> torch.Tensor:
        """This rank's part of a whole value; its gradient is gathered."""
        way = self.edited("split", ("next", "first", "mirrored", "gradient not gathered", "strided", "detached"))
        size = self.mesh[axis]
        there: Callable[..., Any] = lambda v: self._own(v, axis, dim)  # noqa: E731
        back: Callable[..., Any] = lambda g: self._gather(g, axis, dim)  # noqa: E731
        if way == "next":
            there = lambda v: self._own(v, axis, dim, 1)  # noqa: E731
        if way == "first":
            there = lambda v: v.narrow(dim, 0, v.shape[dim] // size)  # noqa: E731
        if way == "mirrored":
            there = lambda v: self._own(v.flip(dim), axis, dim)  # noqa: E731
        if way == "gradient not gathered":
            back = lambda g: torch.cat([g] * size, dim)  # noqa: E731
        if way == "strided":
            there = lambda v: v.unflatten(dim, (v.shape[dim] // size, size)).select(dim + 1, self.place[axis])  # noqa: E731
        found = call(value, there, back)
        return found.detach() if way == "detached" else found

    def copied(self, value: torch.Tensor, axis: int) -> torch.Tensor:
        """A whole value that is read together with parts: its gradient is summed."""
        way = self.edited("copy", ("dropped", "twice", "avg", "other axis", "forward too"))
        there: Callable[..., Any] = lambda v: v.clone()  # noqa: E731
        back: Callable[..., Any] = lambda g: self._sum(g, axis)  # noqa: E731
        if way == "dropped":
            return value
        if way == "twice":
            back = lambda g: self._sum(self._sum(g, axis), axis)  # noqa: E731
        if way == "avg":
            back = lambda g: self._sum(g, axis, "avg")  # noqa: E731
        if way == "other axis":
            back = lambda g: self._sum(g, self._other_axis(axis))  # noqa: E731
        if way == "forward too":
            there = lambda v: self._sum(v, axis)  # noqa: E731
        return call(value, there, back)

    # ------------------------------------------------------------------------------------------ layouts

    def converted(self, value: Value, axis: int, wanted: Any) -> Value:
        """The value with another layout on one axis; never to a partial one."""
        held = value.layout[axis]
        if held == wanted:
            return value
        for later in range(axis + 1, len(self.mesh)):
            if value.layout[later] in (held, wanted) and isinstance(value.layout[later], int):
                # The inner cut of one dimension goes first: the outer parts are contiguous then.
                value = self.converted(value, later, "R")
        local = value.local
        if held == "P":
            local = self.reduced(local, axis) if wanted == "R" else self.scattered(local, axis, wanted)
        else:
            if held != "R":
                local = self.gathered(local, axis, held)
            if wanted != "R":
                local = self.split(local, axis, wanted)
        return Value(local, (*value.layout[:axis], wanted, *value.layout[axis + 1 :]))

    def without(self, value: Value, *unwanted: Any, choice: int = 0) -> Value:
        """The value with none of the layouts ``unwanted`` on any axis."""
        for axis in range(len(self.mesh)):
            if value.layout[axis] in unwanted:
                others = [kind for kind in ("R", 0, 1) if kind not in unwanted]
                value = self.converted(value, axis, others[choice % len(others)])
        return value

    def alike(self, left: Value, right: Value, choice: int, *, partial: bool = False) -> tuple[Value, Value]:
        """Both in one layout; where ``partial``, partial sums may stay."""
        for axis in range(len(self.mesh)):
            kinds = [left.layout[axis], right.layout[axis]]
            if kinds == ["P", "P"] and partial:
                continue
            shards = [k for k in kinds if isinstance(k, int)]
            wanted = shards[choice % len(shards)] if shards and choice % 3 else "R"
            if not shards and choice % 3 == 2:
                wanted = choice % 2
            left, right = self.converted(left, axis, wanted), self.converted(right, axis, wanted)
        # Converting an inner cut may have changed a later axis of one of them only.
        if left.layout != right.layout:
            for axis in range(len(self.mesh)):
                left, right = self.converted(left, axis, "R"), self.converted(right, axis, "R")
        return left, right

    def start(self, value: Value, dim: int) -> int:
        """Where this rank's part begins along a dimension."""
        position, length = 0, SIZE
        for axis, size in enumerate(self.mesh):
            if value.layout[axis] == dim:
                length //= size
                position += self.place[axis] * length
        way = self.edited("offset", ("none", "one more", "of the next", "twice"))
        if way == "none":
            return 0
        if way == "one more":
            return position + 1
        if way == "of the next":
            return (position + length) % SIZE
        return 2 * position if way == "twice" else position


def members(mesh: Sequence[int], axis: int, rank: int) -> tuple[int, ...]:
    """The ranks of the line through ``rank`` along an axis."""
    step = math.prod(mesh[axis + 1 :])
    first = rank - rank // step % mesh[axis] * step
    return tuple(first + k * step for k in range(mesh[axis]))


# ---------------------------------------------------------------------------------------------- operators

Operator = Callable[[Rank, Value, Value, int], Value]
OPERATORS: dict[str, Operator] = {}


def _pointwise(function: Callable[[torch.Tensor], torch.Tensor], wrong: Callable[[torch.Tensor], torch.Tensor]) -> Operator:
    def operator(rank: Rank, x: Value, _: Value, choice: int) -> Value:
        x = rank.without(x, "P", choice=choice)
        way = rank.edited("function", ("other", "doubled", "detached"))
        local = (wrong if way == "other" else function)(x.local)
        return Value(local * 2 if way == "doubled" else local.detach() if way == "detached" else local, x.layout)

    return operator


for _name, _function, _wrong in (
    ("relu", torch.relu, torch.tanh),
    ("tanh", torch.tanh, torch.sigmoid),
    ("sigmoid", torch.sigmoid, torch.tanh),
    ("gelu", F.gelu, lambda x: F.gelu(x, approximate="tanh")),
    ("silu", F.silu, F.relu),
    ("square", lambda x: x * x, lambda x: x * x.abs()),
    ("sine", torch.sin, torch.cos),
    ("exponential", lambda x: torch.exp(-x * x), lambda x: torch.exp(-x)),
    ("shift", lambda x: x + 0.5, lambda x: x + 0.25),
    ("clamp", lambda x: x.clamp(-0.5, 1.0), lambda x: x.clamp(-0.5, 0.5)),
    ("leaky", lambda x: F.leaky_relu(x, 0.1), lambda x: F.leaky_relu(x, 0.2)),
    ("root", lambda x: (x * x + 1).rsqrt(), lambda x: (x * x + 1).sqrt()),
):
    OPERATORS[_name] = _pointwise(_function, _wrong)


def _linear(function: Callable[[torch.Tensor], torch.Tensor], wrong: Callable[[torch.Tensor], torch.Tensor]) -> Operator:
    def operator(rank: Rank, x: Value, _: Value, choice: int) -> Value:
        way = rank.edited("linear function", ("other", "detached"))
        local = (wrong if way == "other" else function)(x.local)
        return Value(local.detach() if way == "detached" else local, x.layout)

    return operator


OPERATORS["double"] = _linear(lambda x: x * 2.0, lambda x: x * 4.0)
OPERATORS["negative"] = _linear(torch.neg, torch.clone)
OPERATORS["third"] = _linear(lambda x: x / 3.0, lambda x: x * 3.0)


def transpose(rank: Rank, x: Value, _: Value, choice: int) -> Value:
    if rank.edited("transpose", ("dropped",)) and x.local.shape[0] == x.local.shape[1]:
        return Value(x.local, tuple(1 - kind if isinstance(kind, int) else kind for kind in x.layout))
    return Value(x.local.t(), tuple(1 - kind if isinstance(kind, int) else kind for kind in x.layout))


OPERATORS["transpose"] = transpose


def _along(dim: int, function: Callable[[torch.Tensor, int], torch.Tensor]) -> Operator:
    """An operator that reads a dimension wholly."""

    def operator(rank: Rank, x: Value, _: Value, choice: int) -> Value:
        x = rank.without(x, "P", dim, choice=choice)
        way = rank.edited("dimension", ("other", "doubled", "detached"))
        local = function(x.local, 1 - dim if way == "other" else dim)
        return Value(local * 2 if way == "doubled" else local.detach() if way == "detached" else local, x.layout)

    return operator


for _dim in (0, 1):
    OPERATORS[f"softmax {_dim}"] = _along(_dim, lambda x, dim: F.softmax(x, dim))
    OPERATORS[f"log softmax {_dim}"] = _along(_dim, lambda x, dim: F.log_softmax(x, dim))
    OPERATORS[f"norm {_dim}"] = _along(_dim, lambda x, dim: F.layer_norm(x if dim else x.t(), (x.shape[dim],)) if dim else F.layer_norm(x.t(), (x.shape[0],)).t())
    OPERATORS[f"square norm {_dim}"] = _along(_dim, lambda x, dim: x * (x * x).mean(dim, keepdim=True).add(1e-3).rsqrt())
    OPERATORS[f"maximum {_dim}"] = _along(_dim, lambda x, dim: x - x.detach().amax(dim, keepdim=True))
    OPERATORS[f"cumulative {_dim}"] = _along(_dim, lambda x, dim: x.cumsum(dim))
    OPERATORS[f"halves {_dim}"] = _along(_dim, lambda x, dim: torch.cat([x.narrow(dim, x.shape[dim] // 2, x.shape[dim] - x.shape[dim] // 2), x.narrow(dim, 0, x.shape[dim] // 2)], dim))
    OPERATORS[f"rotated {_dim}"] = _along(_dim, lambda x, dim: x.roll(1, dim))


def _statistic(dim: int, *, mean: bool) -> Operator:
    """A sum or mean along a dimension that may be sharded: partial sums are added."""

    def operator(rank: Rank, x: Value, _: Value, choice: int) -> Value:
        x = rank.without(x, "P", choice=choice)
        length = SIZE if rank.edited("length of the mean", ("local",)) is None else x.local.shape[dim]
        total = x.local.sum(dim, keepdim=True)
        for axis, kind in enumerate(x.layout):
            if kind == dim:
                total = rank.copied(rank.reduced(total, axis), axis)
        if mean:
            total = total / length
        way = rank.edited("statistic", ("doubled", "detached"))
        total = total * 2 if way == "doubled" else total.detach() if way == "detached" else total
        return Value(x.local * total, x.layout)

    return operator


for _dim in (0, 1):
    OPERATORS[f"sum {_dim}"] = _statistic(_dim, mean=False)
    OPERATORS[f"mean {_dim}"] = _statistic(_dim, mean=True)


def distributed_softmax(rank: Rank, x: Value, _: Value, choice: int) -> Value:
    """Along the last dimension, which may be sharded: the maximum and the sum of all ranks."""
    x = rank.without(x, "P", choice=choice)
    axes = [axis for axis, kind in enumerate(x.layout) if kind == 1]
    largest = x.local.detach().amax(-1, keepdim=True)
    for axis in axes:
        way = rank.edited("maximum", ("sum", "other axis"))
        largest = rank._sum(largest, rank._other_axis(axis) if way == "other axis" else axis, "sum" if way == "sum" else "max")
    weights = (x.local - largest).exp()
    total = weights.sum(-1, keepdim=True)
    for axis in axes:
        total = rank.copied(rank.reduced(total, axis), axis)
    return Value(weights / total, x.layout)


OPERATORS["distributed softmax"] = distributed_softmax


def product(rank: Rank, x: Value, w: Value, choice: int) -> Value:
    """A matrix product, each axis in one of the four ways of cutting it."""
    layout: list[Any] = []
    for axis in range(len(rank.mesh)):
        pair = (x.layout[axis], w.layout[axis])
        if pair not in (("R", "R"), (0, "R"), ("R", 1), (1, 0), ("P", "R")):
            pair = (("R", "R"), (0, "R"), ("R", 1), (1, 0))[choice % 4]
            choice //= 4
        x, w = rank.converted(x, axis, pair[0]) if pair[0] != "P" else x, rank.converted(w, axis, pair[1])
    for axis in range(len(rank.mesh)):
        pair = (x.layout[axis], w.layout[axis])
        if pair not in (("R", "R"), (0, "R"), ("R", 1), (1, 0), ("P", "R")):
            x, w = rank.converted(x, axis, "R"), rank.converted(w, axis, "R")
    # A conversion on one axis may have changed another one: what stays is replicated.
    for axis in range(len(rank.mesh)):
        pair = (x.layout[axis], w.layout[axis])
        if pair not in (("R", "R"), (0, "R"), ("R", 1), (1, 0), ("P", "R")):
            x, w = rank.without(x, "P", 0, 1), rank.without(w, "P", 0, 1)
    contracted_x = [axis for axis in range(len(rank.mesh)) if x.layout[axis] == 1]
    contracted_w = [axis for axis in range(len(rank.mesh)) if w.layout[axis] == 0]
    if contracted_x != contracted_w:
        x, w = rank.without(x, "P", 0, 1), rank.without(w, "P", 0, 1)
    left, right = x.local, w.local
    for axis in range(len(rank.mesh)):
        pair = (x.layout[axis], w.layout[axis])
        if pair in ((0, "R"), ("P", "R")):
            right = rank.copied(right, axis)
        if pair == ("R", 1):
            left = rank.copied(left, axis)
        layout.append({("R", "R"): "R", (0, "R"): 0, ("R", 1): 1, (1, 0): "P", ("P", "R"): "P"}[pair])
    way = rank.edited("product", ("transposed", "doubled", "weight detached", "input detached"))
    if way == "transposed" and right.shape[0] == right.shape[1]:
        right = right.t()
    if way == "weight detached":
        right = right.detach()
    if way == "input detached":
        left = left.detach()
    found = left @ right
    return Value(found * 2 if way == "doubled" else found, tuple(layout))


OPERATORS["product"] = product


def _binary(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], *, partial: bool) -> Operator:
    def operator(rank: Rank, x: Value, y: Value, choice: int) -> Value:
        x, y = rank.alike(x, y, choice, partial=partial)
        way = rank.edited("operands", ("swapped", "first twice", "second twice", "second detached", "doubled"))
        left, right = x.local, y.local
        if way == "swapped":
            left, right = right, left
        if way == "first twice":
            right = left
        if way == "second twice":
            left = right
        if way == "second detached":
            right = right.detach()
        if way == "doubled":
            right = right * 2
        return Value(function(left, right), x.layout)

    return operator


OPERATORS["add"] = _binary(torch.add, partial=True)
OPERATORS["subtract"] = _binary(torch.sub, partial=True)
OPERATORS["multiply"] = _binary(torch.mul, partial=False)
OPERATORS["choose"] = _binary(lambda x, y: torch.where(x > 0, y, x), partial=False)
OPERATORS["gate"] = _binary(lambda x, y: F.silu(x) * y, partial=False)
OPERATORS["divide"] = _binary(lambda x, y: x / (y * y + 1), partial=False)


def bias(rank: Rank, x: Value, b: Value, choice: int) -> Value:
    """The first row of a replicated value added to every row; to a partial sum each rank adds its share."""
    b = rank.without(b, "P", 0, 1)
    row = b.local[0]
    for axis, kind in enumerate(x.layout):
        if kind == 1:
            row = rank.split(row[None], axis, 1)[0]
        elif kind != "R":
            row = rank.copied(row, axis)
        if kind == "P" and rank.edited("share of the bias", ("whole",)) is None:
            row = row / rank.mesh[axis]
    return Value(x.local + row, x.layout)


OPERATORS["bias"] = bias


def _positions(dim: int) -> Operator:
    def operator(rank: Rank, x: Value, _: Value, choice: int) -> Value:
        x = rank.without(x, "P", choice=choice)
        places = (torch.arange(x.local.shape[dim], device=x.local.device) + rank.start(x, dim)) * 0.25
        return Value(x.local * (places[:, None] if dim == 0 else places[None]).to(x.local.dtype), x.layout)

    return operator


OPERATORS["positions 0"], OPERATORS["positions 1"] = _positions(0), _positions(1)


def triangle(rank: Rank, x: Value, _: Value, choice: int) -> Value:
    """The lower triangle, also of a part."""
    x = rank.without(x, "P", choice=choice)
    way = rank.edited("triangle", ("upper", "next diagonal"))
    diagonal = rank.start(x, 0) - rank.start(x, 1) + (1 if way == "next diagonal" else 0)
    return Value((torch.triu if way == "upper" else torch.tril)(x.local, diagonal), x.layout)


OPERATORS["triangle"] = triangle


def lookup(rank: Rank, x: Value, w: Value, choice: int) -> Value:
    """Rows of a table that may be cut by rows: each rank looks up its own rows, the others are zero."""
    w = rank.without(w, "P", 1, choice=choice)
    ids = torch.tensor([3, 0, 7, 5, 2, 2, 6, 1], device=w.local.device)
    axes = [axis for axis, kind in enumerate(w.layout) if kind == 0]
    if not axes:
        return Value(F.embedding(ids, w.local), w.layout)
    rows, first = w.local.shape[0], rank.start(w, 0)
    outside = (ids < first) | (ids >= first + rows)
    if rank.edited("mask of the lookup", ("one too few",)):
        outside = (ids <= first) | (ids >= first + rows)
    found = F.embedding((ids - first).clamp(0, rows - 1), w.local).masked_fill(outside[:, None], 0.0)
    return Value(found, tuple("P" if kind == 0 else kind for kind in w.layout))


OPERATORS["lookup"] = lookup


def branch(rank: Rank, x: Value, _: Value, choice: int) -> Value:
    """Ranks that compute one value in two ways."""
    x = rank.without(x, "P", choice=choice)
    way = rank.edited("branch", ("other value", "other scale"))
    rank.reads_its_place = True
    if rank.mesh and rank.number == choice % math.prod(rank.mesh):
        local = x.local * 3.0 if way else x.local + x.local
        return Value(local, x.layout)
    return Value(x.local * 2.0, x.layout)


OPERATORS["branch"] = branch
PER_RANK = ("branch", "positions 0", "positions 1", "triangle", "lookup")
