"""One program of the corpus: a single-device model and the plan that parallelizes it."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module
from torch.distributed.tensor.placement_types import Placement

Plan = Mapping[str, ParallelStyle]
"""Module path (``*`` matches one part) -> style, as torch's ``parallelize_module`` takes it."""


@dataclasses.dataclass(frozen=True)
class Case:
    """``model`` builds the single-device program, ``parallelize`` turns it into the parallel one on a whole mesh.

    ``mesh``: axes as (name, size), outermost first. ``inputs``: the whole tensors that the spec's ``forward`` takes.
    ``sharded``: for each input the dimension that is sharded over ``tp``, None where every rank passes all of it.
    ``batch``: the mesh axes over which the first dimension of every input is sharded.
    """

    name: str
    mesh: tuple[tuple[str, int], ...]
    model: Callable[[], nn.Module]
    parallelize: Callable[[nn.Module, DeviceMesh], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    sharded: tuple[int | None, ...] = ()
    batch: tuple[str, ...] = ()

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        return tuple(size for _, size in self.mesh)

    @property
    def mesh_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.mesh)

    @property
    def world_size(self) -> int:
        return math.prod(self.mesh_shape)

    def spec(self) -> nn.Module:
        """The single-device model, the same weights on every call."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.model()

    def rank_inputs(self, rank: int) -> tuple[torch.Tensor, ...]:
        """What one rank passes to ``forward``."""
        placements = self.input_placements().values()
        return tuple(
            self._part(value, item, rank).contiguous() for value, item in zip(self.inputs(), placements, strict=True)
        )

    def _part(self, value: torch.Tensor, placements: tuple[Placement, ...], rank: int) -> torch.Tensor:
        below = self.world_size
        for size, placement in zip(self.mesh_shape, placements, strict=True):
            below //= size
            if isinstance(placement, Shard):
                value = value.chunk(size, placement.dim)[rank // below % size]
        return value

    def input_placements(self) -> dict[str, tuple[Placement, ...]]:
        """How :meth:`rank_inputs` lays out the inputs, by parameter name of ``forward``, as users declare it."""
        names = inspect.signature(self.spec().forward).parameters
        dims = self.sharded or (None,) * len(names)
        return {
            name: tuple(self._input_placement(axis, dim) for axis in self.mesh_names)
            for name, dim in zip(names, dims, strict=True)
        }

    def _input_placement(self, axis: str, dim: int | None) -> Placement:
        if axis in self.batch:
            return Shard(0)
        return Replicate() if dim is None or axis != "tp" else Shard(dim)

    def build(self, mesh: DeviceMesh) -> nn.Module:
        """The parallel model, with the weights of :meth:`spec`."""
        return self.parallelize(self.spec(), mesh)


def tensor_parallel(plan: Plan, *ties: tuple[str, str]) -> Callable[[nn.Module, DeviceMesh], nn.Module]:
    """Applies a plan on the mesh axis ``tp``; ``ties`` are pairs of modules whose weights are one parameter."""

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        model = parallelize_module(model, mesh["tp"], dict(plan))
        for kept, tied in ties:
            model.get_submodule(tied).weight = model.get_submodule(kept).weight
        return model

    return parallelize


def tensor_parallel_mesh(degree: int, data_parallel: int = 1) -> tuple[tuple[str, int], ...]:
    """The axis ``tp``, inside of an axis ``dp`` where ``data_parallel`` exceeds 1."""
    axes = (("tp", degree),)
    return (("dp", data_parallel), *axes) if data_parallel > 1 else axes
