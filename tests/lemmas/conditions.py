"""Modules with one condition changed: negated, dropped, one of its parts left out, another comparison.

The change is made in the functions that are there, wherever they are referred to, and taken back again. Of the checks
of a module only those are asked that execute what was changed, the fastest first.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import gc
import inspect
import itertools
import signal
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_QUANTIFIERS = {"any": "all", "all": "any"}
_LONGEST = 20
"""Of so many times what it takes otherwise a check may take of a mutant: one that never ends is found out."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """``change``: where, and what stands there instead of what. ``lines``: those of what is changed."""

    module: ModuleType
    change: str
    lines: frozenset[int]
    compiled: Callable[[], CodeType]
    """The code of the module with the change, made where it is tried."""


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where an expression stands in a tree: in a field of its parent, or in a list that is one."""

    parent: ast.AST
    field: str
    number: int

    def put(self, node: ast.expr) -> None:
        held = getattr(self.parent, self.field)
        if isinstance(held, list):
            held[self.number] = node
        else:
            setattr(self.parent, self.field, node)


def mutants_of(module: ModuleType, functions: Collection[str] = ()) -> Iterator[Mutant]:
    """Each condition of a module's functions changed, one at a time. ``functions``: of these alone."""
    tree = ast.parse(inspect.getsource(module))
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)):
        if functions and getattr(function, "name", "") not in functions:
            continue
        for place, node in _expressions(function):
            yield from _changed(module, tree, place, node)


def _expressions(parent: ast.AST) -> Iterator[tuple[_Place, ast.expr]]:
    """Those of a function that are of no function within it: each is visited once."""
    for field, value in ast.iter_fields(parent):
        for number, node in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(node, ast.expr):
                yield _Place(parent, field, number), node
            if isinstance(node, ast.AST) and not isinstance(node, ast.FunctionDef | ast.Lambda):
                yield from _expressions(node)


