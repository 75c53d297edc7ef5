"""Answers about the rank that were given before ``build`` was called, and that what ``build`` runs may still hold.

``build`` is called as each rank. A variable, attribute or cache that has an answer given before holds this rank's on
every call, and on other ranks of the job another one. Where an answer went is read from the instructions of the code
that asked, on the side of caution: what is computed with it, changed with it, or set where it decided.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import dis
import functools
import inspect
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, cast

from torch import nn

from verifycompile.torch_interface.dynamo.closures import globals_named, names_in, taken_along
from verifycompile.torch_interface.ranks.observation import Read
from verifycompile.torch_interface.source_lines.whose_code import Asker, is_installed, is_of_torch

_LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_CLASSDEREF")
_READS = ("LOAD_ATTR", "LOAD_METHOD")
_STORES = ("STORE_FAST", "STORE_DEREF", "STORE_NAME", "STORE_GLOBAL")
_AROUND = (staticmethod, classmethod, property, functools.cached_property, functools._lru_cache_wrapper)
"""Descriptors and caches, which hold the function that they are around."""
_WITH_PARTS = (*_AROUND, functools.partial, types.MethodType, type, dict, list, tuple, set, frozenset)
_DEFAULTS = 1 | 2
"""Marks of an instruction that makes a function with defaults."""
_ENDS = ("STORE_", "POP_TOP", "POP_JUMP", "JUMP_", "RETURN_", "RAISE_", "FOR_ITER")


@dataclasses.dataclass
class _Left:
    """What code that got an answer left it in: variables of its own, attributes with the class of their object.

    ``elsewhere``: globals of other functions, with the identity of the table that holds them. ``called``: the names of
    methods that may have got it.
    """

    code: types.CodeType
    names: dict[str, Any]
    variables: set[str] = dataclasses.field(default_factory=set[str])
    attributes: set[tuple[str, str | None]] = dataclasses.field(default_factory=set[tuple[str, str | None]])
    elsewhere: set[tuple[int, str]] = dataclasses.field(default_factory=set[tuple[int, str]])
    functions: set[types.CodeType] = dataclasses.field(default_factory=set[types.CodeType])
    called: set[str] = dataclasses.field(default_factory=set[str])
    is_returned: bool = False

    @property
    def owner(self) -> str:
        """The class of which the code is a method."""
        return self.code.co_qualname.rpartition(".")[0]


def with_holders(reads: Iterable[Read], roots: Iterable[Any]) -> tuple[Read, ...]:
    """``reads``, each place once, with what of all that is reached from ``roots`` may hold the answer.

    ``roots``: ``build`` and what it made.
    """
    places = {(read.reader, read.file, read.line): read for read in reads}
    reached = list(_reached(roots)) if places else []
    return tuple(dataclasses.replace(read, holder=_holder(read, reached)) for read in places.values())


# ------------------------------------------------------------------------------------------------ where an answer goes


def _left_by(read: Read) -> list[_Left]:
    """What the code that asked left, and what its callers left of what it returned."""
    found: list[_Left] = []
    for asker in read.askers:
        found.append(_left(asker))
        if not found[-1].is_returned:
            break
    return found


def _left(asker: Asker) -> _Left:
    left = _Left(asker.code, asker.names)
    statements = list(_statements(asker.code))
    asking = max((i.offset for s in statements for i in s if i.offset <= asker.offset), default=-1)
    decided: set[int] = set()
    size = -1
    while size != (size := len(left.variables) + len(left.attributes) + len(left.functions) + len(decided)):
        for statement in statements:
            has_answer = any(i.offset == asking for i in statement)
            loaded = [name for i in statement if i.opname.startswith(_LOADS) for name in _names(i)]
            names = [str(i.argval) for i in statement if i.opname in _READS]
            attributes = {(name, owner) for name in names for owner in (None, left.owner)}
            if has_answer or not left.variables.isdisjoint(loaded) or not left.attributes.isdisjoint(attributes):
                _pass_on(left, statement, loaded)
                for instruction in statement:
                    decided |= _decided_by(instruction, statements)
            elif statement[0].offset in decided:
                _store(left, statement)
                if statement[-1].opname.startswith("RETURN_"):
                    # What follows runs on some ranks alone.
                    left.is_returned |= not _returns_nothing(statement)
                    decided |= {other[0].offset for other in statements if other[0].offset > statement[0].offset}
    if not left.code.co_flags & inspect.CO_OPTIMIZED:
        # Variables of the body of a class or a module are attributes of it, and other modules import them.
        left.attributes |= {(name, None) for name in left.variables}
    return left


def _statements(code: types.CodeType) -> Iterator[list[dis.Instruction]]:
    """Instructions up to those that take what was computed from the stack."""
    statement: list[dis.Instruction] = []
    for instruction in dis.get_instructions(code):
        if statement and statement[-1].opname.startswith(_ENDS) and not instruction.opname.startswith(_ENDS):
            yield statement
            statement = [statement[-1]] if statement[-1].opname == "STORE_FAST_LOAD_FAST" else []
        statement.append(instruction)
    yield statement


def _names(instruction: dis.Instruction) -> tuple[str, ...]:
    value = instruction.argval
    return cast("tuple[str, ...]", value) if isinstance(value, tuple) else (str(value),)


def _store(left: _Left, statement: list[dis.Instruction]) -> None:
    for instruction in statement:
        if instruction.opname.startswith(_STORES):
            left.variables.update(_names(instruction))
    left.attributes.update(_attributes_set(left.code, statement))


def _attributes_set(
    code: types.CodeType, instructions: Iterable[dis.Instruction]
) -> Iterator[tuple[str, str | None]]:
    """Attributes that a function sets, with the name of its class where it sets them of its first argument."""
    before = None
    for instruction in instructions:
        if instruction.opname == "STORE_ATTR" and before is not None:
            is_own = before.opname.startswith("LOAD_FAST") and code.co_varnames[:1] == _names(before)[-1:]
            owner = code.co_qualname.rpartition(".")[0]
            yield str(instruction.argval), owner if is_own and not owner.endswith("<locals>") else None
        before = instruction


def _pass_on(left: _Left, statement: list[dis.Instruction], loaded: list[str]) -> None:
    _store(left, statement)
    left.called.update(str(i.argval) for i in statement if i.opname in _READS)
    last = statement[-1].opname
    left.is_returned |= last.startswith("RETURN_") and not _returns_nothing(statement)
    left.is_returned |= any(i.opname == "YIELD_VALUE" for i in statement)
    if any(i.opname in ("MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE") and (i.arg or 0) & _DEFAULTS for i in statement):
        left.functions.update(i.argval for i in statement if isinstance(i.argval, types.CodeType))
    if last == "STORE_SUBSCR" or (last == "POP_TOP" and loaded):
        first = left.names.get(loaded[0], vars(builtins).get(loaded[0])) if last == "POP_TOP" else None
        changed = [] if _changes_nothing(first) else loaded[:1] if _is_of_package(first) else loaded
        left.variables.update(name for name in changed if not _is_code(left.names.get(name)))
    for function in (held for name in loaded for held in _functions_of(left.names.get(name))):
        instructions = list(dis.get_instructions(function.__code__))
        left.elsewhere |= {(id(function.__globals__), name) for name in _globals_changed(function)}
        # Of a new object, which the statement leaves in its variable, the attributes are its own.
        is_method = "." in function.__qualname__.rpartition("<locals>.")[2]
        set_there = _attributes_set(function.__code__, instructions)
        left.attributes |= {(name, None) for name, owner in set_there if owner is None or not is_method}


def _globals_changed(function: types.FunctionType) -> Iterator[str]:
    """Globals that a function sets, or of which it may change what they hold."""
    for statement in _statements(function.__code__):
        yield from (str(i.argval) for i in statement if i.opname == "STORE_GLOBAL")
        if statement[-1].opname in ("STORE_SUBSCR", "POP_TOP"):
            named = {str(i.argval) for i in statement if i.opname == "LOAD_GLOBAL"}
            held = {name: function.__globals__[name] for name in named if name in function.__globals__}
            yield from (name for name, value in held.items() if not _is_code(value))


def _returns_nothing(statement: list[dis.Instruction]) -> bool:
    return statement[-1].argval is None and (statement[-1].opname == "RETURN_CONST" or statement[-2:][0].argval is None)


def _is_of_package(receiver: Any) -> bool:
    """Whether a method of ``receiver`` is of Python or a package, and changes nothing but it."""
    return receiver is not None and not _is_code(receiver) and not _is_of_user(type(receiver))


def _changes_nothing(called: Any) -> bool:
    """Whether what is called is a function of torch, a package or Python that is known by its own name."""
    if any(called is one for one in (setattr, getattr, vars, object)):
        return False
    return _is_code(called) and not _functions_of(called)


def _decided_by(jump: dis.Instruction, statements: list[list[dis.Instruction]]) -> set[int]:
    """The first instructions of what runs, or does not, by the answer."""
    if "JUMP" not in jump.opname and jump.opname != "FOR_ITER":
        return set()
    start, end = sorted((jump.offset, int(jump.argval)))
    for statement in statements:
        if statement[-1].opname == "JUMP_FORWARD" and start < statement[-1].offset < end <= int(statement[-1].argval):
            end = int(statement[-1].argval)
    return {statement[0].offset for statement in statements if start < statement[0].offset < end}


# ------------------------------------------------------------------------------------------------ what `build` reaches


def _reached(roots: Iterable[Any]) -> Iterator[Any]:
    """Functions of the user, caches, partial applications and objects, each once.

    Of an object that is there already those of its class that are named, or that Python or torch call by themselves.
    """
    waiting, seen = collections.deque(roots), dict[int, Any]()
    unnamed, named = collections.defaultdict[str, list[Any]](list), {"forward"}
    while waiting:
        value = waiting.popleft()
        if id(value) in seen or isinstance(value, types.ModuleType | str | bytes | int | float | None):
            continue
        seen[id(value)] = value
        yield value
        if isinstance(value, types.FunctionType):
            if _is_of_user(value):
                waiting += [*taken_along(value), *globals_named(value)]
                for name in {*names_in(value.__code__)} - named:
                    named.add(name)
                    waiting += unnamed.pop(name, [])
        elif isinstance(value, _WITH_PARTS):
            waiting += _parts(value)
        elif _is_of_user(type(value)) or isinstance(value, nn.Module):
            waiting += getattr(value, "__dict__", {}).values()
            members = [item for base in type(value).__mro__ if _is_of_user(base) for item in vars(base).items()]
            for name, held in members:
                if name in named or (name.startswith("__") and name not in ("__init__", "__new__")):
                    waiting.append(held)
                elif not name.startswith("__"):
                    unnamed[name].append(held)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, functools.partial | types.MethodType):
        return [*taken_along(value)]
    if isinstance(value, _AROUND):
        return [getattr(cast("Any", value), name, None) for name in ("__wrapped__", "fget", "func")]
    if isinstance(value, type):
        return [held for base in value.__mro__ if _is_of_user(base) for held in vars(base).values()]
    return list(cast("dict[Any, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value))


def _is_of_user(value: Any) -> bool:
    if isinstance(value, types.FunctionType):
        return not is_installed(value.__code__.co_filename) and not is_of_torch(value.__code__.co_filename)
    name = getattr(value, "__module__", None) or ""
    file = getattr(sys.modules.get(name), "__file__", None)
    is_known = name.partition(".")[0] in ("builtins", "verifycompile") or (file is not None and is_installed(file))
    return not is_known and not (file is not None and is_of_torch(file))


def _is_code(value: Any) -> bool:
    return isinstance(value, type | types.ModuleType) or (callable(value) and not isinstance(value, nn.Module))


def _functions_of(value: Any) -> list[types.FunctionType]:
    """The user's functions that a call of ``value`` may run first."""
    if isinstance(value, type) and _is_of_user(value):
        return [held for held in vars(value).values() if isinstance(held, types.FunctionType)]
    return [value] if isinstance(value, types.FunctionType) and _is_of_user(value) else []


