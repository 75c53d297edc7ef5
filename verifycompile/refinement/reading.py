"""What one captured program is made of, read once: its needed nodes, what each is, and what it takes.

Two nodes of equal *form* are lowered alike from equal operands: the form holds everything about a node that its
declaration can see besides the values of its operands, which is its arguments and all that ``Call`` is made of: what
torch recorded of the result and of each operand, and where in memory lies what the operator reads through its memory.
Forms are numbered, so that stretches of nodes are compared as sequences of numbers.

The order is the graph's but for one thing: what only leads from one value to outputs, as the reduction of a gradient
that capture puts at the end of the program, stands behind that value, in the layer that it belongs to.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, cast

import sympy
import torch
import torch.fx

from verifycompile.lowering.lower import Lowering
from verifycompile.lowering.recorded import is_size, memory_read, whole_split
from verifycompile.torch_interface.operators.schema import draws_random_numbers

_OPERAND = "operand"


class Forms:
    """Numbers for the forms of nodes, common to both programs."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, form: Hashable) -> int:
        """The number of a form; one that cannot be compared is equal to no other."""
        try:
            return self._numbers.setdefault(form, len(self._numbers))
        except TypeError:
            return self._numbers.setdefault(object(), len(self._numbers))


_Needed = tuple[torch.fx.Node, int, Sequence[torch.fx.Node]]
"""A node, its form and its operands."""


_LONGEST_TAIL = 32
_MOST_SOURCES = 4


class _Tail:
    """Nodes that lead to one output and nowhere else, found from the output on.

    ``length``: how many of ``entries`` take, beside each other, the value of one computed node only: ``source``.
    """

    def __init__(self) -> None:
        self.entries: list[_Needed] = []
        self.source: torch.fx.Node | None = None
        self.length = 0
        self._sources: set[torch.fx.Node] = set()

    def takes(self, entry: _Needed, computed: set[torch.fx.Node]) -> bool:
        """Add a node that nothing takes but those added before; False where the tail becomes too large."""
        node, _, operands = entry
        self._sources.discard(node)
        self._sources |= computed.intersection(operands)
        self.entries.append(entry)
        if len(self._sources) == 1:
            self.source, self.length = next(iter(self._sources)), len(self.entries)
        return len(self._sources) <= _MOST_SOURCES and len(self.entries) < _LONGEST_TAIL


