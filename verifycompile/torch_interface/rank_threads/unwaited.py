"""Collectives that run while an eager program goes on: nothing may read what they write before the program waits."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator
from typing import Any
from unittest import mock

import torch
from torch.distributed import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

COLLECTIVES = (
    "_allgather_base", "_reduce_scatter_base", "all_gather_single", "all_gather_single_coalesced", "all_to_all_single",
    "allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "allreduce", "allreduce_coalesced",
    "alltoall", "alltoall_base", "broadcast", "gather", "recv", "recv_anysource", "reduce", "reduce_scatter",
    "reduce_scatter_single", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "scatter", "send",
)  # fmt: skip
"""Methods of a process group that return before they are done; all but ``send`` write their first argument."""
_WAITS = ("wait", "synchronize", "block_current_stream")


class UnwaitedError(Exception):
    """What a collective writes is used before the program waits for it, in one sentence."""


class _Pending(TorchDispatchMode):
    """Refuses operators on memory that a collective still works on. ``works``: handle -> name, written, read."""

    def __init__(self) -> None:
        super().__init__()
        self.works: dict[int, tuple[object, str, set[int], set[int]]] = {}

    def launched(self, name: str, work: Any, arguments: tuple[Any, ...]) -> None:
        first, rest = (arguments[:1], arguments[1:]) if name != "send" else ((), arguments)
        # The handle and the tensors are held, so that no others get their identity.
        self.works[id(work)] = ((work, arguments), name, _memory_of(first), _memory_of(rest))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.works and not func.is_view and func.namespace != "c10d":
            used, written = _memory_of((args, kwargs)), _memory_of(_written(func, args, kwargs))
            for _, name, results, sources in self.works.values():
                if used & results or written & sources:
                    raise UnwaitedError(f"`{func}` uses a tensor of an asynchronous `{name}` that is not waited for")
        return func(*args, **kwargs)


@contextlib.contextmanager
def waits_required() -> Generator[None]:
    """While entered, and at the end, raises ``UnwaitedError`` where a collective is not waited for before its use."""
    pending, watched = _Pending(), set[tuple[type, str]]()
    with contextlib.ExitStack() as replaced:

        def watch_waits(handle: type) -> None:
            for owner, name in itertools.product(handle.__mro__, _WAITS):
                if name in vars(owner) and (owner, name) not in watched:
                    watched.add((owner, name))
                    replaced.enter_context(mock.patch.object(owner, name, _waiting(vars(owner)[name], pending)))

        for name in COLLECTIVES:
            if name in vars(ProcessGroup):
                launch = _launching(name, getattr(ProcessGroup, name), pending, watch_waits)
                replaced.enter_context(mock.patch.object(ProcessGroup, name, launch))
        with pending:
            yield
    for _, name, _, _ in pending.works.values():
        raise UnwaitedError(f"an asynchronous `{name}` is never waited for")


def _launching(name: str, original: Any, pending: _Pending, watch: Callable[[type], None]) -> Callable[..., Any]:
    def launch(group: Any, *arguments: Any, **named: Any) -> Any:
        work = original(group, *arguments, **named)
        options = [value for value in (*arguments, *named.values()) if hasattr(value, "asyncOp")]
        if work is not None and all(value.asyncOp for value in options):
            watch(type(work))
            pending.launched(name, work, (*arguments, *named.values()))
        return work

    return launch


def _waiting(original: Any, pending: _Pending) -> Callable[..., Any]:
    def wait(work: Any, *arguments: Any, **named: Any) -> Any:
        pending.works.pop(id(work), None)
        return original(work, *arguments, **named)

    return wait


def _memory_of(values: Any) -> set[int]:
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return {tensor.untyped_storage()._cdata for tensor in tensors}


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    given = [*zip(func._schema.arguments, args, strict=False)]
    given += [(argument, kwargs[argument.name]) for argument in func._schema.arguments if argument.name in kwargs]
    return [value for argument, value in given if argument.alias_info is not None and argument.alias_info.is_write]
