"""The ten programs with their questions."""

from __future__ import annotations

import torch
from torch.distributed.tensor.placement_types import Replicate, Shard

import verifycompile
from tests.messages import programs
from tests.support import fake_mesh_world

R, S0, S1 = Replicate(), Shard(0), Shard(1)


def report(name: str) -> verifycompile.Report:
    shape, names = ((2, 2), ("dp", "tp")) if name == "group" else ((2,), ("tp",))
    with fake_mesh_world(shape, names) as mesh:
        model, spec, arguments, options = CASES[name](mesh)
        return verifycompile.verify(model, arguments, spec=spec, mesh=mesh, **options)


def placed(output, **inputs):
    return {
        "in_placements": {name: (placement,) for name, placement in inputs.items()},
        "out_placements": {"output.0": (output,)},
    }


def bias(mesh):
    options = {**placed(R, x=S1), "param_placements": {"weight": (S1,)}}
    return programs.RowParallelLinear(4, mesh), programs.Linear(4), (torch.randn(2, 2),), options


def mask(mesh):
    arguments = torch.randn(2, 3), torch.randn(4, 3), torch.randn(4, 3)
    return programs.attention_of_shard, programs.attention, arguments, placed(S0, q=S0, k=R, v=R)


def vocabulary(mesh):
    arguments = torch.tensor([0, 3, 2, 1]), torch.randn(2, 3)
    return programs.embedding_of_shard(mesh), programs.embedding, arguments, placed(R, tokens=R, table=S0)


def fused(mesh):
    options = {**placed(S1, x=R), "param_placements": {"gate_up": (S1,)}}
    return programs.Gated(2), programs.Gated(4), (torch.randn(3, 4),), options


def labels(mesh):
    arguments = torch.randn(4, 5), torch.tensor([1, -100, 2, 3])
    return programs.loss_of_own_labels(mesh), programs.loss_of_labels, arguments, placed(R, logits=S0, labels=S0)


def tokens(mesh):
    arguments = torch.randn(4), torch.ones(4)
    return programs.mean_of_means(mesh), programs.masked_mean, arguments, placed(R, losses=S0, mask=S0)


def norm(mesh):
    return programs.norm_of_shard, programs.norm, (torch.randn(3, 2), torch.randn(2)), placed(S1, x=S1, gain=S0)


def gain(mesh):
    options = {**placed(S1, x=R), "param_placements": {"wq": (S1,)}}
    return programs.NormedHeads(2), programs.NormedHeads(4), (torch.randn(5, 4),), options


def scale(mesh):
    arguments = torch.randn(2, 3), torch.randn(3, 2)
    return programs.loss_divided_twice(mesh), programs.scaled_loss, arguments, placed(R, x=S0, w=R)


def group(mesh):
    options = {"in_placements": {"x": (R, S1), "w": (R, S0)}, "out_placements": {"output.0": (R, R)}}
    return programs.wrong_group(mesh), programs.two_axes, (torch.randn(3, 2), torch.randn(2, 3)), options


CASES = {
    case.__name__: case for case in (bias, mask, vocabulary, fused, labels, tokens, norm, gain, scale, group)
}
