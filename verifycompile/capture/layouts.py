"""Placements over the root mesh: lifted from submeshes, checked for what the proof can represent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement, Replicate

from verifycompile.program import Blocker, Mesh, Size
from verifycompile.torch_interface.dtensor.changed_placements import in_digit_order, with_dimension
from verifycompile.torch_interface.dtensor.placements import is_known, outer_blocks, sharded_dimension
from verifycompile.torch_interface.ranks.mesh import RootMesh

Placements = tuple[Placement, ...]


class LayoutError(Exception):
    """A layout that the proof cannot represent; ``code`` is a diagnostic code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def blocker(self) -> Blocker:
        return Blocker(None, self.code, self.message)


def lift_placements(
    name: str, placements: Sequence[Placement], mesh: DeviceMesh, root: RootMesh, ndim: int | None
) -> Placements:
    """Placements over ``root`` of a tensor laid out over ``mesh``; axes that ``mesh`` lacks hold it replicated.

    ``ndim``: the tensor's number of dimensions, to make negative shard dimensions positive; None leaves them.
    Raises ``LayoutError`` naming ``name``.
    """
    check_kinds(name, placements)
    spans = root.spans(mesh)
    if spans is None or len(spans) != len(placements):
        raise LayoutError("VC206", f"`{name}` lies on a mesh that is no product of axes of the root mesh: {mesh}.")
    lifted: list[Placement] = [Replicate()] * root.ndim
    order: dict[int, list[int]] = {}
    for placement, axes in zip(placements, spans, strict=True):
        normal = normalize_shard(placement, ndim)
        dim = sharded_dimension(normal)
        if dim is not None:
            order.setdefault(dim, []).extend(axes)
        for axis in axes:
            lifted[axis] = normal
    for dim, axes in order.items():
        strided = any(outer_blocks(lifted[axis]) > 1 for axis in axes)
        if strided and axes != sorted(axes):
            raise LayoutError(
                "VC206",
                f"`{name}` is sharded in blocks on dimension {dim}, on a mesh with its axes exchanged: {placements}",
            )
    sizes = [axis.size for axis in root.description.axes]
    # Applied in the order of the root mesh, a shard on an inner axis that comes first divides each block of it.
    return in_digit_order(lifted, [(dim, axes) for dim, axes in order.items() if axes != sorted(axes)], sizes)


def normalize_shard(placement: Placement, ndim: int | None) -> Placement:
    """The same placement with a shard dimension that counts from the front."""
    dim = sharded_dimension(placement)
    return with_dimension(placement, dim + ndim) if dim is not None and dim < 0 and ndim is not None else placement


def normalize(placements: Sequence[Placement], ndim: int) -> Placements:
    """``placements`` with shard dimensions that count from the front."""
    return tuple(normalize_shard(item, ndim) for item in placements)


def check_kinds(name: str, placements: Sequence[Placement]) -> None:
    """Raise ``LayoutError`` for a placement of a kind that the proof cannot represent."""
    for placement in placements:
        if not is_known(placement):
            raise LayoutError(
                "VC206", f"`{name}` has placement {placement!r}; only Shard, Replicate and Partial can be represented."
            )


def shard_degrees(placements: Placements, mesh: Mesh, ndim: int) -> tuple[int, ...]:
    """For each tensor dimension the product of the mesh axes that shard it."""
    degrees = [1] * ndim
    for placement, axis in zip(placements, mesh.axes, strict=True):
        dim = sharded_dimension(placement)
        if dim is not None:
            degrees[dim] *= axis.size
    return tuple(degrees)


def global_shape(name: str, local_shape: Sequence[Size], placements: Placements, mesh: Mesh) -> tuple[Size, ...]:
    """Shape of the whole tensor of which every rank holds ``local_shape``."""
    check_dimensions(name, placements, len(local_shape))
    degrees = shard_degrees(placements, mesh, len(local_shape))
    return tuple(size * degree for size, degree in zip(local_shape, degrees, strict=True))


def check_dimensions(name: str, placements: Placements, ndim: int) -> None:
    """Raise ``LayoutError`` VC303 where a shard dimension does not exist."""
    for placement in placements:
        dim = sharded_dimension(placement)
        if dim is not None and not 0 <= dim < ndim:
            raise LayoutError(
                "VC303", f"`{name}` has {ndim} dimensions, but its placement is {placement!r}: {placements}."
            )


def check_even(
    name: str,
    whole_shape: Sequence[Size],
    placements: Placements,
    mesh: Mesh,
    simplify: Callable[[Size], Size],
) -> None:
    """Raise ``LayoutError`` VC204 where a sharded dimension is not known to be a multiple of its mesh axes."""
    check_dimensions(name, placements, len(whole_shape))
    for dimension, degree in enumerate(shard_degrees(placements, mesh, len(whole_shape))):
        size = simplify(whole_shape[dimension])
        if degree > 1 and not _divides(degree, size):
            axes = [
                axis.name
                for axis, item in zip(mesh.axes, placements, strict=True)
                if sharded_dimension(item) == dimension
            ]
            raise LayoutError(
                "VC204",
                f"dimension {dimension} of `{name}` has size {size}, which mesh axes {', '.join(axes)} "
                f"({degree} ranks) do not divide evenly.",
            )


def _divides(degree: int, size: Size) -> bool:
    if isinstance(size, int):
        return size % degree == 0
    return (sympy.expand(size) / degree).is_integer is True
