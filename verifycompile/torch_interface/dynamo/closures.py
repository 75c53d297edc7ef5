"""What a function takes along."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any


def closed_over(code: types.CodeType, cells: Iterable[types.CellType] | None) -> Iterator[tuple[str, Any]]:
    """Names and values of the variables of enclosing functions that a function uses; none that is not assigned yet."""
    for name, cell in zip(code.co_freevars, cells or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue


def values_closed_over(code: types.CodeType, cells: Iterable[types.CellType] | None) -> Iterator[Any]:
    """The values alone."""
    yield from (value for _, value in closed_over(code, cells))


def taken_along(function: Any) -> Iterator[Any]:
    """What a function closes over and has as defaults, or what a method or partial application is bound to."""
    if isinstance(function, functools.partial):
        yield from (function.func, *function.args, *function.keywords.values())
    elif isinstance(function, types.MethodType):
        yield from (function.__func__, function.__self__)
    elif isinstance(function, types.FunctionType):
        yield from function.__defaults__ or ()
        yield from (function.__kwdefaults__ or {}).values()
        yield from values_closed_over(function.__code__, function.__closure__)


def globals_named(function: types.FunctionType) -> Iterator[Any]:
    """The values of the globals that a function and the functions inside of it use."""
    names = dict.fromkeys(globals_in(function.__code__))
    yield from (function.__globals__[name] for name in names if name in function.__globals__)


def globals_in(code: types.CodeType) -> Iterator[str]:
    """The names that a function and the functions inside of it use as globals: an attribute of that name is another."""
    yield from (str(step.argval) for step in dis.get_instructions(code) if step.opname.endswith(_OF_GLOBALS))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from globals_in(constant)


def names_in(code: types.CodeType) -> Iterator[str]:
    """The names of globals and attributes that a function and the functions inside of it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


_OF_GLOBALS = ("_GLOBAL", "_NAME", "_GLOBALS")
"""Ends of the names of instructions that read or write one; those of a class body look into its own names first."""
