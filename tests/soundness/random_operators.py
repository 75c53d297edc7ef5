"""Random pairs of small programs: a sampled operator call, and the same call, or one changed in one place, on shards.

The implementation may differ in one attribute, in the placement of an operand, in a collective or in what follows it;
whatever is proved is computed on every rank by torch's own operators and assembled as the relation says.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator as python_operator
import random
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from tests.operators.call import REFERENCES, Sample, flat_results
from tests.operators.samples import SAMPLES
from tests.operators.test_against_torch import TORCH_ERRORS, attribute_variants
from verifycompile.program import Mesh, MeshAxis, OutputKind, Program, ProgramInput, ProgramOutput, Role
from verifycompile.refinement.check import check_refinement

aten, c10d = torch.ops.aten, torch.ops._c10d_functional

CALLS = [
    s for s in SAMPLES
    if s.tensors and all(t.numel() for t in s.tensors) and s.target is not aten.native_dropout.default
]  # fmt: skip
MESHES = [(2,), (2, 2), (3,)]

Follower = tuple[Any, tuple[Any, ...]]
FOLLOWERS: list[Follower] = [
    (aten.mul.Scalar, (0.5,)), (aten.mul.Scalar, (2,)), (aten.neg.default, ()), (aten.abs.default, ()),
    (aten.relu.default, ()), (aten.sum.dim_IntList, ([0], True)), (aten.mean.dim, ([-1], True)),
    (aten.amax.default, ([0], True)), (aten._softmax.default, (-1, False)), (aten.exp.default, ()),
    (aten.add.Scalar, (1,)),
]  # fmt: skip
"""Operators of one tensor that both programs may go on with."""

COLLECTIVES = ("all_reduce sum", "all_reduce avg", "all_reduce max", "all_gather", "reduce_scatter")


@dataclasses.dataclass(frozen=True)
class Trial:
    """A spec and what one rank runs. ``collective``: kind and mesh axis; ``followers``: after the call, before it."""

    mesh: tuple[int, ...]
    spec: Sample
    implementation: Sample
    placements: tuple[tuple[Placement, ...], ...]
    output: int
    spec_followers: tuple[Follower, ...]
    impl_followers: tuple[Follower, ...]
    collective: tuple[str, int] | None
    last: tuple[Follower, ...]
    """What both programs do at the end, the implementation after its collective."""


def random_trial(seed: int) -> Trial | None:
    """None where torch does not take the calls."""
    draw = random.Random(seed)
    mesh = draw.choice(MESHES)
    sample = draw.choice(CALLS)
    placements = tuple(_placements(tensor, mesh, draw) for tensor in sample.tensors)
    changed = sample
    if draw.random() < 0.5:
        variants = list(attribute_variants(sample))
        changed = draw.choice(variants)[1] if variants else sample
    results = sample.run()
    outputs = [k for k, r in enumerate(results) if r is not None and r.dtype.is_floating_point and r.dim()]
    if not outputs:
        return None
    followers = tuple(draw.sample(FOLLOWERS, draw.choice([0, 0, 1])))
    others = tuple(draw.sample(FOLLOWERS, draw.choice([0, 1]))) if draw.random() < 0.2 else followers
    collective = (draw.choice(COLLECTIVES), draw.randrange(len(mesh))) if draw.random() < 0.6 else None
    last = tuple(draw.sample(FOLLOWERS, draw.choice([0, 0, 1])))
    return Trial(mesh, sample, changed, placements, draw.choice(outputs), followers, others, collective, last)


def _placements(tensor: torch.Tensor, mesh: Sequence[int], draw: random.Random) -> tuple[Placement, ...]:
    found: list[Placement] = []
    shape = list(tensor.shape)
    for size in mesh:
        fitting = [d for d, length in enumerate(shape) if length % size == 0]
        if fitting and draw.random() < 0.6:
            dim = draw.choice(fitting)
            shape[dim] //= size
            found.append(Shard(dim))
        else:
            found.append(Replicate())
    return tuple(found)


# ------------------------------------------------------------------------------------------------ on numbers


def _part(tensor: torch.Tensor, placements: Sequence[Placement], place: Sequence[int], mesh: Sequence[int]) -> Any:
    for placement, coordinate, size in zip(placements, place, mesh, strict=True):
        if isinstance(placement, Shard):
            tensor = tensor.chunk(size, placement.dim)[coordinate]
    # A rank's own part; some kernels read the statistics of a norm as if nothing lay between their elements.
    return tensor.contiguous()


def _follow(value: torch.Tensor, followers: Sequence[Follower]) -> torch.Tensor:
    for target, arguments in followers:
        value = target(value, *arguments)
    return value


def _called(sample: Sample, output: int, followers: Sequence[Follower]) -> torch.Tensor:
    value = sample.run()[output]
    assert value is not None
    return _follow(value, followers)


Values = dict[tuple[int, ...], torch.Tensor]


def _group(values: Values, place: tuple[int, ...], axis: int, size: int) -> list[torch.Tensor]:
    return [values[(*place[:axis], k, *place[axis + 1 :])] for k in range(size)]


def _communicated(values: Values, collective: tuple[str, int] | None, mesh: Sequence[int]) -> Values:
    if collective is None:
        return values
    kind, axis = collective
    found: Values = {}
    for place in values:
        group = _group(values, place, axis, mesh[axis])
        stack = torch.stack(group)
        if kind.startswith("all_reduce"):
            found[place] = {"sum": stack.sum(0), "avg": stack.mean(0), "max": stack.amax(0)}[kind.split()[1]]
        elif kind == "all_gather":
            found[place] = torch.cat(group)
        else:
            if stack.shape[1] % mesh[axis]:
                raise ValueError("rows that do not divide")
            found[place] = stack.sum(0).chunk(mesh[axis])[place[axis]]
    return found


def values_of(trial: Trial) -> tuple[torch.Tensor, Values]:
    """The spec's value, and the implementation's on every rank. Raises what torch raises."""
    expected = _follow(_called(trial.spec, trial.output, trial.spec_followers), trial.last)
    values: Values = {}
    for place in itertools.product(*map(range, trial.mesh)):
        parts = [
            _part(tensor, placements, place, trial.mesh)
            for tensor, placements in zip(trial.implementation.tensors, trial.placements, strict=True)
        ]
        values[place] = _called(trial.implementation.replaced(parts), trial.output, trial.impl_followers)
    values = _communicated(values, trial.collective, trial.mesh)
    return expected, {place: _follow(value, trial.last) for place, value in values.items()}


def whole_value(values: Values, placements: Sequence[Placement], mesh: Sequence[int]) -> torch.Tensor | None:
    """The tensor that the ranks hold; None where ranks that should hold the same do not."""
    for axis in reversed(range(len(mesh))):
        placement, joined = placements[axis], Values()
        for place in itertools.product(*map(range, mesh[:axis])):
            group = [values[(*place, k)] for k in range(mesh[axis])]
            if isinstance(placement, Shard):
                joined[place] = torch.cat(group, placement.dim)
            elif isinstance(placement, Partial):
                stack = torch.stack(group)
                joined[place] = stack.sum(0) if placement.reduce_op == "sum" else stack.mean(0)
            elif not all(same(group[0], other) for other in group):
                return None
            else:
                joined[place] = group[0]
        values = joined
    return values[()]


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal but for rounding; what is infinite or no number in either is left out."""
    if left.shape != right.shape:
        return False
    known = left.isfinite() & right.isfinite()
    near = 1e-4 if torch.float32 in (left.dtype, right.dtype) else 1e-8
    return torch.allclose(left[known].double(), right[known].double(), near, near)


