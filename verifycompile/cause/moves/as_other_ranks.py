"""Moves that let ranks run what others run at a line that they pass by, as where a condition asks for the rank."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch.fx

from verifycompile.cause.draft import Draft, DraftError
from verifycompile.cause.moves.move import Move, Scene, is_tensor, shape_of
from verifycompile.torch_interface.source_lines.model_lines import model_location_of

Nodes = Sequence[torch.fx.Node]
_SHOWN = 4
"""So many ranks are named."""


def lines_of_other_ranks(scene: Scene) -> Iterator[Move]:
    """Each line of which the graph of other ranks has calls, where this one has none, or others."""
    for index, other in enumerate(scene.draft.others):
        for block in _blocks(scene.draft, other):
            yield _taken_over(scene, index, block)


def _taken_over(scene: Scene, index: int, block: Nodes) -> Move:
    """``block``: calls of another graph that are made in this one as well."""
    first, pointed, count = block[0].name, block[-1], len(block)

    def apply(draft: Draft) -> None:
        other = draft.others[index]
        nodes = list(other.program.graph.graph.nodes)
        start = nodes.index(other.node(first))
        _insert(draft, other, nodes[start : start + count])

    texts = functools.partial(_texts, scene, pointed, index)
    anchor = next(node for node in scene.order if node.op == "call_function")
    return Move(("as other ranks", index, first), anchor.name, "VC108", texts, apply, pointed=pointed)


def _texts(scene: Scene, pointed: torch.fx.Node, index: int, _: Draft) -> tuple[str, str]:
    line = scene.line(pointed)
    own, others = _ranks(scene.draft), _ranks(scene.draft.others[index])
    needs = "needs" if len(scene.draft.ranks) == 1 else "need"
    message = f"{line} runs on {others} alone, and {own} {needs} what it computes as well"
    return message, f"let {own} run {line} too"


def _ranks(draft: Draft) -> str:
    shown = [str(rank) for rank in draft.ranks[:_SHOWN]]
    more = len(draft.ranks) - len(shown)
    listed = ", ".join(shown) + (f" and {more} more" if more else "")
    return f"rank {listed}" if len(draft.ranks) == 1 else f"ranks {listed}"


def _blocks(draft: Draft, other: Draft) -> Iterator[list[torch.fx.Node]]:
    """Neighbouring calls of one line of ``other`` that have no like in ``draft``."""
    known = set(_alike(draft, other))
    missing = [node for node in _calls(other) if node not in known]
    order = {node: place for place, node in enumerate(other.program.graph.graph.nodes)}
    positions = enumerate(missing)
    for _, group in itertools.groupby(positions, lambda item: (order[item[1]] - item[0], _line(item[1]))):
        block = [node for _, node in group]
        if _line(block[0]) is not None:
            yield block


def _alike(draft: Draft, other: Draft) -> dict[torch.fx.Node, torch.fx.Node]:
    """Nodes of ``other`` -> those of ``draft`` that are the same input, or make the same call at the same line."""
    own = {item.name: item.node for item in draft.program.inputs}
    found = {item.node: own[item.name] for item in other.program.inputs if item.name in own}
    first, second = _calls(other), _calls(draft)
    keys = [[(node.target, _line(node)) for node in calls] for calls in (first, second)]
    matcher = difflib.SequenceMatcher(None, *keys, autojunk=False)
    for start, its_start, length in matcher.get_matching_blocks():
        found.update(zip(first[start : start + length], second[its_start : its_start + length], strict=True))
    return found


def _calls(draft: Draft) -> list[torch.fx.Node]:
    return [node for node in draft.program.graph.graph.nodes if node.op == "call_function"]


def _line(node: torch.fx.Node) -> tuple[str, int] | None:
    place = model_location_of(node)
    return None if place is None else (place.file, place.line)


def _insert(draft: Draft, other: Draft, block: Nodes) -> None:
    """Makes the calls of ``block`` in ``draft``, and lets what comes behind take their results."""
    same: dict[torch.fx.Node, Any] = dict(_alike(draft, other))
    operands = [operand for node in block for operand in node.all_input_nodes if operand not in block]
    lacking = {*operands} - {*same}
    same.update({item.node: draft.add_input(item) for item in other.program.inputs if item.node in lacking})
    order = {node: place for place, node in enumerate(draft.program.graph.graph.nodes)}
    if not operands or any(operand not in same for operand in operands):
        raise DraftError("a value that the other ranks alone have")
    last = max((same[operand] for operand in operands), key=order.__getitem__)
    position = order[last]
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in block:
        arguments, named = torch.fx.map_arg((node.args, node.kwargs), lambda operand: {**same, **made}[operand])
        last = draft.insert(last, node.target, arguments, node.meta["val"])
        if named:
            draft.set_arguments(last, arguments, named)
        made[node] = last
    if not _read_alike(draft, other, same, made):
        _read_instead(draft, same, made, position)


def _read_alike(
    draft: Draft,
    other: Draft,
    same: Mapping[torch.fx.Node, torch.fx.Node],
    made: Mapping[torch.fx.Node, torch.fx.Node],
) -> bool:
    """Gives calls that both graphs make what the other's take, where that was made now; False where none takes it."""
    read = False
    for theirs in _calls(other):
        own = same.get(theirs)
        if own is None or made.keys().isdisjoint(theirs.all_input_nodes) or own.target is not theirs.target:
            continue
        pairs = dict(zip(_flat(own), _flat(theirs), strict=False))
        taken = {mine: made[its] for mine, its in pairs.items() if its in made}
        arguments = torch.fx.map_arg((own.args, own.kwargs), lambda operand: taken.get(operand, operand))  # noqa: B023
        draft.set_arguments(own, *arguments)
        read = True
    results = {output.name: made[output.node] for output in other.program.outputs if output.node in made}
    if results:
        draft.set_outputs(
            dataclasses.replace(item, node=results.get(item.name, item.node)) for item in draft.program.outputs
        )
    return read or bool(results)


def _read_instead(
    draft: Draft,
    same: Mapping[torch.fx.Node, torch.fx.Node],
    made: Mapping[torch.fx.Node, torch.fx.Node],
    position: int,
) -> None:
    """Lets the result stand for the operand of its shape, where other calls of the other ranks alone take it."""
    result = list(made.values())[-1]
    operands = [same[node] for node in dict.fromkeys(n for call in made for n in call.all_input_nodes) if node in same]
    alike = [node for node in operands if is_tensor(node) and shape_of(node) == shape_of(result)]
    if not alike:
        raise DraftError("nothing takes the result")
    (replaced, *_) = alike
    order = {node: place for place, node in enumerate(draft.program.graph.graph.nodes)}
    users = [user for user in replaced.users if order[user] > position and user not in made.values()]
    draft.redirect(replaced, result, users)


def _flat(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The operands of a call by their places, the same one as often as it stands there."""
    found: list[torch.fx.Node] = []
    torch.fx.map_arg((node.args, node.kwargs), lambda operand: found.append(operand) or operand)
    return found
