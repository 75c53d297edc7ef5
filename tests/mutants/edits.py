"""Mistakes made in a captured graph. Every edit works on a copy and keeps the shapes of the values it leaves."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable

import torch
import torch.fx

from verifycompile.program import Program

Edit = Callable[[Program], Program]
collective = torch.ops._c10d_functional
aten = torch.ops.aten
ALL_REDUCE = collective.all_reduce.default
ALL_GATHER = collective.all_gather_into_tensor.default
REDUCE_SCATTER = collective.reduce_scatter_tensor.default
COORDINATE = "device_mesh._runtime_compute_coordinate_on_dim.default"


def copy_program(program: Program) -> tuple[Program, dict[torch.fx.Node, torch.fx.Node]]:
    """A copy whose graph may be changed, and the old nodes' counterparts."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.output(graph.graph_copy(program.graph.graph, copies))
    module = torch.fx.GraphModule(program.graph, graph)
    module.meta = program.graph.meta
    inputs = tuple(dataclasses.replace(entry, node=copies[entry.node]) for entry in program.inputs)
    return dataclasses.replace(program, graph=module, inputs=inputs, outputs=_outputs(program, graph)), copies


def _outputs(program: Program, graph: torch.fx.Graph) -> tuple:
    returned = graph.output_node().args[0]
    return tuple(dataclasses.replace(output, node=returned[output.index]) for output in program.outputs)


def changed(change: Callable[[Program], None]) -> Edit:
    """An edit from a function that changes a copy's graph in place."""

    def edit(program: Program) -> Program:
        copy, _ = copy_program(program)
        change(copy)
        copy.graph.graph.lint()
        return dataclasses.replace(copy, outputs=_outputs(copy, copy.graph.graph))

    return edit


def nodes_of(program: Program, target: object, *, backward: bool | None = None) -> list[torch.fx.Node]:
    """Calls of an operator, of either or of one direction."""
    nodes = [node for node in program.graph.graph.nodes if node.op == "call_function" and node.target is target]
    return [node for node in nodes if backward is None or is_backward(node) is backward]


def is_backward(node: torch.fx.Node) -> bool:
    return node.meta.get("partitioner_tag") == "is_backward" or bool(node.meta.get("autograd_backward"))


def insert(after: torch.fx.Node, target: Callable[..., object], *args: object) -> torch.fx.Node:
    """A call after a node, with that node's place in the user's source."""
    graph = after.graph
    values = torch.fx.map_arg(args, lambda node: node.meta["val"])
    with graph.inserting_after(after):
        node = graph.call_function(target, args)
    node.meta = {**after.meta, "val": target(*values)}
    return node


def waited(node: torch.fx.Node) -> torch.fx.Node:
    """The node that waits for a collective."""
    (wait,) = [user for user in node.users if user.target is collective.wait_tensor.default]
    return wait


def replace_uses(node: torch.fx.Node, by: torch.fx.Node) -> None:
    """Everyone who reads ``node`` reads ``by``, except for what makes ``by``."""
    makers = {by, *by.all_input_nodes}
    node.replace_all_uses_with(by, delete_user_cb=lambda user: user not in makers)


def drop(target: object, position: int, backward: bool) -> Edit:
    """Removes a collective: every rank goes on with what it has."""

    def change(program: Program) -> None:
        node = nodes_of(program, target, backward=backward)[position]
        source, wait = node.args[0], waited(node)
        if target is ALL_REDUCE:
            wait.replace_all_uses_with(source)
        elif target is ALL_GATHER:
            replace_uses(wait, insert(wait, aten.cat.default, [source] * node.args[1]))
        else:
            rows = wait.meta["val"].shape[0]
            replace_uses(wait, insert(wait, aten.slice.Tensor, source, 0, 0, rows))

    return changed(change)


