"""What uncompiled collectives write to tensors, which torch does not count: what is received, and sums in place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from verifycompile.torch_interface.operators.contents import memory_of, own_part

_WRITES: dict[int, int] = {}
"""How often collectives have written to the memory of the tensors that were asked about."""
_WRITING = ("allreduce", "allreduce_coalesced", "broadcast", "recv", "scatter")
"""Methods of a process group whose first argument is what they write to."""


def writes_by_collectives(tensor: torch.Tensor) -> int:
    """How often collectives have written to the memory of a tensor, since this was asked for it for the first time."""
    _count()
    return _WRITES.setdefault(memory_of(own_part(tensor)), 0)


@functools.cache
def _count() -> None:
    for name in _WRITING:
        setattr(dist.ProcessGroup, name, _counting(getattr(dist.ProcessGroup, name)))


def _counting(collective: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(collective)
    def counted(group: Any, *args: Any, **kwargs: Any) -> Any:
        work = collective(group, *args, **kwargs)
        written: Any = args[0] if args else ()
        for memory in {memory_of(value) for value in ([written] if isinstance(written, torch.Tensor) else written)}:
            if memory and memory in _WRITES:
                _WRITES[memory] += 1
        return work

    return counted
