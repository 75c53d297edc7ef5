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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from verifycompile.capture.rank_flow import (
    Assigned,
    Called,
    Function,
    RankFlow,
    Scope,
    called_name,
    fields_given,
    is_self,
    pairs,
)

_MAY_READ = re.compile(r"rank\s*\(|get_coordinate|RANK|PROCID")


def rank_flow(files: Mapping[str, frozenset[str] | None]) -> RankFlow:
    """Everything in ``files`` that is computed of the rank.

    Of a file with a set of classes only these are read, and what is outside of all classes: the files of packages,
    where a name alone says little. None: all of it.
    """
    texts = {file: text for file in files if (text := _text(file)) is not None}
    if not any(_MAY_READ.search(text) for text in texts.values()):
        return RankFlow()
    return _analyse(tuple((file, text, files[file]) for file, text in texts.items() if "rank" in text.lower()))


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
        for decorator in [] if self.scope.function is None or not owner else self.scope.function.decorator_list:
            if called_name(decorator) == "cached_property":
                self._attribute(name, owner, decorator)

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
                owner = self.scope.owner if is_self(node.value) else ""
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
            self._attribute(target.attr, self.scope.owner if is_self(target.value) else "", target)

    def _attribute(self, name: str, owner: str, node: ast.expr, field_of: str = "") -> None:
        if self.scope.classes is None:
            self.flow.attributes.add(("*", name))
        elif not owner:
            return
        self.flow.attributes.add((owner, name))
        self._note(name, owner, node, field_of=field_of)

    def _note(self, name: str, owner: str, node: ast.expr, *, is_attribute: bool = True, field_of: str = "") -> None:
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


def _own_expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """All nodes of a statement that belong to no statement inside of it."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from ast.walk(child)
