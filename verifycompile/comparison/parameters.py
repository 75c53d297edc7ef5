"""Parameters and buffers: the same whole values for both programs, and how the ranks hold them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import torch
from torch.distributed.tensor.placement_types import Replicate

from verifycompile.capture.placed import by_pattern
from verifycompile.comparison.layout import Placements, candidates, merge_given, part_of, whole_shape
from verifycompile.comparison.programs import drawn, seed_of
from verifycompile.comparison.ranks import Ranks
from verifycompile.comparison.store import Store
from verifycompile.comparison.threshold import comparable
from verifycompile.comparison.trace import Entry, Kind
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.program import Mesh
from verifycompile.torch_interface.dtensor.placements import sharded_dimension


@dataclasses.dataclass(frozen=True)
class Parameters:
    """``layouts``: name -> how the ranks hold it. ``whole``: the values. ``differ``: name -> ranks that hold others.

    ``own``: buffers that are a rank's own, whose values stay. ``inferred``: layouts that the shapes alone gave.
    ``varied``: of which all ranks held the same part, and now hold parts of other values.
    """

    layouts: dict[str, Placements]
    whole: Store
    differ: dict[str, tuple[int, ...]]
    own: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()
    varied: tuple[str, ...] = ()

    def sharded(self) -> list[str]:
        """Names of what the ranks hold in parts."""
        return [
            name
            for name, layout in self.layouts.items()
            if any(sharded_dimension(placement) is not None for placement in layout)
        ]


def by_name(entries: Mapping[int, tuple[Entry, ...]]) -> dict[str, dict[int, Entry]]:
    """Name -> rank -> entry."""
    found: dict[str, dict[int, Entry]] = {}
    for rank, listed in entries.items():
        for entry in listed:
            found.setdefault(entry.name, {})[rank] = entry
    return found


def layouts_of(
    entries: Mapping[str, Mapping[int, Entry]], spec: Mapping[str, torch.Tensor] | None, mesh: Mesh, options: Options
) -> tuple[dict[str, Placements], tuple[str, ...], tuple[str, ...]]:
    """Layouts by name, buffers that are a rank's own, and names whose layout the shapes gave.

    Raises ``UsageError`` VC308 for a parameter of local shape for which no placement was given or follows.
    """
    layouts: dict[str, Placements] = {}
    own: list[str] = []
    inferred: list[str] = []
    for name, held in entries.items():
        first = next(iter(held.values()))
        given = by_pattern(options.param_placements, name)
        if first.layout is not None:
            layouts[name] = tuple(placement or Replicate() for placement in first.layout)
        elif given is not None:
            layouts[name] = given
        elif spec is None or name not in spec:
            layouts[name] = tuple(Replicate() for _ in mesh.axes)
        else:
            shapes = {rank: entry.shape for rank, entry in held.items()}
            fitting = list(candidates(None, shapes, tuple(spec[name].shape), mesh, sums=False))
            whole = tuple(Replicate() for _ in mesh.axes)
            if whole in fitting:
                layouts[name] = whole
            elif len(fitting) == 1:
                layouts[name] = fitting[0]
                inferred.append(name)
            elif first.kind is Kind.BUFFER:
                own.append(name)
            else:
                raise UsageError(
                    "VC308",
                    f"`{name}` has shape {list(first.shape)} on a rank and {list(spec[name].shape)} in the spec; "
                    "say how the ranks hold it with the option `param_placements`.",
                )
    return layouts, tuple(own), tuple(inferred)


def gather(
    ranks: Ranks,
    mesh: Mesh,
    entries: Mapping[str, Mapping[int, Entry]],
    spec: Mapping[str, torch.Tensor] | None,
    options: Options,
    *,
    seed: int | None,
) -> Parameters:
    """The whole values that the ranks hold.

    With a ``seed``, parameters of which all ranks hold the same part, as those do that are initialised with one seed,
    get other values: what a rank computes of its own part alone would be what it computes of all parts.
    """
    layouts, own, inferred = layouts_of(entries, spec, mesh, options)
    whole = Store()
    differ: dict[str, tuple[int, ...]] = {}
    varied: list[str] = []
    for name, layout in layouts.items():
        found: dict[int, torch.Tensor | None] = ranks.call("parameter", name)
        parts = {rank: part for rank, part in found.items() if part is not None}
        replicas = merge_given(name, parts, layout, mesh)
        rank, value = next(iter(replicas.items()))
        held = {r: comparable(other).nan_to_num() for r, other in replicas.items()}
        others = tuple(r for r, other in held.items() if not torch.equal(other, held[rank]))
        kind = next(iter(entries[name].values())).kind
        if seed is not None and kind is Kind.PARAMETER and _are_equal_parts(parts, value):
            generator = torch.Generator().manual_seed(seed_of(name, seed))
            value = (value * (0.5 + torch.rand(value.shape, generator=generator))).to(value.dtype)
            varied.append(name)
        whole.keep(name, value)
        if others:
            differ[name] = others
    if varied:
        _hand_out(ranks, mesh, whole, {name: layouts[name] for name in varied})
    return Parameters(layouts, whole, differ, own, inferred, tuple(varied))


def _are_equal_parts(parts: Mapping[int, torch.Tensor], whole: torch.Tensor) -> bool:
    """Whether the ranks hold different parts of ``whole`` that have the same values, and not one number alone."""
    first, *others = parts.values()
    if not others or first.shape == whole.shape or first.numel() < 2:
        return False
    if not first.is_floating_point() or first.dtype.itemsize < 2:
        return False
    return all(torch.equal(first, other) for other in others) and bool((first != first.flatten()[0]).any())


def _hand_out(ranks: Ranks, mesh: Mesh, whole: Store, layouts: Mapping[str, Placements]) -> None:
    """Let every rank hold its parts of the values."""

    def held_by(rank: int, name: str) -> torch.Tensor | None:
        return part_of(whole[name], layouts[name], rank, mesh) if name in layouts else None

    ranks.call("assign", each={rank: (functools.partial(held_by, rank),) for rank in ranks.ranks})
    ranks.call("save")


def spread(
    ranks: Ranks,
    mesh: Mesh,
    entries: Mapping[str, Mapping[int, Entry]],
    spec: Mapping[str, torch.Tensor] | None,
    options: Options,
    *,
    own_rank: int,
    seed: int,
) -> Parameters:
    """Let the ranks' models, which are copies, hold parts of the spec's values, or of drawn ones."""
    layouts, own, inferred = layouts_of(entries, spec, mesh, options)
    whole = Store()
    for name, layout in layouts.items():
        held = entries[name][own_rank]
        if spec is not None and name in spec:
            value = spec[name].detach()
        else:
            part: torch.Tensor = ranks.call("parameter", name)[own_rank]
            shape = held.whole or whole_shape(held.shape, layout, mesh)
            value = part if tuple(part.shape) == tuple(shape) else drawn(name, part, tuple(shape), seed)
        whole.keep(name, value)
    _hand_out(ranks, mesh, whole, layouts)
    return Parameters(layouts, whole, {}, own, inferred)
