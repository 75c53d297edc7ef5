"""Copies of Python objects in which every DTensor is a whole tensor and nothing of torch.distributed is left.

The objects themselves are never modified. Copies are made only where something inside them changes, so that
everything else stays shared with the user's program.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from torch._dynamo.eval_frame import DisableContext, OptimizedModule
from torch.distributed._composable_state import _get_module_state
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.torch_interface.communication.wrappers import moves_data, wrapped_forward
from verifycompile.torch_interface.dtensor.parametrizations import (
    is_parametrized,
    lays_out,
    parametrization_steps,
    shadowed_parameters,
)
from verifycompile.torch_interface.dynamo.closures import closed_over
from verifycompile.torch_interface.ranks.constructed import constructed_as

_HOOK_TABLES = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_HOOK_FLAGS = (
    ("_forward_hooks", "_forward_hooks_with_kwargs"),
    ("_forward_hooks", "_forward_hooks_always_called"),
    ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
)
_SHARED = (
    type,
    types.ModuleType,
    types.CodeType,
    types.BuiltinFunctionType,
    DeviceMesh,
    torch.device,
    torch.dtype,
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
)


def file_of_code(function: object) -> str | None:
    """The file of a function (bound, partial or wrapped), its folders divided by ``/``; None for other objects."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    code = getattr(function, "__code__", None) or getattr(getattr(function, "__func__", None), "__code__", None)
    return None if code is None else code.co_filename.replace("\\", "/")


def is_of_torch_distributed(function: object) -> bool:
    """True for a function (bound, partial or wrapped) whose code is part of torch.distributed."""
    file = file_of_code(function)
    if file is None:
        return type(function).__module__.startswith("torch.distributed")
    return "/torch/distributed/" in file


