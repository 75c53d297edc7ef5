"""Where a number was made that a line of a model computes with.

A graph has the numbers and not what computed them. The lines say it: an argument is what the caller passes, a variable
what was assigned to it, an attribute what its module's constructor or a plan set it to, and a call of a function of
which the graph has nothing is what that function returns.
"""

from __future__ import annotations

import ast
import dataclasses
import types
from collections.abc import Iterator, Sequence

import torch.fx
from torch import nn
from torch._guards import TracingContext

from verifycompile.captured_notes import RanBeside
from verifycompile.program import SourceLocation
from verifycompile.torch_interface.dtensor.parallel_styles import styles_of
from verifycompile.torch_interface.ranks.constructed import lines_of_numbers
from verifycompile.torch_interface.source_lines.model_lines import model_frame
from verifycompile.torch_interface.source_lines.source import expression_at, frames_of, is_code_of_user, modules_of
from verifycompile.torch_interface.source_lines.syntax import Definition, Syntax, syntax_of

_FARTHEST = 8
"""So many steps from one line to another are taken."""
_SIZES = frozenset({"shape", "ndim"})
_COUNTS = frozenset({
    "dim", "get_coordinate", "get_local_rank", "get_rank", "get_world_size", "int", "len", "max", "min", "numel",
    "round", "size", "sqrt",
})  # fmt: skip
"""Functions of Python, and of torch, that return numbers."""


@dataclasses.dataclass(frozen=True)
class _Number:
    """``place``: the line that made it; None for a constant, a size or a rank."""

    place: SourceLocation | None = None


@dataclasses.dataclass(frozen=True)
class _Scope:
    """A function that runs: its file, the line in it, its text, and what calls it. ``position``: of its frame, if any.

    ``around``: of a constructor, the functions and lines that ran around it.
    """

    file: str
    line: int
    syntax: Syntax
    definition: Definition | None
    position: int | None = None
    around: Sequence[tuple[types.CodeType, int]] = ()


def ran_beside(model: object, context: TracingContext) -> RanBeside:
    """What ran while a graph of ``model`` was traced, what assigned the numbers of its modules, and their styles."""
    modules = model.named_modules() if isinstance(model, nn.Module) else ()
    numbers = {name: lines_of_numbers(module) for name, module in modules}
    return RanBeside(tuple(context.traced_code), numbers, styles_of(model))


def line_of_number(node: torch.fx.Node, beside: RanBeside | None) -> SourceLocation | None:
    """The one line that made the numbers with which the node's line computes; None where that is its own line, or where
    there are several.
    """
    frames = frames_of(node)
    if not frames:
        return None
    position = model_frame(node, frames)
    expression = expression_at(node, frames, position)
    scope = _scope(frames[position].file, frames[position].line, position)
    if expression is None or scope is None:
        return None
    found = _Lines(node, frames, beside or RanBeside((), {}, {})).all_of(expression, scope)
    places = {(place.file, place.line): place for place in found}
    own = scope.file, scope.line
    return next(iter(places.values())) if len(places) == 1 and own not in places else None


