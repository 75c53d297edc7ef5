"""Moves that compute what the spec computes, of values that the program has as well.

What is left out (a residual, a normalisation, a scale) is computed and used; what is computed otherwise (another
function, a number at another place) is replaced.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from verifycompile.capture.ranks.merged_ranks import ON_RANK
from verifycompile.cause.draft import Draft, DraftError, called
from verifycompile.cause.frontier import holders
from verifycompile.cause.moves.move import Move, Scene, Texts, derives, is_floating, is_tensor, shape_of
from verifycompile.cause.moves.operands import exchanged_texts
from verifycompile.cause.moves.same_calls import Lines, Way, at_end, way_to
from verifycompile.torch_interface.operators.evaluation import is_view
from verifycompile.torch_interface.source_lines.model_lines import model_location_of
from verifycompile.torch_interface.source_lines.source import at_line
from verifycompile.torch_interface.source_lines.value_names import call_name, is_backward
from verifycompile.witness.interpreter import ancestors, descendants

aten = torch.ops.aten

_MOST_SEEDS = 6
"""So many values that the spec computes first, and the program does not, are tried."""
MOST_STEPS = 10
"""So many calls of the spec are taken over at once."""
_MOST_LOST = 8
"""So many values of the program are tried that a value of the spec may have to replace."""
_MOST_READERS = 4
"""So many operators that take a value are given another one by themselves."""

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


def _moves(scene: Scene) -> Iterator[tuple[Move, _Taken]]:
    """What is proposed anywhere, at the calls of this graph that are the same call of the source: numbers show where
    the first layer, or the first stage, leaves the spec, and others leave it as that one does.
    """
    lines = {id(other): Lines(other.order) for other in scene.everywhere}
    spec, held = Lines(scene.trial.spec.graph.graph.nodes), _held(scene)
    for origin in sorted(scene.everywhere, key=lambda other: other is not scene):
        for found in _proposed(origin, held if origin is scene else _held(origin)):
            first = lines[id(origin)]
            places = [(other, node) for other in scene.everywhere for node in lines[id(other)].same(found.place, first)]
            turn = next((turn for turn, place in enumerate(places) if place[1] is found.place), 0)
            if origin is scene:
                yield _computed(scene, found, found.place), found.taken
            for number, (other, node) in enumerate(places):
                there = found if node is found.place else _in_turn(found, number - turn, spec, held)
                if other is scene and there is not None and there is not found:
                    yield dataclasses.replace(_computed(scene, there, node), is_of_others=True), found.taken


@dataclasses.dataclass(frozen=True)
class _Proposed:
    """What is taken of the spec in the place of ``place``, or of the operand of it at ``read``.

    ``ways``: how the nodes that hold operands are reached from there. ``is_operand``: what is replaced is taken too.
    """

    taken: _Taken
    place: torch.fx.Node
    read: int | None
    is_operand: bool
    ways: Mapping[torch.fx.Node, Way]

    def replaced(self, place: torch.fx.Node) -> torch.fx.Node:
        return place if self.read is None else place.all_input_nodes[self.read]


def _proposed(scene: Scene, held: Held) -> Iterator[_Proposed]:
    order = {node: number for number, node in enumerate(scene.draft.program.graph.graph.nodes)}
    holding = {node for nodes in held.values() for node in nodes}
    for taken in [taken for steps in _missing(scene, held) for taken in _with_holders(steps, held)]:
        latest = max(order[node] for node in taken.operands.values())
        behind = descendants(taken.operands.values())
        lost = [
            node for node in scene.calls
            if node in behind and node not in holding and is_floating(node) and order[node] > latest - _MOST_LOST
            and _may_be(node, taken.result)
        ][:_MOST_LOST]  # fmt: skip
        kept = sorted(set(taken.operands.values()), key=order.__getitem__, reverse=True)
        lost = [node for node in lost if node.target is aten.add.Tensor] if taken.is_sum else lost
        behind_them = [*lost, *kept]
        readers = [] if taken.is_sum else [place for node in kept for place in _readers(scene, node)]
        for place, read in [*((node, None) for node in behind_them), *readers]:
            ways = {theirs: way for theirs, own in taken.operands.items() if (way := way_to(place, own)) is not None}
            yield _Proposed(taken, place, read, read is not None or place in kept, ways)


def _readers(scene: Scene, node: torch.fx.Node) -> list[tuple[torch.fx.Node, int]]:
    """The first call of each operator of the forward pass that takes a value."""
    found: dict[object, tuple[torch.fx.Node, int]] = {}
    for user in scene.calls if is_floating(node) else ():
        if node in user.all_input_nodes and not is_backward(user) and not derives(user, node):
            found.setdefault(user.target, (user, user.all_input_nodes.index(node)))
    return list(found.values())[:_MOST_READERS]


def _in_turn(found: _Proposed, turns: int, spec: Lines, held: Held) -> _Proposed | None:
    """The same some turns further on. What is not computed there is what the spec takes in that turn."""
    operands = dict(found.taken.operands)
    for theirs in operands.keys() - found.ways.keys():
        taker = next(step for step in found.taken.steps if theirs in step.all_input_nodes)
        same = spec.same(taker, spec)
        turn = same.index(taker) + turns if same else -1
        holders_there = ()
        if 0 <= turn < len(same):
            holders_there = held.get(same[turn].all_input_nodes[taker.all_input_nodes.index(theirs)], ())
        if not holders_there:
            return None
        operands[theirs] = holders_there[0]
    return dataclasses.replace(found, taken=dataclasses.replace(found.taken, operands=operands))


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
            if len(steps) == MOST_STEPS:
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


def _computed(scene: Scene, found: _Proposed, place: torch.fx.Node) -> Move:
    """``place``: where the spec's value is taken in the place of one that is there, by all that is computed behind."""
    taken = found.taken
    names = [step.name for step in taken.steps]
    ways = {theirs.name: way for theirs, way in found.ways.items()}
    operands = {theirs.name: held.name for theirs, held in taken.operands.items()}

    def held_by(draft: Draft, theirs: str) -> torch.fx.Node:
        if theirs not in ways:
            return draft.node(operands[theirs])
        end = at_end(draft.node(place.name), ways[theirs])
        if end is None:
            raise DraftError("another way")
        return end

    def apply(draft: Draft) -> None:
        spec = {own.name: own for own in (draft.spec or scene.spec).graph.graph.nodes}
        reader = draft.node(place.name)
        replaced = found.replaced(reader)
        order = {own: number for number, own in enumerate(draft.program.graph.graph.nodes)}
        made: dict[torch.fx.Node, Any] = {spec[theirs]: held_by(draft, theirs) for theirs in operands}
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
        draft.redirect(replaced, last, users if found.read is None else [reader])
        draft.redirect_outputs(replaced, last, leaving if found.read is None else ())

    texts = functools.partial(_texts, scene, found, place)
    made_at = model_location_of(taken.result)
    line = (made_at.file, made_at.line) if made_at is not None else taken.result.name
    kind = ("as spec", line, str(taken.result.target), len(taken.steps), found.is_operand, found.read)
    pointed = _reader(scene, place) if found.is_operand and found.read is None else place
    return Move(kind, pointed.name, "VC108", texts, apply, texts_of_line=functools.partial(_each_time, texts))


