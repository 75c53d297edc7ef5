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
from torch.utils._pytree import tree_map

from verifycompile.captured_notes import ModuleStyle
from verifycompile.torch_interface.dynamo.closures import taken_along
from verifycompile.torch_interface.source_lines.plan_lines import STYLES, line_of_style

_FILES = f"{Path(torch.distributed.tensor.__file__).parent}{os.sep}"


def without_style(code: types.CodeType) -> types.FunctionType | None:
    """A function that passes on what the hook of a parallel style is given, as ``code`` does on a single device.

    None where ``code`` is no such hook: what a style calls before or after the forward of its module.
    """
    if not _is_hook(code):
        return None
    return _PASSING_ON.get(code.co_varnames[1 : code.co_argcount])


def style_of_hook(code: types.CodeType, values: Mapping[str, Any]) -> str | None:
    """``ColwiseParallel on Linear`` for such a hook, called with ``values``; None for other code."""
    if not _is_hook(code):
        return None
    module: Any = values.get(code.co_varnames[0])
    name = _style(module).name if isinstance(module, nn.Module) else ""
    return f"{name or 'a style'} on {type(module).__name__}"


def _is_hook(code: types.CodeType) -> bool:
    return code.co_name == "<lambda>" and code.co_filename.startswith(_FILES)


def _inputs(module: nn.Module, inputs: Any) -> Any:  # noqa: ARG001 - the parameters are those of the hook
    return tree_map(_same, inputs)


def _inputs_by_name(module: nn.Module, inputs: Any, kwargs: Any) -> Any:  # noqa: ARG001 - those of the hook
    return tree_map(_same, (inputs, kwargs))


def _outputs(module: nn.Module, inputs: Any, outputs: Any) -> Any:  # noqa: ARG001 - those of the hook
    return tree_map(_same, outputs)


def _same(value: Any) -> Any:
    # A view, for Dynamo makes no graph of a function that computes nothing.
    return value.view_as(value) if isinstance(value, torch.Tensor) else value


_PASSING_ON: Mapping[tuple[str, ...], types.FunctionType] = {
    ("inputs",): _inputs,
    ("inputs", "kwargs"): _inputs_by_name,
    ("inputs", "outputs"): _outputs,
}


def styles_of(model: object) -> Mapping[str, ModuleStyle]:
    """The modules of a model by path, each with its style; nothing for what is no module, or has no styles at all."""
    if not isinstance(model, nn.Module):
        return {}
    found = {name: _style(module) for name, module in model.named_modules()}
    return found if any(style.name for style in found.values()) else {}


def _style(module: nn.Module) -> ModuleStyle:
    nothing = "", ()
    name, layouts = next(_told(module._forward_hooks), nothing)
    name_before, inputs = next(_told(module._forward_pre_hooks), nothing)
    return ModuleStyle(type(module).__name__, name or name_before, layouts, inputs, line_of_style(module))


def _told(hooks: Mapping[int, Any]) -> Iterator[tuple[str, tuple[Placement, ...]]]:
    """The style that each hook belongs to, with the layouts that it is for."""
    for hook in hooks.values():
        for value in taken_along(hook) if isinstance(hook, types.FunctionType) else ():
            if isinstance(value, ParallelStyle):
                yield type(value).__name__, ()
            elif isinstance(value, functools.partial) and getattr(value.func, "__module__", "") == STYLES:
                yield value.func.__qualname__.partition(".")[0], _layouts(value.args)


def _layouts(arguments: tuple[Any, ...]) -> tuple[Placement, ...]:
    """The layouts of the input or of the result, which a style's hook takes first."""
    layouts = arguments[0] if arguments and isinstance(arguments[0], (tuple, list)) else ()
    return tuple(item for item in layouts if isinstance(item, Placement))