class _Lines:
    def __init__(self, node: torch.fx.Node, frames: tuple[SourceLocation, ...], beside: RanBeside) -> None:
        self.node, self.frames, self.beside = node, frames, beside
        self.modules = [*modules_of(node), ""]
        self.in_graph = {(frame.file, frame.function) for other in node.graph.nodes for frame in frames_of(other)}

    def all_of(self, expression: ast.expr, scope: _Scope) -> list[SourceLocation]:
        """The lines that made the numbers of an expression, those that its own operands are before those within."""
        parts: list[ast.AST] = [expression]
        found: list[SourceLocation] = []
        while parts and not found:
            numbers = [self._number(part, scope, _FARTHEST) if isinstance(part, ast.expr) else None for part in parts]
            found = [number.place for number in numbers if number is not None and number.place is not None]
            others = (part for part, number in zip(parts, numbers, strict=True) if number is None)
            parts = [inner for part in others for inner in _operands(part)]
        return found

    def _number(self, part: ast.expr, scope: _Scope, steps: int) -> _Number | None:
        """What is known of an expression that is a number; None for all others."""
        if steps == 0:
            return None
        if isinstance(part, ast.Constant):
            return _Number() if isinstance(part.value, int | float) else None
        if isinstance(part, ast.Name):
            return self._of_name(part.id, scope, steps - 1)
        if isinstance(part, ast.Attribute):
            if part.attr in _SIZES:
                return _Number()
            return self._of_attribute(part, steps - 1) or self._returned(part, scope, steps)
        if isinstance(part, ast.Subscript):
            return _Number() if isinstance(part.value, ast.Attribute) and part.value.attr in _SIZES else None
        if isinstance(part, ast.Call):
            return self._returned(part.func, scope, steps) or (_Number() if _name(part.func) in _COUNTS else None)
        if not isinstance(part, ast.BinOp | ast.UnaryOp | ast.IfExp):
            return None
        if isinstance(part, ast.IfExp):
            operands = [part.body, part.orelse]
        else:
            operands = [item for item in ast.iter_child_nodes(part) if isinstance(item, ast.expr)]
        found = [self._number(operand, scope, steps - 1) for operand in operands]
        if any(item is None for item in found):
            return None
        places = {item.place for item in found if item is not None and item.place is not None}
        return _Number(places.pop() if len(places) == 1 else None) if len(places) < 2 else _Number(_at(scope))

    def _of_name(self, name: str, scope: _Scope, steps: int) -> _Number | None:
        definition = scope.definition
        if definition is None:
            return None
        value = _assigned(definition, name, scope.line)
        if value is not None:
            return self._made(value, dataclasses.replace(scope, line=value.lineno), steps)
        arguments = [*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs]
        if any(argument.arg == name for argument in arguments):
            return self._passed(name, definition, scope, steps)
        if _is_counted(definition, name):
            return _Number()
        outer = _around(scope.syntax, definition)
        if outer is None:
            return _Number() if name in scope.syntax.numbers else None
        position = None if scope.position is None else self._frame_of(outer, scope.file, scope.position)
        return self._of_name(name, dataclasses.replace(scope, definition=outer, position=position), steps)

    def _frame_of(self, definition: Definition, file: str, before: int) -> int | None:
        """The position of the frame that runs a function, at or outside of ``before``."""
        last = definition.end_lineno or definition.lineno
        positions = range(before, -1, -1)
        around = (i for i in positions if self.frames[i].file == file)
        return next((i for i in around if definition.lineno <= self.frames[i].line <= last), None)

    def _passed(self, name: str, definition: Definition, scope: _Scope, steps: int) -> _Number | None:
        """What the caller passes for an argument."""
        caller = self._caller(definition, scope)
        if caller is None:
            return None
        outer, call = caller
        positional = [item.arg for item in (*definition.args.posonlyargs, *definition.args.args)]
        if positional and positional[0] == "self":
            positional = positional[1:]
        by_name = {item.arg: item.value for item in call.keywords}
        value = by_name.get(name)
        if value is None and name in positional and positional.index(name) < len(call.args):
            value = call.args[positional.index(name)]
        if value is None or isinstance(value, ast.Starred):
            return None
        return self._made(value, outer, steps)

    def _caller(self, definition: Definition, scope: _Scope) -> tuple[_Scope, ast.Call] | None:
        name = getattr(definition, "name", "")
        if scope.around:
            outer = _ran_at(scope.around)
        elif scope.position:
            first = scope.position
            while first > 0 and self._frame_of(definition, scope.file, first - 1) == first - 1:
                first -= 1  # comprehensions run in frames of their own
            frame = self.frames[first - 1] if first > 0 else None
            outer = None if frame is None else _scope(frame.file, frame.line, first - 1)
        else:
            return None
        if outer is None:
            return None
        calls = [item for item in _on_line(outer) if isinstance(item, ast.Call)]
        called = [item for item in calls if _name(item.func) == name]
        if not called and name in ("__init__", "forward"):  # what is called is an object, or a class
            functions = {code.co_name for code in self.beside.functions}
            called = [item for item in calls if _name(item.func) not in functions]
        return (outer, called[0]) if len(called) == 1 else None

    def _of_attribute(self, part: ast.Attribute, steps: int) -> _Number | None:
        """Of a number of a module that runs, what was assigned to it last."""
        if not isinstance(part.value, ast.Name) or part.value.id != "self":
            return None
        for module in self.modules:
            lines = self.beside.numbers.get(module, {}).get(part.attr)
            made = _ran_at(lines) if lines else None
            if made is not None:
                value = _value_on(made, part.attr)
                return (None if value is None else self._made(value, made, steps)) or _Number(_at(made))
        return None

    def _returned(self, function: ast.expr, scope: _Scope, steps: int) -> _Number | None:
        """What a function or a property returns of which the graph has nothing."""
        file, definition = self._defined(function, scope)
        syntax, name = syntax_of(file), _name(function)
        if definition is None or syntax is None or (file, name) in self.in_graph:
            return None
        found = [item for item in ast.walk(definition) if isinstance(item, ast.Return) and item.value is not None]
        if len(found) != 1 or found[0].value is None:
            return _Number(_located(file, definition.lineno, syntax, name)) if found else None
        inner = _scope(file, found[0].lineno, None)
        assert inner is not None
        handed_on = self._number(found[0].value, inner, steps - 1) if _hands_on(found[0].value) else None
        return handed_on if handed_on is not None and handed_on.place is not None else _Number(_at(inner))

    def _defined(self, function: ast.expr, scope: _Scope) -> tuple[str, Definition | None]:
        """The file and the text of a function that ran; where that was not recorded, of the only one of its name."""
        name = _name(function)
        ran = {code for code in self.beside.functions if code.co_name == name and is_code_of_user(code.co_filename)}
        if self.beside.functions:
            code = ran.pop() if len(ran) == 1 else None
            syntax = None if code is None else syntax_of(code.co_filename)
            if code is None or syntax is None:
                return scope.file, None
            return code.co_filename, _definition(syntax, code)
        methods, is_method = scope.syntax.methods, isinstance(function, ast.Attribute)
        alike = (item for item in scope.syntax.definitions if (item.lineno in methods) == is_method)
        named = [item for item in alike if getattr(item, "name", "") == name]
        return scope.file, named[0] if len(named) == 1 else None

    def _made(self, value: ast.expr, scope: _Scope, steps: int) -> _Number | None:
        """A number that a line hands on is made where it comes from; one that it computes, there."""
        found = self._number(value, scope, steps)
        if found is None or (_hands_on(value) and found.place is not None) or isinstance(value, ast.Constant):
            return found
        return _Number(_at(scope))


