"""Names of graph inputs: from Dynamo's sources to argument names and fully qualified parameter names."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from verifycompile.program import Role
from verifycompile.torch_interface.dynamo.frames import Frame
from verifycompile.torch_interface.dynamo.sources import Source, SourcePath, size_of

_WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
_REGISTRIES = {"_parameters": Role.PARAMETER, "_buffers": Role.BUFFER}


def clean_module_name(parts: Sequence[str]) -> str:
    """Name without wrappers: ``layers.0.weight`` for ``_orig_mod.layers.0.parametrizations.weight.original``."""
    kept = [part for part in parts if part not in _WRAPPERS]
    if len(kept) >= 3 and kept[-3] == "parametrizations" and kept[-1] == "original":
        kept = [*kept[:-3], kept[-2]]
    return ".".join(kept)


@dataclasses.dataclass(frozen=True)
class InputName:
    """What a graph input is called. ``root``: the module that ``name`` is relative to, for parameters and buffers."""

    name: str
    role: Role
    root: SourcePath | None = None


def name_inputs(sources: Sequence[Source | None], values: Sequence[Any], frame: Frame) -> tuple[InputName, ...]:
    """Name each graph input. ``sources``: where Dynamo found them; ``values``: the real inputs, to name tied ones once.

    Names are relative to the root module where there is one, else prefixed by the root's own name. They are unique.
    """
    paths = [SourcePath.of(source) for source in sources]
    prefixes = [None if path is None else path.module_prefix(frame) for path in paths]
    roots = {
        path.root(length)
        for path, length in zip(paths, prefixes, strict=True)
        if path is not None and length is not None
    }
    namer = _Namer(_argument_names(frame), _names_by_identity(roots, frame), prefix_roots=len(roots) > 1)
    named: list[InputName] = []
    taken: set[str] = set()
    for source, path, length, value in zip(sources, paths, prefixes, values, strict=True):
        entry = namer.name(source, path, length, value)
        if entry.name in taken:
            entry = dataclasses.replace(entry, name="" if source is None else source.name)
        taken.add(entry.name)
        named.append(entry)
    return tuple(named)


@dataclasses.dataclass(frozen=True)
class _Namer:
    arguments: Mapping[tuple[str, Hashable], str]
    first_names: Mapping[tuple[SourcePath, int], str]
    prefix_roots: bool

    def name(self, source: Source | None, path: SourcePath | None, length: int | None, value: Any) -> InputName:
        size = size_of(source)
        if size is not None:
            owner, what = size
            return InputName(f"{self.name(owner, SourcePath.of(owner), None, None).name}.{what}", Role.SIZE)
        if path is None:
            return InputName("" if source is None else source.name, Role.INPUT)
        if length is None:
            return InputName(_argument_name(path, self.arguments), Role.INPUT)
        root = path.root(length)
        role = Role.BUFFER
        parts: list[str] = []
        for kind, step in path.steps[length:]:
            if kind == "." and str(step) in _REGISTRIES:
                role = _REGISTRIES[str(step)]
            elif not (kind == "." and step == "_modules"):
                parts.append(str(step))
        name = self.first_names.get((root, id(value))) or clean_module_name(parts)
        return InputName(f"{root.dotted()}.{name}" if self.prefix_roots else name, role, root)


def _names_by_identity(roots: set[SourcePath], frame: Frame) -> dict[tuple[SourcePath, int], str]:
    """The first name of every parameter, so that a tied parameter has the same name however it was reached."""
    names: dict[tuple[SourcePath, int], str] = {}
    for root in roots:
        module = root.value(frame)
        if not isinstance(module, nn.Module):
            continue
        for name, parameter in module.named_parameters():
            names[(root, id(parameter))] = clean_module_name(name.split("."))
    return names


def _argument_name(path: SourcePath, arguments: Mapping[tuple[str, Hashable], str]) -> str:
    if path.scope == "L" and path.steps:
        known = arguments.get((path.variable, path.steps[0][1]))
        if known is not None:
            return ".".join((known, *(str(step) for _, step in path.steps[1:])))
    return path.dotted()


def called_through(frame: Frame) -> Callable[..., Any] | None:
    """The module or function that a wrapper frame ``wrapper(*args, **kwargs)`` calls, None for other frames."""
    has_varargs = bool(frame.code.co_flags & inspect.CO_VARARGS)
    has_keywords = bool(frame.code.co_flags & inspect.CO_VARKEYWORDS)
    if not (has_varargs and has_keywords):
        return None
    if isinstance(frame.locals.get("self"), nn.Module) and frame.code.co_argcount == 1:
        return frame.locals["self"]
    callee = frame.locals.get("fn")
    return callee if callable(callee) and frame.code.co_argcount == 0 else None


def first_argument(frame: Frame) -> Any:
    """What the frame's function was called with first: in a method, its object."""
    return frame.locals.get(frame.code.co_varnames[0]) if frame.code.co_argcount else None


def wrapper_arguments(frame: Frame) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """``(args, kwargs)`` of a wrapper frame."""
    varargs, keywords = _variadic_names(frame)
    return tuple(frame.locals.get(varargs, ())), dict(frame.locals.get(keywords, {}))


def _variadic_names(frame: Frame) -> tuple[str, str]:
    first = frame.code.co_argcount + frame.code.co_kwonlyargcount
    return frame.code.co_varnames[first], frame.code.co_varnames[first + 1]


def _argument_names(frame: Frame) -> dict[tuple[str, Hashable], str]:
    """``("args", 0) -> "x"`` where the frame is a wrapper around the model's ``forward``."""
    callee = called_through(frame)
    if callee is None:
        return {}
    function = callee.forward if isinstance(callee, nn.Module) else callee
    varargs, keywords = _variadic_names(frame)
    args, kwargs = wrapper_arguments(frame)
    names: dict[tuple[str, Hashable], str] = {(keywords, key): key for key in kwargs}
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a function of C, whose arguments have no names
        return names
    for position, parameter in enumerate(parameters):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            for index in range(position, len(args)):
                names[(varargs, index)] = f"{parameter.name}.{index - position}"
            break
        if position >= len(args) or parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            break
        names[(varargs, position)] = parameter.name
    return names


def tensors_of_modules(values: Iterable[object]) -> list[str]:
    """Names of the parameters and buffers of the modules among ``values``, of which a graph may read some only."""
    modules = [value for value in values if isinstance(value, nn.Module)]
    return [name for module in modules for name, _ in (*module.named_parameters(), *module.named_buffers())]


def call_arguments(frame: Frame, *, skip: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The frame's arguments as a call would pass them, without the first one where ``skip``."""
    code = frame.code
    positional = code.co_varnames[int(skip) : code.co_argcount]
    position = code.co_argcount + code.co_kwonlyargcount
    args = [frame.locals[name] for name in positional]
    kwargs = {name: frame.locals[name] for name in code.co_varnames[code.co_argcount : position]}
    if code.co_flags & inspect.CO_VARARGS:
        args.extend(frame.locals[code.co_varnames[position]])
        position += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs.update(frame.locals[code.co_varnames[position]])
    return tuple(args), kwargs
