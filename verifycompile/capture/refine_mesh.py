"""Mesh axes split into digits, so that process groups which are no mesh axes become axes too.

A rank is a number in the mixed radix of the mesh. A group of consecutive or strided ranks, as ``dist.new_subgroups``
makes them, fixes all digits of that number but some; where every group cuts the digits at compatible places, the axes
are cut there as well. Placements over an axis hold for each of its digits.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from verifycompile.program import Mesh, MeshAxis


@dataclasses.dataclass(frozen=True)
class RefinedMesh:
    """``mesh`` has the axes that the proof uses; ``parts`` are, for each axis of the named mesh, its digits in it."""

    named: Mesh
    mesh: Mesh
    parts: tuple[tuple[int, ...], ...]


def refine(mesh: Mesh, groups: Iterable[Sequence[int]]) -> RefinedMesh:
    """``mesh`` cut so that each of ``groups`` is a slice along some axes, as far as the groups allow.

    A group that fits no such cut together with the mesh and the groups before it is left out.
    """
    boundaries = {1, *_suffix_products(mesh)}
    for group in groups:
        cuts = _cuts(sorted(mesh.ranks.index(rank) for rank in group)) if set(group) <= set(mesh.ranks) else None
        if cuts is not None and _is_chain(boundaries | cuts):
            boundaries |= cuts
    return _cut(mesh, boundaries)


def _suffix_products(mesh: Mesh) -> list[int]:
    """For each axis the number of ranks below and including it, outermost first."""
    return list(itertools.accumulate(reversed(mesh.shape), lambda below, size: below * size))[::-1]


def _cuts(positions: Sequence[int]) -> set[int] | None:
    """Where a digit begins or ends whose values ``positions`` run through; None where they are no such set."""
    first = positions[0]
    offsets = [position - first for position in positions]
    found: set[int] = set()
    while len(offsets) > 1:
        stride = offsets[1]
        known = set(offsets)
        size = next(count for count in itertools.count(1) if count * stride not in known)
        outer = offsets[::size]
        is_box = {above + step * stride for above in outer for step in range(size)} == known
        if not is_box or first // stride % size != 0 or any(above % (stride * size) for above in outer):
            return None
        found |= {stride, stride * size}
        offsets = outer
    return found


def _is_chain(boundaries: set[int]) -> bool:
    ordered = sorted(boundaries)
    return all(above % below == 0 for below, above in itertools.pairwise(ordered))


def _cut(mesh: Mesh, boundaries: set[int]) -> RefinedMesh:
    axes: list[MeshAxis] = []
    parts: list[tuple[int, ...]] = []
    for axis, top in zip(mesh.axes, _suffix_products(mesh), strict=True):
        inside = sorted((cut for cut in boundaries if top // axis.size <= cut <= top), reverse=True)
        sizes = [above // below for above, below in itertools.pairwise(inside)] or [1]
        parts.append(tuple(range(len(axes), len(axes) + len(sizes))))
        if len(sizes) == 1:
            axes.append(axis)
        else:
            axes.extend(
                MeshAxis(f"{axis.name}.{position}", size, axis.part_of or axis.name)
                for position, size in enumerate(sizes)
            )
    return RefinedMesh(mesh, Mesh(tuple(axes), mesh.ranks), tuple(parts))
