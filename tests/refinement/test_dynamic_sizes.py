"""Dynamic sizes: one proof for every batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import verifycompile
from tests.programs import mlp
from tests.soundness.plain import reduce_out, verify_functions
from tests.support import fake_mesh_world
from verifycompile import Verdict


def dynamic(shape: tuple[int, ...], dims: dict[int, int | None]) -> torch.Tensor:
    value = torch.randn(shape)
    for dim, least in dims.items():
        torch._dynamo.mark_dynamic(value, dim, **({} if least is None else {"min": least}))
    return value


@pytest.mark.parametrize("degree", [2, 4])
def test_batch(degree):
    with fake_mesh_world((degree,), ("tp",)) as mesh:
        model = parallelize_module(mlp.MLP(), mesh, mlp.plan())
        report = verifycompile.verify(model, (dynamic((8, 16), {0: None}),))
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert {"grad.up.weight", "grad.down.bias"} <= report.relations.keys()


@pytest.mark.parametrize("right", [True, False])
def test_batch_and_sequence(right):
    def implementation(mesh, x, w):
        return reduce_out(torch.relu(x) @ w, mesh) if right else torch.relu(x) @ w

    report = verify_functions(
        lambda x, w: torch.relu(x) @ w,
        implementation,
        (dynamic((4, 6, 8), {0: None, 1: None}), torch.randn(8, 16)),
        in_placements={"a": (Shard(2),), "b": (Shard(0),)},
        out_placements={"output.0": (Replicate(),)},
    )
    assert (report.verdict is Verdict.VERIFIED) is right, str(report)


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.body = mlp.MLP()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(self.norm(x))


def sequence_parallel(mesh):
    return parallelize_module(
        Sequence(),
        mesh,
        {
            "norm": SequenceParallel(use_local_output=True),
            "body": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
            "body.up": ColwiseParallel(),
            "body.down": RowwiseParallel(output_layouts=Shard(1)),
        },
    )


def test_sharded_sequence():
    with fake_mesh_world((2,), ("tp",)) as mesh:
        value = dynamic((2, 6, 16), {1: None})
        report = verifycompile.verify(
            sequence_parallel(mesh), (value,), in_placements={"x": (Shard(1),)}, spec=Sequence()
        )
    assert report.verdict is Verdict.VERIFIED, str(report)


class DividedByBatch(nn.Module):
    """Divides by the number of rows: under a sharded batch that is the local one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x) / x.shape[0]


@pytest.mark.parametrize(("placement", "right"), [(Replicate(), True), (Shard(0), False)])
def test_size_as_a_number(placement, right):
    with fake_mesh_world((2,), ("dp",)) as mesh:
        report = verifycompile.verify(
            DividedByBatch(),
            (dynamic((6, 16), {0: None}),),
            mesh=mesh,
            spec=DividedByBatch(),
            in_placements={"x": (placement,)},
        )
    assert (report.verdict is Verdict.VERIFIED) is right, str(report)


def test_missing_reduction_with_a_dynamic_batch():
    with fake_mesh_world((2,), ("tp",)) as mesh:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Partial())}
        model = parallelize_module(mlp.ResidualMLP(), mesh, plan)
        report = verifycompile.verify(model, (dynamic((8, 16), {0: None}),))
    assert report.verdict is not Verdict.VERIFIED