# ------------------------------------------------------------------------------------------------ as programs


def programs_of(trial: Trial) -> tuple[Program, Program]:
    """Both captured programs; the implementation's as rank 0 sees it."""
    spec = _program(trial, trial.spec, trial.spec.tensors, trial.spec_followers, mesh=False)
    first = (0,) * len(trial.mesh)
    parts = [
        _part(tensor, placements, first, trial.mesh)
        for tensor, placements in zip(trial.implementation.tensors, trial.placements, strict=True)
    ]
    return spec, _program(trial, trial.implementation, parts, trial.impl_followers, mesh=True)


def _program(
    trial: Trial, sample: Sample, tensors: Sequence[torch.Tensor], followers: Sequence[Follower], *, mesh: bool
) -> Program:
    graph = torch.fx.Graph()
    inputs: list[ProgramInput] = []
    for k, tensor in enumerate(tensors):
        node = graph.placeholder(f"x{k}")
        node.meta["val"] = tensor
        placements = trial.placements[k] if mesh else None
        inputs.append(ProgramInput(node, Role.INPUT, f"x{k}", placements, tuple(sample.tensors[k].shape)))

    def call(target: Any, *arguments: Any, value: Any, **keywords: Any) -> torch.fx.Node:
        node = graph.call_function(target, arguments, keywords)
        node.meta["val"] = value
        return node

    local = sample.replaced(tensors)
    args, kwargs = sample.with_tensors([item.node for item in inputs])
    recorded = REFERENCES.get(local.target, local.target)(*local.args, **local.kwargs)
    node, value = call(sample.target, *args, value=recorded, **kwargs), flat_results(recorded)[trial.output]
    if isinstance(recorded, (tuple, list)):
        node = call(python_operator.getitem, node, trial.output, value=value)
    assert value is not None

    def follow(steps: Sequence[Follower]) -> None:
        nonlocal node, value
        for target, arguments in steps:
            value = target(value, *arguments)
            node = call(target, node, *arguments, value=value)

    follow(followers)
    if mesh and trial.collective is not None:
        kind, axis = trial.collective
        size = trial.mesh[axis]
        if kind.startswith("all_reduce"):
            node = call(c10d.all_reduce.default, node, kind.split()[1], "0", value=value)
        elif kind == "all_gather":
            value = torch.cat([value] * size)
            node = call(c10d.all_gather_into_tensor.default, node, size, "0", value=value)
        else:
            value = value.chunk(size)[0]
            node = call(c10d.reduce_scatter_tensor.default, node, "sum", size, "0", value=value)
        node = call(c10d.wait_tensor.default, node, value=value)
    follow(trial.last)
    graph.output((node,))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    nodes = {n.name: n for n in module.graph.nodes}
    axes = tuple(MeshAxis(f"axis{k}", size) for k, size in enumerate(trial.mesh))
    return Program(
        module,
        tuple(dataclasses.replace(item, node=nodes[item.node.name]) for item in inputs),
        (ProgramOutput(nodes[node.name], OutputKind.VALUE, "output.0", 0),),
        Mesh(axes, tuple(range(torch.Size(trial.mesh).numel()))) if mesh else None,
        groups={"0": (trial.collective[1],)} if mesh and trial.collective else {},
    )


def outcome(trial: Trial) -> tuple[bool, str] | None:
    """Whether it verifies, and ``equal`` or ``different``; None where torch does not take the calls."""
    try:
        expected, values = values_of(trial)
        spec, implementation = programs_of(trial)
    except (*TORCH_ERRORS, ArithmeticError):
        return None
    result = check_refinement(spec, implementation)
    if result.mismatch is not None:
        return False, ""
    found = whole_value(values, result.placements["output.0"], trial.mesh)
    return True, "equal" if found is not None and same(found, expected) else "different"


def main(first: int, stop: int) -> None:
    """Write every seed before it is tried, and then what came out."""
    torch.set_num_threads(1)
    for seed in range(first, stop):
        _say(f"{seed} started")
        trial = random_trial(seed)
        _say(f"{seed} {None if trial is None else outcome(trial)}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
