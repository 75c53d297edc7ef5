"""Which names of Python source files hold what was computed of a rank, before any traced code runs.

Dynamo shows what a traced program reads (``L['self'].start``), not where its value came from. The source does: a rank
read flows through assignments, conditions, arguments of calls by name, and results of functions. The analysis goes by
name and errs towards finding a flow: what it finds is computed again for other ranks, or blocks the proof.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_READER = re.compile(r"_*get_(?:\w+_)?rank|rank|get_coordinate")
"""Functions that return a rank: torch's, Megatron's ``get_tensor_model_parallel_rank``, ``group.rank()``."""
_VARIABLE = re.compile(r"\w*(?:RANK|PROCID)")
_MAY_READ = re.compile(r"rank\s*\(|get_coordinate|RANK|PROCID")
_DEPTH = 8
"""Of classes that inherit a constructor."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclasses.dataclass(frozen=True)
class Scope:
    """A module, a class body or a function. ``nodes``: the module, then the functions around, innermost last.

    ``classes``: of the file that are read; None where all of it is.
    """

    file: str
    nodes: tuple[ast.Module | Function, ...]
    owner: str = ""
    classes: frozenset[str] | None = None

    @property
    def function(self) -> Function | None:
        return node if isinstance(node := self.nodes[-1], Function) else None


@dataclasses.dataclass(frozen=True)
class Assigned:
    """A statement that gives a variable or an attribute a value that depends on the rank.

    ``owner``: the class whose method assigns an attribute of ``self``; "" for a variable, and for an attribute of
    another object.
    """

    name: str
    owner: str
    is_attribute: bool
    line: int
    scope: Scope = dataclasses.field(compare=False, hash=False)
    field_of: str = ""
    """The class or namespace whose call sets it as a field."""
    position: tuple[str, int] = ("", 0)
    """File and column, so that equal statements of two files differ."""


@dataclasses.dataclass(frozen=True)
class Called:
    """A call of a function or a class by name, and where it is.

    ``is_super``: ``super().__init__(...)`` in a class whose base ``name`` is.
    """

    name: str
    node: ast.Call
    scope: Scope
    is_super: bool = False
    receiver: str = ""
    """What the function is an attribute of: "self", "module", "object", "" for none."""

    def passed(self, function: Function, owner: str, parameter: str) -> tuple[ast.expr, Scope] | None:
        """What is passed for a parameter; None for its default, and where it may be among starred arguments."""
        names = positional_names(function, owner)
        if parameter in names and names.index(parameter) < len(self.node.args):
            return self.node.args[names.index(parameter)], self.scope
        given = [item.value for item in self.node.keywords if item.arg == parameter]
        return (given[0], self.scope) if given else None

    @property
    def is_starred(self) -> bool:
        return any(isinstance(item, ast.Starred) for item in self.node.args) or any(
            item.arg is None for item in self.node.keywords
        )


