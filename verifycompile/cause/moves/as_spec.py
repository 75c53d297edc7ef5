"""Moves that compute what the spec computes, of values that the program has as well.

What is left out (a residual, a normalisation, a scale) is computed and used; what is computed otherwise (another
function, a number at another place) is replaced.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from verifycompile.capture.ranks.merged_ranks import ON_RANK
from verifycompile.cause.draft import Draft, DraftError, called
from verifycompile.cause.frontier import holders
from verifycompile.cause.moves.move import Move, Scene, computed, derives, is_floating, is_tensor, shape_of
from verifycompile.cause.moves.operands import exchanged_texts
from verifycompile.cause.moves.whole_dimensions import grown_dim, own_part
from verifycompile.torch_interface.operators.evaluation import is_view
from verifycompile.torch_interface.source_lines.model_lines import model_location_of
from verifycompile.torch_interface.source_lines.source import at_line
from verifycompile.torch_interface.source_lines.value_names import call_name
from verifycompile.witness.interpreter import ancestors, descendants

aten = torch.ops.aten

_MOST_SEEDS = 6
"""So many values that the spec computes first, and the program does not, are tried."""
_MOST_STEPS = 10
"""So many calls of the spec are taken over at once."""
_MOST_LOST = 8
"""So many values of the program are tried that a value of the spec may have to replace."""

_SHAPING = (aten.view.default, aten.reshape.default)
"""Calls that name all sizes of their result."""

Held = Mapping[torch.fx.Node, Sequence[torch.fx.Node]]


@dataclasses.dataclass(frozen=True)
class _Taken:
    """``steps``: calls of the spec, in order, the last of which computes what is needed. ``operands``: values of the
    spec that they take, and the names of the nodes that hold them.
    """

    steps: tuple[torch.fx.Node, ...]
    operands: Mapping[torch.fx.Node, torch.fx.Node]

    @property
    def result(self) -> torch.fx.Node:
        return self.steps[-1]

    @property
    def is_sum(self) -> bool:
        """Whether it is the sum of two values that are there."""
        return len(self.steps) == 1 and self.result.target is aten.add.Tensor and len(self.operands) == 2


def missing_summands(scene: Scene) -> Iterator[Move]:
    """The sum of two values that the spec adds, where both are there and nothing adds them."""
    return (move for move, taken in _moves(scene) if taken.is_sum)


def calls_of_spec(scene: Scene) -> Iterator[Move]:
    """What the spec computes first that no value of the program is, in the place of a value behind its operands, or of
    an operand.
    """
    return (move for move, taken in _moves(scene) if not taken.is_sum)


def tables_of_spec(scene: Scene) -> Iterator[Move]:
    """Each table that is computed of no input, alike on all ranks, as the rank's part of the spec's: heads' slopes."""
    alike = [node for node in reversed(_tables(scene.order)) if is_floating(node) and not scene.differing(node)]
    for node in sorted(alike, key=lambda node: _is_line_of_spec(scene, node)):
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
        for axis in scene.axes if dim is not None and len(_closed(theirs)) <= _MOST_STEPS else ():
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
        size, where = shape_of(whole)[dim], _lines(_Taken((theirs,), {}))
        alike = f"{value} is computed for {length} entries, alike on all ranks of {over}"
        part = f"the rank's {length} entries from the rank's coordinate on {over} times {length} on"
        message = f"{alike}, where the spec has {size}{where}"
        if not is_alike:
            message = (
                f"{value} is computed of the rank, and is not its part over {over} of what the spec computes{where}"
            )
        return message, f"compute {value} for {size} entries, as the spec does, and take {part}"

    return Move(("table", dim, axis), node.name, "VC117", texts, apply)


def _moves(scene: Scene) -> Iterator[tuple[Move, _Taken]]:
    held = _held(scene)
    place = {node: number for number, node in enumerate(scene.draft.program.graph.graph.nodes)}
    holding = {node for nodes in held.values() for node in nodes}
    for taken in [taken for steps in _missing(scene, held) for taken in _with_holders(steps, held)]:
        latest = max(place[node] for node in taken.operands.values())
        behind = descendants(taken.operands.values())
        lost = [
            node for node in scene.calls
            if node in behind and node not in holding and is_floating(node) and place[node] > latest - _MOST_LOST
            and _may_be(node, taken.result)
        ][:_MOST_LOST]  # fmt: skip
        kept = sorted(set(taken.operands.values()), key=place.__getitem__, reverse=True)
        for node in kept if taken.is_sum else (*lost, *kept):
            yield _computed(scene, taken, node, is_operand=node in kept), taken


