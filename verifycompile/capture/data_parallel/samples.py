"""Inputs of a data-parallel program of which nobody said how they lie: the ranks' own samples."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.boundary import Export
from verifycompile.capture.from_local import FedLayout
from verifycompile.capture.layouts import Placements
from verifycompile.program import Mesh, Program, Size
from verifycompile.torch_interface.data_parallel.outer import is_buffer_of_wrapped
from verifycompile.torch_interface.dynamo.aot import Flat, Origin
from verifycompile.torch_interface.dynamo.returned import returned_layout


class Samples:
    """``axes``: mesh axes whose ranks hold samples of their own; empty where no data-parallel wrapper is around.

    A tensor without dimensions, and one that shares its memory with a buffer of the wrapped model, is the same on all
    ranks. Any other is a rank's part of the samples, by its first dimension. After a graph break the axes are those of
    the graph before. ``means``: axes over which gradients become means. ``whole``: inputs that were found not to be
    samples.
    """

    def __init__(
        self,
        exported: Export,
        axes: Mapping[str, tuple[int, ...]],
        means: frozenset[int],
        mesh: Mesh,
        whole: frozenset[str] = frozenset(),
    ) -> None:
        self._exported = exported
        self.means = means
        self._mesh = mesh
        self._wrappers = tuple(f"`{wrapper}`" for wrapper in axes)
        self.axes = frozenset(axis for held in axes.values() for axis in held)
        if not self.axes:
            self.axes = self._axes_before()
        self._not_samples = whole
        self._sharded: dict[str, Size] = {}
        self._whole: dict[str, str] = {}

    def _axes_before(self) -> frozenset[int]:
        traced = self._exported.traced
        layouts = [returned_layout(value) for value in traced.example_inputs] if traced.frame.is_resumption else []
        known = [layout for layout in layouts if layout is not None and layout.axes == self._mesh.axes]
        return frozenset(axis for layout in known for axis in layout.samples)

    def default(self, flat: Flat, name: str, shape: tuple[Size, ...], fed: FedLayout | None) -> Placements | None:
        """The placements of the input ``name``; None for no default. ``fed``: those of the ``from_local`` it feeds."""
        axes = self.axes if fed is None else self.axes - fed.axes
        base = (Replicate(),) * len(self._mesh.axes) if fed is None else fed.placements
        if not axes:
            return None if fed is None else base
        value = self._exported.traced.example_inputs[flat.index] if flat.origin is Origin.ARGUMENT else None
        whole = "it has no dimension" if not shape else ""
        if isinstance(value, torch.Tensor) and is_buffer_of_wrapped(value):
            whole = "it is a buffer of the model"
        if name in self._not_samples:
            whole = "the program does not run on one device with it as samples"
        if whole:
            self._whole[name] = whole
            return base
        self._sharded[name] = shape[0]
        own: Placement = Shard(0)
        return tuple(own if axis in axes else item for axis, item in enumerate(base))

    def assumptions(self) -> tuple[str, ...]:
        """What was taken by default. Call it when all inputs are placed."""
        lines: list[Assumption] = []
        if self._sharded:
            under = " and ".join(self._wrappers) or "the wrapper of the graph before"
            over = ", ".join(self._mesh.axes[axis].name for axis in sorted(self.axes))
            names = ", ".join(f"`{name}`" for name in self._sharded)
            text = f"under {under} inputs are the ranks' own samples, Shard(0) over {over}, by default: {names}"
            lines.append(Assumption(text, AssumptionKind.PLACEMENT, self._sharded))
        for name, why in self._whole.items():
            text = f"`{name}` is the same on all ranks, since {why}"
            lines.append(Assumption(text, AssumptionKind.PLACEMENT, [name]))
        return tuple(lines)

    def by_length(self) -> tuple[tuple[str, ...], ...]:
        """The inputs that were taken as samples, those together whose first dimensions are equal."""
        groups: dict[Size, list[str]] = {}
        for name, length in self._sharded.items():
            groups.setdefault(length, []).append(name)
        return tuple(map(tuple, groups.values()))


SAMPLE_INPUTS = "verifycompile.sample_inputs"
"""Key of ``GraphModule.meta`` under which a captured implementation keeps ``Samples.by_length``."""


def sample_inputs(implementation: Program) -> tuple[tuple[str, ...], ...]:
    """The inputs of a captured program that were taken as the ranks' own samples, by the length of the batch."""
    return implementation.graph.meta[SAMPLE_INPUTS]