@dataclasses.dataclass
class RankFlow:
    """What depends on the rank, by name."""

    assigned: dict[Assigned, None] = dataclasses.field(default_factory=dict[Assigned, None])
    calls: dict[str, dict[Called, None]] = dataclasses.field(default_factory=dict[str, dict[Called, None]])
    """Calls by the name of the function or of the class."""
    functions: set[tuple[str, str]] = dataclasses.field(default_factory=set[tuple[str, str]])
    """(class or "", function) whose result depends on the rank; class "*" for any object."""
    attributes: set[tuple[str, str]] = dataclasses.field(default_factory=set[tuple[str, str]])
    """(class, attribute); class "*" for any object."""
    imports: set[tuple[str, str]] = dataclasses.field(default_factory=set[tuple[str, str]])
    """(file, name) of modules, functions and classes."""
    stores: dict[str, set[tuple[str, int]]] = dataclasses.field(default_factory=dict[str, set[tuple[str, int]]])
    """What sets an attribute, of the rank or not: (class, "" for another object; identity of the function)."""
    variables: set[tuple[int, str]] = dataclasses.field(default_factory=set[tuple[int, str]])
    """(identity of the function or module node, name)."""
    bases: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict[str, tuple[str, ...]])
    fields: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict[str, tuple[str, ...]])
    """Annotated names of a class, which are the parameters of a dataclass."""
    constructed: set[str] = dataclasses.field(default_factory=set[str])
    """Classes with a constructor of their own."""

    def size(self) -> int:
        return sum(map(len, (self.assigned, self.functions, self.attributes, self.variables, self.bases)))

    def calls_of(self, function: Function, owner: str, scope: Scope) -> tuple[Called, ...]:
        """Calls of a function or of a method of ``owner``, of the class where it is the constructor.

        ``scope``: in which it is defined.
        """
        names = (function.name,) if function.name != "__init__" else self._with_subclasses(owner)
        calls = [called for name in names for called in self.calls.get(name, ())]
        if function.name == "__init__":
            return tuple(calls)
        if not owner:
            return tuple(called for called in calls if called.receiver in ("", "module"))
        related = self.related(owner)
        return tuple(
            called
            for called in calls
            if (called.receiver == "self" and called.scope.owner in related)
            or (called.receiver == "object" and scope.classes is None)
        )

    def related(self, owner: str) -> set[str]:
        """The class, what it inherits from and what inherits from it."""
        found = {owner}
        for _ in range(_DEPTH):
            found.update(base for name in tuple(found) for base in self.bases.get(name, ()))
        below = {owner}
        for _ in range(_DEPTH):
            below.update(name for name, bases in self.bases.items() if below & set(bases))
        return found | below

    def passes_rank(self, function: Function, scope: Scope, owner: str, parameter: str) -> bool:
        """Whether a call passes something for a parameter that depends on the rank."""
        for called in self.calls_of(function, owner, scope):
            passed = called.passed(function, owner, parameter)
            values = [*called.node.args, *(item.value for item in called.node.keywords)] if called.is_starred else []
            if any(self.depends(value, called.scope) for value in values):
                return True
            if passed is not None and self.depends(*passed):
                return True
        return False

    def _with_subclasses(self, owner: str) -> tuple[str, ...]:
        found = {owner: None}
        for _ in range(_DEPTH):
            inheriting = self.bases.keys() - self.constructed
            found.update({name: None for name in sorted(inheriting) if found.keys() & set(self.bases[name])})
        return tuple(found)

    def depends(self, expression: ast.expr, scope: Scope) -> bool:
        """Whether the value of ``expression`` depends on the rank."""
        return any(self._depends(node, scope) for node in ast.walk(expression))

    def _depends(self, node: ast.AST, scope: Scope) -> bool:
        if isinstance(node, ast.Call):
            name = called_name(node.func)
            if _READER.fullmatch(name) is not None:
                return True
            receiver = self.receiver(node.func, scope)
            owners = self.related(scope.owner) if receiver == "self" else {""} if receiver != "object" else {"*"}
            return any((owner, name) in self.functions for owner in owners)
        if isinstance(node, ast.Constant):
            return isinstance(node.value, str) and _VARIABLE.fullmatch(node.value) is not None
        if isinstance(node, ast.Name):
            return any((id(inside), node.id) in self.variables for inside in scope.nodes)
        if not isinstance(node, ast.Attribute):
            return False
        owners = self.related(scope.owner) if _is_self(node.value) else {"*"}
        return any((owner, node.attr) in self.attributes for owner in owners)

    def receiver(self, function: ast.expr, scope: Scope) -> str:
        """What a called function is an attribute of, as ``Called`` has it."""
        if not isinstance(function, ast.Attribute):
            return ""
        if _is_self(function.value):
            return "self"
        is_module = isinstance(function.value, ast.Name) and (scope.file, function.value.id) in self.imports
        return "module" if is_module else "object"


def rank_flow(files: Mapping[str, frozenset[str] | None]) -> RankFlow:
    """Everything in ``files`` that is computed of the rank.

    Of a file with a set of classes only these are read, and what is outside of all classes: the files of packages,
    where a name alone says little. None: all of it.
    """
    texts = {file: text for file in files if (text := _text(file)) is not None}
    if not any(_MAY_READ.search(text) for text in texts.values()):
        return RankFlow()
    return _analyse(tuple((file, text, files[file]) for file, text in texts.items() if "rank" in text.lower()))


