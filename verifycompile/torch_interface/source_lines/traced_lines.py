"""Lines of what ``make_fx`` traces with ``record_stack_traces=True``.

Torch keeps those frames alone whose function is called ``forward``: a graph of a plain function, and what methods and
helpers do for a module, is left without a line. Kept here is everything of the user's that runs inside of the trace.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any

from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import PythonKeyTracer

Frames = traceback.StackSummary

_ENTRY = proxy_tensor.dispatch_trace.__name__
"""The function of the tracer that calls what is traced."""


def keep_lines() -> None:
    """From now on graphs that are asked to record stack traces record those of every function."""
    known = PythonKeyTracer._filter_traceback_frames
    if not hasattr(known, "__wrapped__"):
        setattr(PythonKeyTracer, known.__name__, _of_every_function(known))


def _of_every_function(known: Callable[[Any, Frames], Frames]) -> Callable[[Any, Frames], Frames]:
    @functools.wraps(known)
    def frames(self: Any, stack: Frames) -> Frames:
        return _inside(stack) or known(self, stack)

    return frames


def _inside(stack: Frames) -> Frames:
    """The user's frames within the innermost trace."""
    # Importing this package must cost little: what this needs is imported with the first graph.
    from verifycompile.torch_interface.source_lines.source import is_user_file

    entries = [i for i, f in enumerate(stack) if f.name == _ENTRY and f.filename == proxy_tensor.__file__]
    inside = stack[entries[-1] + 1 :] if entries else []
    return Frames.from_list([frame for frame in inside if is_user_file(frame.filename)])
