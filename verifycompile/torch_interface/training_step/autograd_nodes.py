"""Nodes of autograd's graph: those that one call made, and calls of ``torch.autograd.Function``, which no mode sees."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import torch
from torch.autograd import function
from torch.autograd.graph import Node

_LEAF = 2**64 - 1
"""The number of nodes that take the gradients of leaves."""


def next_number() -> int:
    """The number of the node that this thread makes next."""
    return torch._C._autograd._get_sequence_nr()  # pyright: ignore[reportAttributeAccessIssue]  # torch's stubs leave it out


def nodes_since(values: Sequence[torch.Tensor], number: int) -> list[Node]:
    """The nodes from that ``number`` on through which the gradients of ``values`` pass, the last ones first."""
    found: dict[Node, None] = {}
    pending = [value.grad_fn for value in reversed(values) if value.grad_fn is not None]
    while pending:
        node = pending.pop()
        own: int = node._sequence_nr()
        if node in found or not number <= own < _LEAF:
            continue
        found[node] = None
        pending += [following for following, _ in reversed(node.next_functions) if following is not None]
    return list(found)


@dataclasses.dataclass(frozen=True)
class Edge:
    """The gradient that ``node`` gives at ``position``, and the value that it is for."""

    node: Node
    position: int
    value: tuple[Node, int]


def edges_out_of(nodes: Sequence[Node]) -> Iterator[Edge]:
    """Those that lead to none of ``nodes``."""
    own = set(nodes)
    for node in nodes:
        for position, (following, number) in enumerate(node.next_functions):
            if following is not None and following not in own:
                yield Edge(node, position, (following, number))


def value_of(tensor: torch.Tensor) -> tuple[Node, int] | None:
    """What edges that lead to a tensor name it by."""
    return None if tensor.grad_fn is None else (tensor.grad_fn, tensor.output_nr)


Around = Callable[[str, Callable[[], Any]], Any]
"""Takes the name of a function and what calls it, and returns what the call is to return."""
_around = threading.local()
_lock = threading.Lock()
_entered = 0


@contextlib.contextmanager
def custom_functions_around(around: Around) -> Generator[None]:
    """While entered, calls of ``torch.autograd.Function`` in this thread go through ``around``."""
    global _entered  # noqa: PLW0603 - torch has one method for all threads
    base: Any = function._SingleLevelFunction  # below `Function.apply`, which users keep under other names
    with _lock:
        _entered += 1
        base.apply = classmethod(_apply)
    before = getattr(_around, "held", None)
    _around.held = around
    try:
        yield
    finally:
        _around.held = before
        with _lock:
            _entered -= 1
            if not _entered:
                del base.apply


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    above: Any = super(function._SingleLevelFunction, cls)

    def call() -> Any:
        return above.apply(*args, **kwargs)

    held: Around | None = getattr(_around, "held", None)
    return call() if held is None else held(cls.__name__, call)