def _changed(module: ModuleType, tree: ast.Module, place: _Place, node: ast.expr) -> Iterator[Mutant]:
    is_condition = place.field in ("test", "ifs") and not isinstance(place.parent, ast.Assert)
    lines = frozenset(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for other in (*_others(node), *(_of_condition(node) if is_condition else ())):
        if ast.dump(other) != ast.dump(node):
            change = f"line {node.lineno}: `{ast.unparse(other)}` for `{ast.unparse(node)}`"
            yield Mutant(module, change, lines, functools.partial(_compiled, module, tree, place, node, other))


def _compiled(module: ModuleType, tree: ast.Module, place: _Place, node: ast.expr, other: ast.expr) -> CodeType:
    place.put(other)
    try:
        return compile(ast.fix_missing_locations(tree), module.__file__ or "", "exec")
    finally:
        place.put(node)


def _of_condition(node: ast.expr) -> Iterator[ast.expr]:
    yield ast.copy_location(ast.Constant(False), node)
    yield ast.copy_location(ast.Constant(True), node)


def _others(node: ast.expr) -> Iterator[ast.expr]:
    """What may stand instead of an expression that is true or false."""
    if isinstance(node, ast.BoolOp):
        for k in range(len(node.values)):
            rest = [*node.values[:k], *node.values[k + 1 :]]
            yield rest[0] if len(rest) == 1 else ast.copy_location(ast.BoolOp(node.op, rest), node)
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield ast.copy_location(ast.BoolOp(other, node.values), node)
    elif isinstance(node, ast.Compare):
        for k, comparison in enumerate(node.ops):
            ops = [*node.ops[:k], _COMPARISONS[type(comparison)](), *node.ops[k + 1 :]]
            yield ast.copy_location(ast.Compare(node.left, ops, node.comparators), node)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _QUANTIFIERS:
        name = ast.copy_location(ast.Name(_QUANTIFIERS[node.func.id], ast.Load()), node.func)
        yield ast.copy_location(ast.Call(name, node.args, node.keywords), node)


@contextlib.contextmanager
def installed(mutant: Mutant) -> Generator[None]:
    """All functions of the module as the mutant has them."""
    wanted = {_key(code): code for code in _codes(mutant.compiled())}
    replaced: list[tuple[FunctionType, CodeType]] = []
    for function in _functions(mutant.module):
        code = wanted.get(_key(function.__code__))
        if code is not None and not code.co_freevars:  # what was left out may have been all that is of outside
            code = code.replace(co_freevars=function.__code__.co_freevars)
        if code is not None and code != function.__code__ and code.co_freevars == function.__code__.co_freevars:
            replaced.append((function, function.__code__))
            function.__code__ = code
    _forget(mutant.module)
    try:
        yield
    finally:
        for function, code in replaced:
            function.__code__ = code
        _forget(mutant.module)


def _forget(module: ModuleType) -> None:
    """What the module's functions remember of earlier calls."""
    for value in vars(module).values():
        if isinstance(value, functools._lru_cache_wrapper):
            value.cache_clear()


def _functions(module: ModuleType) -> Sequence[FunctionType]:
    return _functions_of_files()[module.__file__ or ""]


@functools.cache
def _functions_of_files() -> Mapping[str, Sequence[FunctionType]]:
    gc.unfreeze()  # tests/conftest.py hides what was imported from the collector
    found: dict[str, list[FunctionType]] = {}
    for function in gc.get_objects():
        if type(function) is FunctionType:
            found.setdefault(function.__code__.co_filename, []).append(function)
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


Check = Callable[[], object]


_PARAMETERS = type(pytest.param())


def of_tests(module: ModuleType, *names: str) -> Iterator[tuple[str, Check]]:
    """The tests of a file as checks, each row by itself. ``names``: of these alone."""
    for name, function in vars(module).items():
        if name in names if names else name.startswith("test_"):
            rows = [list(_row_of(mark)) for mark in getattr(function, "pytestmark", ()) if mark.name == "parametrize"]
            for number, row in enumerate(itertools.product(*rows)):
                given = {key: value for part in row for key, value in part.items()}
                yield f"{name.removeprefix('test_')} {number}", functools.partial(_run, module, function, given)


def _row_of(mark: pytest.Mark) -> Iterator[dict[str, Any]]:
    names, values = mark.args
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    for value in values:
        given = value.values if isinstance(value, _PARAMETERS) else value
        yield dict(zip(names, given if len(names) > 1 else (given,), strict=True))


def _run(module: ModuleType, function: Callable[..., object], given: dict[str, Any]) -> None:
    """With the fixtures of the file that the test takes."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        held = {**given, "monkeypatch": monkeypatch}

        def value_of(name: str) -> Any:
            if name not in held:
                fixture = inspect.unwrap(getattr(module, name))
                held[name] = fixture(*map(value_of, inspect.signature(fixture).parameters))
            return held[name]

        function(*map(value_of, inspect.signature(function).parameters))


@dataclasses.dataclass(frozen=True)
class Tried:
    """A check that holds: the seconds of the processor that it takes, and the lines of modules that it executes."""

    name: str
    check: Check
    seconds: float
    lines: frozenset[tuple[str, int]]

    def executes(self, mutant: Mutant) -> bool:
        return any((mutant.module.__file__ or "", line) in self.lines for line in mutant.lines)


def tried(checks: Iterable[tuple[str, Check]], *modules: ModuleType) -> Sequence[Tried]:
    """Each check is made, and must hold; the fastest first."""
    return sorted((_try(name, check, modules) for name, check in checks), key=lambda found: found.seconds)


def _try(name: str, check: Check, modules: Sequence[ModuleType]) -> Tried:
    files, lines = {module.__file__ for module in modules}, set[tuple[str, int]]()

    def of_frame(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return of_frame

    for module in modules:
        _forget(module)
    before, start = sys.gettrace(), time.process_time()
    sys.settrace(of_frame)
    try:
        check()
    except AssertionError as error:
        raise AssertionError(name) from error
    finally:
        sys.settrace(before)
    return Tried(name, check, time.process_time() - start, frozenset(lines))


def found_by(mutant: Mutant, checks: Sequence[Tried]) -> str:
    """The name of the first check that fails of a mutant; ``""`` where it survives all of them."""
    with installed(mutant):
        for tried in checks:
            if not tried.executes(mutant):
                continue
            try:
                with _ending(_LONGEST * max(tried.seconds, 0.01)):
                    tried.check()
            except (Exception, pytest.fail.Exception, _LimitReachedError):  # noqa: BLE001 - whatever fails, the mutant is found out
                return tried.name
    return ""


class _LimitReachedError(BaseException):
    """A check takes too long; nothing within it catches that but a finalizer, and then it is said again."""


@contextlib.contextmanager
def _ending(seconds: float) -> Generator[None]:
    def stop(*_: object) -> None:
        raise _LimitReachedError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
