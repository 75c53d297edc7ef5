"""Hooks of torch.distributed on the module that is compiled, as parts of its frame.

``torch.compile`` calls the hooks of a module of the user's outside of what it compiles; Dynamo then meets each hook as
a frame of its own, and the module's ``forward`` with whatever a hook made of its inputs. Where the hooks lay inputs and
outputs out (``distribute_module``, ``PrepareModuleInput``), the call as a whole is what stands beside a single-device
program: torch's own option ``wrap_top_frame`` puts the hooks inside, for such modules alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch._dynamo
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule, innermost_backend

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
    initialize = OptimizedModule._initialize

    def initialize_with_hooks(module: Any) -> None:
        callback: Any = getattr(module.dynamo_ctx, "callback", None)
        backend = innermost_backend(callback)
        wrapped = lays_out(module._orig_mod) and any(is_active(backend) for is_active in _is_active)
        with torch._dynamo.config.patch(wrap_top_frame=wrapped or torch._dynamo.config.wrap_top_frame):
            initialize(module)

    OptimizedModule._initialize = initialize_with_hooks  # type: ignore[method-assign]  # put around torch's own
