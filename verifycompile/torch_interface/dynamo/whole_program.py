"""What was given to ``torch.compile``, seen from a frame that is about to run: the Python stack tells.

Dynamo asks its callbacks for frames of everything that runs below a compiled call. Of these, one is the program: below
``torch.compile`` no code of the user's has called it, and it is no hook of the module that was given.
"""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
import types
from typing import Any

from torch import nn
from torch._dynamo.convert_frame import CatchErrorsWrapper
from torch._dynamo.external_utils import wrap_inline
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from verifycompile.torch_interface.guards.frame_guards import verify_again_unless
from verifycompile.torch_interface.source_lines.source import is_user_file


def is_whole_program(code: types.CodeType) -> bool:
    """Whether the frame of ``code``, which is about to run or under compilation, is what was given."""
    modules = _modules_given()
    return modules is not None and all(code is not _code_of(hook) for hook in _hooks_of(modules))


def is_function_given(code: types.CodeType) -> bool:
    """The same of a function of the user's, or of torch's own: code around it, as of a wrapper, may be in parts."""
    return (_is_of_user(code) or code is AROUND_TORCH) and is_whole_program(code)


def hooks_around_program() -> tuple[str, ...]:
    """The user's own hooks around the ``forward`` of the module that was given: no graph of the frame holds them."""
    return tuple(
        getattr(hook, "__qualname__", type(hook).__qualname__)
        for hook in _hooks_of(_modules_given() or ())
        if not str(getattr(hook, "__module__", "")).startswith("torch.")
    )


def verify_again_where_hooks_come() -> None:
    """Adds a guard to the frame under compilation, around which there are no hooks. Call it inside a backend."""
    verify_again_unless([lambda _: not hooks_around_program()], "no hooks are around the module that was compiled")


def _modules_given() -> tuple[nn.Module, ...] | None:
    """Modules whose calls lie between ``torch.compile`` and this frame, None where code of the user's does."""
    frame: types.FrameType | None = sys._getframe()
    modules: list[nn.Module] = []
    called_by_user = False
    while frame is not None:
        if frame.f_code is CatchErrorsWrapper.__call__.__code__:
            called_by_user = False  # what lies below is the compiler
        elif frame.f_code.co_name == "compile_wrapper":
            return None if called_by_user else tuple(modules)
        elif frame.f_code is nn.Module._call_impl.__code__:
            modules.append(frame.f_locals["self"])
        else:
            called_by_user = called_by_user or _is_of_user(frame.f_code)
        frame = frame.f_back
    return None


def _is_of_user(code: types.CodeType) -> bool:
    """Whether it is neither torch's code nor of the standard library, as that of context managers is."""
    path = code.co_filename
    is_standard = path.startswith(_STANDARD_LIBRARY) and "site-packages" not in path
    return is_user_file(path) and not is_standard


AROUND_TORCH: types.CodeType = next(item for item in wrap_inline.__code__.co_consts if isinstance(item, types.CodeType))
"""In which torch puts each function and module of its own that is given: they all run this code."""
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")


def _hooks_of(modules: tuple[nn.Module, ...]) -> list[Any]:
    own = [hooks for module in modules for hooks in (module._forward_pre_hooks, module._forward_hooks)]
    everyones = (_global_forward_pre_hooks, _global_forward_hooks) if modules else ()
    return [hook for hooks in (*own, *everyones) for hook in hooks.values()]


def _code_of(function: Any) -> object:
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    return getattr(function if hasattr(function, "__code__") else type(function).__call__, "__code__", None)
