"""Device meshes and process groups: which axes of the root mesh a submesh, a group or a coordinate speaks of."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, cast
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

from verifycompile.program import Mesh, MeshAxis


def real_object(value: Any) -> Any:
    """The Python object behind an opaque graph input's example value."""
    return getattr(value, "real_obj", value)


def root_of(mesh: DeviceMesh) -> DeviceMesh:
    """The mesh that ``mesh`` was cut out of, or itself."""
    return mesh._get_root_mesh()


def describe_mesh(mesh: DeviceMesh) -> Mesh:
    """The root mesh as plain data."""
    return Mesh(describe_axes(mesh), tuple(int(rank) for rank in mesh.mesh.flatten().tolist()))


def axis_names(mesh: DeviceMesh) -> tuple[str, ...]:
    """Axes without a name are called ``dim_0``, ``dim_1``, ..."""
    return mesh.mesh_dim_names or tuple(f"dim_{index}" for index in range(mesh.ndim))


def describe_axes(mesh: DeviceMesh) -> tuple[MeshAxis, ...]:
    """The axes of a mesh with their sizes, outermost first."""
    return tuple(MeshAxis(name, int(size)) for name, size in zip(axis_names(mesh), mesh.mesh.shape, strict=True))


@contextlib.contextmanager
def coordinate_read_by(read: Callable[[DeviceMesh], Any]) -> Generator[None]:
    """While entered, the attribute that a mesh keeps its coordinate in, which all of its methods read, is ``read``."""

    def write(mesh: DeviceMesh, value: tuple[int, ...] | None) -> None:
        vars(mesh)["_coordinate_on_dim"] = value

    with mock.patch.object(DeviceMesh, "_coordinate_on_dim", property(read, write), create=True):
        yield


def world_mesh() -> Mesh:
    """All ranks of the job on one axis, for a program without a mesh."""
    size = dist.get_world_size()
    return Mesh((MeshAxis("world", size),), tuple(range(size)))


def has_world() -> bool:
    """True where the default process group exists."""
    return dist.is_available() and dist.is_initialized()


class RootMesh:
    """The mesh that placements speak of. What it finds out about submeshes it remembers: rank maps may be large.

    ``mesh``: None where the program has none and ``description`` stands for the whole job.
    ``parts``: meshes cut out of ``mesh`` that the program uses. Where they divide an axis of ``mesh`` further, as
    meshes unflattened from a mesh of all ranks do, the axes are the parts'.
    ``description``: the axes that the proof uses, where they are finer still.
    """

    def __init__(
        self, mesh: DeviceMesh | None, parts: Sequence[DeviceMesh] = (), description: Mesh | None = None
    ) -> None:
        self.mesh = mesh
        self.parts = tuple(parts)
        if description is None:
            description = _divided(world_mesh() if mesh is None else describe_mesh(mesh), self.parts)
        self.description = description
        self._spans: dict[int, tuple[DeviceMesh, tuple[tuple[int, ...], ...] | None]] = {}

    @property
    def ndim(self) -> int:
        return len(self.description.axes)

    def spans(self, submesh: DeviceMesh) -> tuple[tuple[int, ...], ...] | None:
        """For each dimension of ``submesh`` the root axes it spans, outermost first; None for no product of axes.

        A flattened dimension spans several axes.
        """
        if id(submesh) not in self._spans:
            self._spans[id(submesh)] = (submesh, self._find_spans(submesh))
        return self._spans[id(submesh)][1]

    def _find_spans(self, submesh: DeviceMesh) -> tuple[tuple[int, ...], ...] | None:
        if describe_mesh(submesh) == self.description:
            return tuple((index,) for index in range(self.ndim))
        root_names = tuple(axis.name for axis in self.description.axes)
        found: list[tuple[int, ...]] = []
        names = submesh.mesh_dim_names or (None,) * submesh.ndim
        for line, name in zip(mesh_lines(submesh), names, strict=True):
            axes = axes_of_line(line, self.description)
            if axes == () and name in root_names:
                axes = (root_names.index(name),)
            if axes is None:
                return None
            found.append(axes)
        return tuple(found)


