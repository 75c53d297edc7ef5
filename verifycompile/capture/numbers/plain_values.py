"""The plain values of a model that traced code read, and what is known of each: as constructed, or as it stands now."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from verifycompile.capture.names import clean_module_name
from verifycompile.torch_interface.dynamo.frames import Frame, TracedFrame
from verifycompile.torch_interface.dynamo.sources import SourcePath
from verifycompile.torch_interface.guards.guarded_values import GuardedValue, guarded_values
from verifycompile.torch_interface.ranks.confined_answers import stayed_where_asked
from verifycompile.torch_interface.ranks.constructed import (
    COUNTED,
    MISSING,
    Contents,
    Recorded,
    Step,
    held_parts,
    is_plain,
    recorded,
)
from verifycompile.torch_interface.ranks.launcher_variables import is_degree_variable, is_rank_variable
from verifycompile.torch_interface.ranks.mesh import is_process_group
from verifycompile.torch_interface.ranks.observation import Read, ReadKind, reads, was_before_degree
from verifycompile.torch_interface.source_lines.whose_code import is_installed

Steps = tuple[Step, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """A plain value inside a module: the way to it from there."""

    owner: nn.Module
    steps: Steps

    def __hash__(self) -> int:
        return hash((id(self.owner), self.steps))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.owner is other.owner and self.steps == other.steps

    def now(self) -> object:
        """What is there now; ``MISSING`` where nothing is."""
        found: Any = self.owner
        try:
            for kind, step in self.steps:
                found = getattr(found, str(step)) if kind == "." else found[step]
        except (AttributeError, KeyError, IndexError, TypeError):
            return MISSING
        return found

    @property
    def is_of_installed_package(self) -> bool:
        """Whether the class of the object that holds it is one of an installed package, not of the user's own code."""
        holder: Any = self.owner
        for position in range(1, len(self.steps)):
            found = Place(self.owner, self.steps[:position]).now()
            holder = holder if isinstance(found, list | dict | tuple) else found
        module = sys.modules.get(type(holder).__module__)
        file = getattr(module, "__file__", None)
        return file is not None and is_installed(file)

    def at_construction(self) -> Recorded | None:
        """The record of the attribute that holds it."""
        return recorded(self.owner).get(str(self.steps[0][1]))

    @property
    def constructed(self) -> object:
        """What was there when the module was constructed; ``MISSING`` where that is not known."""
        record = self.at_construction()
        return MISSING if record is None else record.at(self.steps[1:])

    @property
    def is_confirmed(self) -> bool:
        """Whether it was recorded before any code asked for the degree, or where no answer can have reached it.

        Nor may the module have held parts of parameters before: their sizes are as good as an answer.
        What depends on the rank alone differs between the ranks, which are compared.
        """
        record = self.at_construction()
        if record is None or record.at(self.steps[1:]) is MISSING:
            return False
        return not held_parts(self.owner, record.moment) and not asked_before(record)


def asked_before(record: Recorded | None) -> tuple[Read, ...]:
    """Where code asked for the degree, where an answer may have reached what was recorded; else nothing."""
    asked = [read for read in reads(ReadKind.DEGREE) if record is None or read.moment < record.moment]
    return () if stayed_where_asked(asked, () if record is None else record.origin) else tuple(asked)


@dataclasses.dataclass(frozen=True)
class PlainRead:
    """A plain value that traced code read. ``place``: None for a global or a variable of a function around.

    ``line``: file and line of the user's code that reads it. ``is_early``: of one without a place, whether it is the
    number that was there before the user's code first asked for a degree, so that it was made of none, or is no number
    of ranks whenever it was made.
    ``is_of_installed_package``: of one without a place, whether what holds it is a package's and not the user's.
    """

    path: str
    value: object
    place: Place | None
    line: tuple[str, int] | None = None
    is_early: bool = False
    is_of_installed_package: bool = False


_OF_EVERY_MODULE = frozenset({*vars(nn.Module()), "__dict__"})
"""Attributes that hold what a module is made of: its parameters, modules and hooks are no numbers of the model."""


