"""Numbers that Python reads from partial sums outside of graphs: each rank reads its own part.

torch lets ``float()``, ``int()``, ``bool()`` and ``.item()`` of a DTensor read the local tensor whatever the placements
are. Of a plain tensor that a verified graph returned as a partial sum, the number is known again where it comes into
the graph that follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch._dynamo
from torch._guards import detect_fake_mode
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Partial

from verifycompile.program import SourceLocation
from verifycompile.torch_interface.dynamo import Frame
from verifycompile.torch_interface.returned import forget_parts, parts_that_hold
from verifycompile.torch_interface.source import calling_line

_READ = torch.ops.aten._local_scalar_dense.default


def watch_numbers_of_partial_dtensors(refuse: Callable[[SourceLocation | None], None]) -> None:
    """From now on, ``refuse`` is called, with the user's line, before a number is read from a partial DTensor."""

    def read(operator: Any, args: tuple[Any, ...], _: Any) -> object:
        value: DTensor = args[0]
        local = value._local_tensor
        if detect_fake_mode(local) is None and _is_partial(value):  # while torch traces, no number is read
            refuse(calling_line())
        return operator(local)

    DTensor._op_dispatcher._custom_op_handlers[_READ] = cast(Any, torch._dynamo.disable(read))


def _is_partial(value: DTensor) -> bool:
    sizes = value.device_mesh.shape
    return any(isinstance(item, Partial) and size > 1 for item, size in zip(value.placements, sizes, strict=True))


def number_of_partial_result(frame: Frame) -> int | float | None:
    """What a graph break brought to ``frame``, the rest of a function, where that is part of a partial sum.

    The call at which the graph broke leaves its result on top of the stack.
    """
    if not frame.is_resumption:
        forget_parts()
        return None
    stack = [value for name, value in frame.locals.items() if name.startswith("___stack")]
    return next((number for number in _numbers(stack[-1:]) if parts_that_hold(number)), None)


def _numbers(value: object) -> list[int | float]:
    if isinstance(value, float | int) and not isinstance(value, bool):
        return [value]
    return [number for item in value for number in _numbers(item)] if isinstance(value, list | tuple) else []
