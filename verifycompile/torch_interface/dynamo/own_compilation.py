"""Compiled programs of ranks that are threads of one process: what Dynamo compiled for one it takes for no other one.

Dynamo keeps compiled code by the program's code, which all ranks share, and takes it where its guards hold and the
backend is the same: what guards do not see, as the place on a mesh, may be another rank's. So each rank has backends
of its own here, which are those of the program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Generator
from typing import Any

import torch._dynamo.config
from torch._dynamo.convert_frame import CatchErrorsWrapper, catch_errors_wrapper
from torch._dynamo.eval_frame import (
    _next_isolate_recompiles_id,
    innermost_backend,
    set_eval_frame_isolate_recompiles_id,
)

Backend = Callable[..., Any]
"""What Dynamo calls with a graph and example inputs."""
_MANY = 1_000_000
_direct: list[Callable[[Any], Backend | None]] = []


class _OfThread(threading.local):
    compilation: OwnCompilation | None = None


_of_thread = _OfThread()


class OwnCompilation:
    """What Dynamo compiles for one rank."""

    def __init__(self) -> None:
        self._region = next(_next_isolate_recompiles_id)
        self._callbacks: dict[int, tuple[Any, Any]] = {}

    @contextlib.contextmanager
    def entered(self) -> Generator[None]:
        """While entered, this thread calls compiled programs as this rank, each with the backend that it names."""
        before, _of_thread.compilation = _of_thread.compilation, self
        try:
            with torch._dynamo.config.patch(accumulated_recompile_limit=_MANY, debug_backend_override=""):
                yield
        finally:
            _of_thread.compilation = before

    def callback(self, callback: Any) -> Any:
        """Dynamo's ``callback`` for frames, with a backend of the rank's own. None, which compiles nothing, is itself.

        Raises ``NotImplementedError`` for a callback that would take what is compiled already.
        """
        if callback is None:
            return None
        if not isinstance(callback, CatchErrorsWrapper):
            raise NotImplementedError("code that is compiled already, or another stance, is not run on threads")
        # Until the compiled function returns: what is compiled counts against no limit of the program's own code.
        set_eval_frame_isolate_recompiles_id(self._region)
        if id(callback) not in self._callbacks:
            converter: Any = callback._torchdynamo_orig_backend
            own = converter._clone_with_backend(_Own(converter._torchdynamo_orig_backend))
            self._callbacks[id(callback)] = callback, catch_errors_wrapper(own, callback.hooks)
        return self._callbacks[id(callback)][1]


@dataclasses.dataclass(eq=False)
class _Own:
    """A backend that is equal to no other one."""

    backend: Backend

    def __call__(self, graph: Any, inputs: Any, **options: Any) -> Any:
        chosen = innermost_backend(self.backend)
        for inner_of in _direct:
            inner = inner_of(chosen)
            if inner is not None:
                return inner(graph, inputs)
        return self.backend(graph, inputs, **options)


def own_compilation() -> OwnCompilation | None:
    """That of this thread."""
    return _of_thread.compilation


def compile_directly(inner_of: Callable[[Any], Backend | None]) -> None:
    """From now on, where ``inner_of`` gives a backend for the chosen one, let a rank's own compilation take that."""
    _direct.append(inner_of)
