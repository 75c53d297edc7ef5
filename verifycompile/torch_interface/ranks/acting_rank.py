"""Tracing as another rank than this process's: every way to ask torch for the rank answers for the acted one."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, FakeWork
from torch.distributed import distributed_c10d
from torch.distributed._mesh_layout import _MeshLayout
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from verifycompile.torch_interface.ranks.launcher_variables import is_degree_variable, is_rank_variable
from verifycompile.torch_interface.ranks.mesh import (
    RootMesh,
    axes_of_line,
    coordinate_of,
    coordinate_read_by,
    line_through,
    mixed_radix,
    root_of,
)
from verifycompile.torch_interface.ranks.observation import KEPT_BY_MESHES, note_acted
from verifycompile.torch_interface.ranks.rank_values import COLLECTIVE_NAMESPACES
from verifycompile.torch_interface.replaced import replaced
from verifycompile.torch_interface.source_lines.whose_code import asking_file

_ROOTED = ("scatter", "gather")
"""Collectives in which a backend checks that the root alone gives a list; it knows this process's rank, not the acted
one. Nothing is communicated here anyway."""


def acted_variables(own: int) -> tuple[str, ...]:
    """Environment variables that hold this process's number in the job, on one machine that of the machine as well."""
    one_machine = os.environ.get("LOCAL_WORLD_SIZE", str(dist.get_world_size())) == str(dist.get_world_size())
    names = ("RANK", "LOCAL_RANK") if one_machine else ("RANK",)
    return tuple(name for name in names if os.environ.get(name) == str(own))


@contextlib.contextmanager
def acting_as(rank: int, root: RootMesh) -> Generator[None]:
    """While entered, ``rank``, a rank of ``root``, is this process's: in the job, in its groups and on meshes.

    A group or a submesh that ``rank`` is no member of stands for the one that has the same axes and holds ``rank``.
    Nothing may be communicated meanwhile.
    """
    wholes = _wholes(root)
    groups = distributed_c10d._world.pg_group_ranks
    before = dict(groups)
    own = dist.get_rank()
    read_rank = vars(dist.ProcessGroup)["rank"]
    read_rank_of_backend = vars(Backend)["rank"]
    default = distributed_c10d._get_default_group()
    variables = {name: os.environ[name] for name in acted_variables(own)}

    def number_in(group: Any) -> int:
        if group is default:
            return rank
        return groups[group].get(rank, -1) if group in groups else read_rank.__get__(group)()

    def acted_rank(group: Any) -> int:
        note_acted("rank", sys._getframe(1))
        return number_in(group)

    def acted_backend(backend: Backend) -> int:
        note_acted("rank", sys._getframe(1))
        held = (one for one in groups if any(one._get_backend(device) is backend for device in one._device_types))
        group = next(held, None)
        return read_rank_of_backend.__get__(backend)() if group is None else number_in(group)

    def acted_number(_: DeviceMesh) -> int:
        note_acted("_rank", sys._getframe(1))
        return rank

    def keep(mesh: DeviceMesh, number: int) -> None:
        vars(mesh)["_rank"] = number

    def coordinate(submesh: DeviceMesh) -> tuple[int, ...] | None:
        note_acted("_coordinate_on_dim", sys._getframe(1))
        held = vars(submesh).get("_coordinate_on_dim")
        if held is None or vars(submesh).get("_rank") == rank:
            return held
        with _disable_current_modes():
            return _coordinate(rank, submesh, wholes)

    rooted = ((dist.ProcessGroup, name, lambda *_, **__: FakeWork()) for name in _ROOTED)
    for group, members in before.items():
        if rank not in members and own in members:
            groups[group] = _counterpart(members, rank, wholes)
    asked = (
        (dist.ProcessGroup, "rank", acted_rank),
        (Backend, "rank", acted_backend),
        (DeviceMesh, "_rank", property(acted_number, keep)),
    )
    with replaced((*asked, *rooted)), coordinate_read_by(coordinate):
        os.environ.update(dict.fromkeys(variables, str(rank)))
        try:
            yield
        finally:
            groups.update(before)
            os.environ.update(variables)


@contextlib.contextmanager
def groups_of_its_own() -> Generator[None]:
    """While entered, process groups that are made are forgotten in the end, with the names that they took.

    Only where process groups do not communicate: see ``is_pretended``.
    """
    world: Any = distributed_c10d._world
    tables: tuple[dict[Any, Any], ...] = (
        world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config, world.pg_to_tag,
        world.pg_coalesce_state,
    )  # fmt: skip
    before = [dict(table) for table in tables]
    tags = {tag: list(groups) for tag, groups in world.tags_to_pg.items()}
    count = world.group_count
    try:
        yield
    finally:
        for group, name in list(world.pg_names.items()):
            if group not in before[1]:
                distributed_c10d._unregister_process_group(name)
        for table, held in (*zip(tables, before, strict=True), (world.tags_to_pg, tags)):
            table.clear()
            table.update(held)
        world.group_count = count


def is_pretended() -> bool:
    """Whether this process is alone and stands for the ranks of its job: nothing is sent to the others."""
    return dist.is_available() and dist.is_initialized() and "fake" in dist.get_backend()


