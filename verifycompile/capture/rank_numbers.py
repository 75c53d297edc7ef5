"""Numbers that a program computed of its rank before the traced call, as they are on other ranks.

Dynamo's guards name what the traced program read; the source says which of it depends on the rank (``rank_flow``) and
how (``rank_values``). A number that cannot be computed for other ranks blocks the proof.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import re
import sys
import sysconfig
import types
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from verifycompile.capture.meshes import Root
from verifycompile.capture.names import SourcePath
from verifycompile.capture.rank_flow import Assigned, may_read_rank
from verifycompile.capture.rank_sources import RankAttribute
from verifycompile.capture.rank_values import (
    Recomputation,
    UnknownValueError,
    attributes_of,
    class_variables_of,
    is_number,
)
from verifycompile.capture.read_rank_flow import rank_flow
from verifycompile.program import Mesh
from verifycompile.torch_interface.acting_rank import acting_as
from verifycompile.torch_interface.dynamo import TracedFrame
from verifycompile.torch_interface.mesh import mixed_radix, own_rank
from verifycompile.torch_interface.rank_reads import CodeRead, guarded_sources
from verifycompile.torch_interface.source import is_user_file

ALL_UP_TO = 32
"""Meshes of so many ranks are captured as every rank; on larger ones the rest is an assumption of the report."""


_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]|" + re.escape(sysconfig.get_path("stdlib")))
"""Packages there are read only where a class of theirs is used."""
_OF_A_CLASS = re.compile(r"(?:dict\()?type\((.*)\)(?:\.__mro__\[\d+\])?\.__dict__\)?\['(\w+)'\]")
"""Dynamo's expression for a variable of a class: ``dict(type(L['self']).__dict__)['name']``."""
_OWN = __name__.partition(".")[0]


@dataclasses.dataclass(frozen=True)
class RankNumber:
    """A variable or an attribute. ``values``: on each rank that is captured. ``source``: where it is set."""

    path: str
    holders: tuple[Any, ...] = dataclasses.field(compare=False)
    name: str
    held: Any
    values: Mapping[int, Any] = dataclasses.field(compare=False)
    source: CodeRead

    @property
    def assumption(self) -> str:
        place = f"{self.source.file.rpartition('/')[2]}:{self.source.line}"
        return f"`{self.path}` holds on every rank what {place} computes there, as on this one"

    def value(self, rank: int, mesh: Mesh) -> Any:  # noqa: ARG002 - as RankAttribute has it
        return self.values[rank]

    def write(self, value: Any) -> None:
        for holder in self.holders:
            if isinstance(holder, types.CellType):
                holder.cell_contents = value
            else:
                holder[self.name] = value


@contextlib.contextmanager
def acting_numbers(numbers: Iterable[RankAttribute | RankNumber], rank: int, mesh: Mesh) -> Generator[None]:
    """While entered, the attributes and variables hold what they hold on ``rank``."""
    taken = tuple(numbers)
    try:
        for number in taken:
            number.write(number.value(rank, mesh))
        yield
    finally:
        for number in taken:
            number.write(number.held)


def ranks_to_capture(mesh: Mesh) -> tuple[int, ...]:
    """All ranks of a small mesh; of a large one those with a first, second or last coordinate on every axis."""
    if len(mesh.ranks) <= ALL_UP_TO:
        return mesh.ranks
    chosen = [sorted({0, min(1, axis.size - 1), axis.size - 1}) for axis in mesh.axes]
    ranks: list[int] = []
    for place in itertools.product(*chosen):
        ranks.append(mesh.ranks[mixed_radix(list(zip(place, mesh.shape, strict=True)))])
    return tuple(ranks)


def rank_numbers(
    traced: TracedFrame, root: Root, named: tuple[RankAttribute, ...]
) -> tuple[tuple[RankNumber, ...], tuple[CodeRead, ...]]:
    """What the traced program read that differs by rank, and reads of what may differ and is not known there."""
    reads = list(_Reads(traced, {(id(item.owner), item.name) for item in named}).found())
    if not reads or own_rank() not in root.refined.mesh.ranks:
        return (), tuple(read.code for read in reads)
    own = own_rank()
    ranks = tuple(dict.fromkeys((own, *ranks_to_capture(root.refined.mesh))))
    values: dict[int, dict[int, Any]] = {index: {} for index in range(len(reads))}
    for rank in ranks:
        with acting_as(rank, root.mesh), acting_numbers(named, rank, root.refined.mesh):
            for index, read in enumerate(reads):
                with contextlib.suppress(UnknownValueError):
                    values[index][rank] = read.recompute()
    known: list[RankNumber] = []
    unknown: list[CodeRead] = []
    for index, read in enumerate(reads):
        found = values[index]
        if len(found) < len(ranks) or found[own] != read.held or type(found[own]) is not type(read.held):
            unknown.append(read.code)
        elif any(value != read.held for value in found.values()):
            known.append(RankNumber(read.path, read.holders, read.name, read.held, found, read.code))
    return tuple(known), tuple(unknown)


