"""The lowest functions that answer what a process asks about its rank and the degree, wrapped so that each is noted.

Whoever asked for a reader before is seen too. Wrapping changes no answer.
"""

from __future__ import annotations

import dis
import functools
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch._C._dynamo import eval_frame
from torch.distributed import device_mesh, distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

from verifycompile.torch_interface.ranks.launcher_variables import is_degree_variable, is_rank_variable
from verifycompile.torch_interface.ranks.observation import (
    ENVIRONMENT,
    KEPT_BY_MESHES,
    THROUGH,
    ReadKind,
    begin,
    forget_job,
    is_reader,
    note,
)
from verifycompile.torch_interface.source_lines.whose_code import innermost_file


def activate() -> None:
    """Observe from now on. Calling it again changes nothing."""
    if begin():
        _wrap_readers()


def _wrap_readers() -> None:
    _wrap_method(dist.ProcessGroup, "rank", ReadKind.RANK)
    _wrap_method(dist.ProcessGroup, "size", ReadKind.DEGREE)
    _wrap_method(DeviceMesh, "size", ReadKind.DEGREE)
    _wrap_method(DeviceMesh, "__repr__", ReadKind.DEGREE)
    _wrap_property(DeviceMesh, "shape", ReadKind.DEGREE)
    _wrap_property(DeviceMesh, "mesh", ReadKind.DEGREE)
    _wrap_method(Backend, "rank", ReadKind.RANK)
    _wrap_method(Backend, "size", ReadKind.DEGREE)
    for name, kind in KEPT_BY_MESHES.items():
        _wrap_kept(name, kind)
    _wrap_existence()
    _wrap_no_member()
    _wrap_members()
    _wrap_environment()
    wrap_devices()
    _forget_with_the_job()


def wrap_devices() -> None:
    """What ``torch.cuda.current_device`` asks, and its counterpart of any kind of device."""
    for name in ("_cuda_getDevice", "_accelerator_getDeviceIndex"):
        if hasattr(torch._C, name):
            _wrap_device(name)


def _wrap_device(name: str) -> None:
    ask: Callable[[], int] = getattr(torch._C, name)

    @functools.wraps(ask)
    def observed() -> int:
        caller = sys._getframe(1)
        if is_reader(caller.f_code):  # torch asks for it by itself as well
            note(ReadKind.RANK, name, caller)
        return ask()

    setattr(torch._C, name, observed)


def _wrap_method(owner: type, name: str, kind: ReadKind) -> None:
    method: Callable[..., Any] = vars(owner)[name]
    if not isinstance(method, types.FunctionType):
        method = getattr(owner, name)

    @functools.wraps(method)
    def observed(self: Any, *args: Any, **kwargs: Any) -> Any:
        note(kind, name, sys._getframe(1))
        return method(self, *args, **kwargs)

    setattr(owner, name, observed)


def _wrap_property(owner: type, name: str, kind: ReadKind) -> None:
    read: property = vars(owner)[name]

    def observed(self: Any) -> Any:
        note(kind, name, sys._getframe(1))
        return read.__get__(self)

    setattr(owner, name, property(observed, read.fset, read.fdel, read.__doc__))


def _wrap_kept(name: str, kind: ReadKind) -> None:
    """What a mesh keeps in the attribute ``name``; its methods that tell the degree are wrapped themselves."""

    def observed(mesh: DeviceMesh) -> Any:
        caller: types.FrameType | None = sys._getframe(1)
        while caller is not None and caller.f_code.co_filename in THROUGH:
            caller = caller.f_back
        is_told_twice = kind is ReadKind.DEGREE and innermost_file(caller) == device_mesh.__file__
        if caller is not None and not is_told_twice and not _is_asked_by_dispatch(caller):
            note(kind, name, caller)
        try:
            return vars(mesh)[name]
        except KeyError:
            raise AttributeError(name) from None

    def write(mesh: DeviceMesh, value: Any) -> None:
        vars(mesh)[name] = value

    # Torch reads these attributes between compiled graphs, where Dynamo would compile what looks at the caller.
    skipped = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(observed.__code__, eval_frame._FrameExecStrategy(skipped, skipped))
    setattr(DeviceMesh, name, property(observed, write))


