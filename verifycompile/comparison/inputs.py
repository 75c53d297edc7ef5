"""The inputs of both programs: whole ones for the spec, and each rank's parts of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.layouts import LayoutError, check_dimensions
from verifycompile.comparison.layout import Known, Placements, merge_given, part_of, whole_shape
from verifycompile.comparison.programs import drawn
from verifycompile.comparison.ranks import Ranks
from verifycompile.comparison.threshold import comparable
from verifycompile.comparison.trace import Entry
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.program import Mesh
from verifycompile.torch_interface.dtensor.placements import sharded_dimension


@dataclasses.dataclass(frozen=True)
class Inputs:
    """``whole``: name -> the spec's input. ``layouts``: of the ranks' parts. ``differ``: replicas that are unequal."""

    whole: Mapping[str, torch.Tensor]
    layouts: Mapping[str, Placements]
    assumptions: tuple[str, ...]
    differ: tuple[str, ...] = ()


def make_inputs(
    ranks: Ranks, mesh: Mesh, options: Options, *, wrapped: tuple[int, ...], own: int | None, seed: int
) -> Inputs:
    """Let all ranks hold parts of the same inputs. ``own``: the one rank whose arguments are known, None for all.

    ``wrapped``: axes over which data-parallel wrappers give each rank samples of its own.
    """
    entries: dict[int, tuple[Entry, ...]] = ranks.call("inputs")
    first = entries[ranks.ranks[0] if own is None else own]
    taken: dict[str, Known] = {}
    if len(mesh.ranks) > 1 and not wrapped and any(_undeclared(entry, options) for entry in first):
        taken = ranks.call("probe")[ranks.ranks[0]]
    unknown = sorted(set(options.in_placements) - {entry.name for entry in first})
    if unknown:
        raise UsageError("VC306", f"option `in_placements` names `{unknown[0]}`, which is no tensor of the call.")
    whole: dict[str, torch.Tensor] = {}
    layouts: dict[str, Placements] = {}
    assumptions: list[str] = []
    differ: list[str] = []
    for entry in first:
        layout, by_default = _layout(entry, options, taken.get(entry.name), wrapped, mesh)
        if by_default and len(mesh.ranks) > 1:
            words = ", ".join("R" if sharded_dimension(p) is None else f"S({sharded_dimension(p)})" for p in layout)
            text = f"`{entry.name}` is placed ({words}) by default"
            assumptions.append(Assumption(text, AssumptionKind.PLACEMENT, [entry.name]))
        layouts[entry.name] = layout
        parts: dict[int, torch.Tensor] = ranks.call("input_part", entry.name)
        if own is not None:
            whole[entry.name] = _drawn_around(entry, parts[own], layout, own=own, mesh=mesh, seed=seed)
            continue
        replicas = merge_given(entry.name, parts, layout, mesh)
        values = [comparable(value) for value in replicas.values()]
        whole[entry.name] = values[0].to(parts[ranks.ranks[0]].dtype)
        if any(not torch.equal(value, values[0]) for value in values):
            differ.append(entry.name)
    each = {
        rank: ({name: part_of(whole[name], layouts[name], rank, mesh).contiguous() for name in whole},)
        for rank in ranks.ranks
    }
    ranks.call("take_inputs", each=each)
    return Inputs(whole, layouts, tuple(assumptions), tuple(differ))


def _undeclared(entry: Entry, options: Options) -> bool:
    return entry.layout is None and entry.name not in options.in_placements


def _layout(
    entry: Entry, options: Options, taken: Known | None, wrapped: tuple[int, ...], mesh: Mesh
) -> tuple[Placements, bool]:
    """The layout, and whether it was taken by default."""
    given = options.in_placements.get(entry.name)
    if given is not None:
        if len(given) != len(mesh.axes):
            raise UsageError(
                "VC306", f"option `in_placements`: `{entry.name}` needs {len(mesh.axes)} placements, one for each axis."
            )
        try:
            check_dimensions(entry.name, given, len(entry.shape))
        except LayoutError as error:
            raise UsageError(error.code, error.message) from error
        return given, False
    replicated: tuple[Placement, ...] = tuple(Replicate() for _ in mesh.axes)
    known = entry.layout or taken
    if known is not None:
        return tuple(placement or Replicate() for placement in known), entry.layout is None
    if wrapped and len(entry.shape):
        return tuple(Shard(0) if axis in wrapped else Replicate() for axis in range(len(mesh.axes))), True
    return replicated, True


def _drawn_around(
    entry: Entry, part: torch.Tensor, layout: Placements, *, own: int, mesh: Mesh, seed: int
) -> torch.Tensor:
    """A whole input of which ``own`` holds ``part``: the other ranks' values are drawn."""
    shape = entry.whole or whole_shape(entry.shape, layout, mesh)
    if tuple(part.shape) == tuple(shape):
        return part.clone()
    whole = drawn(entry.name, part, shape, seed, uneven=True)
    held = part_of(whole, layout, own, mesh)
    if held.shape == part.shape:
        held.copy_(part)
    return whole
