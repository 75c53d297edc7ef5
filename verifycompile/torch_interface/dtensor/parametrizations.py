"""Parametrizations that lay a parameter out over a mesh, as SimpleFSDP gathers it before every use.

They come as ``torch.nn.utils.parametrize`` or as a subclass made at run time whose properties shadow parameters. The
single-device program is without them. Told from a computation (weight norm, say) by what they hold and call.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement

from verifycompile.torch_interface.dynamo.closures import globals_named, taken_along

_CALLS = frozenset(
    {"DTensor", "redistribute", "to_local", "from_local", "full_tensor", "distribute_tensor", "local_map"}
)
_COLLECTIVES = ("torch.distributed", "torch.ops._c10d_functional")
_CLASS_NOISE = frozenset({"__module__", "__doc__", "__qualname__", "__annotations__", "__firstlineno__"})
_DEPTH = 4


def lays_out(step: object) -> bool:
    """Whether a function or module distributes or gathers tensors: it holds a mesh or placements, or calls DTensor."""
    return _lays_out(step, _DEPTH, set())


def _lays_out(value: object, depth: int, seen: set[int]) -> bool:
    if isinstance(value, DeviceMesh | Placement | torch.distributed.ProcessGroup):
        return True
    if depth == 0 or id(value) in seen or isinstance(value, torch.Tensor):
        return False
    seen.add(id(value))
    return any(_lays_out(part, depth - 1, seen) for part in _parts(value)) or bool(_names(value) & _CALLS)


def _parts(value: object) -> Iterator[object]:
    """What ``value`` holds or may call."""
    if isinstance(value, list | tuple):
        yield from cast("list[object]", value)
    elif isinstance(value, functools.partial | types.MethodType | types.FunctionType):
        yield from taken_along(value)
        yield from globals_named(value) if isinstance(value, types.FunctionType) else ()
    elif isinstance(value, nn.Module):
        yield from (held for name, held in vars(value).items() if not name.startswith("_") or name == "_modules")
        yield type(value)
    elif isinstance(value, type) and not value.__module__.startswith("torch"):
        yield from (getattr(member, "__func__", member) for member in vars(value).values() if callable(member))


def _names(value: object) -> frozenset[str]:
    """Names that a function's code uses; those of torch.distributed's own functions say all of it."""
    code = getattr(value, "__code__", None)
    if not isinstance(code, types.CodeType):
        return frozenset()
    if str(getattr(value, "__module__", "")).startswith(_COLLECTIVES):
        return _CALLS
    return frozenset(code.co_names)


def is_parametrized(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether ``kind`` is the class that ``torch.nn.utils.parametrize`` put before the module's own."""
    return (
        "parametrizations" in module._modules and kind.__name__.startswith("Parametrized") and len(kind.__bases__) == 1
    )


def parametrization_steps(module: nn.Module) -> dict[str, list[nn.Module]]:
    """Parameter name -> the steps that ``torch.nn.utils.parametrize`` applies to it."""
    lists = cast("dict[str, nn.ModuleList]", cast("nn.Module", module._modules["parametrizations"])._modules)
    return {name: list(steps) for name, steps in lists.items()}


def shadowed_parameters(module: nn.Module, kind: type[nn.Module]) -> dict[str, str]:
    """Parameter name -> name of its layout, where ``kind`` adds nothing but properties that lay parameters out."""
    own = {name: value for name, value in vars(kind).items() if name not in _CLASS_NOISE}
    if len(kind.__bases__) != 1 or not own:
        return {}
    if not all(isinstance(value, property) and name in module._parameters for name, value in own.items()):
        return {}
    getters = {name: value.fget for name, value in own.items()}
    return {name: _label(getter) for name, getter in getters.items()} if all(map(lays_out, getters.values())) else {}


def _label(getter: Any) -> str:
    modules = [part for part in _parts(getter) if isinstance(part, nn.Module)]
    return type(modules[0]).__name__ if len(modules) == 1 else getattr(getter, "__qualname__", "property")