def reduce_twice(position: int, backward: bool) -> Edit:
    """Sums over the group what was summed already."""

    def change(program: Program) -> None:
        node = nodes_of(program, ALL_REDUCE, backward=backward)[position]
        wait = waited(node)
        again = insert(wait, ALL_REDUCE, wait, *node.args[1:])
        replace_uses(wait, insert(again, collective.wait_tensor.default, again))

    return changed(change)


def scale(target: object, position: int, backward: bool, factor: float) -> Edit:
    """Multiplies the result of a collective."""

    def change(program: Program) -> None:
        wait = waited(nodes_of(program, target, backward=backward)[position])
        replace_uses(wait, insert(wait, aten.mul.Tensor, wait, factor))

    return changed(change)


def other_reduction(target: object, position: int, backward: bool, reduction: str) -> Edit:
    """Reduces by another operation than the sum."""

    def change(program: Program) -> None:
        node = nodes_of(program, target, backward=backward)[position]
        node.update_arg(1, reduction)

    return changed(change)


def other_axis(target: object, position: int, backward: bool, axis: int) -> Edit:
    """Runs a collective over another mesh axis (of the same size)."""

    def edit(program: Program) -> Program:
        copy, _ = copy_program(program)
        node = nodes_of(copy, target, backward=backward)[position]
        (group,) = [argument for argument in node.args if isinstance(argument, torch.fx.Node)][1:]
        with copy.graph.graph.inserting_after(group):
            own = copy.graph.graph.call_function(group.target, group.args)
        own.meta = dict(group.meta)
        node.replace_input_with(group, own)
        return dataclasses.replace(copy, groups={**copy.groups, own.name: (axis,)})

    return edit


def rotate_pieces(target: object, position: int, backward: bool) -> Edit:
    """Each rank gets, or puts, its neighbour's piece: the tensor around a collective is rotated by one piece."""

    def change(program: Program) -> None:
        node = nodes_of(program, target, backward=backward)[position]
        wait = waited(node)
        if target is REDUCE_SCATTER:
            source, rows = node.args[0], wait.meta["val"].shape[0]
            node.update_arg(0, insert(source, aten.roll.default, source, [rows], [0]))
        else:
            rows = node.args[0].meta["val"].shape[0]
            replace_uses(wait, insert(wait, aten.roll.default, wait, [rows], [0]))

    return changed(change)


def other_rank(position: int) -> Edit:
    """Reads the slice of the neighbouring rank: a coordinate is increased by one, modulo the size of its axis."""

    def change(program: Program) -> None:
        assert program.mesh is not None
        node = coordinates(program)[position]
        size = program.mesh.axes[-1].size
        moved = insert(node, operator.add, node, 1)
        replace_uses(node, insert(moved, operator.mod, moved, size))
        _propagate_sizes(program)

    return changed(change)


def _propagate_sizes(program: Program) -> None:
    """Recomputes the symbolic integers of a graph in which one of them was changed."""
    for node in program.graph.graph.nodes:
        if (
            node.op == "call_function"
            and isinstance(node.meta.get("val"), torch.SymInt)
            and str(node.target) != COORDINATE
        ):
            args = torch.fx.map_arg(node.args, lambda argument: argument.meta["val"])
            node.meta["val"] = node.target(*args)


def coordinates(program: Program) -> list[torch.fx.Node]:
    return [node for node in program.graph.graph.nodes if str(node.target) == COORDINATE]


def swap_inputs(first: str, second: str) -> Edit:
    """Uses each of two parameters of one shape where the other belongs."""

    def change(program: Program) -> None:
        nodes = {entry.name: entry.node for entry in program.inputs if isinstance(entry.node.meta["val"], torch.Tensor)}
        one, two = nodes[first], nodes[second]
        users = list(one.users), list(two.users)
        for user in users[0]:
            user.replace_input_with(one, two)
        for user in users[1]:
            if user not in users[0]:
                user.replace_input_with(two, one)

    return changed(change)
