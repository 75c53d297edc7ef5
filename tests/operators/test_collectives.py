"""Collectives on stacked tensors against what every rank computes, on meshes of one and two axes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch

from tests.ir.evaluate import Evaluator
from tests.operators.call import RefusedError, Sample, assert_same, leaf_name, lower_call
from verifycompile.ir.term import TermPool, View, identity_view

c10d = torch.ops._c10d_functional
dtensor = torch.ops._dtensor

GROUP = "0"
Tensors = list[torch.Tensor]
Reference = Callable[[Tensors, int], torch.Tensor]
"""``(inputs of the group's ranks, number of a rank in its group) -> its output``."""

MESHES = [((2,), (0,)), ((4,), (0,)), ((2, 3), (0,)), ((2, 3), (1,)), ((2, 3), (0, 1)), ((2, 2, 2), (0, 2))]


def members(mesh: tuple[int, ...], axes: tuple[int, ...]) -> list[list[tuple[int, ...]]]:
    """The coordinates of the ranks of every group, in rank order."""
    others = [a for a in range(len(mesh)) if a not in axes]
    groups: list[list[tuple[int, ...]]] = []
    for fixed in itertools.product(*(range(mesh[a]) for a in others)):
        group: list[tuple[int, ...]] = []
        for moving in itertools.product(*(range(mesh[a]) for a in axes)):
            place = dict(zip((*others, *axes), (*fixed, *moving), strict=True))
            group.append(tuple(place[a] for a in range(len(mesh))))
        groups.append(group)
    return groups


def check(sample: Sample, mesh: tuple[int, ...], axes: tuple[int, ...], reference: Reference) -> View:
    """Compare with ``reference`` where every rank has an input of its own. Returns the view. Raises RefusedError."""
    (local,) = sample.tensors
    generator = torch.Generator().manual_seed(1)
    stacked = torch.randn((*mesh, *local.shape), dtype=torch.float64, generator=generator)
    groups = members(mesh, axes)
    recorded = reference([stacked[place] for place in groups[0]], 0)
    pool = TermPool()
    value = pool.leaf(leaf_name(0), tuple(stacked.shape))
    (view,) = lower_call(sample, [value], recorded, pool=pool, mesh=mesh, groups={GROUP: axes})
    assert view is not None
    result = Evaluator({leaf_name(0): stacked}).view(view)
    for group in groups:
        inputs = [stacked[place] for place in group]
        for number, place in enumerate(group):
            assert_same(result[place], reference(inputs, number), f"rank {place}")
    return view


def reduced(inputs: Tensors, operation: str) -> torch.Tensor:
    stack = torch.stack(inputs)
    results = {"sum": stack.sum(0), "avg": stack.mean(0), "max": stack.amax(0), "min": stack.amin(0)}
    return {**results, "product": stack.prod(0)}[operation]


def block(tensor: torch.Tensor, dim: int, number: int, count: int) -> torch.Tensor:
    return tensor.chunk(count, dim)[number]


def size_of(mesh: tuple[int, ...], axes: Sequence[int]) -> int:
    return torch.Size([mesh[a] for a in axes]).numel()


COLLECTIVES = (
    c10d.wait_tensor.default,
    c10d.all_reduce.default,
    c10d.all_gather_into_tensor.default,
    c10d.reduce_scatter_tensor.default,
    c10d.all_to_all_single.default,
    dtensor.shard_dim_alltoall.default,
    c10d.broadcast.default,
)
"""The operators checked here."""

on_meshes = pytest.mark.parametrize(("mesh", "axes"), MESHES)


@on_meshes
def test_wait_tensor(mesh: tuple[int, ...], axes: tuple[int, ...]) -> None:
    check(Sample(c10d.wait_tensor.default, (torch.empty(3, 4),)), mesh, axes, lambda inputs, k: inputs[k])


@on_meshes
@pytest.mark.parametrize("operation", ["sum", "avg", "max", "min", "product"])
def test_all_reduce(mesh: tuple[int, ...], axes: tuple[int, ...], operation: str) -> None:
    sample = Sample(c10d.all_reduce.default, (torch.empty(3, 4), operation, GROUP))
    view = check(sample, mesh, axes, lambda inputs, k: reduced(inputs, operation))
    assert not any(view.uses(a) for a in axes)


@pytest.mark.parametrize(("operation", "kind"), [("sum", "max"), ("product", "min")])
def test_booleans_are_added_as_or(operation: str, kind: str) -> None:
    pool = TermPool()
    value = pool.leaf("x", (2, 3, 4))
    truth = torch.zeros(3, 4, dtype=torch.bool)
    samples = [Sample(c10d.all_reduce.default, (truth, name, GROUP)) for name in (operation, kind)]
    first, second = (lower_call(s, [value], truth, pool=pool, mesh=(2,), groups={GROUP: (0,)}) for s in samples)
    assert first == second


@on_meshes
def test_all_gather(mesh: tuple[int, ...], axes: tuple[int, ...]) -> None:
    sample = Sample(c10d.all_gather_into_tensor.default, (torch.empty(3, 4), size_of(mesh, axes), GROUP))
    view = check(sample, mesh, axes, lambda inputs, k: torch.cat(inputs))
    assert not any(view.uses(a) for a in axes)


@on_meshes
@pytest.mark.parametrize("operation", ["sum", "avg", "max"])
def test_reduce_scatter(mesh: tuple[int, ...], axes: tuple[int, ...], operation: str) -> None:
    count = size_of(mesh, axes)
    sample = Sample(c10d.reduce_scatter_tensor.default, (torch.empty(2 * count, 3), operation, count, GROUP))
    check(sample, mesh, axes, lambda inputs, k: block(reduced(inputs, operation), 0, k, count))


@on_meshes
def test_all_to_all_single(mesh: tuple[int, ...], axes: tuple[int, ...]) -> None:
    count = size_of(mesh, axes)
    sizes = [2] * count
    sample = Sample(c10d.all_to_all_single.default, (torch.empty(2 * count, 3), sizes, sizes, GROUP))
    check(sample, mesh, axes, lambda inputs, k: torch.cat([block(x, 0, k, count) for x in inputs]))


@on_meshes
@pytest.mark.parametrize(("gather", "split"), [(0, 1), (1, 0), (-1, 0), (0, -2), (1, 1)])
def test_shard_dim_alltoall(mesh: tuple[int, ...], axes: tuple[int, ...], gather: int, split: int) -> None:
    count = size_of(mesh, axes)
    sample = Sample(dtensor.shard_dim_alltoall.default, (torch.empty(2 * count, 3 * count), gather, split, GROUP))
    check(sample, mesh, axes, lambda inputs, k: torch.cat([block(x, split, k, count) for x in inputs], gather))


@on_meshes
def test_broadcast(mesh: tuple[int, ...], axes: tuple[int, ...]) -> None:
    for source in range(size_of(mesh, axes)):
        sample = Sample(c10d.broadcast.default, (torch.empty(3, 4), source, GROUP))
        check(sample, mesh, axes, lambda inputs, k, source=source: inputs[source])


REFUSED = [
    (
        Sample(c10d.all_reduce.default, (torch.empty(4, 2), "bxor", GROUP)),
        "VC202 a collective with the reduction `bxor`",
    ),
    (
        Sample(c10d.all_reduce.default, (torch.empty(4, 2), "sum", "other")),
        "VC206 a process group that is no set of mesh axes: other",
    ),
    (
        Sample(c10d.all_gather_into_tensor.default, (torch.empty(4, 2), 3, GROUP)),
        "VC206 group_size=3 for a group of 2 ranks",
    ),
    (
        Sample(c10d.reduce_scatter_tensor.default, (torch.empty(4, 2), "sum", 4, GROUP)),
        "VC206 group_size=4 for a group of 2 ranks",
    ),
    (
        Sample(c10d.reduce_scatter_tensor.default, (torch.empty(5, 2), "sum", 2, GROUP)),
        "VC206 a dimension of size 5 scattered unevenly",
    ),
    (
        Sample(c10d.all_to_all_single.default, (torch.empty(4, 2), [1, 3], [2, 2], GROUP)),
        "VC206 all_to_all_single with the split sizes [1, 3]",
    ),
    (
        Sample(c10d.all_to_all_single.default, (torch.empty(4, 2), [2, 2, 2], [2, 2], GROUP)),
        "VC206 all_to_all_single with the split sizes [2, 2, 2]",
    ),
    (
        Sample(dtensor.shard_dim_alltoall.default, (torch.empty(4, 3), 0, 1, GROUP)),
        "VC206 a dimension of size 3 exchanged unevenly",
    ),
    (
        Sample(c10d.broadcast.default, (torch.empty(4, 2), 2, GROUP)),
        "VC206 a broadcast from rank 2 in a group of 2 ranks",
    ),
    (
        Sample(c10d.all_reduce.default, (torch.zeros(4, 2, dtype=torch.int64), "avg", GROUP)),
        "VC202 a collective `avg` of torch.int64",
    ),
    (
        Sample(c10d.reduce_scatter_tensor.default, (torch.zeros(4, 2, dtype=torch.int64), "avg", 2, GROUP)),
        "VC202 a collective `avg` of torch.int64",
    ),
]


@pytest.mark.parametrize(("sample", "message"), REFUSED, ids=lambda v: str(v) if isinstance(v, Sample) else "")
def test_refused(sample: Sample, message: str) -> None:
    pool = TermPool()
    (tensor,) = sample.tensors
    value = pool.leaf(leaf_name(0), (2, *tensor.shape))
    with pytest.raises(RefusedError) as refused:
        lower_call(sample, [value], tensor, pool=pool, mesh=(2,), groups={GROUP: (0,)})
    assert str(refused.value) == message


def test_reducing_twice_is_not_reducing_once() -> None:
    pool = TermPool()
    value = pool.leaf("x", (2, 4))
    sample = Sample(c10d.all_reduce.default, (torch.empty(4), "sum", GROUP))
    (once,) = lower_call(sample, [value], torch.empty(4), pool=pool, mesh=(2,), groups={GROUP: (0,)})
    assert once is not None
    (twice,) = lower_call(sample, [once], torch.empty(4), pool=pool, mesh=(2,), groups={GROUP: (0,)})
    assert twice is not None
    assert twice.term is once.term
    assert (once.coefficient, twice.coefficient) == (1, 2)


def test_gather_of_the_shards_is_the_whole_tensor() -> None:
    pool = TermPool()
    whole = pool.leaf("x", (6, 4))
    shards = View(whole.coefficient, whole.term, (2, 3, 4), (((0, 1, 2), (1, 1, 3)), ((2, 1, 4),)))
    sample = Sample(c10d.all_gather_into_tensor.default, (torch.empty(3, 4), 2, GROUP))
    (gathered,) = lower_call(sample, [shards], torch.empty(6, 4), pool=pool, mesh=(2,), groups={GROUP: (0,)})
    assert gathered is not None
    assert gathered.term is identity_view(whole.term).term
    assert gathered.axes == (((1, 1, 6),), ((2, 1, 4),))