class Relocator:
    """Copies in which tensors alone are replaced: hooks, wrappers and parametrizations stay.

    ``whole_tensor`` gives the replacement of a tensor, or the tensor itself where it is whole.

    One instance copies a shared object once, so tied parameters stay tied. ``assumptions`` collects what was
    left out and has no proof of its own. ``keeps_breaks``: hooks of ``fully_shard``, which Dynamo does not trace, break
    the graph of a copy where they break that of the original. ``compiles``: copies are compiled as the originals are.
    """

    def __init__(
        self,
        whole_tensor: Callable[[torch.Tensor], torch.Tensor],
        *,
        keeps_breaks: bool = False,
        compiles: bool = False,
    ) -> None:
        self.assumptions: list[str] = []
        self.modules: list[nn.Module] = []
        """Originals of the modules copied so far."""
        self._whole_tensor = whole_tensor
        self._keeps_breaks = keeps_breaks
        self._compiles = compiles
        self._copies: dict[int, Any] = {}
        self._originals: list[Any] = []
        self._in_progress: set[int] = set()

    def replace(self, original: Any, copy: Any) -> None:
        """Use ``copy`` wherever ``original`` occurs."""
        self._originals.append(original)
        self._copies[id(original)] = copy

    def tensors(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each tensor met so far, and what stands for it."""
        return [(value, self._copies[id(value)]) for value in self._originals if isinstance(value, torch.Tensor)]

    def __call__(self, value: Any) -> Any:
        """The copy of ``value``, or ``value`` itself where nothing in it changes."""
        if isinstance(value, _SHARED):
            return value
        if id(value) in self._copies:
            return self._copies[id(value)]
        if id(value) in self._in_progress:
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, nn.Module):
            return self._module(value)
        self._in_progress.add(id(value))
        try:
            copy = self._other(value)
        finally:
            self._in_progress.discard(id(value))
        self.replace(value, copy)
        return copy

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        whole = self._whole_tensor(tensor)
        self.replace(tensor, whole)
        if whole is not tensor and tensor.is_leaf and tensor.grad is not None:
            # An optimizer reads the gradients that its parameters hold. Of what was gathered there are shards.
            gradient = self(tensor.grad)
            meshes = [getattr(value, "device_mesh", None) for value in (gradient, whole)]
            if gradient.shape == whole.shape and meshes[0] == meshes[1]:
                whole.grad = gradient
        return whole

    def _module(self, module: nn.Module) -> nn.Module:
        if isinstance(module, OptimizedModule):
            copy = self(module._orig_mod)
            is_kept = self._compiles or isinstance(module.dynamo_ctx, DisableContext)
            self.replace(module, module.dynamo_ctx(copy) if is_kept else copy)
            return self._copies[id(module)]
        kind = self._class_without_wrappers(module)
        copy = kind.__new__(kind)
        self.replace(module, copy)
        self.modules.append(module)
        attributes = dict(module.__dict__)
        self._unwrap_forward(module, attributes)
        parameters = dict(module._parameters)
        children = dict(module._modules)
        self._strip_parametrizations(module, kind, parameters, children)
        attributes["_parameters"] = {name: self(value) for name, value in parameters.items()}
        attributes["_buffers"] = {name: self(value) for name, value in module._buffers.items()}
        attributes["_modules"] = {name: self(value) for name, value in children.items()}
        for table in _HOOK_TABLES:
            hooks = attributes.get(table) or {}
            attributes[table] = collections.OrderedDict(
                (key, self(hook)) for key, hook in hooks.items() if not self._is_left_out(module, hook)
            )
        if self._keeps_breaks and isinstance(_get_module_state(module), FSDPState):
            attributes["_forward_pre_hooks"][_BREAK] = _break_graph
        for table, flags in _HOOK_FLAGS:
            kept = attributes.get(flags) or {}
            attributes[flags] = collections.OrderedDict(
                (key, flag) for key, flag in kept.items() if key in attributes[table]
            )
        attributes["_compiled_call_impl"] = None
        handled = {"_parameters", "_buffers", "_modules", *_HOOK_TABLES, *(flags for _, flags in _HOOK_FLAGS)}
        for name, value in attributes.items():
            if name not in handled:
                attributes[name] = self(value)
        copy.__dict__.update(attributes)
        if self._compiles and module._compiled_call_impl is not None:
            copy._compiled_call_impl = _context(module._compiled_call_impl)(copy._call_impl)
        constructed_as(module, copy)
        return copy

    def _is_left_out(self, module: nn.Module, hook: Any) -> bool:  # noqa: ARG002 - for those that leave hooks out
        return False

    def _unwrap_forward(self, module: nn.Module, attributes: dict[str, Any]) -> None:
        """Forwards stay."""

    def _class_without_wrappers(self, module: nn.Module) -> type[nn.Module]:
        return type(module)

    def _strip_parametrizations(
        self, module: nn.Module, kind: type[nn.Module], parameters: dict[str, Any], children: dict[str, Any]
    ) -> None:
        """Parametrizations stay."""

    def _other(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self._mapping(cast("dict[Any, Any]", value))
        if isinstance(value, list | tuple | set | frozenset | collections.deque):
            return self._sequence(cast("list[Any]", value))
        if isinstance(value, functools.partial):
            return self._partial(cast("functools.partial[Any]", value))
        if isinstance(value, types.MethodType):
            owner = self(value.__self__)
            return value if owner is value.__self__ else types.MethodType(value.__func__, owner)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if dataclasses.is_dataclass(value) or type(value).__module__.split(".")[0] not in ("torch", "builtins"):
            return self._object(value)
        if isinstance(value, torch.optim.Optimizer):
            return self._object(value)
        return value

    def _mapping(self, value: dict[Any, Any]) -> Any:
        # Keys are copied where they are tensors: an optimizer keeps its state by parameter.
        items = {self(key) if isinstance(key, torch.Tensor) else key: self(item) for key, item in value.items()}
        pairs = zip(items.items(), value.items(), strict=True)
        if all(new_key is key and new is item for (new_key, new), (key, item) in pairs):
            return value
        if type(value) is dict:
            return items
        copy = value.copy()
        copy.clear()
        for key, item in items.items():  # one by one: a mapping with fields keeps both alike, and may forbid `update`
            copy[key] = item
        return copy

    def _sequence(self, value: Any) -> Any:
        if len(value) > _LONG:
            return value
        items = [self(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*items)
        return type(value)(items)

    def _partial(self, value: functools.partial[Any]) -> Any:
        function, args, keywords = self(value.func), self(value.args), self(value.keywords)
        if function is value.func and args is value.args and keywords is value.keywords:
            return value
        return functools.partial(function, *args, **keywords)

    def _function(self, value: types.FunctionType) -> Any:
        if value.__closure__ is None:
            return value
        if self._compiles and (original := getattr(value, "_torchdynamo_orig_callable", None)) is not None:
            copy = self(original)
            return value if copy is original else _context(value)(copy)
        cells = [_cell_contents(cell) for cell in value.__closure__]
        contents = [self(content) for content in cells]
        if all(new is old for new, old in zip(contents, cells, strict=True)):
            return value
        closure = tuple(
            cell if content is _EMPTY else types.CellType(content)
            for cell, content in zip(value.__closure__, contents, strict=True)
        )
        copy = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, closure)
        copy.__kwdefaults__ = value.__kwdefaults__
        copy.__dict__.update(value.__dict__)
        return copy

    def _object(self, value: Any) -> Any:
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            return value
        attributes = cast("dict[str, Any]", attributes)
        changed = {name: new for name, item in attributes.items() if (new := self(item)) is not item}
        if not changed:
            return value
        try:
            copy = object.__new__(type(value))
        except TypeError:
            return value
        copy.__dict__.update(attributes)
        copy.__dict__.update(changed)
        return copy


def _context(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """What ``torch.compile``, or ``torch.compiler.disable``, has made the function ``compiled`` with."""
    function = cast("types.FunctionType", compiled)
    return dict(closed_over(function.__code__, function.__closure__))["self"]


def _break_graph(module: nn.Module, args: object) -> None:  # noqa: ARG001 - called as a hook is
    torch._dynamo.graph_break()


_BREAK = -1
"""No key of a hook's own."""
_LONG = 10_000
"""Longer containers are data, not parts of a model; a DTensor in one is noticed when the spec is traced."""
_EMPTY = object()


def _cell_contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


class Globalizer(Relocator):
    """Copies without what torch.distributed put around and into modules."""

    def _is_left_out(self, module: nn.Module, hook: Any) -> bool:
        if is_of_torch_distributed(hook):
            return True
        if not moves_data(hook):
            return False
        self._leave_out("hook", hook, module)
        return True

    def _unwrap_forward(self, module: nn.Module, attributes: dict[str, Any]) -> None:
        """Undo ``module.forward = wrapper`` where the wrapper communicates and calls the module's own forward."""
        wrapper = attributes.get("forward")
        inner = None if wrapper is None else wrapped_forward(module, wrapper)
        if inner is None or inner is wrapper:
            return
        self._leave_out("wrapper", wrapper, module)
        if getattr(inner, "__func__", None) is type(module).forward:
            del attributes["forward"]
        else:
            attributes["forward"] = inner

    def _leave_out(self, what: str, function: Any, module: nn.Module) -> None:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        text = (
            f"{what} `{name}` around {type(module).__name__} communicates and moves data only; the spec is without it"
        )
        self.assumptions.append(Assumption(text, AssumptionKind.REMOVED))

    def _class_without_wrappers(self, module: nn.Module) -> type[nn.Module]:
        """The class before FSDP or a parametrization that lays parameters out replaced it by a subclass."""
        kind = type(module)
        while True:
            bases = kind.__bases__
            if len(bases) == 2 and bases[0].__module__.startswith("torch.distributed"):
                kind = bases[1]
                continue
            removed = shadowed_parameters(module, kind)
            if not removed and is_parametrized(module, kind):
                steps = parametrization_steps(module)
                if all(lays_out(step) for listed in steps.values() for step in listed):
                    removed = {name: ", ".join(type(step).__name__ for step in steps[name]) for name in steps}
            if not removed:
                return kind
            kind = bases[0]
            for name, kinds in removed.items():
                self._assume_moved(kinds, name, kind)

    def _assume_moved(self, kinds: str, name: str, kind: type[nn.Module]) -> None:
        text = f"parametrization {kinds} of `{name}` in {kind.__name__} only moves data; the spec is without it"
        self.assumptions.append(Assumption(text, AssumptionKind.REMOVED))

    def _strip_parametrizations(
        self, module: nn.Module, kind: type[nn.Module], parameters: dict[str, Any], children: dict[str, Any]
    ) -> None:
        if not is_parametrized(module, type(module)):
            return
        for name, steps in parametrization_steps(module).items():
            moving = [step for step in steps if lays_out(step)]
            if not is_parametrized(module, kind):
                parameters[name] = children["parametrizations"][name].original
                continue
            for step in moving:
                self.replace(step, nn.Identity())
                self._assume_moved(type(step).__name__, name, kind.__bases__[0])
        if not is_parametrized(module, kind):
            del children["parametrizations"]
