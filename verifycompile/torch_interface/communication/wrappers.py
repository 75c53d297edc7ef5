"""Functions around a module that communicate: they close over a device mesh or a process group.

``torch.distributed`` puts hooks on modules; other packages replace ``module.forward`` by a closure that moves data
between ranks before and after the forward that the class defines, or register hooks of their own.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from verifycompile.torch_interface.dynamo.closures import taken_along, values_closed_over

_DEPTH = 4
_MOVES = frozenset({"from_local", "to_local", "redistribute", "full_tensor"})
"""Names under which code changes where a tensor lies and not what it is."""


def holds_mesh(function: object) -> bool:
    """True for a function that closes over (or is bound to) a device mesh or a process group."""
    return _holds_mesh(function, _DEPTH)


def moves_data(function: object) -> bool:
    """True for a function that communicates: it holds a mesh, or its own code places or takes apart a DTensor."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return holds_mesh(function) or (code is not None and not _MOVES.isdisjoint(code.co_names))


def _holds_mesh(value: object, depth: int) -> bool:
    if isinstance(value, DeviceMesh | dist.ProcessGroup):
        return True
    if depth == 0 or isinstance(value, nn.Module | type | types.ModuleType):
        return False
    if isinstance(value, types.FunctionType | types.MethodType | functools.partial):
        return any(_holds_mesh(part, depth - 1) for part in taken_along(value))
    if isinstance(value, tuple | list):
        return any(isinstance(item, DeviceMesh | dist.ProcessGroup) for item in value)
    attributes = getattr(value, "__dict__", None)
    return isinstance(attributes, dict) and any(
        isinstance(item, DeviceMesh | dist.ProcessGroup) for item in attributes.values()
    )


def wrapped_forward(module: nn.Module, wrapper: object) -> Any:
    """The forward behind wrappers that communicate: the innermost one, bound to ``module``.

    ``wrapper`` itself where it does not communicate; None where it holds no forward of ``module``, or several.
    """
    function: Any = wrapper
    while isinstance(function, types.FunctionType | functools.partial) and holds_mesh(function):
        inner = [part for part in taken_along(function) if _leads_to(part, module, _DEPTH)]
        if len(inner) != 1:
            return None
        function = inner[0]
    return function


def module_behind(code: types.CodeType, closure: tuple[types.CellType, ...]) -> nn.Module | None:
    """The module whose ``forward`` was set to the function of this code and closure, one that communicates.

    None where the function is no such wrapper: it holds no mesh, or not exactly one forward of its module.
    """
    for module in _modules_in(values_closed_over(code, closure), _DEPTH):
        wrapper = vars(module).get("forward")
        if getattr(wrapper, "__code__", None) is not code or not isinstance(wrapper, types.FunctionType):
            continue
        cells = wrapper.__closure__ or ()
        if len(cells) == len(closure) and all(own is cell for own, cell in zip(cells, closure, strict=True)):
            inner = wrapped_forward(module, wrapper)
            return None if inner is None or inner is wrapper else module
    return None


def _modules_in(values: Iterable[object], depth: int) -> Iterator[nn.Module]:
    for value in values:
        if isinstance(value, nn.Module):
            yield value
        elif depth and isinstance(value, types.FunctionType | types.MethodType | functools.partial):
            yield from _modules_in(taken_along(value), depth - 1)


def _leads_to(function: object, module: nn.Module, depth: int) -> bool:
    """Whether calling ``function`` may call a ``forward`` of ``module``."""
    if isinstance(function, types.MethodType):
        return function.__self__ is module and function.__name__ == "forward"
    if depth == 0 or not isinstance(function, types.FunctionType | functools.partial):
        return False
    return any(_leads_to(part, module, depth - 1) for part in taken_along(function))