def plain_reads(
    traced: TracedFrame, original: Callable[[nn.Module], nn.Module], names: Mapping[int, str]
) -> dict[tuple[Any, ...], PlainRead]:
    """The plain values that the trace of a frame read, by where they are.

    ``original``: the user's module of a copied one. ``names``: identity of a module -> its name.
    """
    frame = traced.frame
    found: dict[tuple[Any, ...], PlainRead] = {}
    for guarded in guarded_values(traced.context):
        read = _plain_read(guarded, frame, original, names)
        if read is not None:
            read, place = dataclasses.replace(read, line=guarded.line), read.place
            found.setdefault((read.path,) if place is None else (id(place.owner), place.steps), read)
    return found


def _arguments(frame: Frame) -> tuple[str, ...]:
    code = frame.code
    return tuple(name for name in code.co_varnames if name not in code.co_freevars)


def _plain_read(
    guarded: GuardedValue,
    frame: Frame,
    original: Callable[[nn.Module], nn.Module],
    names: Mapping[int, str],
) -> PlainRead | None:
    path = guarded.path
    values = [path.root(length).value(frame) for length in range(len(path.steps) + 1)]
    value = values[-1]
    has_length = type(value) in COUNTED and not is_plain(value)
    if not (is_plain(value) or has_length) or value is None:
        return None
    if len(values) > 2 and values[-3] is os.environ and path.steps[-1][0] == "[]":  # through the table that it keeps
        return _variable_read(*cast("tuple[bytes, bytes]", (path.steps[-1][1], value)))
    is_of_job = guarded.is_direct and _is_of_the_job(values)
    if any(map(_is_no_model, values)) and not is_of_job:
        return None
    holders = [position for position, item in enumerate(values) if isinstance(item, nn.Module)]
    is_installed_code = not is_of_job and is_installed(_file_of_holder(values, frame))
    if has_length and holders:
        return _length_read(path, values, holders, original, names)
    if not holders:
        if path.scope == "L" and path.variable in _arguments(frame) and not frame.is_resumption:
            return None  # it was passed to the call, by the user
        if has_length:
            is_own = path.scope == "G" and not _is_of_installed_module(values[0], frame)
            length = PlainRead(f"len({_name_of_free(path, values)})", len(value), None)
            return length if is_own or is_of_job else None
        is_early = _is_early(path, values, frame)
        return PlainRead(_name_of_free(path, values), value, None, None, is_early, is_installed_code)
    owner, steps = original(values[holders[-1]]), path.steps[holders[-1] :]
    if steps[0][1] == "training":
        return None
    name = dotted(names.get(id(owner), ""), _with_variables(steps, values[holders[-1] :]))
    place = Place(owner, steps)
    if _may_be_put(place):
        return PlainRead(name, value, place)
    return PlainRead(name, value, None, is_of_installed_package=is_installed_code)


def _file_of_holder(values: Sequence[object], frame: Frame) -> str:
    """Of the function, class or module that holds the last of ``values``, or the class of the object that does."""
    for holder in reversed(values[:-1]):
        if isinstance(holder, types.FunctionType):
            return holder.__code__.co_filename
        if isinstance(holder, types.ModuleType):
            return str(holder.__dict__.get("__file__"))
        if not isinstance(holder, list | dict | tuple | types.CellType):
            held = holder if isinstance(holder, type) else type(holder)
            return getattr(sys.modules.get(held.__module__), "__file__", None) or ""
    return frame.code.co_filename


def _variable_read(name: bytes, value: bytes) -> PlainRead | None:
    """A variable of the environment; those in which a launcher tells the job are answered as on one process."""
    read = os.fsdecode(name)
    if is_rank_variable(read) or is_degree_variable(read):
        return None
    return PlainRead(f"os.environ['{read}']", os.fsdecode(value), None)


def _is_of_the_job(values: Sequence[object]) -> bool:
    """Whether it is a variable of a module of torch.distributed, which keeps groups and ranks there."""
    root = values[0]
    is_there = isinstance(root, types.ModuleType) and root.__name__.startswith("torch.distributed")
    return is_there and not any(isinstance(item, types.FunctionType) for item in values)


def _is_of_installed_module(root: object, frame: Frame) -> bool:
    file = root.__dict__.get("__file__") if isinstance(root, types.ModuleType) else frame.globals.get("__file__")
    return isinstance(file, str) and is_installed(file)


