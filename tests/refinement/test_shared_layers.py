"""Layers that share their proof although capture writes them apart: reductions of gradients at the end of the program,
and a number of its own for each layer that reads where its rank is."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import verifycompile
from benchmarks.programs import PROGRAMS
from tests.mutants.edits import ALL_REDUCE, changed, drop, nodes_of, other_rank, other_reduction
from tests.programs.captured import capture
from tests.programs.case import Case, tensor_parallel, tensor_parallel_mesh
from tests.programs.mlp import ResidualMLP, inputs
from tests.refinement.test_layers import described, without_parts
from tests.support import fake_mesh_world
from verifycompile.program import Program
from verifycompile.refinement import attempt
from verifycompile.refinement.check import check_refinement

LAYERS = 4
HEAD_DIM = 4


class Heads(nn.Module):
    """The weight of the heads' scale is on every rank, and each sees its own heads alone."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 4 * HEAD_DIM, bias=False)
        self.scale = nn.Parameter(torch.ones(HEAD_DIM))
        self.down = nn.Linear(4 * HEAD_DIM, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.up(x).unflatten(-1, (-1, HEAD_DIM)) * self.scale
        return x + self.down(torch.tanh(heads).flatten(-2))


def heads() -> Case:
    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        def sum_over_ranks(parameter: torch.Tensor) -> None:
            dist.all_reduce(parameter.grad, group=mesh.get_group())

        parallelize_module(model, mesh, {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()})
        for layer in model.children():
            layer.scale.register_post_accumulate_grad_hook(sum_over_ranks)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
        return model

    def build() -> nn.Module:
        return nn.Sequential(*(Heads() for _ in range(LAYERS)))

    return Case("heads", tensor_parallel_mesh(2), build, parallelize, inputs)


def reading_ranks() -> Case:
    """Every layer makes the whole of its inner value, and takes a rank's part of it."""

    def build() -> nn.Module:
        return nn.Sequential(*(ResidualMLP() for _ in range(LAYERS)))

    styles = {
        "*.up": ColwiseParallel(output_layouts=Replicate()),
        "*.down": RowwiseParallel(input_layouts=Replicate()),
    }
    return Case("reading-ranks", tensor_parallel_mesh(2), build, tensor_parallel(styles), inputs)


def swapped(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class Attention(nn.Module):
    """Causal attention with two heads and rotated positions, behind a scale that every head's gradient reaches."""

    cosine: torch.Tensor
    sine: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.queries, self.keys, self.values, self.out = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.register_buffer("cosine", torch.randn(5, 8))
        self.register_buffer("sine", torch.randn(5, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part(x * self.scale).unflatten(-1, (-1, 8)).transpose(-2, -3)
            for part in (self.queries, self.keys, self.values)
        )
        q, k = (part * self.cosine + swapped(part) * self.sine for part in (q, k))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(heads.transpose(-2, -3).flatten(-2))


def one_head_a_rank() -> Case:
    def build() -> nn.Module:
        return nn.Sequential(*(Attention() for _ in range(LAYERS)))

    styles = {
        **dict.fromkeys(("*.queries", "*.keys", "*.values"), ColwiseParallel()),
        "*.out": RowwiseParallel(),
    }

    def batch() -> tuple[torch.Tensor, ...]:
        return (torch.randn(3, 5, 16),)

    return Case("one-head-a-rank", tensor_parallel_mesh(2), build, tensor_parallel(styles), batch)


CASES = {"heads": heads, "one-head-a-rank": one_head_a_rank, "reading-ranks": reading_ranks}


@functools.cache
def captured(name: str) -> tuple[Program, Program]:
    case = CASES[name]()
    with fake_mesh_world(case.mesh_shape, case.mesh_names) as mesh:
        return capture(case, mesh)


@pytest.mark.parametrize("name", CASES)
def test_equal_layers_are_proved_once(name: str) -> None:
    pair = captured(name)
    result, whole = check_refinement(*pair), without_parts(*pair)
    assert result.mismatch is None
    assert result.relations == whole.relations
    assert result.counts.memo > result.counts.normal_form / 4
    assert whole.counts.memo == 0


def without_its_reduction(position: int):
    """A gradient leaves as the rank's part of the sum, the one of so many at the end of the program."""

    def change(program: Program) -> None:
        node = nodes_of(program, torch.ops.aten.copy.default)[position]
        node.replace_all_uses_with(node.args[0])  # pyright: ignore[reportArgumentType]

    return changed(change)


WRONG = {
    **{f"heads:unreduced-{k}": ("heads", without_its_reduction(k)) for k in (0, 1, LAYERS - 1)},
    "heads:mean": ("heads", other_reduction(ALL_REDUCE, -2, True, "avg")),
    "heads:forward": ("heads", drop(ALL_REDUCE, 1, False)),
    **{f"reading-ranks:rank-{k}": ("reading-ranks", other_rank(k)) for k in (0, 1, LAYERS - 1)},
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", WRONG)
def test_one_wrong_layer_of_many_is_found(name: str) -> None:
    program, edit = WRONG[name]
    spec, implementation = captured(program)
    wrong = edit(implementation)
    result = check_refinement(spec, wrong)
    assert result.mismatch is not None
    assert described(result) == described(without_parts(spec, wrong))


def test_inputs_are_not_gone_over_more_often_in_more_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each program and question, and not for each output: that is linear in the depth."""
    counts: list[int] = []
    go_over = attempt.tensor_inputs
    monkeypatch.setattr(attempt, "tensor_inputs", lambda lowering: (counts.append(1), go_over(lowering))[1])
    found: list[int] = []
    for layers in (2, 6):
        with fake_mesh_world((2,), ("tp",)) as mesh:
            mlp = PROGRAMS["mlp"]
            report = verifycompile.verify(mlp.parallel(layers, mesh), mlp.inputs())
        assert report.verdict is verifycompile.Verdict.VERIFIED
        found.append(len(counts))
        counts.clear()
    assert 0 < found[1] <= found[0]
