"""Numbers that Python reads from partial sums outside of graphs: each rank reads its own part.

torch lets ``float()``, ``int()``, ``bool()`` and ``.item()`` of a DTensor read the local tensor whatever the placements
are.
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
from verifycompile.torch_interface.source_lines.source import calling_line

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
