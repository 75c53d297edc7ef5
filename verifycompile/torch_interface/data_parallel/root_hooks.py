"""Hooks of torch.distributed on the module that is compiled, as parts of its frame.

``torch.compile`` calls the hooks of a module of the user's outside of what it compiles; Dynamo then meets each hook as
a frame of its own, and the module's ``forward`` with whatever a hook made of its inputs. Where the hooks lay inputs and
outputs out (``distribute_module``, ``PrepareModuleInput``), the call as a whole is what stands beside a single-device
program: torch's own option ``wrap_top_frame`` puts the hooks inside, for such modules alone, also where a module is
compiled by its own method ``compile``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch._dynamo
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule, _TorchDynamoContext, innermost_backend

_is_active: list[Callable[[Any], bool]] = []


def trace_root_hooks_where(is_active: Callable[[Any], bool]) -> None:
    """From now on, where the compiler function satisfies ``is_active``, compile such a module with its hooks."""
    _install()
    _is_active.append(is_active)


def lays_out(module: nn.Module) -> bool:
    """Whether a hook of ``module`` is one of ``torch.distributed.tensor``."""
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    return any(str(getattr(hook, "__module__", "")).startswith("torch.distributed.tensor") for hook in hooks)


@functools.cache
def _install() -> None:
    initialize, call = OptimizedModule._initialize, _TorchDynamoContext.__call__

    def initialize_with_hooks(module: Any) -> None:
        with _wrapping(module.dynamo_ctx, module._orig_mod):
            initialize(module)

    def call_with_hooks(context: Any, fn: Any) -> Any:
        is_call = getattr(fn, "__name__", "") == "_call_impl"
        with _wrapping(context, getattr(fn, "__self__", None) if is_call else None):
            return call(context, fn)

    OptimizedModule._initialize = initialize_with_hooks  # type: ignore[method-assign]  # put around torch's own
    _TorchDynamoContext.__call__ = call_with_hooks  # type: ignore[method-assign]


def _wrapping(context: Any, module: object) -> contextlib.AbstractContextManager[None]:
    """Inside, ``module`` is compiled with its hooks where one of them lays out and the compiler is one of ours."""
    if not isinstance(module, nn.Module) or not lays_out(module):
        return contextlib.nullcontext()
    backend = innermost_backend(getattr(context, "callback", None))  # pyright: ignore[reportArgumentType]  # there may be none
    if not any(is_active(backend) for is_active in _is_active):
        return contextlib.nullcontext()
    return torch._dynamo.config.patch(wrap_top_frame=True)
