"""Random small programs, parallelized at random: some right, many wrong, all of shapes that fit.

The spec applies a list of steps to whole square matrices. The implementation applies the same steps to local ones.
Before a step it may convert its operands with DTensor's own redistributions; where it does not, or where it believes a
wrong layout, the result is wrong. Which layout it believes decides later conversions, so mistakes travel.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

SIZE = 4
Placements = tuple[Placement, ...]
Function = Callable[..., torch.Tensor]

UNARY: dict[str, Function] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "double": lambda x: 2 * x,
    "shift": lambda x: x + 1,
    "square": lambda x: x * x,
    "transpose": lambda x: x.t(),
    "reshape": lambda x: x.reshape(x.shape[1], x.shape[0]),
    "softmax0": lambda x: F.softmax(x, 0),
    "softmax1": lambda x: F.softmax(x, 1),
    "sum0": lambda x: x * x.sum(0, keepdim=True),
    "sum1": lambda x: x * x.sum(1, keepdim=True),
    "mean0": lambda x: x - x.mean(0, keepdim=True),
    "mean1": lambda x: x - x.mean(1, keepdim=True),
    "total": lambda x: x + x.sum(),
    "max1": lambda x: x - x.amax(1, keepdim=True),
    "norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "tril": torch.tril,
    "halves": lambda x: torch.cat([x.chunk(2, 1)[1], x.chunk(2, 1)[0]], 1),
    "split": lambda x: x.split([1, x.shape[0] - 1])[1].sum(0, keepdim=True) + x,
}
BINARY: dict[str, Function] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "matmul": torch.matmul,
    "where": lambda x, y: torch.where(x > 0, y, 0.0),
}


@dataclasses.dataclass(frozen=True)
class Step:
    """``function`` of the values ``operands``. ``wanted``: per operand the layout to convert to first, None: as it is.

    ``believed``: per operand the layout that the conversion starts from, sometimes a wrong one.
    """

    function: str
    operands: tuple[int, ...]
    believed: tuple[Placements, ...]
    wanted: tuple[Placements | None, ...]


@dataclasses.dataclass(frozen=True)
class RandomProgram:
    """``layouts``: of the inputs. ``out``: the layout declared for the output, None where any will do."""

    layouts: tuple[Placements, ...]
    requires_grad: tuple[bool, ...]
    steps: tuple[Step, ...]
    out: Placements | None

    def spec(self, *values: torch.Tensor) -> torch.Tensor:
        held = list(values)
        for step in self.steps:
            held.append(_function(step.function)(*(held[i] for i in step.operands)))
        return held[-1]

    def implementation(self, mesh: DeviceMesh) -> Callable[..., torch.Tensor]:
        def run(*values: torch.Tensor) -> torch.Tensor:
            held = list(values)
            for step in self.steps:
                operands = [
                    held[i] if wanted is None else convert(held[i], mesh, believed, wanted)
                    for i, believed, wanted in zip(step.operands, step.believed, step.wanted, strict=True)
                ]
                held.append(_function(step.function)(*operands))
            return held[-1]

        return run

    @property
    def used(self) -> tuple[int, ...]:
        """Numbers of the inputs that the result depends on."""
        found: set[int] = set()
        pending = [len(self.layouts) + len(self.steps) - 1]
        while pending:
            value = pending.pop()
            if value < len(self.layouts):
                found.add(value)
            else:
                pending.extend(self.steps[value - len(self.layouts)].operands)
        return tuple(sorted(found))

    def inputs(self, mesh_shape: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """What one rank passes."""
        tensors: list[torch.Tensor] = []
        for layout, requires_grad in zip(self.layouts, self.requires_grad, strict=True):
            shape = [SIZE, SIZE]
            for placement, size in zip(layout, mesh_shape, strict=True):
                if isinstance(placement, Shard):
                    shape[placement.dim] //= size
            tensors.append(torch.randn(shape, requires_grad=requires_grad))
        return tuple(tensors)


def convert(value: torch.Tensor, mesh: DeviceMesh, believed: Placements, wanted: Placements) -> torch.Tensor:
    """Redistribute a local tensor; over Replicate, because on CPU meshes torch does the direct way by rank constants."""
    distributed = DTensor.from_local(value, mesh, believed, run_check=False)
    whole = distributed.redistribute(mesh, [Replicate()] * mesh.ndim)
    return whole.redistribute(mesh, wanted).to_local()


def _function(name: str) -> Function:
    return UNARY[name] if name in UNARY else BINARY[name]


def random_program(seed: int, axes: int = 1) -> RandomProgram:
    """A program over three inputs on a mesh of ``axes`` axes."""
    choose = random.Random(seed)
    layouts = tuple(_layout(choose, axes) for _ in range(3))
    requires_grad = tuple(choose.random() < 0.5 for _ in layouts)
    believed = list(layouts)
    steps: list[Step] = []
    for number in range(choose.randint(1, 5)):
        name = choose.choice([*UNARY, *BINARY, "matmul", "add", "multiply"])
        count = 1 if name in UNARY else 2
        newest = len(believed) - 1
        operands = [newest if number and k == 0 else choose.randrange(len(believed)) for k in range(count)]
        if choose.random() < 0.5:
            operands.reverse()
        starts = [_layout(choose, axes) if choose.random() < 0.15 else believed[i] for i in operands]
        targets: list[Placements | None] = [_target(choose, axes) for _ in operands]
        if count == 2 and name != "matmul" and choose.random() < 0.7:
            targets = [_layout(choose, axes, partial=False)] * 2
        ends = [start if target is None else target for start, target in zip(starts, targets, strict=True)]
        steps.append(Step(name, tuple(operands), tuple(starts), tuple(targets)))
        believed.append(_result(choose, name, ends))
    out = believed[-1] if choose.random() < 0.5 else None
    return RandomProgram(layouts, requires_grad, tuple(steps), out)


def _layout(choose: random.Random, axes: int, *, partial: bool = True) -> Placements:
    kinds: list[Placement] = [Replicate(), Shard(0), Shard(1), *([Partial()] if partial else [])]
    return tuple(choose.choice(kinds) for _ in range(axes))


def _target(choose: random.Random, axes: int) -> Placements | None:
    if choose.random() < 0.5:
        return None
    return (Replicate(),) * axes if choose.random() < 0.5 else _layout(choose, axes, partial=False)


def _result(choose: random.Random, name: str, operands: Sequence[Placements]) -> Placements:
    if name in ("transpose", "reshape"):
        return tuple(Shard(1 - p.dim) if isinstance(p, Shard) else p for p in operands[0])
    if name != "matmul":
        return tuple(_mixed(choose, column) for column in zip(*operands, strict=True))
    return tuple(_product(choose, left, right) for left, right in zip(*operands, strict=True))


def _mixed(choose: random.Random, column: Sequence[Placement]) -> Placement:
    kinds = [p for p in column if not isinstance(p, Replicate)]
    return choose.choice(kinds) if kinds else Replicate()


def _product(choose: random.Random, left: Placement, right: Placement) -> Placement:
    if left == Shard(1) and right == Shard(0):
        return Partial()
    if left == Shard(0):
        return left
    return right if right == Shard(1) else _mixed(choose, [p for p in (left, right) if isinstance(p, Partial)])
