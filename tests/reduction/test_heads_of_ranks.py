"""An attention at real sizes whose ranks have several heads: both programs are cut into heads alike where sizes shrink."""

from __future__ import annotations

import linecache

import pytest
import torch
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor.placement_types import Replicate, Shard

from tests.support import fake_mesh_world
from verifycompile import Verdict, verify


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mesh):
        ctx.mesh = mesh
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return funcol.all_reduce(gradient, "sum", ctx.mesh), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mesh):
        return funcol.all_reduce(x, "sum", mesh)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, of_head: int) -> None:
        super().__init__()
        self.heads, self.of_head = heads, of_head
        self.norm = nn.RMSNorm(width)
        self.wq, self.wk, self.wv = (nn.Linear(width, heads * of_head, bias=False) for _ in range(3))
        self.wo = nn.Linear(heads * of_head, width, bias=False)

    def cut(self, y):
        return y.unflatten(-1, (self.heads, self.of_head)).transpose(1, 2)

    def forward(self, x):
        n = self.norm(x)
        q, k, v = self.cut(self.wq(n)), self.cut(self.wk(n)), self.cut(self.wv(n))
        return x + self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Parallel(Attention):
    def __init__(self, width, heads, of_head, mesh):
        super().__init__(width, heads // mesh.size(), of_head)
        self.mesh = mesh

    def forward(self, x):
        n = self.norm(x)
        entered = _Enter.apply(n, self.mesh)
        q, k = self.cut(self.wq(entered)), self.cut(self.wk(entered))
        v = self.cut(self.wv(n))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + _Leave.apply(self.wo(out.transpose(1, 2).flatten(2)), self.mesh)


@pytest.mark.causes
def test_a_gradient_that_is_not_reduced_is_refuted_where_ranks_have_several_heads():
    with fake_mesh_world((8,), ("tp",)) as mesh, torch.device("meta"):
        report = verify(
            Parallel(1024, 16, 64, mesh),
            (torch.randn(1, 2048, 1024),),
            spec=Attention(1024, 16, 64),
            mesh=mesh,
            param_placements={"w[qkv].weight": (Shard(0),), "wo.weight": (Shard(1),)},
            out_placements={"output.0": (Replicate(),)},
        )
    assert report.verdict is Verdict.REFUTED
    (finding,) = report.findings
    place = finding.impl_location
    assert place is not None
    assert place.line is not None
    assert linecache.getline(place.file, place.line).strip() == "v = self.cut(self.wv(n))"
    assert finding.code == "VC101"
    line = place.line
    assert (
        finding.hint
        == f"all-reduce the gradient that line {line} computes over `tp` (sum) in its backward pass (checked)"
    )
    assert report.counterexample is not None