def _divided(root: Mesh, parts: Sequence[DeviceMesh]) -> Mesh:
    """``root`` with its axes divided where an axis of a part begins or ends."""
    names = {span: name for part in parts for name, span in _spans_of_axes(part, root)}
    axes: list[MeshAxis] = []
    stride = len(root.ranks)
    for axis in root.axes:
        stride, above = stride // axis.size, stride
        cuts = sorted({stride, above, *(cut for span in names for cut in span if stride < cut < above)})
        if any(high % low for low, high in itertools.pairwise(cuts)):
            return root
        spans = list(itertools.pairwise(cuts))[::-1] or [(stride, above)]
        for span in spans:
            own = axis.name if len(spans) == 1 else f"{axis.name}_{len(axes)}"
            rename = len(spans) > 1 or len(root.axes) == 1
            axes.append(MeshAxis(names.get(span, own) if rename else own, span[1] // span[0]))
    return Mesh(tuple(axes), root.ranks)


def _spans_of_axes(part: DeviceMesh, root: Mesh) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name of each axis of ``part`` that steps evenly through the ranks of ``root``, with its step and its extent."""
    for name, line in zip(axis_names(part), mesh_lines(part), strict=True):
        if len(line) == 1 or any(rank not in root.ranks for rank in line):
            continue
        positions = [root.ranks.index(rank) for rank in line]
        steps = {high - low for low, high in itertools.pairwise(positions)}
        step = steps.pop()
        if not steps and step > 0:
            yield name, (step, step * len(line))


def axes_of_line(ranks: tuple[int, ...], mesh: Mesh) -> tuple[int, ...] | None:
    """Axes of ``mesh`` whose slice through ``ranks[0]`` is exactly ``ranks`` in this order; () for a single rank.

    None where the ranks are no product of axes. Axes of size 1 never occur in the result.
    """
    if ranks[0] not in mesh.ranks:
        return None
    if len(ranks) == 1:
        return ()
    candidates = [index for index, axis in enumerate(mesh.axes) if axis.size > 1]
    position = mesh.ranks.index(ranks[0])
    start = place_at(position, mesh.shape)
    for count in range(1, len(candidates) + 1):
        for axes in itertools.permutations(candidates, count):
            if math.prod(mesh.axes[axis].size for axis in axes) == len(ranks) and _line(start, axes, mesh) == ranks:
                return axes
    return None


def coordinate_of(rank: int, mesh: Mesh) -> tuple[int, ...]:
    """Place of ``rank`` on the mesh, outermost axis first."""
    return place_at(mesh.ranks.index(rank), mesh.shape)


def line_through(rank: int, axes: tuple[int, ...], mesh: Mesh) -> tuple[int, ...]:
    """The ranks that share the place of ``rank`` but for ``axes``, the last of which runs fastest."""
    return _line(coordinate_of(rank, mesh), axes, mesh)


def mixed_radix(digits: Sequence[tuple[int, int]]) -> int:
    """The number with these (digit, size) pairs, the most significant first."""
    number = 0
    for digit, size in digits:
        number = number * size + digit
    return number


def _line(start: tuple[int, ...], axes: tuple[int, ...], mesh: Mesh) -> tuple[int, ...]:
    line: list[int] = []
    for steps in itertools.product(*(range(mesh.axes[axis].size) for axis in axes)):
        place = list(start)
        for axis, step in zip(axes, steps, strict=True):
            place[axis] = step
        line.append(mesh.ranks[mixed_radix(list(zip(place, mesh.shape, strict=True)))])
    return tuple(line)


def place_at(position: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The coordinates of what is at ``position``, the last of which run fastest."""
    place: list[int] = []
    for size in reversed(shape):
        position, digit = divmod(position, size)
        place.append(digit)
    return tuple(reversed(place))


def axes_of_coordinate(full_mesh: torch.Tensor, dimension: int, mesh: Mesh) -> tuple[int, ...] | None:
    """Root axes that a coordinate read is the (mixed-radix, outermost first) coordinate on, () for a size of 1.

    ``full_mesh``: rank map ``i32[number of submeshes, *submesh shape]`` as it occurs in rank-agnostic graphs.
    The axes must be right for every rank of the mesh, or the result is None.
    """
    size = full_mesh.shape[dimension + 1]
    if size == 1:
        return ()
    positions = {rank: position for position, rank in enumerate(mesh.ranks)}
    lines: list[list[int]] = full_mesh.movedim(dimension + 1, -1).reshape(-1, size).tolist()
    inside = [tuple(line) for line in lines if line[0] in positions]
    if not inside or {rank for line in inside for rank in line} != set(mesh.ranks):
        return None
    axes = axes_of_line(inside[0], mesh)
    if axes is None:
        return None
    for line in inside:
        for coordinate, rank in enumerate(line):
            place = place_at(positions[rank], mesh.shape)
            if mixed_radix([(place[axis], mesh.axes[axis].size) for axis in axes]) != coordinate:
                return None
    return axes


def group_ranks(group: Any) -> tuple[int, ...]:
    """Global ranks of a process group, given as the object or by its name, in the group's own order."""
    if isinstance(group, str):
        group = distributed_c10d._resolve_process_group(cast(distributed_c10d.GroupName, group))
    return tuple(dist.get_process_group_ranks(real_object(group)))


def is_process_group(value: Any) -> bool:
    """True for a process group, or a tracing stand-in for one."""
    return isinstance(real_object(value), dist.ProcessGroup)


def ranks_of_job() -> int:
    """How many ranks the default process group has."""
    return dist.get_world_size()


def own_rank() -> int:
    """The rank that this process traces."""
    return dist.get_rank()


def mesh_lines(mesh: DeviceMesh) -> tuple[tuple[int, ...], ...]:
    """Along each dimension of ``mesh`` the ranks of its first line."""
    ranks = mesh.mesh
    return tuple(
        tuple(int(rank) for rank in ranks.movedim(dimension, -1).reshape(-1, ranks.shape[dimension])[0].tolist())
        for dimension in range(mesh.ndim)
    )


def axes_out_of_order(mesh: DeviceMesh) -> tuple[str, ...]:
    """Axes along which the ranks of ``mesh`` do not ascend, as they do in process groups, which torch sorts.

    What DTensor gathers there is joined in the order of the group, and cut in that of the mesh.
    """
    found: list[str] = []
    for dimension, axis in enumerate(describe_axes(mesh)):
        lines = mesh.mesh.movedim(dimension, -1).reshape(-1, axis.size).tolist()
        if any(line != sorted(line) for line in lines):
            found.append(axis.name)
    return tuple(found)


def mesh_group_ranks(mesh: DeviceMesh) -> set[tuple[int, ...]]:
    """Rank lists of the groups that the mesh itself made for this rank: one an axis, and those of flattened axes."""
    lists = {tuple(dist.get_process_group_ranks(mesh.get_group(dimension))) for dimension in range(mesh.ndim)}
    for flattened in getattr(root_of(mesh), "_flatten_mapping", {}).values():
        lists.add(tuple(dist.get_process_group_ranks(flattened.get_group())))
    return lists
