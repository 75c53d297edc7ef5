"""``DistributedDataParallel`` under compilation: Dynamo cuts its graph at the buckets of gradients.

A backend sees the pieces one by one. A proof needs the whole graph: a backend that is named here gets it, and has
Dynamo cut what it hands over to the backend behind it, so that communication overlaps as before.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import Any

from torch._dynamo.backends.distributed import DDPOptimizer

from verifycompile.torch_interface.dynamo.backend import Backend, unwrapped

_whole: list[Callable[..., Any]] = []
_cutting: contextvars.ContextVar[DDPOptimizer | None] = contextvars.ContextVar("cutting", default=None)


def give_whole_graphs_to(backend: Callable[..., Any]) -> None:
    """From now on ``backend`` gets graphs of ``DistributedDataParallel`` before they are cut."""
    _install()
    _whole.append(backend)


def in_buckets(inner: Backend) -> Backend:
    """``inner`` as a backend that cuts a graph where Dynamo was about to; itself where it was not."""
    cutting = _cutting.get()
    if cutting is None:
        return inner
    again = DDPOptimizer(cutting.bucket_bytes_cap, inner, cutting.first_bucket_cap)
    return lambda gm, example_inputs: again.compile_fn(gm, list(example_inputs))


@functools.cache
def _install() -> None:
    cut_and_compile = DDPOptimizer.compile_fn

    @functools.wraps(cut_and_compile)
    def compile_whole(self: Any, gm: Any, example_inputs: Any, **settings: Any) -> Any:
        if not any(unwrapped(self.backend_compile_fn) is backend for backend in _whole):
            return cut_and_compile(self, gm, example_inputs, **settings)
        token = _cutting.set(self)
        try:
            return self.backend_compile_fn(gm, example_inputs, **settings)
        finally:
            _cutting.reset(token)

    DDPOptimizer.compile_fn = compile_whole