def may_read_rank(code: types.CodeType) -> bool:
    """Whether a function, or one defined in it, names something that returns a rank."""
    constants = [value for value in code.co_consts if isinstance(value, str)]
    return (
        any(map(_READER.fullmatch, code.co_names))
        or any(map(_VARIABLE.fullmatch, constants))
        or any(may_read_rank(value) for value in code.co_consts if isinstance(value, types.CodeType))
    )


def called_name(function: ast.expr) -> str:
    """``f`` of ``f(...)`` and of ``object.f(...)``; "" for other calls."""
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else ""


def pairs(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Target and value of an assignment, one by one where both are tuples of as many."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        if not any(isinstance(item, ast.Starred) for item in (*target.elts, *value.elts)):
            for part, part_value in zip(target.elts, value.elts, strict=True):
                yield from pairs(part, part_value)
            return
    yield target, value


def fields_given(call: ast.Call, fields: tuple[str, ...]) -> Iterator[tuple[str, ast.expr]]:
    """What a call gives the fields of a dataclass, and the attributes of a namespace: ``Config(start=4 * rank)``."""
    yield from zip(fields, call.args, strict=False)
    yield from ((item.arg, item.value) for item in call.keywords if item.arg)


def positional_names(function: Function, owner: str) -> tuple[str, ...]:
    """Parameters by position, those of a method without ``self``."""
    names = tuple(argument.arg for argument in (*function.args.posonlyargs, *function.args.args))
    static = any(isinstance(item, ast.Name) and item.id == "staticmethod" for item in function.decorator_list)
    return names[1:] if owner and not static else names


def _text(file: str) -> str | None:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


@functools.lru_cache(maxsize=16)
def _analyse(texts: tuple[tuple[str, str, frozenset[str] | None], ...]) -> RankFlow:
    scopes = [
        (Scope(file, (tree,), classes=classes), tree)
        for file, text, classes in texts
        if (tree := _parsed(text)) is not None
    ]
    flow, before = RankFlow(), -1
    while flow.size() != before:
        before = flow.size()
        for scope, tree in scopes:
            _Reader(flow, scope).block(tree.body, depends=False)
    return flow


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except SyntaxError:
        return None


class _Reader:
    """Goes through the statements of one scope and adds to ``flow``."""

    def __init__(self, flow: RankFlow, scope: Scope) -> None:
        self.flow, self.scope = flow, scope

    def block(self, statements: Iterable[ast.stmt], *, depends: bool) -> None:
        """``depends``: whether these statements run on some ranks only."""
        for statement in statements:
            self._statement(statement, depends)

    def _statement(self, statement: ast.stmt, depends: bool) -> None:
        if isinstance(statement, ast.ClassDef):
            if self.scope.classes is not None and statement.name not in self.scope.classes:
                return None
            self.flow.bases[statement.name] = tuple(called_name(base) for base in statement.bases)
            annotated = (item.target for item in statement.body if isinstance(item, ast.AnnAssign))
            self.flow.fields[statement.name] = tuple(item.id for item in annotated if isinstance(item, ast.Name))
            inner = dataclasses.replace(self.scope, owner=statement.name)
            return _Reader(self.flow, inner).block(statement.body, depends=depends)
        if isinstance(statement, Function):
            return self._function(statement)
        if isinstance(statement, ast.Import | ast.ImportFrom):
            names = (item.asname or item.name.partition(".")[0] for item in statement.names)
            self.flow.imports.update((self.scope.file, name) for name in names)
            return None
        self._expressions(statement)
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                self._store(target)
                for part, value in pairs(target, statement.value):
                    if depends or (value is not None and self._of_rank(value)):
                        self._assign(part)
            return None
        if isinstance(statement, ast.Return) and statement.value is not None and self.scope.function is not None:
            if depends or self._of_rank(statement.value):
                self._returns(self.scope.function.name)
            return None
        self._compound(statement, depends)
        return None

    def _compound(self, statement: ast.stmt, depends: bool) -> None:
        if isinstance(statement, ast.For | ast.AsyncFor) and (depends or self._of_rank(statement.iter)):
            self._assign(statement.target)
        if isinstance(statement, ast.If | ast.While):
            depends = depends or self._of_rank(statement.test)
        for field in ("body", "orelse", "finalbody"):
            self.block(getattr(statement, field, ()), depends=depends)
        for handler in getattr(statement, "handlers", ()):
            self.block(handler.body, depends=depends)

    def _returns(self, name: str) -> None:
        owner = self.scope.owner if len(self.scope.nodes) == 2 else ""
        self.flow.functions.add((owner, name))
        if owner and self.scope.classes is None:
            self.flow.functions.add(("*", name))

    def _function(self, function: Function) -> None:
        owner = self.scope.owner if self.scope.function is None else ""
        if function.name == "__init__":
            self.flow.constructed.add(owner)
        arguments = function.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if self.flow.passes_rank(function, self.scope, owner, argument.arg):
                self.flow.variables.add((id(function), argument.arg))
        inner = dataclasses.replace(self.scope, nodes=(*self.scope.nodes, function))
        _Reader(self.flow, inner).block(function.body, depends=False)

    def _store(self, target: ast.expr) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                owner = self.scope.owner if _is_self(node.value) else ""
                if not owner and self.scope.classes is not None:
                    continue
                self.flow.stores.setdefault(node.attr, set()).add((owner, id(self.scope.nodes[-1])))

    def _assign(self, target: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for item in target.elts:
                self._assign(item)
        elif isinstance(target, ast.Starred | ast.Subscript):
            self._assign(target.value)
        elif isinstance(target, ast.Name):
            self.flow.variables.add((id(self.scope.nodes[-1]), target.id))
            self._note(target.id, "", target, is_attribute=False)
        elif isinstance(target, ast.Attribute):
            self._attribute(target.attr, self.scope.owner if _is_self(target.value) else "", target)

    def _attribute(self, name: str, owner: str, node: ast.expr, field_of: str = "") -> None:
        if self.scope.classes is None:
            self.flow.attributes.add(("*", name))
        elif not owner:
            return
        self.flow.attributes.add((owner, name))
        self._note(name, owner, node, field_of=field_of)

    def _note(
        self, name: str, owner: str, node: ast.expr, *, is_attribute: bool = True, field_of: str = ""
    ) -> None:
        position = self.scope.file, node.col_offset
        self.flow.assigned[Assigned(name, owner, is_attribute, node.lineno, self.scope, field_of, position)] = None

    def _expressions(self, statement: ast.stmt) -> None:
        for node in _own_expressions(statement):
            if isinstance(node, ast.NamedExpr) and self._of_rank(node.value):
                self._assign(node.target)
            if isinstance(node, ast.Call):
                self._call(node)

    def _call(self, node: ast.Call) -> None:
        for callee in self._callees(node.func):
            is_super = called_name(node.func) == "__init__"
            receiver = self.flow.receiver(node.func, self.scope)
            self.flow.calls.setdefault(callee, {})[Called(callee, node, self.scope, is_super, receiver)] = None
            if callee not in self.flow.constructed:
                fields = self.flow.fields.get(callee, ())
                for name, value in fields_given(node, fields):
                    if (name in fields or callee.endswith("amespace")) and self._of_rank(value):
                        self._attribute(name, "", value, field_of=callee)
            if callee in ("register_buffer", "setattr"):
                self._set_by_name(node, 0 if callee == "register_buffer" else 1)

    def _callees(self, function: ast.expr) -> tuple[str, ...]:
        name = called_name(function)
        if name != "__init__" or not isinstance(function, ast.Attribute):
            return (name,) if name else ()
        if isinstance(function.value, ast.Call):  # super().__init__(...)
            return self.flow.bases.get(self.scope.owner, ())
        return (called_name(function.value),)

    def _set_by_name(self, node: ast.Call, first: int) -> None:
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if len(arguments) < first + 2 or not self._of_rank(arguments[first + 1]):
            return
        name = arguments[first]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            self._attribute(name.value, self.scope.owner if first == 0 else "", node)

    def _of_rank(self, expression: ast.expr) -> bool:
        return self.flow.depends(expression, self.scope)


def _is_self(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Name) and expression.id == "self"


def _own_expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """All nodes of a statement that belong to no statement inside of it."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from ast.walk(child)
