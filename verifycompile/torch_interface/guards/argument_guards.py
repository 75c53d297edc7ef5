"""A frame is verified again once what a given spec reads of a call's arguments is something else.

Dynamo guards a frame by what the frame itself reads. A mask that the program leaves out, and the spec does not, would
be verified as the None that the first call passes, and the calls that pass one would run unasked.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._dynamo.source import ChainedSource
from torch._guards import Source
from torch.distributed.tensor import DTensor

from verifycompile.errors import UsageError
from verifycompile.torch_interface.dynamo.frames import Frame, TracedFrame
from verifycompile.torch_interface.dynamo.sources import SourcePath, source_of
from verifycompile.torch_interface.guards.frame_guards import verify_again_unless
from verifycompile.torch_interface.operators.contents import content_of

Enter = Callable[[Mapping[str, Any]], Frame]

_BY_VALUE = (
    int, float, complex, str, bytes, types.NoneType, enum.Enum, range, slice, torch.dtype, torch.device,
    type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, nn.Module,
)  # fmt: skip
_MOST = 1 << 16
"""Of larger tensors a checksum and so many elements are compared."""
_CONTAINERS = (list, tuple)


@dataclasses.dataclass(frozen=True)
class ArgumentsRead:
    """``enter``: the frame of the spec for the local variables of a call. ``paths``: what the spec reads there."""

    enter: Enter
    paths: tuple[SourcePath, ...]


def arguments_read(traced: TracedFrame, enter: Enter) -> ArgumentsRead:
    """What a spec that was traced reads of its arguments; what its modules hold is no part of a call."""
    code = traced.frame.code
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + _variadic(code)]
    changing = {
        path
        for node in traced.graph.graph.find_nodes(op="placeholder")
        if (path := _path(source_of(node))) is not None and not isinstance(path.value(traced.frame), torch.Tensor)
    }
    found = (_path(guard.originating_source) for guard in traced.context.guards_context.dynamo_guards)
    paths = dict.fromkeys(path for path in found if path and path.scope == "L" and path.variable in arguments)
    return ArgumentsRead(enter, tuple(path for path in paths if path not in changing and not _of_module(path, traced)))


def verify_again_where_arguments_change(read: ArgumentsRead, frame: Frame, inputs: Sequence[Any]) -> None:
    """Adds a guard to ``frame``, which is under compilation. ``inputs``: of its graph, which Dynamo guards itself."""
    guarded = {id(value) for value in inputs if isinstance(value, torch.Tensor)}
    now = [path.value(read.enter(frame.locals)) for path in read.paths]
    alone = [id(value) not in guarded for value in now]
    if not any(alone) and len({id(value) for value in now}) == len(now):
        return
    known = _marks(now, alone)

    def check(local_values: dict[str, Any]) -> bool:
        try:
            entered = read.enter(local_values)
        except UsageError:
            return False
        return _marks([path.value(entered) for path in read.paths], alone) == known

    verify_again_unless([check], "what the spec reads of the arguments is what it was when the frame was verified")


def _of_module(path: SourcePath, traced: TracedFrame) -> bool:
    return path.module_prefix(traced.frame) is not None or isinstance(path.value(traced.frame), nn.Module)


def _variadic(code: types.CodeType) -> int:
    return bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)


def _path(source: Source | None) -> SourcePath | None:
    """The path of the last value on the way to ``source`` that has one."""
    path = SourcePath.of(source)
    while path is None and isinstance(source, ChainedSource):
        source = source.base
        path = SourcePath.of(source)
    return path


def _marks(values: Sequence[Any], alone: Sequence[bool]) -> list[object]:
    """What is compared of each value, and which tensors are one. ``alone``: those that nothing else guards."""
    first: dict[int, int] = {}
    return [
        (first.setdefault(id(value), position), *(_of_tensor(value) if is_alone else ()))
        if isinstance(value, torch.Tensor)
        else _mark(value)
        for position, (value, is_alone) in enumerate(zip(values, alone, strict=True))
    ]


def _of_tensor(value: torch.Tensor) -> tuple[object, ...]:
    """Whole numbers are compared, too: a spec that reads them alone was traced with those that it was given."""
    placements = value.placements if isinstance(value, DTensor) else ()
    content = None if value.is_floating_point() or value.is_complex() else content_of(value, _MOST)
    return type(value), value.dtype, value.device, value.shape, value.requires_grad, placements, content


def _mark(value: object) -> object:
    if isinstance(value, dict):
        return type(value), tuple(value)
    if isinstance(value, set | frozenset):
        return type(value), frozenset(value)
    if isinstance(value, np.ndarray):
        return _of_tensor(torch.as_tensor(value))
    if isinstance(value, _CONTAINERS):
        return type(value), len(value)
    return (type(value), value) if isinstance(value, _BY_VALUE) else type(value)
