"""The functions and expressions of a source file, by line and column."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence

_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_STATEMENTS = (ast.Assign, ast.AugAssign, ast.Return, ast.Expr)
_NAMES = (ast.Name, ast.Attribute, ast.Constant, ast.Starred)
"""Expressions that compute nothing."""

_OPERATORS: dict[str, type[ast.AST]] = {
    "add": ast.Add, "iadd": ast.Add, "sub": ast.Sub, "isub": ast.Sub, "mul": ast.Mult, "imul": ast.Mult,
    "matmul": ast.MatMult, "truediv": ast.Div, "itruediv": ast.Div, "floordiv": ast.FloorDiv, "mod": ast.Mod,
    "pow": ast.Pow, "and_": ast.BitAnd, "or_": ast.BitOr, "xor": ast.BitXor, "neg": ast.USub, "invert": ast.Invert,
    "lt": ast.Lt, "le": ast.LtE, "gt": ast.Gt, "ge": ast.GtE, "eq": ast.Eq, "ne": ast.NotEq,
}  # fmt: skip
"""Functions of the module ``operator`` and the syntax that calls them."""


class Syntax:
    """What one version of a file says."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.functions: list[tuple[int, int]] = []
        self.definitions: list[Definition] = []
        self.methods: set[int] = set()
        self.expressions: dict[tuple[int, int], list[ast.expr]] = {}
        self.statements: dict[tuple[int, int], ast.expr] = {}
        self.targets: dict[ast.expr, ast.expr] = {}
        self._first_lines: dict[int, int | None] = {}
        module = _parsed(lines)
        self.numbers = frozenset(_numbers_of(module))
        """The names that stand for numbers in the whole file."""
        for node in ast.walk(module):
            if isinstance(node, _FUNCTION):
                self.functions.append((node.lineno, node.end_lineno or node.lineno))
                self.definitions.append(node)
            if isinstance(node, ast.ClassDef):
                self.methods.update(item.lineno for item in node.body if isinstance(item, _FUNCTION))
            if isinstance(node, ast.expr) and not isinstance(node, _NAMES):
                self.expressions.setdefault((node.lineno, self._column(node.lineno, node.col_offset)), []).append(node)
            if isinstance(node, _STATEMENTS) and node.value is not None:
                self.statements[node.lineno, self._column(node.lineno, node.col_offset)] = node.value
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target = node.targets[0]
                self.targets[node.value] = target
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    self.targets.update(zip(node.value.elts, target.elts, strict=False))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.value.args:
                self.targets[node.value] = node.value.args[0]  # it writes to a value, and returns nothing of use

    def definition_at(self, line: int) -> int | None:
        """The first line of the innermost function around ``line``; None outside of every function."""
        if line not in self._first_lines:
            around = [first for first, last in self.functions if first <= line <= last]
            self._first_lines[line] = max(around, default=None)
        return self._first_lines[line]

    def expression_at(self, line: int, column: int, called: str) -> ast.expr | None:
        """The expression that begins there and calls ``called``, a function, a method or one of ``operator``'s.

        The smallest call where no expression is seen to call it; the value of a statement that begins there, where only
        the line is recorded.
        """
        if (line, column) in self.statements:
            value = self.statements[line, column]
            parts = value.elts if isinstance(value, ast.Tuple) else ()
            calling = [part for part in parts if called and _calls(part, called)]
            return calling[0] if len(calling) == 1 else value
        found = sorted(self.expressions.get((line, column), ()), key=_end)
        fitting = [node for node in found if called and _calls(node, called)]
        if fitting:
            return fitting[-1]
        calls = [node for node in found if isinstance(node, ast.Call)]
        return (calls or found or [None])[0]

    def end_column(self, node: ast.expr) -> int:
        """The column behind the end of an expression, counted from 1."""
        return self._column(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)

    def _column(self, line: int, offset: int) -> int:
        """The column of a byte of a line: the syntax tree counts bytes, and people characters."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return (offset if text.isascii() else len(text.encode()[:offset].decode(errors="ignore"))) + 1

    def text_of(self, node: ast.expr) -> str:
        """The source of an expression as one line."""
        return ast.unparse(node) if node.lineno != node.end_lineno else self._segment(node)

    def _segment(self, node: ast.expr) -> str:
        line = self.lines[node.lineno - 1].encode()
        return line[node.col_offset : node.end_col_offset].decode()


def syntax_of(file: str) -> Syntax | None:
    """A file as ``linecache`` knows it; None where it cannot be read."""
    lines = linecache.getlines(file)
    if not lines:
        return None
    known = _files.get(file)
    if known is None or known.lines is not lines:
        known = Syntax(lines)
        _files[file] = known
    return known


_files: dict[str, Syntax] = {}


def _numbers_of(module: ast.Module) -> Iterator[str]:
    """The variables to which a module assigns written numbers."""
    for item in module.body:
        if not isinstance(item, ast.Assign):
            continue
        for target in item.targets:
            pairs = [(target, item.value)]
            if isinstance(target, ast.Tuple) and isinstance(item.value, ast.Tuple):
                pairs = list(zip(target.elts, item.value.elts, strict=False))
            for name, value in pairs:
                is_number = isinstance(value, ast.Constant) and isinstance(value.value, int | float)
                if is_number and isinstance(name, ast.Name):
                    yield name.id


def _parsed(lines: Sequence[str]) -> ast.Module:
    """An empty module for what is not Python."""
    try:
        return ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


def _calls(node: ast.expr, called: str) -> bool:
    if isinstance(node, ast.Call):
        function = node.func
        return called in (getattr(function, "attr", None), getattr(function, "id", None))
    operator = _OPERATORS.get(called)
    if isinstance(node, ast.BinOp | ast.UnaryOp):
        return operator is not None and isinstance(node.op, operator)
    if isinstance(node, ast.Compare):
        return operator is not None and isinstance(node.ops[0], operator)
    return isinstance(node, ast.Subscript) and called == "getitem"