@contextlib.contextmanager
def acting_alone() -> Generator[None]:
    """While entered, there is one process and no job: number 0 of 1 in every group, on every mesh, in the environment.

    Whether there is a job is answered to those who ask with ``is_initialized``; torch looks at its group by itself.
    """
    existence: Any = type(distributed_c10d.GroupMember)
    world: property = vars(existence)["WORLD"]
    asking = distributed_c10d.is_initialized.__code__
    sizes: property = vars(DeviceMesh)["shape"]
    ranks: property = vars(DeviceMesh)["mesh"]
    shown = DeviceMesh.__repr__

    def only_rank(mesh: DeviceMesh) -> torch.Tensor:
        if sys._getframe(1).f_code is DeviceMesh.__init__.__code__:
            return ranks.__get__(mesh)  # a part of a mesh is made of the mesh as it is
        return torch.zeros((1,) * len(sizes.__get__(mesh)), dtype=torch.int32)

    def no_world(owner: Any) -> Any:
        caller = sys._getframe(1)
        by_others = caller.f_code is asking and asking_file(caller.f_back) != distributed_c10d.__file__
        return None if by_others else world.__get__(owner)

    attributes: tuple[tuple[Any, str, Any], ...] = (
        (dist.ProcessGroup, "size", lambda group: 1),  # noqa: ARG005 - parameters are called as torch calls them
        (dist.ProcessGroup, "rank", lambda group: 0),  # noqa: ARG005 - the method's own signature
        (DeviceMesh, "size", lambda mesh, mesh_dim=None: 1),  # noqa: ARG005 - the method's own signature
        (DeviceMesh, "shape", property(lambda mesh: (1,) * len(sizes.__get__(mesh)))),
        (DeviceMesh, "__repr__", lambda mesh: shown(_kept_by_one(mesh))),
        (DeviceMesh, "mesh", property(only_rank)),
        *((DeviceMesh, name, _kept_alone(name)) for name in KEPT_BY_MESHES),
        (Backend, "size", lambda backend: 1),  # noqa: ARG005 - the method's own signature
        (Backend, "rank", lambda backend: 0),  # noqa: ARG005 - the method's own signature
        (DeviceMesh, "get_local_rank", lambda mesh, mesh_dim=None: 0),  # noqa: ARG005 - the method's own signature
        (DeviceMesh, "get_coordinate", lambda mesh: [0] * mesh.ndim),
        (existence, "WORLD", property(no_world, world.fset)),
    )
    numbers = {name: "0" for name in os.environ if is_rank_variable(name)}
    numbers |= {name: "1" for name in os.environ if is_degree_variable(name)}
    variables = {name: os.environ[name] for name in numbers}
    # User code may hold the function itself, so that its code is replaced.
    members = distributed_c10d.get_process_group_ranks
    code_of_members = members.__code__
    with replaced(attributes):
        members.__code__ = _only_this_rank.__code__
        os.environ.update(numbers)
        try:
            yield
        finally:
            os.environ.update(variables)
            members.__code__ = code_of_members


def _kept_alone(name: str) -> property:
    """What the one process of a job has in the attribute ``name`` of a mesh; torch has its own."""

    def read(mesh: DeviceMesh) -> Any:
        if Path(asking_file(sys._getframe(1))).is_relative_to(Path(dist.__file__).parent):
            return vars(mesh)[name]
        return vars(_kept_by_one(mesh))[name]

    return property(read, lambda mesh, value: vars(mesh).update({name: value}))


def _kept_by_one(mesh: DeviceMesh) -> DeviceMesh:
    """What stands for ``mesh`` where there is one process: it keeps the same but for what tells of ranks."""
    one = object.__new__(type(mesh))
    vars(one).update(
        vars(mesh),
        _rank=0,
        _coordinate_on_dim=(0,) * mesh.ndim,
        _rank_map=torch.zeros(1, dtype=torch.int32),
        _flatten_rank_map=(0,),
        _layout=_MeshLayout.from_sizes_strides((1,) * mesh.ndim),
    )
    return one


def _only_this_rank(group: Any) -> list[int]:  # noqa: ARG001 - called as torch's function is
    return [0]


@contextlib.contextmanager
def nothing_communicated() -> Generator[None]:
    """While entered, a collective or a new process group raises ``CommunicationError``."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise CommunicationError("a process group is made")

    with replaced([(distributed_c10d, "_new_process_group_helper", refuse)]), _NoCollectives():
        yield


class CommunicationError(Exception):
    """What is run for the sake of one rank wants to speak to others."""


class _NoCollectives(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in COLLECTIVE_NAMESPACES:
            raise CommunicationError(f"`{func}` is called")
        return func(*args, **(kwargs or {}))


def _wholes(root: RootMesh) -> tuple[RootMesh, ...]:
    """The mesh whose ranks are acted, and that of which it is a part: code may ask about both."""
    whole = root.mesh if root.mesh is None else root_of(root.mesh)
    return (root,) if whole is root.mesh else (root, RootMesh(whole))


def _counterpart(members: dict[int, int], rank: int, wholes: Sequence[RootMesh]) -> dict[int, int]:
    """Members of the group along the same axes through ``rank``, with their numbers in it."""
    ordered = tuple(sorted(members, key=members.__getitem__))
    for whole in wholes:
        axes = axes_of_line(ordered, whole.description)
        if axes is not None:
            line = line_through(rank, axes, whole.description)
            return {member: number for number, member in enumerate(line)}
    return members


def _coordinate(rank: int, submesh: DeviceMesh, wholes: Sequence[RootMesh]) -> tuple[int, ...] | None:
    for whole in wholes:
        spans = whole.spans(submesh)
        if spans is not None:
            mesh = whole.description
            place = coordinate_of(rank, mesh)
            return tuple(mixed_radix([(place[axis], mesh.axes[axis].size) for axis in axes]) for axes in spans)
    return None