@dataclasses.dataclass(frozen=True)
class _Variable:
    """``inside``: qualified name of the function whose free variable it is; None for a global variable."""

    path: str
    name: str
    holders: tuple[Any, ...]
    file: str
    inside: str | None


@dataclasses.dataclass(frozen=True)
class _Read:
    """A variable or attribute that depends on the rank as the source has it."""

    path: str
    name: str
    holders: tuple[Any, ...]
    held: Any
    found: tuple[Assigned, ...]
    owner: Any
    values: Recomputation
    base: str = ""
    """Name of the container, where ``name`` is an item of it, at ``keys``."""
    keys: tuple[Any, ...] = ()

    @property
    def code(self) -> CodeRead:
        first = self.found[0]
        function = "<module>" if first.scope.function is None else first.scope.function.name
        return CodeRead(first.scope.file, first.line, function, self.path)

    def recompute(self) -> Any:
        if self.owner is None:
            return self.values.variable(self.base or self.name, self.found, self.keys)
        return self.values.attribute(self.owner, self.base or self.name, self.found, self.keys)


class _Reads:
    """What the guards of a traced frame say was read, where it depends on the rank."""

    def __init__(self, traced: TracedFrame, known: set[tuple[int, str]]) -> None:
        self._frame, self._known = traced.frame, known
        sources = (_OF_A_CLASS.sub(r"\1.\2", source) for source in guarded_sources(traced.context))
        self._paths = [path for source in sources if (path := SourcePath.parse(source))]
        self._live = tuple(_live_frames())
        self._flow = rank_flow(self._files(traced))
        self._values = Recomputation(self._flow, self._globals_of, self._locals_of)

    def found(self) -> Iterator[_Read]:
        if not self._flow.assigned:
            return
        seen: set[tuple[int, str]] = set()
        for path in self._paths:
            for read in self._along(path):
                key = id(read.holders[0] if read.owner is None or read.keys else read.owner), read.name
                if key not in seen and key not in self._known:
                    seen.add(key)
                    yield read

    def _along(self, path: SourcePath) -> Iterator[_Read]:
        """Of the objects on the way, those that are numbers."""
        for length in range(len(path.steps) + 1):
            held = path.root(length).value(self._frame)
            if held is None or not is_number(held):
                continue
            read = self._variable(path, held) if length == 0 else self._step(path.root(length), held)
            if read is not None:
                yield read
            return

    def _item(self, path: SourcePath, held: Any) -> _Read | None:
        """A number in a container that holds other things too."""
        length = len(path.steps)
        while length and path.steps[length - 1][0] == "[]":
            length -= 1
        container = path.root(length)
        read = self._variable(container, None) if length == 0 else self._step(container, None)
        parent = path.root(len(path.steps) - 1).value(self._frame)
        if read is None or not isinstance(parent, dict | list):
            return read
        keys = tuple(step for _, step in path.steps[length:])
        return dataclasses.replace(
            read, path=path.dotted(), name=keys[-1], holders=(parent,), held=held, base=read.name, keys=keys
        )

    def _variable(self, path: SourcePath, held: Any) -> _Read | None:
        frame, name = self._frame, path.variable
        code = frame.code
        if path.scope == "G":
            file = str(frame.globals.get("__file__") or code.co_filename)
            return self._read_variable(_Variable(path.dotted(), name, (frame.globals,), file, None), held)
        if name not in code.co_freevars:
            return None
        cell = frame.closure[code.co_freevars.index(name)]
        return self._read_variable(
            _Variable(path.dotted(), name, (frame.locals, cell), code.co_filename, code.co_qualname), held
        )

    def _step(self, path: SourcePath, held: Any) -> _Read | None:
        kind, name = path.steps[-1]
        owner = path.root(len(path.steps) - 1).value(self._frame)
        if isinstance(owner, types.CellType):
            function = path.root(len(path.steps) - 3).value(self._frame)
            code = getattr(function, "__code__", None)
            if not isinstance(code, types.CodeType):
                return None
            name = code.co_freevars[int(path.steps[-2][1])]
            variable = _Variable(path.dotted(), name, (owner,), code.co_filename, code.co_qualname)
            return self._read_variable(variable, held)
        if kind != ".":
            return self._item(path, held)
        if isinstance(owner, types.ModuleType):
            file = getattr(owner, "__file__", None) or ""
            return self._read_variable(_Variable(path.dotted(), str(name), (vars(owner),), file, None), held)
        if str(name) in getattr(owner, "__dict__", {}):
            found = tuple(item for item in attributes_of(self._flow, owner) if item.name == name)
        else:
            found = tuple(item for item in class_variables_of(self._flow, owner) if item.name == name)
        if not found:
            return None
        return _Read(path.dotted(), str(name), (_Attributes(owner),), held, found, owner, self._values)

    def _read_variable(self, variable: _Variable, held: Any) -> _Read | None:
        around = () if variable.inside is None else _functions_around(variable.inside)
        found = tuple(
            item
            for item in self._flow.assigned
            if item.name == variable.name
            and not item.is_attribute
            and item.scope.file == variable.file
            and (item.scope.function is None) is (variable.inside is None)
            and item.scope.function_names == around[: len(item.scope.function_names)]
        )
        if not found:
            return None
        return _Read(variable.path, variable.name, variable.holders, held, found, None, self._values)

    def _files(self, traced: TracedFrame) -> dict[str, frozenset[str] | None]:
        """Where what the program read may have been computed: the user's files, and classes of packages."""
        near = {frame.f_code.co_filename for frame in self._live} | {traced.frame.code.co_filename}
        folders = tuple({f"{Path(file).parent}/" for file in near if not _is_installed(file)} | {f"{Path.cwd()}/"})
        mentioned = (value for frame in self._live for value in list(frame.f_globals.values()))

        def is_own(file: str) -> bool:
            return file.startswith(folders) and not _is_installed(file)

        candidates = (*near, *(file for value in mentioned for file in _files_of(value)))
        files: dict[str, frozenset[str] | None] = dict.fromkeys(filter(is_own, candidates))
        kinds = dict.fromkeys(kind for path in self._paths for kind in self._owner_classes(path))
        for kind in kinds:
            for file in _files_of(kind):
                if is_own(file):
                    files[file] = None
                elif files.get(file, _NONE) is not None and is_user_file(file) and _constructor_may_read(kind):
                    files[file] = (files.get(file) or _NONE) | {kind.__name__}
        return files

    def _owner_classes(self, path: SourcePath) -> tuple[type, ...]:
        owner = path.root(len(path.steps) - 1).value(self._frame) if path.steps else None
        return () if owner is None else type(owner).__mro__

    def _globals_of(self, file: str) -> Mapping[str, Any]:
        for candidate in (self._frame.globals, *(frame.f_globals for frame in self._live)):
            if candidate.get("__file__") == file:
                return candidate
        for module in list(sys.modules.values()):
            if getattr(module, "__file__", None) == file:
                return vars(module)
        return {}

    def _locals_of(self, file: str, line: int) -> Mapping[str, Any]:
        for frame in self._live:
            if (frame.f_code.co_filename, frame.f_code.co_firstlineno) == (file, line):
                return frame.f_locals
        return {}


