"""What one captured program is made of, read once: its needed nodes, what each is, and what it takes.

Two nodes of equal *form* are lowered alike from equal operands: the form holds everything about a node that its
declaration can see besides the values of its operands, which is its arguments and all that ``Call`` is made of: what
torch recorded of the result and of each operand, and where in memory lies what the operator reads through its memory.
Forms are numbered, so that stretches of nodes are compared as sequences of numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, cast

import torch
import torch.fx

from verifycompile.lowering.lower import Lowering
from verifycompile.lowering.recorded import is_size, memory_read, whole_split
from verifycompile.torch_interface.schema import draws_random_numbers

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


class Reading:
    """The nodes that the outputs of one program need, in graph order.

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
        self._read(targets)

    def _signature(self, node: torch.fx.Node) -> int:
        """The number of what torch recorded about the value of a node: shapes and dtypes."""
        found = self._signatures.get(node)
        if found is None:
            found = self._signatures[node] = self._numbers.number(("value", _recorded(node.meta.get("val"))))
        return found

    def _read(self, targets: Iterable[torch.fx.Node]) -> None:
        needed = set(targets)
        last_use = self.last_use
        found: list[tuple[torch.fx.Node, int, Sequence[torch.fx.Node]]] = []
        for node in reversed(self.lowering.program.graph.graph.nodes):
            if node not in needed:
                continue
            if node.op != "call_function":
                self.given.append(node)
                continue
            form, operands = self._form(node)
            found.append((node, form, operands))
            needed.update(operands)
            for operand in operands:
                last_use.setdefault(operand, -len(found))
        for k, (node, form, operands) in enumerate(reversed(found)):
            self.nodes.append(node)
            self.forms.append(form)
            self.operands.append(operands)
            self.position[node] = k
        for operand, distance in last_use.items():
            last_use[operand] = len(found) + distance

    def _form(self, node: torch.fx.Node) -> tuple[int, Sequence[torch.fx.Node]]:
        """The form of a node and its operands; the special cases are those of ``Lowering``."""
        signature = self._signature(node)
        groups = self.lowering.program.groups
        if is_size(node):
            numbers = tuple(self._signature(a) if isinstance(a, torch.fx.Node) else _plain(a) for a in node.args)
            return self._numbers.number(("size", node.target, signature, numbers)), ()
        if node.name in groups:
            return self._numbers.number(("group", groups[node.name])), ()
        operands: list[torch.fx.Node] = []
        split = whole_split(node)
        if split is not None:
            operands.append(split)
            arguments: Hashable = ("whole", self._signature(split), *(_plain(a) for a in node.args[1:]))
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
        return _plain(argument)


def _plain(argument: Any) -> Hashable:
    """A constant with its type: ``1``, ``1.0`` and ``True`` are equal in Python, and so are ``0.0`` and ``-0.0``."""
    kind = type(argument)
    if kind is float:
        return kind, repr(argument)
    if isinstance(argument, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return kind, argument.node.expr
    if isinstance(argument, slice):
        return kind, _plain(argument.start), _plain(argument.stop), _plain(argument.step)
    return kind, argument


def _recorded(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        shape = value.shape
        for size in shape:
            if type(size) is not int:
                return value.dtype, tuple(s.node.expr if isinstance(s, torch.SymInt) else s for s in shape)
        return value.dtype, shape
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_recorded(v) for v in value)
    if value is None or isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _plain(value)
    return type(value)
