"""What a Dynamo graph does beside its results, found by running it on tensors without numbers."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from verifycompile.torch_interface.operators.schema import draws_random_numbers


@dataclasses.dataclass(frozen=True)
class Effects:
    """``written``: positions of the inputs that the graph writes to. ``draws``: whether it draws random numbers."""

    written: tuple[int, ...]
    draws: bool


def effects_of(graph: torch.fx.GraphModule) -> Effects:
    """All that may be, where the graph does not run so."""
    recorded = [node.meta.get("example_value") for node in graph.graph.find_nodes(op="placeholder")]
    everything = Effects(tuple(range(len(recorded))), draws=True)
    modes = {value.fake_mode for value in recorded if isinstance(value, FakeTensor)}
    if len(modes) != 1:
        return everything
    (mode,) = modes
    numbers = contextlib.nullcontext() if mode.shape_env is None else mode.shape_env.ignore_fresh_unbacked_symbols()
    seen = _Seen()
    try:
        # Without gradients, since torch refuses to write to a leaf under them.
        with tracing(None), mode, numbers, torch.no_grad():
            copies = [_copy(value) if isinstance(value, torch.Tensor) else value for value in recorded]
            with seen:
                graph(*copies)
    except Exception:  # noqa: BLE001 - whatever does not run here may write to anything
        return everything
    places = enumerate(copies)
    written = (place for place, value in places if isinstance(value, torch.Tensor) and _memory(value) in seen.written)
    return Effects(tuple(written), seen.draws)


class _Seen(TorchDispatchMode):
    """``written``: the memory of what operators that are called inside write to, as their schemas say."""

    def __init__(self) -> None:
        super().__init__()
        self.written: set[Any] = set()
        self.draws = False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        schema: Any = getattr(func, "_schema", None)
        for position, argument in enumerate(schema.arguments if schema is not None else ()):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[position] if position < len(args) else named.get(argument.name)
                self.written.update(_memory(leaf) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
        self.draws = self.draws or draws_random_numbers(func, args, named)
        return func(*args, **named)


def _copy(recorded: torch.Tensor) -> torch.Tensor:
    """With a memory of its own, and a leaf: the graph may ask for its gradient."""
    return recorded.detach().clone().requires_grad_(recorded.requires_grad)


def _memory(value: torch.Tensor) -> Any:
    return value.untyped_storage()._cdata
