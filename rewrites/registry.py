"""The table of operator declarations, and the binding of a call's arguments to a declaration.

A declaration is a function ``(builder, arguments by their schema names) -> value``. It must name every argument
that can change the operator's value; an argument that it does not name must have its default value, or be one of
``NEUTRAL_ARGUMENTS``. Anything else makes the call unsupported (VC202): there is no default that accepts.

Its value depends on these arguments and on ``Builder.call`` alone, on no state: layers that repeat are lowered once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

from verifycompile.torch_interface.operators.schema import Argument, arguments_of

NEUTRAL_ARGUMENTS = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking"})
"""Arguments that say where or how a tensor is stored, never what it holds."""

UNDECLARED = "VC201"
UNSUPPORTED = "VC202"
EXHAUSTED = "VC205"
UNREPRESENTABLE = "VC206"
DRAWS = "VC216"

RANDOM = (
    "draws random numbers: that the two programs draw the same ones is not assumed. "
    "Verify with the drawing turned off (p=0, eval()), or pass the numbers in"
)
"""Why an operator that draws is refused, behind its name."""


class UnsupportedError(Exception):
    """A call that no declaration covers. ``code`` is a diagnostic code, the message names the blocker."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class RandomError(UnsupportedError):
    """A call that draws random numbers."""

    def __init__(self, call: str) -> None:
        super().__init__(DRAWS, f"{call} {RANDOM}")


class UndefinedError(UnsupportedError):
    """A call whose result is no real number."""


Handler = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Declaration:
    """One operator: its FX target, its handler, the arguments that the handler names, and where it is written."""

    target: object
    handler: Handler
    arguments: frozenset[str]
    location: str


@dataclasses.dataclass(frozen=True)
class Group:
    """A process group: the mesh axes that it spans, outermost first in its rank order."""

    axes: tuple[int, ...]


_DECLARATIONS: dict[object, Declaration] = {}


def operator(*targets: object) -> Callable[[Handler], Handler]:
    """Register a handler for ATen overloads (or other FX targets)."""

    def register(handler: Handler) -> Handler:
        names = frozenset(list(inspect.signature(handler).parameters)[1:])
        code = inspect.unwrap(handler).__code__
        location = f"{code.co_filename}:{code.co_firstlineno}"
        for target in targets:
            if target in _DECLARATIONS:
                raise ValueError(f"{target} is declared twice")
            _DECLARATIONS[target] = Declaration(target, handler, names, location)
        return handler

    return register


def with_arguments(handler: Handler, names: Iterable[str]) -> Handler:
    """``handler``, declared to take arguments of these names behind the builder."""
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("b", *names)]
    handler.__signature__ = inspect.Signature(parameters)
    return handler


def declaration_of(target: object) -> Declaration | None:
    """The declaration of an FX target, or None."""
    found = _DECLARATIONS.get(target)
    if found is not None:
        note_use(found)
    return found


def declarations() -> Mapping[object, Declaration]:
    """All declarations, by target."""
    return dict(_DECLARATIONS)


_listeners: list[set[str]] = []


@contextlib.contextmanager
def listening() -> Generator[set[str]]:
    """Collects the names of the families whose declarations are asked for."""
    found: set[str] = set()
    _listeners.append(found)
    try:
        yield found
    finally:
        _listeners.pop()


def note_use(declaration: Declaration) -> None:
    """Tell those who listen which family a declaration is of."""
    for listener in _listeners:
        listener.add(declaration.handler.__module__.rpartition(".")[2])


def bind(declaration: Declaration, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for the handler, by schema name. Raises UnsupportedError for one that the declaration leaves out.

    A text is a group where the schema says so, and not where it is called as one.
    """
    target = declaration.target
    arguments = arguments_of(target)
    if arguments is None:
        names = list(inspect.signature(declaration.handler).parameters)[1:]
        return {**dict(zip(names, args, strict=False)), **kwargs}
    bound: dict[str, Any] = {}
    for position, argument in enumerate(arguments):
        name = argument.name
        if position < len(args) and not argument.kwarg_only:
            value = args[position]
        elif name in kwargs:
            value = kwargs[name]
        elif argument.has_default:
            value = argument.default
        else:
            raise UnsupportedError(UNSUPPORTED, f"`{target}` is called without its argument `{name}`")
        if isinstance(value, Group) and name != "group_name":
            raise UnsupportedError(UNSUPPORTED, f"`{target}` with a process group as its argument `{name}`")
        if name in declaration.arguments:
            bound[name] = value
        elif name not in NEUTRAL_ARGUMENTS and not _is_default(argument, value):
            raise UnsupportedError(UNSUPPORTED, f"`{target}` has no declaration for `{name}={value}`")
    return bound


def _is_default(argument: Argument, value: Any) -> bool:
    if not argument.has_default:
        return False
    default = argument.default
    return value is default or (type(value) is type(default) and value == default)
