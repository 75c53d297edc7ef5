"""Whole tensors that stand for the implementation's local ones when the spec is traced."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement

from verifycompile.capture.boundary import Export
from verifycompile.capture.layouts import shard_degrees
from verifycompile.capture.names import InputName
from verifycompile.options import Options
from verifycompile.program import Program, ProgramInput
from verifycompile.torch_interface.dtensor.tensors import fake_tensors, trained_as, without_pending_collective
from verifycompile.torch_interface.dynamo.aot import Origin, Part
from verifycompile.torch_interface.operators.shapes import mark_dynamic


class WholeTensors:
    """Callable from a tensor of the parallel program to its whole counterpart, which has no memory.

    ``names``: identity of a tensor made here -> the name of the implementation's input that it stands for.
    ``empty``: what was made here, and holds nobody's values.
    An argument that the implementation does not use is whole by the placements that the options declare for it.
    """

    def __init__(self, exported: Export, implementation: Program, options: Options) -> None:
        self.names: dict[int, InputName] = {}
        self.empty: list[torch.Tensor] = []
        self._made: list[torch.Tensor] = []
        self._without_memory = fake_tensors()
        self._exported = exported
        self._implementation = implementation
        self._positions = {
            id(value): position
            for position, value in enumerate(exported.traced.example_inputs)
            if isinstance(value, torch.Tensor)
        }
        self._inputs = {
            flat.index: item
            for flat, item in zip(exported.joint.inputs, implementation.inputs, strict=True)
            if flat.origin is Origin.ARGUMENT and flat.part in (Part.WHOLE, Part.LOCAL)
        }
        arguments = exported.traced.frame.locals
        self._unused = {
            id(arguments[name]): tuple(placements)
            for name, placements in options.in_placements.items()
            if name in arguments and id(arguments[name]) not in self._positions
        }
        devices = [value.device for value in exported.traced.example_inputs if isinstance(value, torch.Tensor)]
        self._device = devices[0] if devices else torch.device("cpu")

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        position = self._positions.get(id(tensor))
        dynamic = () if position is None else self._dynamic_dimensions(position)
        item = None if position is None else self._inputs.get(position)
        placements = self._unused.get(id(tensor)) if item is None else item.placements
        whole = self._whole(tensor, item, placements, copy=bool(dynamic))
        for dimension in dynamic:
            mark_dynamic(whole, dimension)
        if position is not None:
            self.names[id(whole)] = self._exported.names[position]
        self._made.append(whole)
        if whole is not tensor:
            self.empty.append(whole)
        return whole

    def _whole(
        self, tensor: torch.Tensor, item: ProgramInput | None, placements: tuple[Placement, ...] | None, *, copy: bool
    ) -> torch.Tensor:
        shape = tuple(without_pending_collective(tensor).shape)
        mesh = self._implementation.mesh
        if not isinstance(tensor, DTensor) and placements is not None and mesh is not None:
            degrees = shard_degrees(placements, mesh, len(shape))
            shape = tuple(size * degree for size, degree in zip(shape, degrees, strict=True))
        device = self._device if item is None and tensor.is_meta else tensor.device
        is_whole = type(tensor) in (torch.Tensor, nn.Parameter) and shape == tuple(tensor.shape)
        if is_whole and tensor.is_leaf and device == tensor.device and not copy:
            return tensor
        with self._without_memory:
            whole = torch.empty(shape, dtype=tensor.dtype, device=device)
        return trained_as(tensor, whole)

    def _dynamic_dimensions(self, position: int) -> tuple[int, ...]:
        placeholder = self._exported.traced.graph.graph.find_nodes(op="placeholder")[position]
        example = placeholder.meta.get("example_value")
        if not isinstance(example, torch.Tensor):
            return ()
        return tuple(dimension for dimension, size in enumerate(example.shape) if isinstance(size, torch.SymInt))