def _is_early(path: SourcePath, values: Sequence[object], frame: Frame) -> bool:
    """Whether a global number was there before the user's code first asked for a degree, or no code asked for one.

    So it is with a function's default argument, which is a number of the module that holds the function.
    """
    names = [path.variable, *(str(step) for _, step in path.steps)]
    module = str(frame.globals.get("__name__"))
    if isinstance(values[0], types.ModuleType):
        module, names = values[0].__name__, names[1:]
    elif path.scope != "G":
        module = ""
    is_default = len(names) == 3 and names[1] == "__defaults__" and isinstance(values[-3], types.FunctionType)
    if len(names) != 1 and not is_default:
        module = ""
    return type(values[-1]) is int and was_before_degree(module, ".".join(names), values[-1])


def _length_read(
    path: SourcePath,
    values: Sequence[Any],
    holders: Sequence[int],
    original: Callable[[nn.Module], nn.Module],
    names: Mapping[int, str],
) -> PlainRead | None:
    """How long a list, set or mapping of a module is; None where it was as long when the module was constructed.

    How much a partial passes to a package's function says how that is called, and is no share of a rank.
    """
    if holders[-1] == len(path.steps):
        return None
    owner, steps = original(values[holders[-1]]), path.steps[holders[-1] :]
    if steps[0][1] in _OF_EVERY_MODULE:
        return None
    record, length = Place(owner, steps).at_construction(), len(values[-1])
    if record is not None and record.length_at(steps[1:]) == length and not asked_before(record):
        return None
    is_call = any(map(_calls_package, values[holders[-1] : -1]))
    path_of_owner = dotted(names.get(id(owner), ""), steps)
    return PlainRead(f"len({path_of_owner})", length, None, is_early=is_call, is_of_installed_package=is_call)


def _calls_package(value: object) -> bool:
    function: object = value.func if isinstance(value, functools.partial) else None
    return isinstance(function, types.FunctionType) and is_installed(function.__code__.co_filename)


def _name_of_free(path: SourcePath, values: Sequence[object]) -> str:
    """With its module, or from the function on of which it is a variable."""
    for position, function in enumerate(values[:-3]):
        if isinstance(function, types.FunctionType) and path.steps[position] == (".", "__closure__"):
            return dotted(function.__name__, _with_variables(path.steps[position:], values[position:]))
    if isinstance(values[0], types.ModuleType):  # under an alias of Dynamo's where another file reads it
        return dotted(values[0].__name__, path.steps)
    return path.dotted()


def _with_variables(steps: Steps, values: Sequence[object]) -> Steps:
    """Variables of a function around have names, though Dynamo counts them: ``function.__closure__[0].cell_contents``.

    ``values``: what holds each of ``steps``.
    """
    for position, function in enumerate(values[: max(len(steps) - 2, 0)]):
        if isinstance(function, types.FunctionType) and steps[position] == (".", "__closure__"):
            variable = function.__code__.co_freevars[int(str(steps[position + 1][1]))]
            rest = _with_variables(steps[position + 3 :], values[position + 3 :])
            return (*steps[:position], (".", variable), *rest)
    return steps


def _is_no_model(value: object) -> bool:
    """Whether a number that it holds is no number of the model: ``math.pi``, ``weight.requires_grad``."""
    if isinstance(value, types.ModuleType | types.FunctionType):
        name = value.__name__ if isinstance(value, types.ModuleType) else str(value.__module__)
        return name.partition(".")[0] in ("torch", *sys.stdlib_module_names)
    return isinstance(value, torch.Tensor | DeviceMesh) or is_process_group(value)


def dotted(module: str, steps: Steps) -> str:
    """``layers.0.sizes.1``."""
    return ".".join((*filter(None, (module,)), *(str(step) for _, step in steps)))


def module_names(modules: Sequence[nn.Module]) -> dict[int, str]:
    """Identity of a module -> its name from the first of ``modules`` that holds it."""
    names: dict[int, str] = {}
    for root in modules:
        if id(root) in names:
            continue
        for name, module in root.named_modules():
            names.setdefault(id(module), clean_module_name(name.split(".")) if name else "")
    return names


