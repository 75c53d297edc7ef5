"""Moves that take the rank's part of a table that the spec computes of no input: slopes of heads, positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.as_spec import MOST_STEPS, is_line_of_spec, lines_of_steps
from verifycompile.cause.moves.move import Move, Scene, computed, is_floating, is_tensor, shape_of
from verifycompile.cause.moves.whole_dimensions import grown_dim, own_part
from verifycompile.torch_interface.operators.evaluation import is_view
from verifycompile.witness.interpreter import ancestors


def tables_of_spec(scene: Scene) -> Iterator[Move]:
    """Each table that is computed of no input, alike on all ranks, as the rank's part of the spec's: heads' slopes."""
    alike = [node for node in reversed(_tables(scene.order)) if is_floating(node) and not scene.differing(node)]
    for node in sorted(alike, key=lambda node: is_line_of_spec(scene, node)):
        yield from _parts_of_tables(scene, node, is_alike=True)


def positions_of_spec(scene: Scene) -> Iterator[Move]:
    """Each table that is computed of the rank's numbers alone, as the rank's part of the spec's: positions that ranks
    count otherwise.
    """
    given = {item.node for item in scene.draft.program.inputs}
    numbers = [node for node in scene.order if node not in given and not is_tensor(node)]
    for node in _tables(scene.order, numbers) if scene.values else ():
        if scene.differing(node) and not is_view(node.target):
            yield from _parts_of_tables(scene, node, is_alike=False)


def _parts_of_tables(scene: Scene, node: torch.fx.Node, *, is_alike: bool) -> Iterator[Move]:
    own = shape_of(node)
    for theirs in _tables(scene.spec.graph.graph.nodes) if computed(node) or node.op == "get_attr" else ():
        if is_alike and _made_by(theirs) != _made_by(node):
            continue
        dim, whole = grown_dim(node, theirs), shape_of(theirs)
        for axis in scene.axes if dim is not None and len(_closed(theirs)) <= MOST_STEPS else ():
            if dim is not None and whole[dim] == own[dim] * scene.ranks((axis,)):  # pyright: ignore[reportOperatorIssue]  # sizes
                yield _part_of_table(scene, node, theirs, dim, axis, is_alike=is_alike)


def _tables(nodes: Iterable[torch.fx.Node], numbers: Iterable[torch.fx.Node] = ()) -> list[torch.fx.Node]:
    """The tensors that are computed of no input, but for ``numbers`` of the rank, and those that the graph holds."""
    closed: dict[torch.fx.Node, None] = dict.fromkeys(numbers)
    for node in nodes:
        is_made = node.op in ("call_function", "get_attr") and is_tensor(node)
        if is_made and closed.keys() >= {*node.all_input_nodes}:
            closed[node] = None
    return list(filter(is_tensor, closed))


def _made_by(table: torch.fx.Node) -> object:
    return table.op if table.op == "get_attr" else table.target


def _closed(node: torch.fx.Node) -> list[torch.fx.Node]:
    needed = ancestors([node])
    return [step for step in node.graph.nodes if step in needed]


def _part_of_table(
    scene: Scene, node: torch.fx.Node, theirs: torch.fx.Node, dim: int, axis: int, *, is_alike: bool
) -> Move:
    def apply(draft: Draft) -> None:
        program = draft.spec or scene.spec
        spec = {own.name: own for own in program.graph.graph.nodes}
        replaced = last = draft.node(node.name)
        made: dict[torch.fx.Node, torch.fx.Node] = {}
        for step in _closed(spec[theirs.name]):
            if step.op == "get_attr":
                last = made[step] = draft.constant(last, step, program.graph)
                continue
            arguments = torch.fx.map_arg((step.args, step.kwargs), lambda operand: made[operand])
            last = made[step] = draft.insert(last, step.target, arguments[0], step.meta["val"])
            draft.set_arguments(last, *arguments)
        draft.redirect(replaced, own_part(draft, last, last, axis, shape_of(replaced)), list(replaced.users))

    def texts(draft: Draft) -> tuple[str, str]:
        value, over, length = scene.value(node), scene.names((axis,)), shape_of(draft.node(node.name))[dim]
        whole = next(own for own in (draft.spec or scene.spec).graph.graph.nodes if own.name == theirs.name)
        size, where = shape_of(whole)[dim], lines_of_steps([theirs])
        alike = f"{value} is computed for {length} entries, alike on all ranks of {over}"
        part = f"the rank's {length} entries from the rank's coordinate on {over} times {length} on"
        message = f"{alike}, where the spec has {size}{where}"
        if not is_alike:
            message = (
                f"{value} is computed of the rank, and is not its part over {over} of what the spec computes{where}"
            )
        return message, f"compute {value} for {size} entries, as the spec does, and take {part}"

    return Move(("table", dim, axis), node.name, "VC117", texts, apply)