def _may_be(node: torch.fx.Node, theirs: torch.fx.Node) -> bool:
    """Whether a value of the program may be a rank's part, or all, of one of the spec."""
    own, wanted = shape_of(node), shape_of(theirs)
    known = [(size, whole) for size, whole in zip(own, wanted, strict=False) if isinstance(size, int)]
    return len(own) == len(wanted) and all(not isinstance(whole, int) or size <= whole for size, whole in known)


def _held(scene: Scene) -> Held:
    outputs = scene.trial.spec.outputs
    needed = ancestors(output.node for output in outputs if output.name.partition(ON_RANK)[0] in scene.wanted)
    wanted = [node for node in scene.trial.spec.graph.graph.nodes if node in needed]
    return holders(scene.trial, wanted, scene.draft.program.graph.graph.nodes, scene.wholes)


def _missing(scene: Scene, held: Held) -> Iterator[tuple[torch.fx.Node, ...]]:
    """The calls that lead from values that are held to one that is not; the shortest ways first."""
    order = [node for node in scene.trial.spec.graph.graph.nodes if node in held]
    seeds = [node for node in order if _computes(node) and not held[node] and _available(node, held, ())]
    looked: dict[torch.fx.Node, None] = {}  # views of what is held, which the calls behind a seed may take as well
    for node in order:
        if not held[node] and is_view(node.target) and _available(node, held, looked):
            looked[node] = None
    ways: list[tuple[torch.fx.Node, ...]] = []
    seeds = [node for node in seeds if is_floating(node) or not is_tensor(node)][:_MOST_SEEDS]
    for first in [*([seed] for seed in seeds), seeds] if len(seeds) > 1 else [seeds]:
        steps = list(first)
        for node in order[order.index(steps[0]) + 1 :] if steps else ():
            if len(steps) == _MOST_STEPS:
                break
            if held[node] or set(steps).isdisjoint(node.all_input_nodes):
                continue
            if node not in steps and _available(node, held, {*steps, *looked}):
                steps.append(node)
        for node in steps:
            needed = ancestors([node])
            taken = {*steps, *looked}
            ways.append(tuple(step for step in order if step in taken and step in needed))
    ways = list(dict.fromkeys(ways))
    return iter(sorted((way for way in ways if is_floating(way[-1])), key=len))