def _operands(part: ast.AST) -> Iterator[ast.AST]:
    """What an expression computes with; of a slice, where it begins, from which its end is counted."""
    if isinstance(part, ast.Slice) and part.lower is not None:
        yield part.lower
    else:
        yield from ast.iter_child_nodes(part)


def _hands_on(value: ast.expr) -> bool:
    """Whether an expression is a number that something else made."""
    is_count = isinstance(value, ast.Call) and _name(value.func) in _COUNTS
    return isinstance(value, ast.Name | ast.Attribute | ast.Call) and not is_count


def _scope(
    file: str, line: int, position: int | None, around: Sequence[tuple[types.CodeType, int]] = ()
) -> _Scope | None:
    syntax = syntax_of(file)
    if syntax is None:
        return None
    return _Scope(file, line, syntax, _innermost(syntax, line), position, around)


def _ran_at(lines: Sequence[tuple[types.CodeType, int]]) -> _Scope | None:
    """The function that ran at the first of some lines, within the others; None for one that is no user's."""
    code, line = lines[0]
    return _scope(code.co_filename, line, None, lines[1:]) if is_code_of_user(code.co_filename) else None


def _innermost(syntax: Syntax, line: int) -> Definition | None:
    inside = [item for item in syntax.definitions if item.lineno <= line <= (item.end_lineno or item.lineno)]
    return max(inside, key=_start, default=None)