class Reading:
    """The nodes that the outputs of one program need, operands first.

    ``forms``, ``operands``: per node of ``nodes`` its form and its operands, one for each place where it takes one.
    ``position``: of every needed node. ``last_use``: position of the last node that takes a node's value.
    ``random``: forms of calls that depend on the random stream.
    ``given``: what is no computation (placeholders, constants): lowered before anything else.
    """

    def __init__(self, lowering: Lowering, targets: Iterable[torch.fx.Node], forms: Forms) -> None:
        self.lowering = lowering
        self.nodes: list[torch.fx.Node] = []
        self.forms: list[int] = []
        self.operands: list[Sequence[torch.fx.Node]] = []
        self.position: dict[torch.fx.Node, int] = {}
        self.last_use: dict[torch.fx.Node, int] = {}
        self.given: list[torch.fx.Node] = []
        self.random: set[int] = set()
        self._known: set[int] = set()
        self._signatures: dict[torch.fx.Node, int] = {}
        self._numbers = forms
        program = lowering.program
        self._sizes = dict(program.size_values)
        self._coordinates = {s: sympy.Symbol(f"coordinate:{axis}") for s, axis in program.coordinates.items()}
        self._read(targets)

    def named_alike(self, expression: sympy.Basic) -> sympy.Basic:
        """A number with one name for each coordinate of a rank: every layer that reads one has a symbol of its own."""
        return expression.xreplace(self._sizes).xreplace(self._coordinates)

    def _signature(self, node: torch.fx.Node) -> int:
        """The number of what torch recorded about the value of a node: shapes and dtypes."""
        found = self._signatures.get(node)
        if found is None:
            found = self._signatures[node] = self._numbers.number(("value", self._recorded(node.meta.get("val"))))
        return found

    def _read(self, targets: Iterable[torch.fx.Node]) -> None:
        needed = set(targets)
        found: list[_Needed] = []
        for node in reversed(self.lowering.program.graph.graph.nodes):
            if node not in needed:
                continue
            if node.op != "call_function":
                self.given.append(node)
                continue
            form, operands = self._form(node)
            found.append((node, form, operands))
            needed.update(operands)
        found.reverse()
        for k, (node, form, operands) in enumerate(self._with_tails(found)):
            self.nodes.append(node)
            self.forms.append(form)
            self.operands.append(operands)
            self.position[node] = k
            self.last_use.update(dict.fromkeys(operands, k))

    def _with_tails(self, found: Sequence[_Needed]) -> Iterator[_Needed]:
        """The nodes, those that only lead from one computed value to outputs behind that value."""
        behind: dict[torch.fx.Node, list[_Needed]] = {}
        moved: set[torch.fx.Node] = set()
        for source, tail in self._tails(found):
            behind.setdefault(source, []).extend(tail)
            moved.update(node for node, _, _ in tail)
        for entry in found:
            if entry[0] in moved:
                continue
            stack = [entry]
            while stack:
                current = stack.pop()
                yield current
                stack.extend(reversed(behind.get(current[0], ())))

    def _tails(self, found: Sequence[_Needed]) -> Iterator[tuple[torch.fx.Node, Sequence[_Needed]]]:
        """Each tail with the one value that it takes, from the last one on."""
        computed = {node for node, _, _ in found}
        users: dict[torch.fx.Node, set[_Tail | None]] = {}
        tails: list[_Tail] = []
        for entry in reversed(found):
            node, form, operands = entry
            taken_by = users.pop(node, set())
            tail = next(iter(taken_by)) if len(taken_by) == 1 else None
            if not taken_by:
                tail = _Tail()
                tails.append(tail)
            if tail is not None and (form in self.random or is_size(node) or not tail.takes(entry, computed)):
                tail = None
            for operand in operands:
                users.setdefault(operand, set()).add(tail)
        for tail in tails:
            if tail.source is not None:
                yield tail.source, tail.entries[: tail.length][::-1]

    def _form(self, node: torch.fx.Node) -> tuple[int, Sequence[torch.fx.Node]]:
        """The form of a node and its operands; the special cases are those of ``Lowering``."""
        signature = self._signature(node)
        groups = self.lowering.program.groups
        if is_size(node):
            numbers = tuple(self._signature(a) if isinstance(a, torch.fx.Node) else self._plain(a) for a in node.args)
            return self._numbers.number(("size", node.target, signature, numbers)), ()
        if node.name in groups:
            return self._numbers.number(("group", groups[node.name])), ()
        operands: list[torch.fx.Node] = []
        split = whole_split(node)
        if split is not None:
            operands.append(split)
            arguments: Hashable = ("whole", self._signature(split), *(self._plain(a) for a in node.args[1:]))
        else:
            arguments = self._arguments(node.args, operands)
        keywords = tuple((k, self._argument(v, operands)) for k, v in node.kwargs.items()) if node.kwargs else ()
        form = self._numbers.number((node.target, signature, arguments, keywords, memory_read(node)))
        if form not in self._known:
            self._known.add(form)
            if draws_random_numbers(node.target, node.args, node.kwargs):
                self.random.add(form)
        return form, operands

    def _arguments(self, arguments: Sequence[Any], operands: list[torch.fx.Node]) -> Hashable:
        return tuple(self._argument(argument, operands) for argument in arguments)

    def _argument(self, argument: Any, operands: list[torch.fx.Node]) -> Hashable:
        if isinstance(argument, torch.fx.Node):
            operands.append(argument)
            return _OPERAND, self._signature(argument)
        if isinstance(argument, (list, tuple)):
            return self._arguments(cast("Sequence[Any]", argument), operands)
        return self._plain(argument)

    def _plain(self, argument: Any) -> Hashable:
        """A constant with its type: in Python ``1``, ``1.0`` and ``True`` are equal, so are ``0.0`` and ``-0.0``."""
        kind = type(argument)
        if kind is float:
            return kind, repr(argument)
        if isinstance(argument, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return kind, self.named_alike(argument.node.expr)
        if isinstance(argument, slice):
            return kind, self._plain(argument.start), self._plain(argument.stop), self._plain(argument.step)
        return kind, argument

    def _recorded(self, value: Any) -> Hashable:
        if isinstance(value, torch.Tensor):
            shape = value.shape
            for size in shape:
                if type(size) is not int:
                    return value.dtype, tuple(
                        self.named_alike(s.node.expr) if isinstance(s, torch.SymInt) else s for s in shape
                    )
            return value.dtype, shape
        if isinstance(value, (list, tuple)):
            return type(value), tuple(self._recorded(v) for v in value)
        if value is None or isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._plain(value)
        return type(value)
