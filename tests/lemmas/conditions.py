"""Modules with one condition changed: negated, dropped, one of its parts left out, another comparison.

The change is made in the functions that are there, wherever they are referred to, and taken back again.
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
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_QUANTIFIERS = {"any": "all", "all": "any"}
_LONGEST = 3
"""Seconds of the processor that a test may take of a mutant: one that never ends is found out."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """``change``: where, and what stands there instead of what. ``code``: of the module with it."""

    module: ModuleType
    change: str
    code: CodeType


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
        for parent in ast.walk(function):
            for field, value in ast.iter_fields(parent):
                for number, node in enumerate(value if isinstance(value, list) else [value]):
                    if isinstance(node, ast.expr) and _innermost(function, node):
                        yield from _changed(module, tree, _Place(parent, field, number), node)


def _innermost(function: ast.AST, node: ast.AST) -> bool:
    """Whether no function within this one has the node: each node is visited once."""
    inner = (n for n in ast.walk(function) if n is not function and isinstance(n, ast.FunctionDef | ast.Lambda))
    return not any(node is found for other in inner for found in ast.walk(other))


def _changed(module: ModuleType, tree: ast.Module, place: _Place, node: ast.expr) -> Iterator[Mutant]:
    is_condition = place.field in ("test", "ifs") and not isinstance(place.parent, ast.Assert)
    for other in (*_others(node), *(_of_condition(node) if is_condition else ())):
        if ast.dump(other) == ast.dump(node):
            continue
        place.put(other)
        code = compile(ast.fix_missing_locations(tree), module.__file__ or "", "exec")
        place.put(node)
        yield Mutant(module, f"line {node.lineno}: `{ast.unparse(other)}` for `{ast.unparse(node)}`", code)


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
    wanted = {_key(code): code for code in _codes(mutant.code)}
    replaced: list[tuple[FunctionType, CodeType]] = []
    for function in _functions(mutant.module):
        code = wanted.get(_key(function.__code__))
        if code is not None and not code.co_freevars:  # what was left out may have been all that is of outside
            code = code.replace(co_freevars=function.__code__.co_freevars)
        if code is not None and code != function.__code__ and code.co_freevars == function.__code__.co_freevars:
            replaced.append((function, function.__code__))
            function.__code__ = code
    try:
        yield
    finally:
        for function, code in replaced:
            function.__code__ = code


@functools.cache
def _functions(module: ModuleType) -> Sequence[FunctionType]:
    gc.unfreeze()  # tests/conftest.py hides what was imported from the collector
    return [f for f in gc.get_objects() if type(f) is FunctionType and f.__code__.co_filename == module.__file__]


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


def found_by(mutant: Mutant, checks: Sequence[tuple[str, Check]]) -> str:
    """The name of the first check that fails of a mutant; ``""`` where it survives all of them."""
    with installed(mutant):
        for name, check in checks:
            try:
                with _ending():
                    check()
            except (Exception, pytest.fail.Exception, _EndlessError):  # noqa: BLE001 - whatever fails, the mutant is found out
                return name
    return ""


class _EndlessError(BaseException):
    """A test takes too long; nothing within it catches that."""


@contextlib.contextmanager
def _ending() -> Generator[None]:
    def stop(*_: object) -> None:
        raise _EndlessError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, _LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