def _around(syntax: Syntax, definition: Definition) -> Definition | None:
    """The function in which another is defined, on the same line perhaps."""
    holding = [
        item for item in syntax.definitions if _start(item) < _start(definition) and _end(item) >= _end(definition)
    ]
    return max(holding, key=_start, default=None)


def _start(definition: Definition) -> tuple[int, int]:
    return definition.lineno, definition.col_offset


def _end(definition: Definition) -> tuple[int, int]:
    return definition.end_lineno or definition.lineno, definition.end_col_offset or definition.col_offset


def _definition(syntax: Syntax, code: types.CodeType) -> Definition | None:
    named = (item for item in syntax.definitions if getattr(item, "name", "") == code.co_name)
    return next((item for item in named if item.lineno >= code.co_firstlineno), None)


def _assigned(definition: Definition, name: str, line: int) -> ast.expr | None:
    """The value that was last assigned to a variable before a line."""
    found: ast.expr | None = None
    for item in ast.walk(definition):
        if isinstance(item, ast.Assign) and item.lineno <= line:
            for target in item.targets:
                value = _to(target, item.value, name)
                found = value if value is not None and (found is None or value.lineno >= found.lineno) else found
    return found


def _is_counted(definition: Definition, name: str) -> bool:
    """Whether a variable is the number of a loop's turn."""
    loops = [item for item in ast.walk(definition) if isinstance(item, ast.For | ast.comprehension)]
    counts = [item.target for item in loops if isinstance(item.iter, ast.Call) and _name(item.iter.func) == "range"]
    return any(isinstance(target, ast.Name) and target.id == name for target in counts)


def _to(target: ast.expr, value: ast.expr, name: str) -> ast.expr | None:
    """What of an assignment goes to a variable."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        pairs = zip(target.elts, value.elts, strict=True)
        return next((found for pair in pairs if (found := _to(*pair, name)) is not None), None)
    names = target.elts if isinstance(target, ast.Tuple) else (target,)
    return value if any(isinstance(item, ast.Name) and item.id == name for item in names) else None


def _value_on(scope: _Scope, attribute: str) -> ast.expr | None:
    """What a line assigns to an attribute."""
    for item in ast.walk(scope.definition) if scope.definition is not None else ():
        if isinstance(item, ast.Assign) and item.lineno <= scope.line <= (item.end_lineno or item.lineno):
            for target in item.targets:
                pairs = [(target, item.value)]
                if isinstance(target, ast.Tuple) and isinstance(item.value, ast.Tuple):
                    pairs = list(zip(target.elts, item.value.elts, strict=False))
                for to, value in pairs:
                    if isinstance(to, ast.Attribute) and to.attr == attribute:
                        return value
    return None


def _on_line(scope: _Scope) -> Iterator[ast.AST]:
    for item in ast.walk(scope.definition) if scope.definition is not None else ():
        if isinstance(item, ast.expr) and item.lineno <= scope.line <= (item.end_lineno or item.lineno):
            yield item


def _name(function: ast.expr) -> str:
    return str(getattr(function, "attr", None) or getattr(function, "id", ""))


def _at(scope: _Scope) -> SourceLocation:
    return _located(scope.file, scope.line, scope.syntax, getattr(scope.definition, "name", ""))


def _located(file: str, line: int, syntax: Syntax, function: str) -> SourceLocation:
    text = syntax.lines[line - 1].rstrip() if line <= len(syntax.lines) else ""
    return SourceLocation(file, line, len(text) - len(text.lstrip()) + 1, len(text) + 1, function)