def _holder(read: Read, reached: list[Any]) -> str:
    """What among ``reached`` may hold the answer; "" for nothing."""
    left = _left_by(read)
    bases = {base for value in reached for base in type(value).__mro__}
    classes = {base.__qualname__ for base in bases}
    for item in left:
        methods = (vars(base).get(name) for name in item.called for base in bases if _is_of_user(base))
        for method in methods:
            if isinstance(method, types.FunctionType):
                item.attributes.update(_attributes_set(method.__code__, dis.get_instructions(method.__code__)))
    for value in reached:
        if isinstance(value, functools._lru_cache_wrapper):
            inner: Any = value
            codes = [function.__code__ for function in _functions_of(inner.__wrapped__)]
            if any(asker.code in codes for asker in read.askers) and inner.cache_info().currsize:
                return f"the cache of `{inner.__name__}`"
        elif isinstance(value, functools.partial) and any(map(_is_plain, (*value.args, *value.keywords.values()))):
            return f"an argument of a partial application of `{getattr(value.func, '__name__', value.func)}`"
        elif isinstance(value, types.FunctionType) and _is_of_user(value):
            for item in left:
                if value.__code__ in item.functions:
                    return f"a default of `{value.__name__}`"
                name = _name_of(value, item, classes)
                if name is not None:
                    return f"`{name}`, which `{value.__name__}` reads"
    return ""


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str | list | tuple | dict)


