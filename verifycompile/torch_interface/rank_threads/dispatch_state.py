"""What torch keeps of each thread while it traces, put back where an interruption left it half undone."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Generator

import torch


@contextlib.contextmanager
def dispatch_as_before() -> Generator[None]:
    """After an interruption within, operators are dispatched as before.

    torch puts guards that C++ holds on the stack of a trace. Where Ctrl-C comes while they are taken back, those left
    would end with the exception, in any order. So they end here, the outermost first, and what they set is set again.
    """
    modes, functions = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded):
        try:
            yield
        except KeyboardInterrupt as error:
            traceback.clear_frames(error.__traceback__)
            while torch._C._len_torch_dispatch_stack() > modes:
                torch._C._pop_torch_dispatch_stack(None)
            while torch._C._len_torch_function_stack() > functions:
                torch._C._pop_torch_function_stack()
            raise
