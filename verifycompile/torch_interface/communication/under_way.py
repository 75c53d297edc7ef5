"""Results of collectives that are still under way (``AsyncCollectiveTensor``), as inputs of a compiled graph.

AOTAutograd waits for such an input outside of autograd, so that what comes before the graph gets no gradient (see
docs/found.md). What is proved and compiled here gets the result itself, and waits for it within autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import TracingContext
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.fx.experimental.symbolic_shapes import SubclassSymbolicContext


def is_under_way(value: object) -> bool:
    """Whether a gradient flows back into the value, which a collective may still be writing."""
    return isinstance(value, AsyncCollectiveTensor) and value.requires_grad


def within_autograd(values: Sequence[Any]) -> tuple[Any, ...]:
    """``values`` with the results of collectives in place of what waits for them; the others as they are."""
    return tuple(_arrived(value) if is_under_way(value) else value for value in values)


def _arrived(value: torch.Tensor) -> torch.Tensor:
    """The result itself, and where Dynamo is compiling, with the sizes that it knows of it."""
    arrived: torch.Tensor = _Arrived.apply(value)
    context = TracingContext.try_get()
    known = None if context is None else context.tensor_to_context.get(value)
    if context is not None and isinstance(known, SubclassSymbolicContext):
        context.tensor_to_context[arrived] = known.inner_contexts["elem"]
    return arrived


def waiting_within_autograd(compiled: Callable[..., Any], example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """``compiled``, which was made for ``within_autograd(example_inputs)``, as a function of what Dynamo gives it."""
    if not any(map(is_under_way, example_inputs)):
        return compiled
    return lambda *args: compiled(*within_autograd(args))


class _Arrived(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pending: Any) -> torch.Tensor:  # noqa: ARG004 - as torch calls it
        return pending.trigger_wait().detach()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # noqa: ARG004 - as torch calls it
        return grad_outputs[0]