def _computes(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and bool(node.all_input_nodes)


def _available(node: torch.fx.Node, held: Held, steps: Collection[torch.fx.Node]) -> bool:
    return all(operand in steps or held.get(operand) for operand in node.all_input_nodes)


def _with_holders(steps: tuple[torch.fx.Node, ...], held: Held) -> Iterator[_Taken]:
    """The calls on the nodes that hold their operands: the first holders of all, then the last ones.

    They are one value in several forms: copied, or gathered.
    """
    operands = [node for step in steps for node in step.all_input_nodes if node not in steps]
    ways = [{node: held[node][number] for node in operands} for number in (0, -1)]
    yield from (_Taken(steps, way) for way in (ways if ways[0] != ways[1] else ways[:1]))


def _computed(scene: Scene, taken: _Taken, node: torch.fx.Node, *, is_operand: bool) -> Move:
    """``node``: the value in whose place the spec's is taken, by all that is computed behind it."""
    names = [step.name for step in taken.steps]
    operands = {of_spec.name: held.name for of_spec, held in taken.operands.items()}

    def apply(draft: Draft) -> None:
        spec = {own.name: own for own in (draft.spec or scene.spec).graph.graph.nodes}
        replaced = draft.node(node.name)
        order = {own: number for number, own in enumerate(draft.program.graph.graph.nodes)}
        made: dict[torch.fx.Node, Any] = {spec[own]: draft.node(held) for own, held in operands.items()}
        last = max(made.values(), key=order.__getitem__)
        users = [user for user in replaced.users if order[user] > order[last] and not derives(user, replaced)]
        leaving = {item.name for item in draft.program.outputs if item.node is replaced}
        if order[replaced] < order[last]:
            leaving &= scene.wanted
        for step in (spec[name] for name in names):
            arguments = torch.fx.map_arg((step.args, step.kwargs), lambda operand: made[operand])
            if step.name == names[-1] and step.target in _SHAPING:  # a rank's part has sizes of its own
                arguments = (arguments[0][0], shape_of(replaced)), arguments[1]
            last = draft.insert(last, step.target, arguments[0])
            if arguments[1]:
                draft.set_arguments(last, *arguments)
            last.meta["val"] = called(last)
            made[step] = last
        if not is_tensor(last) or shape_of(last) != shape_of(replaced):
            raise DraftError("another shape")
        draft.redirect(replaced, last, users)
        draft.redirect_outputs(replaced, last, leaving)

    texts = functools.partial(_texts, scene, taken, node, is_operand)
    place = model_location_of(taken.result)
    line = (place.file, place.line) if place is not None else taken.result.name
    kind = ("as spec", line, str(taken.result.target), len(taken.steps), is_operand)
    pointed = _reader(scene, node) if is_operand else node
    return Move(kind, pointed.name, "VC108", texts, apply)


def _texts(scene: Scene, taken: _Taken, node: torch.fx.Node, is_operand: bool, _: Draft) -> tuple[str, str]:
    found = scene.value(node)
    if taken.is_sum:
        first, last = taken.operands.values()
        one, other = (scene.value(held) for held in (first, last))
        message = f"{one} is not added to {other}, as it is in the spec"
        return message, f"add {one} to {other} after {scene.line(node)}"  # both are computed: one at least has a line
    if not is_operand and (exchanged := _exchanged_operand(taken, node)) is not None:
        return exchanged_texts(scene, node, *exchanged)
    wanted = call_name(taken.result)
    where = _lines(taken)
    if is_operand:
        message = f"{found} is used as it is, where the spec computes {wanted}"
        pointed = _reader(scene, node)
        behind = f" after {scene.line(node)}" if pointed is node else f" at {scene.line(pointed)}"
        return message, f"compute {wanted}{where} and use it in the place of {found}{behind}"
    if found == wanted and where:  # one expression, of other values
        hint = f"compute {found} at {scene.line(node)} of the values of which the spec computes it{where}"
        return f"{found} is computed of other values than in the spec", hint
    message = f"{found} is computed where the spec computes {wanted}"
    return message, f"compute {wanted}{where} in the place of {found} at {scene.line(node)}"


def _reader(scene: Scene, node: torch.fx.Node) -> torch.fx.Node:
    """What takes a value first, where the spec runs the line that computes the value as well; else the value."""
    if not _is_line_of_spec(scene, node):
        return node
    return next((later for later in scene.order if later in node.users and model_location_of(later) is not None), node)


def _is_line_of_spec(scene: Scene, node: torch.fx.Node) -> bool:
    """Whether the spec runs the node's line, or it has none."""
    place = model_location_of(node)
    return place is None or at_line(place) in scene.lines_of_spec


def _exchanged_operand(taken: _Taken, node: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node] | None:
    """The only operand in which a call differs from the spec's, and the node that holds the spec's."""
    if len(taken.steps) > 1 or node.target is not taken.result.target or len(node.args) != len(taken.result.args):
        return None
    pairs = list(zip(node.args, taken.result.args, strict=True))
    if any(isinstance(own, torch.fx.Node) != isinstance(theirs, torch.fx.Node) for own, theirs in pairs):
        return None
    operands = [(own, taken.operands[theirs]) for own, theirs in pairs if isinstance(theirs, torch.fx.Node)]
    differing = [(own, held) for own, held in operands if own is not held and isinstance(own, torch.fx.Node)]
    return differing[0] if len(differing) == 1 else None


def _lines(taken: _Taken) -> str:
    """Where the spec computes what is taken over, for hints."""
    places = [place for step in taken.steps if (place := model_location_of(step)) is not None]
    lines = sorted({place.line for place in places if place.file == places[-1].file})
    if not lines:
        return ""
    return f" (line {lines[0]} of the spec)" if len(lines) == 1 else f" (lines {lines[0]} to {lines[-1]} of the spec)"
