"""Data parallelism in its graph form: parameters gathered before use, gradients reduced by the graph's own collectives.

DDP (replicated parameters), FSDP (sharded), HSDP (sharded inside of a replicated axis), alone and around tensor
parallelism with sequence parallelism. Two ways to write the gathering: ``torch.nn.utils.parametrize``, and a subclass
with properties.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.nn.utils import parametrize

from tests.programs import gpt2, llama, mlp
from tests.programs.case import Case, Plan

MEAN, SUM = Partial("avg"), Partial("sum")


class Regression(mlp.MLP):
    """The mean of squares over a rank's samples: of equal numbers of samples, the mean of means is the whole mean."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(super().forward(x), y)


class DividedTwice(Regression):
    """A loss that is divided by the number of ranks, though the mean of the gradients is taken as well."""

    ranks = 2

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().forward(x, y) / self.ranks


class Gathered(nn.Module):
    """The whole parameter on every rank of the data-parallel axes; its gradient is laid out as ``gradient`` says."""

    def __init__(self, layout: Layout, mesh: DeviceMesh, inner: tuple[DeviceMesh, Sequence[Placement]] | None) -> None:
        super().__init__()
        self.layout, self.mesh, self.inner = layout, mesh, inner

    def forward(self, weight: DTensor) -> torch.Tensor:
        whole = [Replicate()] * self.mesh.ndim
        gradient = [*self.layout.gradient]
        if self.inner is None:
            return weight.redistribute(placements=whole).to_local(grad_placements=gradient)
        shard = DTensor.from_local(weight.to_local(), self.mesh, [*self.layout.sharding], run_check=False)
        local = shard.redistribute(placements=whole).to_local(grad_placements=gradient)
        return DTensor.from_local(local, self.inner[0], [*self.inner[1]], run_check=False)


@dataclasses.dataclass(frozen=True)
class Layout:
    """``axes``: mesh axes of data parallelism. On each of them: how parameters lie, and what their gradients are.

    ``properties``: gather in properties of a subclass instead of parametrizations.
    """

    axes: tuple[str, ...]
    sharding: tuple[Placement, ...]
    gradient: tuple[Placement, ...]
    properties: bool = False


def data_parallel(
    layout: Layout, plan: Plan | None = None, ties: Sequence[tuple[str, str]] = ()
) -> Callable[..., nn.Module]:
    """Data parallelism around a tensor-parallel plan on the axis ``tp``, or around nothing."""

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        whole = {name: value.detach().clone() for name, value in model.named_parameters()}
        if plan is not None:
            model = parallelize_module(model, mesh["tp"], dict(plan))
        for kept, tied in ties:
            model.get_submodule(tied).weight = model.get_submodule(kept).weight
        for prefix, module in list(model.named_modules()):
            for name in list(dict(module.named_parameters(recurse=False, remove_duplicate=False))):
                _distribute(module, name, whole[f"{prefix}.{name}" if prefix else name], layout, mesh)
        return model

    return parallelize


def _distribute(module: nn.Module, name: str, whole: torch.Tensor, layout: Layout, mesh: DeviceMesh) -> None:
    held = module._parameters[name]
    dp_mesh = mesh[layout.axes] if set(layout.axes) != set(mesh.mesh_dim_names or ()) else mesh
    inner = (held.device_mesh, held.placements) if isinstance(held, DTensor) else None
    placements = [*layout.sharding]
    if inner is not None:
        (inside,) = inner[1]
        placements = [_around(item, inside, inner[0].size()) for item in placements] + [inside]
    over = mesh if inner is not None else dp_mesh
    module.register_parameter(name, nn.Parameter(distribute_tensor(whole, over, placements)))
    gathered = Gathered(layout, dp_mesh, inner)
    if layout.properties:
        getter = property(lambda self: gathered(self._parameters[name]))
        module.__class__ = type(f"Gathered{type(module).__name__}", (type(module),), {name: getter})
    else:
        parametrize.register_parametrization(module, name, gathered, unsafe=True)


def _around(outer: Placement, inside: Placement, degree: int) -> Placement:
    """Data parallelism divides what tensor parallelism has divided."""
    return _StridedShard(outer.dim, split_factor=degree) if outer == inside and isinstance(outer, Shard) else outer


DP = (("dp", 2),)
HYBRID = (("replicate", 2), ("shard", 2))
DP_TP = (("dp", 2), ("tp", 2))
HYBRID_TP = (*HYBRID, ("tp", 2))

DDP = Layout(("dp",), (Replicate(),), (MEAN,))
FSDP = Layout(("dp",), (Shard(0),), (MEAN,))
FSDP_PROPERTIES = dataclasses.replace(FSDP, properties=True)
HSDP = Layout(("replicate", "shard"), (Replicate(), Shard(0)), (MEAN, MEAN))


def summed(layout: Layout) -> Layout:
    """For a program that returns its rank's part of the samples: each adds to the gradient."""
    return dataclasses.replace(layout, gradient=(SUM,) * len(layout.axes))


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 16, generator=generator), torch.randn(8, 16, generator=generator)


def regression(
    name: str, mesh: tuple[tuple[str, int], ...], layout: Layout, *, plan: bool = False, model: type = Regression
) -> Case:
    parallelize = data_parallel(layout, mlp.plan() if plan else None)
    return Case(f"{name}-mlp-{'x'.join(str(n) for _, n in mesh)}", mesh, model, parallelize, pairs, batch=layout.axes)


def tokens() -> tuple[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (torch.randint(0, gpt2.VOCABULARY, (4, gpt2.SEQUENCE), generator=generator),)


class Classifier(llama.Llama):
    """Tokens in, logits out."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.table[:, : tokens.shape[1]])
        return self.output(self.norm(x))


def transformer(name: str, mesh: tuple[tuple[str, int], ...], layout: Layout, *, plan: bool = False) -> Case:
    """A Llama block; around tensor parallelism its norms run on shards of the sequence."""
    parallelize = data_parallel(layout, llama.llama_plan() if plan else None)
    label = f"{name}-llama-{'x'.join(str(n) for _, n in mesh)}"
    return Case(
        label,
        mesh,
        lambda: Classifier(1, *llama.heads(dict(mesh).get("tp", 2))),
        parallelize,
        tokens,
        batch=layout.axes,
    )


def programs() -> Mapping[str, Case]:
    cases = (
        regression("ddp", DP, DDP),
        regression("fsdp", DP, FSDP),
        regression("fsdp-properties", (("dp", 4),), FSDP_PROPERTIES),
        regression("hsdp", HYBRID, HSDP),
        regression("fsdp-tp", DP_TP, FSDP, plan=True),
        regression("hsdp-tp", HYBRID_TP, HSDP, plan=True),
        transformer("fsdp-tp-sp", DP_TP, summed(FSDP), plan=True),
    )
    return {case.name: case for case in cases}


def more_programs() -> tuple[Case, ...]:
    """Further meshes and layouts."""
    return (
        regression("ddp-tp", (("dp", 2), ("tp", 4)), DDP, plan=True),
        regression("fsdp-properties-tp", (("dp", 4), ("tp", 2)), FSDP_PROPERTIES, plan=True),
        transformer("ddp", DP, summed(DDP)),
        transformer("fsdp", DP, summed(FSDP)),
        transformer("hsdp-tp-sp", HYBRID_TP, summed(HSDP), plan=True),
        transformer("fsdp-tp-sp", (("dp", 2), ("tp", 4)), summed(FSDP), plan=True),
    )
