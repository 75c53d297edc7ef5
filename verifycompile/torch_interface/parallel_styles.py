"""The styles of ``parallelize_module`` that the modules of a model have, as far as their hooks tell them.

A style is no attribute of a module: what it does before and after the forward is a function that its hooks close over.
"""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.tensor
from torch import nn
from torch.distributed.tensor.parallel import ParallelStyle
from torch.distributed.tensor.placement_types import Placement

from verifycompile.program import ModuleStyle
from verifycompile.torch_interface.closures import taken_along

_STYLES = "torch.distributed.tensor.parallel.style"
_FILES = f"{Path(torch.distributed.tensor.__file__).parent}{os.sep}"


def is_hook_of_style(code: types.CodeType) -> bool:
    """Whether ``code`` is what a parallel style calls before or after the forward of its module."""
    return code.co_name == "<lambda>" and code.co_filename.startswith(_FILES)


def styles_of(model: object) -> Mapping[str, ModuleStyle]:
    """The modules of a model by path, each with its style; nothing for what is no module, or has no styles at all."""
    if not isinstance(model, nn.Module):
        return {}
    found = {
        name: ModuleStyle(type(module).__name__, *next(_told(module), ("", ())))
        for name, module in model.named_modules()
    }
    return found if any(style.name for style in found.values()) else {}


def _told(module: nn.Module) -> Iterator[tuple[str, tuple[Placement, ...]]]:
    for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
        for value in taken_along(hook) if isinstance(hook, types.FunctionType) else ():
            if isinstance(value, ParallelStyle):
                yield type(value).__name__, ()
            elif isinstance(value, functools.partial) and getattr(value.func, "__module__", "") == _STYLES:
                yield value.func.__qualname__.partition(".")[0], _layouts(value.args)


def _layouts(arguments: tuple[Any, ...]) -> tuple[Placement, ...]:
    """The layouts of the result, which a style's hook takes first."""
    layouts = arguments[0] if arguments and isinstance(arguments[0], (tuple, list)) else ()
    return tuple(item for item in layouts if isinstance(item, Placement))
