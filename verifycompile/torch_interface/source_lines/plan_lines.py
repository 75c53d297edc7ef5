"""Where the styles of a plan for ``parallelize_module`` were made, and to which modules they were applied.

A module keeps nothing of its style but functions. A plan is wrong at the line that makes the style.
"""

from __future__ import annotations

import functools
import importlib.machinery
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from typing import Any

from verifycompile.torch_interface.ranks.constructed import ByIdentity

STYLES = "torch.distributed.tensor.parallel.style"

_MADE = ByIdentity()
"""Style -> the line that made it, None where that is no line of the user's, as of a copy."""
_APPLIED = ByIdentity()
"""Module -> the line that made the style which was applied to it last."""
_watched: weakref.WeakSet[type] = weakref.WeakSet()


def record_plans() -> None:
    """Record from now on; where torch's styles are not imported yet, once they are: their import takes a second."""
    if STYLES in sys.modules:
        _watch(sys.modules[STYLES])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def line_of_style(module: object) -> Any:
    """The line that made the style which ``module`` has; None where that was not seen."""
    return _APPLIED.get(module)


class _Finder(MetaPathFinder):
    """Finds one module, as Python does, and has it watched once it was executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != STYLES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = functools.partial(_execute, loader.exec_module)
        return spec


def _execute(execute: Callable[[types.ModuleType], None], module: types.ModuleType) -> None:
    execute(module)
    _watch(module)


def _watch(styles: types.ModuleType) -> None:
    if styles.ParallelStyle not in _watched:
        _watched.add(styles.ParallelStyle)
        styles.ParallelStyle.__new__ = _made


def _made(kind: type, *_arguments: Any, **_by_name: Any) -> Any:
    # Importing this package must cost little: what this needs is imported with the first style.
    from verifycompile.torch_interface.source_lines.source import calling_line
    from verifycompile.torch_interface.source_lines.whose_code import is_installed

    for base in kind.__mro__:
        if "_apply" in vars(base) and base not in _watched:
            _watched.add(base)
            base._apply = _recording(vars(base)["_apply"])
    style = object.__new__(kind)
    line = calling_line()
    _MADE[style] = None if line is None or is_installed(line.file) else line
    return style


def _recording(apply: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(apply)
    def recording(style: Any, module: Any, mesh: Any) -> Any:
        _APPLIED[module] = _MADE.get(style)
        return apply(style, module, mesh)

    return recording