def _is_asked_by_dispatch(reader: types.FrameType) -> bool:
    """Whether the dispatch of a DTensor's operator, which has no frame of its own, asks whether it is on the mesh."""
    name, caller = reader.f_code.co_name, reader.f_back
    if name != "get_coordinate" or caller is None:
        return False
    if _uses_data(caller.f_code, caller.f_lasti):
        return True
    is_dispatching = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.FuncTorchDynamicLayerBackMode)
    return is_dispatching and name not in caller.f_code.co_names


@functools.cache
def _uses_data(code: types.CodeType, offset: int) -> bool:
    """Whether an instruction reads or sets the attribute ``data``: of a DTensor, it is dispatched without the mark."""
    found = (i for i in dis.get_instructions(code) if i.offset == offset)
    return any(i.opname in ("LOAD_ATTR", "STORE_ATTR") and i.argval == "data" for i in found)


def _wrap_existence() -> None:
    """``is_initialized`` asks whether there is a default group, as much of torch does for other reasons."""
    meta: Any = type(distributed_c10d.GroupMember)
    world: property = vars(meta)["WORLD"]
    code = distributed_c10d.is_initialized.__code__

    def observed(owner: Any) -> Any:
        caller = sys._getframe(1)
        if caller.f_code is code:
            note(ReadKind.DEGREE, "is_initialized", caller)
        return world.__get__(owner)

    meta.WORLD = property(observed, world.fset)


def _wrap_no_member() -> None:
    """What stands for a group that this process is no member of: who compares a group with it asks for the rank."""
    meta: Any = type(distributed_c10d.GroupMember)
    comparing = distributed_c10d._rank_not_in_group.__code__

    def observed(owner: Any) -> Any:
        caller = sys._getframe(1)
        if caller.f_code is not comparing or (caller.f_back is not None and not is_reader(caller.f_back.f_code)):
            note(ReadKind.RANK, "NON_GROUP_MEMBER", caller)
        try:
            return vars(owner)["NON_GROUP_MEMBER"]
        except KeyError:
            raise AttributeError("NON_GROUP_MEMBER") from None

    meta.NON_GROUP_MEMBER = property(observed)


def _wrap_members() -> None:
    """The ranks of a group say how many they are; where it is not of all, in which of such groups this process is."""
    kind: Any = type(distributed_c10d._world)
    members: property = vars(kind)["pg_group_ranks"]
    readers = (distributed_c10d.get_process_group_ranks, dist.get_global_rank, dist.get_group_rank)
    codes = tuple(reader.__code__ for reader in readers)

    def observed(world: Any) -> Any:
        found = members.__get__(world)
        caller = sys._getframe(1)
        if caller.f_code in codes:
            note(ReadKind.DEGREE, caller.f_code.co_name, caller)
            group = caller.f_locals.get("group")
            if group is not None and len(found.get(group, ())) < len(found.get(world.default_pg, ())):
                note(ReadKind.RANK, caller.f_code.co_name, caller)
        elif not is_reader(caller.f_code):
            note(ReadKind.DEGREE, "pg_group_ranks", caller)
            note(ReadKind.RANK, "pg_group_ranks", caller)
        return found

    kind.pg_group_ranks = property(observed, members.fset)


def _wrap_environment() -> None:
    environment = type(os.environ)
    read = environment.__getitem__

    def __getitem__(self: Any, key: Any) -> Any:  # noqa: N807 - what it replaces is called so
        name: Any = key
        if self is os.environ and isinstance(name, str):
            _note_variable(name)
        elif self is getattr(os, "environb", None) and isinstance(name, bytes):
            _note_variable(os.fsdecode(name))
        return read(self, key)

    environment.__getitem__ = __getitem__


def _note_variable(name: str) -> bool:
    if is_rank_variable(name):
        note(ReadKind.RANK, f"{ENVIRONMENT}['{name}']", sys._getframe(1))
    elif is_degree_variable(name):
        note(ReadKind.DEGREE, f"{ENVIRONMENT}['{name}']", sys._getframe(1))
    return True


# Dynamo, which traces the access to the environment, calls this function where it traces it.
_note_variable._dynamo_marked_constant = True  # type: ignore[attr-defined]  # Dynamo's own mark


def _forget_with_the_job() -> None:
    update = distributed_c10d._update_default_pg

    @functools.wraps(update)
    def observed(group: Any) -> None:
        update(group)
        if group is None:
            forget_job()

    distributed_c10d._update_default_pg = observed