class _Attributes:
    """The attributes of an object, as a mapping that is written to."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __setitem__(self, name: str, value: Any) -> None:
        vars(self._owner)[name] = value


_NONE: frozenset[str] = frozenset()


@functools.cache
def _is_installed(file: str) -> bool:
    return _INSTALLED.search(file) is not None or not is_user_file(file)


@functools.cache
def _constructor_may_read(kind: type) -> bool:
    """Whether a class's constructor, or a method that it calls, reads a rank."""
    methods = {name: value for name, value in vars(kind).items() if isinstance(value, types.FunctionType)}
    reached, waiting = set[str](), ["__init__"]
    while waiting:
        name = waiting.pop()
        if name in reached or name not in methods:
            continue
        reached.add(name)
        if may_read_rank(methods[name].__code__):
            return True
        waiting.extend(methods[name].__code__.co_names)
    return False


def _functions_around(qualified: str) -> tuple[str, ...]:
    """``("f",)`` for ``C.f.<locals>.g``."""
    parts = qualified.split(".")
    return tuple(name for name, inside in itertools.pairwise(parts) if inside == "<locals>")


def _live_frames() -> Iterator[types.FrameType]:
    frame = inspect.currentframe()
    while frame is not None:
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name != _OWN and not _is_installed(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _files_of(value: Any) -> Iterator[str]:
    """The file of a function, of a class or of a module; none of ours."""
    module = value if isinstance(value, types.ModuleType) else sys.modules.get(str(getattr(value, "__module__", "")))
    if not isinstance(value, types.FunctionType | types.ModuleType | type) or module is None:
        return
    if module.__name__.partition(".")[0] == _OWN:
        return
    if isinstance(value, types.FunctionType):
        yield value.__code__.co_filename
    elif file := getattr(module, "__file__", None):
        yield file