def _each_time(texts: Texts, draft: Draft) -> tuple[str, str]:
    message, hint = texts(draft)
    return f"{message}, each time that the line runs", f"{hint}, each time that the line runs"


def _texts(scene: Scene, proposed: _Proposed, place: torch.fx.Node, draft: Draft) -> tuple[str, str]:
    taken, node = proposed.taken, proposed.replaced(place)
    found = scene.value(node)
    if taken.is_sum and proposed.is_operand:
        first, last = taken.operands.values()
        one, other = (scene.value(held) for held in (first, last))
        message = f"{one} is not added to {other}, as it is in the spec"
        return message, f"add {one} to {other} after {scene.line(node)}"  # both are computed: one at least has a line
    if not proposed.is_operand and (exchanged := _exchanged_operand(taken, node)) is not None:
        return exchanged_texts(scene, node, *exchanged, draft)
    wanted = call_name(taken.result)
    where = lines_of_steps(taken.steps)
    if proposed.is_operand:
        message = f"{found} is used as it is, where the spec computes {wanted}"
        pointed = place if proposed.read is not None else _reader(scene, node)
        behind = f" after {scene.line(node)}" if pointed is node else f" at {scene.line(pointed)}"
        return message, f"compute {wanted}{where} and use it in the place of {found}{behind}"
    if found == wanted and where:  # one expression, of other values
        hint = f"compute {found} at {scene.line(node)} of the values of which the spec computes it{where}"
        return f"{found} is computed of other values than in the spec", hint
    message = f"{found} is computed where the spec computes {wanted}"
    return message, f"compute {wanted}{where} in the place of {found} at {scene.line(node)}"


def _reader(scene: Scene, node: torch.fx.Node) -> torch.fx.Node:
    """What takes a value first, where the spec runs the line that computes the value as well; else the value."""
    if not is_line_of_spec(scene, node):
        return node
    return next((later for later in scene.order if later in node.users and model_location_of(later) is not None), node)


def is_line_of_spec(scene: Scene, node: torch.fx.Node) -> bool:
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


def lines_of_steps(steps: Sequence[torch.fx.Node]) -> str:
    """Where the spec computes what is taken over, for hints."""
    places = [place for step in steps if (place := model_location_of(step)) is not None]
    lines = sorted({place.line for place in places if place.file == places[-1].file})
    if not lines:
        return ""
    return f" (line {lines[0]} of the spec)" if len(lines) == 1 else f" (lines {lines[0]} to {lines[-1]} of the spec)"