def changed_since_construction(modules: Iterable[nn.Module]) -> Iterator[Place]:
    """Where a module's plain value is another one than when it was constructed."""
    for module in modules:
        for name, record in recorded(module).items():
            for steps in _leaves(record.value):
                place = Place(module, ((".", name), *steps))
                now = place.now()
                if now is not MISSING and _may_be_restored(now) and not same_value(now, record.at(steps)):
                    yield place


def _leaves(value: object) -> Iterator[Steps]:
    if not isinstance(value, Contents):
        yield ()
        return
    for step, item in value.items.items():
        for steps in _leaves(item):
            yield (step, *steps)


def _may_be_restored(now: object) -> bool:
    """A cache is made when it is first needed (``self.mask = None``); what says how to communicate is the plan's."""
    return is_plain(now) or isinstance(now, DeviceMesh) or is_process_group(now)


def same_value(one: object, other: object) -> bool:
    """Equality of plain values: ``1`` is not ``True``."""
    return type(one) is type(other) and one == other


def put(owner: nn.Module, steps: Steps, value: object) -> None:
    """Let the plain value at ``steps`` of ``owner``, a copy, be ``value``; what the user's objects hold stays."""
    attribute = str(steps[0][1])
    owner.__dict__[attribute] = _with(getattr(owner, attribute), steps[1:], value)


def _with(held: Any, steps: Steps, value: object) -> Any:
    if not steps:
        return value
    (kind, step), rest = steps[0], steps[1:]
    if isinstance(held, tuple):
        items = list(cast("tuple[Any, ...]", held))
        items[cast(int, step)] = _with(items[cast(int, step)], rest, value)
        return type(cast(Any, held))(*items) if hasattr(cast(Any, held), "_fields") else tuple(items)
    if isinstance(held, types.CellType):
        return types.CellType(_with(held.cell_contents, rest, value))
    if isinstance(held, types.FunctionType):
        return _with_part(held, str(step), _with(getattr(held, str(step)), rest, value))
    if isinstance(held, types.MethodType):
        return types.MethodType(_with(held.__func__, rest if step == "__func__" else steps, value), held.__self__)
    if isinstance(held, functools.partial):
        parts: dict[str, Any] = {"func": held.func, "args": held.args, "keywords": held.keywords}
        parts[str(step)] = _with(parts[str(step)], rest, value)
        return functools.partial(parts["func"], *parts["args"], **parts["keywords"])
    changed = copy.copy(held)
    if kind == "[]":
        changed[step] = _with(held[step], rest, value)
    elif changed.__dict__ is held.__dict__:
        raise TypeError(f"a copy of {type(held)} holds what the original holds")
    else:
        changed.__dict__[str(step)] = _with(getattr(held, str(step)), rest, value)
    return changed


def _with_part(function: types.FunctionType, name: str, value: Any) -> types.FunctionType:
    """A function of its own: copies of functions are the functions themselves."""
    closure = value if name == "__closure__" else function.__closure__
    changed = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, closure
    )
    changed.__kwdefaults__, changed.__qualname__ = function.__kwdefaults__, function.__qualname__
    changed.__dict__.update(function.__dict__)
    if name != "__closure__":
        setattr(changed, name, value)
    return changed


def _may_be_put(place: Place) -> bool:
    """Whether a copy of the owner can hold another value there without a change to what the user's objects hold."""
    mark = object()
    try:
        changed = _with(getattr(place.owner, str(place.steps[0][1])), place.steps[1:], mark)
    except Exception:  # noqa: BLE001 - the user's own objects decide how they are copied
        return False
    found = types.SimpleNamespace(**{str(place.steps[0][1]): changed})
    return Place(cast(nn.Module, found), place.steps).now() is mark and place.now() is not mark


def shown(value: object) -> str:
    """A plain value as a user writes it."""
    return str(value) if isinstance(value, enum.Enum) else repr(value)


def shown_line(line: tuple[str, int] | None) -> str:
    return "" if line is None else f"{Path(line[0]).name}:{line[1]}"


def pattern(paths: Sequence[str]) -> str:
    """One pattern for the paths of repeated layers: ``layers.*.eps``."""
    split = [path.split(".") for path in paths]
    return ".".join(parts[0] if len(set(parts)) == 1 else "*" for parts in zip(*split, strict=True))
