"""What a constructor, a function or a module computed of the rank, computed again for the rank that is acted.

A variable or an attribute that holds a number (or a container of numbers) and depends on the rank is evaluated from
its one assignment: parameters are what calls pass or what ``self.x = x`` keeps, other names are what they hold. What
cannot be evaluated for sure is unknown.
"""

from __future__ import annotations

import ast
import builtins
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from verifycompile.capture.rank_flow import (
    Assigned,
    Called,
    Function,
    RankFlow,
    Scope,
    called_name,
    fields_given,
    pairs,
)
from verifycompile.torch_interface.acting_rank import nothing_communicated

_EFFECTS = re.compile(
    r"_?new_group|init_\w+|all_\w+|reduce\w*|broadcast\w*|barrier|i?send|i?recv|gather\w*|scatter\w*|"
    r"manual_seed|seed|save|load|open|print|append|pop|popleft|next|input|exec|eval|setattr"
)
"""Calls that are not repeated."""


class UnknownValueError(Exception):
    """A value on another rank is not known."""


class Recomputation:
    """Values for the rank that is acted (``acting_as``).

    ``globals_of``: the globals of the module in a file. ``locals_of``: what is known of the variables of a function,
    given its file and first line.
    """

    def __init__(
        self,
        flow: RankFlow,
        globals_of: Callable[[str], Mapping[str, Any]],
        locals_of: Callable[[str, int], Mapping[str, Any]],
    ) -> None:
        self._flow, self._globals_of, self._locals_of = flow, globals_of, locals_of
        self._owner: Any = None
        self._active: set[tuple[int, str, bool]] = set()

    def attribute(self, owner: Any, name: str, found: tuple[Assigned, ...], keys: tuple[Any, ...] = ()) -> Any:
        """The attribute of ``owner`` that ``found`` assign, or its item. Raises ``UnknownValueError``."""
        self._owner = self._copy(owner)
        return self._guarded(lambda: self._attribute(name, found), keys)

    def variable(self, name: str, found: tuple[Assigned, ...], keys: tuple[Any, ...] = ()) -> Any:
        """The variable that ``found`` assign in one scope, or its item. Raises ``UnknownValueError``."""
        self._owner = None
        scope = _only([item.scope for item in found])
        return self._guarded(lambda: self._assigned(scope, name, is_attribute=False), keys)

    def _guarded(self, compute: Callable[[], Any], keys: tuple[Any, ...]) -> Any:
        self._active.clear()
        try:
            with nothing_communicated(), torch.random.fork_rng(devices=()):
                value = functools.reduce(lambda held, key: held[key], keys, compute())
        except UnknownValueError:
            raise
        except Exception as failure:  # the user's own code, on another rank: what it raises there is not known
            raise UnknownValueError(str(failure)) from failure
        if not is_number(value):
            raise UnknownValueError("it is no number")
        return value

    def _copy(self, owner: Any) -> Any:
        """The object without what depends on the rank, which is computed when it is read."""
        names = self._names_of(owner)
        recompute = self._attribute

        def read(copied: Any, name: str) -> Any:
            if name in names:
                return recompute(name, names[name])
            inherited = getattr(super(kind, copied), "__getattr__", None)
            if inherited is None:
                raise AttributeError(name)
            return inherited(name)

        kind: Any = type(type(owner).__name__, (type(owner),), {"__getattr__": read})
        copied = object.__new__(kind)
        kept = {name: value for name, value in vars(owner).items() if name not in names}
        vars(copied).update(kept)
        return copied

    def _names_of(self, owner: Any) -> dict[str, tuple[Assigned, ...]]:
        found: dict[str, tuple[Assigned, ...]] = {}
        for item in attributes_of(self._flow, owner):
            if is_number(vars(owner).get(item.name)):
                found[item.name] = (*found.get(item.name, ()), item)
        return found

    def _attribute(self, name: str, found: tuple[Assigned, ...]) -> Any:
        if any(item.field_of for item in found):
            return self._field(name, found)
        scope = _only([item.scope for item in found])
        if not isinstance(scope.nodes[-1], Function):
            raise UnknownValueError(f"`{name}` is set at the top of a file")
        classes = {"", *self._classes()}
        if any(owner in classes and place != id(scope.nodes[-1]) for owner, place in self._flow.stores.get(name, ())):
            raise UnknownValueError(f"`{name}` is set elsewhere too")
        return self._assigned(scope, name, is_attribute=True)

    def _field(self, name: str, found: tuple[Assigned, ...]) -> Any:
        """A field of a dataclass, where all calls of it pass the same."""
        kinds = {item.field_of for item in found}
        if kinds != set(self._classes()[:1]) or self._flow.stores.get(name):
            raise UnknownValueError(f"`{name}` is set elsewhere too")
        calls = self._flow.calls[found[0].field_of]
        fields = self._flow.fields.get(found[0].field_of, ())
        given = [
            (value, called.scope) for called in calls for key, value in fields_given(called.node, fields) if key == name
        ]
        if len(given) != len(calls):
            raise UnknownValueError(f"`{name}` is not given in all calls")
        return _agreed([self._evaluate(*item, {}) for item in given], name)

    def _assigned(self, scope: Scope, name: str, *, is_attribute: bool) -> Any:
        key = id(scope.nodes[-1]), name, is_attribute
        if key in self._active:
            raise UnknownValueError(f"`{name}` is computed of itself")
        self._active.add(key)
        try:
            values = list(self._values(scope.nodes[-1].body, scope, name, is_attribute))
        finally:
            self._active.discard(key)
        if len(values) != 1:
            raise UnknownValueError(f"`{name}` is assigned {len(values)} times")
        return values[0]

    def _values(self, block: list[ast.stmt], scope: Scope, name: str, is_attribute: bool) -> Iterator[Any]:
        """What the statements assign that run on the acted rank."""
        for statement in block:
            if not _assigns(statement, name, is_attribute):
                continue
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target, part in itertools.chain.from_iterable(pairs(item, statement.value) for item in targets):
                    for base, path in _occurrences(target, name, is_attribute):
                        yield self._item(part, path, scope, {base: self._owner} if base not in ("", "self") else {})
            elif isinstance(statement, ast.If):
                taken = statement.body if self._evaluate(statement.test, scope, {}) else statement.orelse
                yield from self._values(taken, scope, name, is_attribute)
            elif isinstance(statement, ast.With) or (is_attribute and isinstance(statement, ast.For)):
                yield from self._values(statement.body, scope, name, is_attribute)
            else:
                raise UnknownValueError(f"`{name}` is assigned in a `{type(statement).__name__}` statement")

    def _item(self, expression: ast.expr | None, path: tuple[int, ...], scope: Scope, extra: Mapping[str, Any]) -> Any:
        assert expression is not None
        value = self._evaluate(expression, scope, extra)
        for index in path:
            value = value[index]
        return value

    def _evaluate(self, expression: ast.expr, scope: Scope, extra: Mapping[str, Any]) -> Any:
        bound = {
            node.id for node in ast.walk(expression) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        names: dict[str, Any] = {}
        for node in ast.walk(expression):
            if isinstance(node, ast.Lambda | ast.NamedExpr | ast.Await | ast.Yield):
                raise UnknownValueError(f"a `{type(node).__name__}` expression")
            if isinstance(node, ast.Call) and _EFFECTS.fullmatch(called_name(node.func)):
                raise UnknownValueError(f"`{called_name(node.func)}` is called")
            if isinstance(node, ast.Name) and node.id not in bound and node.id not in names:
                names[node.id] = extra[node.id] if node.id in extra else self._name(scope, node.id)
        return eval(compile(ast.Expression(expression), scope.file, "eval"), names)  # noqa: S307 - the user's own code

    def _name(self, scope: Scope, name: str) -> Any:
        for depth in range(len(scope.nodes), 0, -1):
            inside = Scope(scope.file, scope.nodes[:depth], scope.owner if depth <= 2 else "", scope.classes)
            node = inside.nodes[-1]
            depends = (id(node), name) in self._flow.variables
            if isinstance(node, Function) and name in _parameters(node):
                return self._parameter(inside, node, name, depends)
            held = self._held(inside)
            if name in held and not (is_number(held[name]) and (depends or len(_stores_in(node.body, name)) > 1)):
                return held[name]
            if isinstance(node, Function):
                if any(_assigns(statement, name, is_attribute=False) for statement in node.body):
                    return self._assigned(inside, name, is_attribute=False)
                continue
            if depends:
                return self._assigned(inside, name, is_attribute=False)
            if hasattr(builtins, name):
                return getattr(builtins, name)
        raise UnknownValueError(f"`{name}`")

    def _held(self, scope: Scope) -> Mapping[str, Any]:
        function = scope.function
        if function is None:
            return self._globals_of(scope.file)
        return self._locals_of(scope.file, first_line(function))

    def _parameter(self, scope: Scope, function: Function, name: str, depends: bool) -> Any:
        is_method = bool(scope.owner) and len(scope.nodes) == 2
        if name == "self" and is_method:
            return self._owner if scope.owner in self._classes() else _Elsewhere(self._only_assigned, scope)
        if _stores_in(function.body, name):
            raise UnknownValueError(f"parameter `{name}` is assigned")
        if not depends:
            held = self._held(scope)
            if name in held:
                return held[name]
            kept = [attribute for attribute in map(_kept(name), function.body) if attribute is not None]
            if is_method and kept and scope.owner in self._classes():
                return getattr(self._owner, kept[0])
        owner = scope.owner if is_method else ""
        calls = [called for called in self._flow.calls_of(function, owner, scope) if self._may_construct(called, owner)]
        return _agreed([self._passed(called, function, owner, name) for called in calls], name)

    def _classes(self) -> list[str]:
        """Of the object whose attribute is computed, its own first."""
        return [kind.__name__ for kind in type(self._owner).__mro__[1:]]

    def _may_construct(self, called: Called, owner: str) -> bool:
        """False for calls that construct objects of another class than that whose attribute is computed."""
        classes = self._classes()
        if owner not in classes or called.name not in classes:
            return owner not in classes
        return called.scope.owner in classes if called.is_super else called.name == classes[0]

    def _only_assigned(self, scope: Scope, name: str) -> Any:
        """An attribute of another object, which a method of its class sets and nothing else."""
        stores = self._flow.stores.get(name, set())
        if {place for owner, place in stores if owner in ("", scope.owner)} != {id(scope.nodes[-1])}:
            raise UnknownValueError(f"`{name}` of another object")
        return self._assigned(scope, name, is_attribute=True)

    def _passed(self, called: Called, function: Function, owner: str, name: str) -> Any:
        if called.is_starred:
            raise UnknownValueError(f"parameter `{name}`")
        passed = called.passed(function, owner, name)
        if passed is not None:
            return self._evaluate(*passed, {})
        arguments = function.args
        positional = [item.arg for item in (*arguments.posonlyargs, *arguments.args)]
        defaults = dict(zip(reversed(positional), reversed(arguments.defaults), strict=False))
        keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        defaults.update({item.arg: default for item, default in keywords if default is not None})
        if not isinstance(defaults.get(name), ast.Constant):
            raise UnknownValueError(f"parameter `{name}`")
        return defaults[name].value  # pyright: ignore[reportAttributeAccessIssue]


class _Elsewhere:
    """``self`` in a method of a class whose objects are not at hand."""

    def __init__(self, attribute: Callable[[Scope, str], Any], scope: Scope) -> None:
        self._read, self._scope = attribute, scope

    def __getattr__(self, name: str) -> Any:
        return self._read(self._scope, name)


def _agreed(values: list[Any], name: str) -> Any:
    if not values or any(value != values[0] for value in values):
        raise UnknownValueError(f"`{name}` is not the same in all calls")
    return values[0]


def _kept(name: str) -> Callable[[ast.stmt], str | None]:
    """The attribute ``x`` of a statement ``self.x = name``."""

    def attribute(statement: ast.stmt) -> str | None:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        value, target = statement.value, statement.targets[0]
        if not isinstance(value, ast.Name) or value.id != name or not isinstance(target, ast.Attribute):
            return None
        return target.attr if isinstance(target.value, ast.Name) and target.value.id == "self" else None

    return attribute


def first_line(function: Function) -> int:
    """Line of the first decorator, else of ``def``, which is where Python says that a function begins."""
    return min(item.lineno for item in (function, *function.decorator_list))


def attributes_of(flow: RankFlow, owner: Any) -> Iterator[Assigned]:
    """The statements that may have set attributes of ``owner``."""
    classes = {kind.__name__ for kind in type(owner).__mro__}
    for item in flow.assigned:
        if item.is_attribute and (item.owner == "" or item.owner in classes):
            yield item


def class_variables_of(flow: RankFlow, owner: Any) -> Iterator[Assigned]:
    """The statements that may have set variables of the classes of ``owner``."""
    classes = {kind.__name__ for kind in type(owner).__mro__}
    for item in flow.assigned:
        if not item.is_attribute and item.scope.function is None and item.scope.owner in classes:
            yield item


def is_number(value: Any) -> bool:
    """Whether ``value`` is a plain number, or a container of such."""
    if isinstance(value, dict):
        return all(is_number(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(is_number(item) for item in value)
    return type(value) in (int, float, bool)


def _only(scopes: list[Scope]) -> Scope:
    if len({id(scope.nodes[-1]) for scope in scopes}) != 1:
        raise UnknownValueError("it is assigned in several functions")
    return scopes[0]


def _parameters(function: Function) -> list[str]:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [item.arg for item in (*named, arguments.vararg, arguments.kwarg) if item is not None]


def _assigns(statement: ast.stmt, name: str, is_attribute: bool) -> bool:
    """Whether a statement of a function, or one inside of it, assigns the name; not what functions in it do."""
    if isinstance(statement, Function | ast.ClassDef):
        return not is_attribute and statement.name == name
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            if _assigns(child, name, is_attribute):
                return True
        elif any(_stores(node, name, is_attribute) for node in ast.walk(child)):
            return True
    return False


def _stores(node: ast.AST, name: str, is_attribute: bool) -> bool:
    if is_attribute and isinstance(node, ast.Call) and called_name(node.func) in ("register_buffer", "setattr"):
        return any(isinstance(item, ast.Constant) and item.value == name for item in node.args)
    if is_attribute:
        return isinstance(node, ast.Attribute) and node.attr == name and not isinstance(node.ctx, ast.Load)
    return isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)


def _stores_in(block: Iterable[ast.stmt], name: str, *, often: bool = False) -> list[ast.AST]:
    """Where statements assign a variable, twice where a loop repeats it."""
    found: list[ast.AST] = []
    for statement in block:
        if isinstance(statement, Function | ast.ClassDef):
            continue
        repeated = often or isinstance(statement, ast.For | ast.AsyncFor | ast.While)
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.stmt):
                found.extend(_stores_in([child], name, often=repeated))
            else:
                stores = [node for node in ast.walk(child) if _stores(node, name, is_attribute=False)]
                found.extend(stores * 2 if repeated else stores)
    return found


def _occurrences(target: ast.expr, name: str, is_attribute: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Where a target holds the name: what an attribute is of, and the indices into the value."""
    if isinstance(target, ast.Tuple | ast.List):
        for index, item in enumerate(target.elts):
            if isinstance(item, ast.Starred):
                raise UnknownValueError("a starred target")
            yield from ((base, (index, *path)) for base, path in _occurrences(item, name, is_attribute))
    elif isinstance(target, ast.Name) and not is_attribute and target.id == name:
        yield "", ()
    elif isinstance(target, ast.Attribute) and is_attribute and target.attr == name:
        if not isinstance(target.value, ast.Name):
            raise UnknownValueError("an attribute of a computed object")
        yield target.value.id, ()
    elif isinstance(target, ast.Subscript) and any(_stores(node, name, is_attribute) for node in ast.walk(target)):
        raise UnknownValueError("an item of a container")