def _name_of(function: types.FunctionType, left: _Left, classes: set[str]) -> str | None:
    """The variable or attribute that ``function`` reads and the code of ``left`` set."""
    for code in _with_inner(function.__code__):
        is_of_file = code.co_filename == left.code.co_filename
        for instruction in dis.get_instructions(code):
            name, kind = str(instruction.argval), instruction.opname
            if kind.startswith(("LOAD_GLOBAL", "LOAD_NAME")):
                is_own = name in left.variables and function.__globals__ is left.names
                if is_own or (id(function.__globals__), name) in left.elsewhere or (name, None) in left.attributes:
                    return name
            elif kind.startswith(("LOAD_DEREF", "LOAD_CLOSURE")):
                # The function that asked has the variable, or one around it.
                around = left.code.co_qualname.partition(".<locals>")[0]
                scope = around if name in left.code.co_freevars else left.code.co_qualname
                is_inside = is_of_file and code.co_qualname.startswith(f"{scope}.")
                if name in left.variables and name in code.co_freevars and is_inside:
                    return name
            elif kind.startswith(("LOAD_ATTR", "LOAD_METHOD")):
                owners = {owner for attribute, owner in left.attributes if attribute == name}
                if None in owners or not owners.isdisjoint(classes):
                    return name
    return None


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)
