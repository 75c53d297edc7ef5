"""A copy of a program whose graph may be changed, and changed back."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import sympy
import torch
import torch.fx
from torch.distributed.tensor.placement_types import Placement

from verifycompile.program import OutputKind, Program, ProgramInput, ProgramOutput
from verifycompile.torch_interface.dynamo.graph_modules import module_of
from verifycompile.torch_interface.operators.evaluation import symbolic_expression
from verifycompile.torch_interface.ranks.rank_values import functional_collectives, new_coordinate
from verifycompile.witness.interpreter import ancestors

Grown = dict[torch.fx.Node, Any]
"""Nodes that have another shape now, and what torch recorded of them before."""


class DraftError(Exception):
    """A program that cannot be copied, or a change that does not apply to it."""


class Draft:
    """The working copy. Nodes keep their names, so that what was found in one copy is found in another.

    ``rank``: the coordinates of the rank that runs the graph, where each rank has a graph of its own; None for a graph
    of all ranks. ``group_key``: how a collective of this graph names the group that spans some mesh axes. ``spec``: the
    spec at the sizes of this program, where sizes may be reduced.
    """

    def __init__(
        self,
        program: Program,
        rank: tuple[int, ...] | None = None,
        group_key: Callable[[tuple[int, ...]], str] | None = None,
        spec: Program | None = None,
    ) -> None:
        graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        returned = graph.graph_copy(program.graph.graph, copies)
        graph.output(returned)
        if any(old.name != new.name for old, new in copies.items()):
            raise DraftError("the nodes of the graph do not keep their names in a copy")
        self._group_key = group_key
        self.rank = rank
        self.ranks: tuple[int, ...] = ()
        """Where each rank has a graph of its own, those that run this one's calls."""
        self.others: tuple[Draft, ...] = ()
        """Those of the ranks that run other calls, one for each of their graphs."""
        self.spec = spec
        self.nodes = {node.name: node for node in graph.nodes}
        self.program = dataclasses.replace(
            program,
            graph=module_of(graph, program.graph),
            inputs=tuple(dataclasses.replace(item, node=copies[item.node]) for item in program.inputs),
            outputs=tuple(dataclasses.replace(item, node=copies[item.node]) for item in program.outputs),
            blockers=tuple(
                blocker if blocker.node is None else dataclasses.replace(blocker, node=copies.get(blocker.node))
                for blocker in program.blockers
            ),
            each_rank=None,
            doubt=None,
        )
        self.changed: set[torch.fx.Node] = set()
        """Nodes whose values are others than before the first change that was not taken back."""
        self.added: set[torch.fx.Node] = set()
        """Those of them that the program did not have."""
        self._log: list[Callable[[], None]] = []

    # -- reading

    def node(self, name: str) -> torch.fx.Node:
        """The node of a name. Raises ``DraftError``."""
        if name not in self.nodes:
            raise DraftError(f"no node `{name}`")
        return self.nodes[name]

    def group_axes(self, node: torch.fx.Node) -> tuple[int, ...]:
        """The mesh axes that the group of a collective spans, () where that is not known."""
        group = node.args[-1] if node.args else None
        name = group.name if isinstance(group, torch.fx.Node) else str(group)
        return tuple(self.program.groups.get(name, ()))

    def check_order(self) -> None:
        """Raises ``DraftError`` where a value is computed of itself. What stands later in the graph may be taken."""
        suspected = [node for node in self.changed if any(not operand < node for operand in node.all_input_nodes)]
        if any(node in ancestors(node.all_input_nodes) for node in suspected):
            raise DraftError("a value that is computed of itself")

    # -- changing

    def mark(self) -> int:
        """Where the log of changes stands now, for ``undo``."""
        return len(self._log)

    def undo(self, mark: int = 0) -> None:
        """Takes back the changes made since ``mark``, the last one first."""
        while len(self._log) > mark:
            self._log.pop()()

    def insert(
        self, place: torch.fx.Node, target: Any, args: Sequence[Any], value: object = None, *, before: bool = False
    ) -> torch.fx.Node:
        """A new call behind (or before) a node. It has no source line, so that nobody takes it for the user's.

        ``value``: what torch would record of its result; by default that of the node.
        """
        graph = self.program.graph.graph
        with graph.inserting_before(place) if before else graph.inserting_after(_behind_inputs(place)):
            new = graph.call_function(target, tuple(args))
        new.meta["val"] = place.meta.get("val") if value is None else value
        self._added(new)
        return new

    def constant(self, place: torch.fx.Node, held: torch.fx.Node, source: torch.nn.Module) -> torch.fx.Node:
        """A tensor that a node of another graph reads of ``source``, read by this graph behind a node."""
        name = f"taken_{held.target}"
        setattr(self.program.graph, name, getattr(source, str(held.target)))
        with self.program.graph.graph.inserting_after(_behind_inputs(place)):
            new = self.program.graph.graph.create_node("get_attr", name)
        new.meta["val"] = held.meta["val"]
        self._added(new)
        return new

    def redirect(self, node: torch.fx.Node, new: torch.fx.Node, users: Collection[torch.fx.Node] | None = None) -> None:
        """Lets ``users`` of a node take another one; None: all that take it now, and the outputs that it is."""
        made = {new, *new.all_input_nodes}  # what is computed of the node goes on taking it
        for user in list(node.users) if users is None else users:
            if user not in made:
                self.set_arguments(user, *_replaced(user, node, new))
        if users is None:
            self.redirect_outputs(node, new)

    def redirect_outputs(self, node: torch.fx.Node, new: torch.fx.Node, names: Collection[str] | None = None) -> None:
        """Lets the outputs that a node is be another one; ``names``: those of these names alone."""
        self.set_outputs(
            dataclasses.replace(item, node=new) if item.node is node and (names is None or item.name in names) else item
            for item in self.program.outputs
        )

    def set_arguments(self, node: torch.fx.Node, args: Sequence[Any], kwargs: Any = None) -> None:
        """Gives a call other arguments."""
        before = node.args, node.kwargs
        node.args = tuple(args)
        if kwargs is not None:
            node.kwargs = kwargs

        def back() -> None:
            node.args, node.kwargs = before

        self._log.append(back)
        self._note(node)

    def record_again(
        self,
        *first: torch.fx.Node,
        wholes: Grown | None = None,
        adapt: Callable[[torch.fx.Node, Grown], None] | None = None,
        without: Collection[torch.fx.Node] = (),
    ) -> Grown:
        """Lets ``first``, and all that depends on them or on ``wholes``, have the shapes that follow from their
        arguments now. Returns the values of other shapes, with what torch recorded of them before.

        ``adapt`` may change a later call that takes such a value; it is given those that are known by then.
        ``without``: calls that are left as they are.
        """
        grown: Grown = dict(wholes or {})
        for node in self.program.graph.graph.nodes:
            if node.op != "call_function" or (node not in first and grown.keys().isdisjoint(node.all_input_nodes)):
                continue
            if node in without:
                continue
            if adapt is not None and node not in first:
                adapt(node, grown)
            before, after = node.meta["val"], called(node)
            if isinstance(after, torch.Tensor) and after.shape == before.shape:
                continue
            self.record(node, after)
            grown[node] = before
        return grown

    def record(self, node: torch.fx.Node, value: Any) -> None:
        """Lets a value be one of another shape."""
        self._log.append(functools.partial(node.meta.__setitem__, "val", node.meta["val"]))
        node.meta["val"] = value

    def set_input_placements(self, name: str, placements: tuple[Placement, ...]) -> None:
        """Lets an input lie in another way on the ranks, and with it its gradient and what is written to it."""
        changed = [item for item in self.program.inputs if item.name == name]
        before = {item.placements for item in changed}
        outputs = tuple(
            dataclasses.replace(item, placements=placements)
            if item.name.partition(".")[2] == name and item.kind is not OutputKind.VALUE and item.placements in before
            else item
            for item in self.program.outputs
        )
        inputs = tuple(
            dataclasses.replace(item, placements=placements, assumed=False) if item.name == name else item
            for item in self.program.inputs
        )
        self._set_program(inputs=inputs, outputs=outputs)
        for item in changed:
            self._note(item.node)

    def add_input(self, item: ProgramInput) -> torch.fx.Node:
        """An input that ranks with another graph take: every rank holds what its model has."""
        if self.program.captured_elsewhere:
            raise DraftError("a rank has no other objects than its graph uses")
        graph = self.program.graph.graph
        with graph.inserting_before(next(iter(graph.nodes))):
            new = graph.placeholder(item.name.replace(".", "_"))
        new.meta["val"] = item.node.meta["val"]
        self._added(new)
        self._set_program(inputs=(dataclasses.replace(item, node=new), *self.program.inputs))
        return new

    def set_outputs(self, outputs: Iterable[ProgramOutput]) -> None:
        """Lets outputs be other nodes, or have other requirements."""
        self._set_program(outputs=tuple(outputs))

    def group(self, axes: tuple[int, ...]) -> str:
        """What names the group of the ranks along ``axes`` in this graph."""
        if self._group_key is not None:
            return self._group_key(axes)
        for key, spans in self.program.groups.items():
            if tuple(spans) == axes and key not in self.nodes:
                return key
        key = "axes " + " ".join(map(str, axes))
        self._set_program(groups={**self.program.groups, key: axes})
        return key

    def coordinate(self, axis: int) -> Any:
        """This rank's coordinate on a mesh axis: a number, or a node that reads it."""
        if self.rank is not None:
            return self.rank[axis]
        found = {symbol: node for node in self.nodes.values() if (symbol := symbol_of(node)) is not None}
        for symbol, spanned in self.program.coordinates.items():
            if spanned == axis and symbol in found and found[symbol].op == "call_function":
                return found[symbol]
        mesh = self.program.mesh
        if mesh is None:
            raise DraftError("no mesh")
        node = new_coordinate(self.program.graph, mesh, axis)
        for added in (*node.all_input_nodes, node):
            self._added(added)
        symbol = symbol_of(node)
        if symbol is None:
            raise DraftError("a coordinate without a symbol")
        self._set_program(coordinates={**self.program.coordinates, symbol: axis})
        return node

    def number(self, user: torch.fx.Node, target: Any, args: Sequence[Any]) -> Any:
        """The result of arithmetic on numbers, of which some may be nodes, in front of the call that uses it."""
        if not any(isinstance(item, torch.fx.Node) for item in args):
            return target(*args)
        value = target(*(item.meta["val"] if isinstance(item, torch.fx.Node) else item for item in args))
        return self.insert(user, target, args, value, before=True)

    def all_reduce(self, node: torch.fx.Node, operation: str, axes: tuple[int, ...]) -> torch.fx.Node:
        """An all-reduce of a node's value over the ranks along ``axes``."""
        return self.insert(node, functional_collectives().all_reduce.default, (node, operation, self.group(axes)))

    # -- the log

    def _added(self, new: torch.fx.Node) -> None:
        self.nodes[new.name] = new

        def back() -> None:
            del self.nodes[new.name]
            self.changed.discard(new)
            self.added.discard(new)
            new.graph.erase_node(new)

        self._log.append(back)
        self.changed.add(new)
        self.added.add(new)

    def _note(self, node: torch.fx.Node) -> None:
        if node in self.changed:
            return
        self.changed.add(node)
        self._log.append(lambda: self.changed.discard(node))

    def _set_program(self, **fields: Any) -> None:
        before = self.program
        self.program = dataclasses.replace(before, **fields)

        def back() -> None:
            self.program = before

        self._log.append(back)


def called(node: torch.fx.Node) -> Any:
    """What torch would record of a call, with the arguments that it has now."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda operand: operand.meta["val"])
    return node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]  # the target is an operator


def _behind_inputs(node: torch.fx.Node) -> torch.fx.Node:
    """Where to insert: behind all placeholders, which stand at the beginning of a graph."""
    if node.op != "placeholder":
        return node
    last = node
    while last.next.op == "placeholder":
        last = last.next
    return last


def _replaced(user: torch.fx.Node, node: torch.fx.Node, new: torch.fx.Node) -> tuple[Any, Any]:
    def changed(argument: torch.fx.Node) -> torch.fx.Node:
        return new if argument is node else argument

    return torch.fx.map_arg(user.args, changed), torch.fx.map_arg(user.kwargs, changed)


def symbol_of(node: torch.fx.Node) -> sympy.Symbol | None:
    """The symbol that the number of a node is, as that of a coordinate; None where it is none."""
    expression = symbolic_expression(node.meta.get("val"))
    return expression if isinstance(expression, sympy.Symbol) else None
