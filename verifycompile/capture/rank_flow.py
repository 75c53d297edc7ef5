"""What of a program's source depends on the rank, by name: variables, attributes, parameters, results of functions."""

from __future__ import annotations

import ast
import dataclasses
import re
import types
from collections.abc import Iterator

_READER = re.compile(r"_*get_(?:\w+_)?rank|rank|get_coordinate")
"""Functions that return a rank: torch's, a library's ``get_tensor_model_parallel_rank``, ``group.rank()``."""
_VARIABLE = re.compile(r"\w*(?:RANK|PROCID)")
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

    @property
    def function_names(self) -> tuple[str, ...]:
        """Names of the functions around and of the function itself, outermost first."""
        return tuple(node.name for node in self.nodes if isinstance(node, Function))


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
        owners = self.related(scope.owner) if is_self(node.value) else {"*"}
        return any((owner, node.attr) in self.attributes for owner in owners)

    def receiver(self, function: ast.expr, scope: Scope) -> str:
        """What a called function is an attribute of, as ``Called`` has it."""
        if not isinstance(function, ast.Attribute):
            return ""
        if is_self(function.value):
            return "self"
        is_module = isinstance(function.value, ast.Name) and (scope.file, function.value.id) in self.imports
        return "module" if is_module else "object"


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


def is_self(expression: ast.expr) -> bool:
    """Whether an expression is the name ``self``."""
    return isinstance(expression, ast.Name) and expression.id == "self"
