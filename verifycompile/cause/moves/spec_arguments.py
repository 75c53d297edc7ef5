"""Moves that give a call the numbers and other arguments that the spec's calls of the same operator have."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.move import ARITHMETIC, Move, Scene, fixed, is_tensor, shape_of
from verifycompile.torch_interface.operators.evaluation import operator_name
from verifycompile.torch_interface.source_lines.model_lines import model_location_of
from verifycompile.torch_interface.source_lines.source import at_line, frames_of
from verifycompile.torch_interface.source_lines.value_names import is_backward

aten = torch.ops.aten

_MOST_TOLD = 4
"""Of the numbers of a line, so many are told."""
_SHAPING = (aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.expand.default)  # noqa: SLF001 - names of operators
_MEANS = (aten.mean.default, aten.mean.dim)
_DIVISIONS = (aten.div.Tensor, aten.div.Scalar)


def arguments_of_spec(scene: Scene) -> Iterator[Move]:
    """The numbers, dimensions and flags of a call, as the spec's calls of the same operator have them; a divisor as the
    number of entries of which the spec takes a mean.
    """
    spec: dict[object, dict[str, torch.fx.Node]] = {}
    means: list[torch.fx.Node] = []
    for node in scene.spec.graph.graph.nodes:
        if node.op == "call_function" and operator_name(node.target) is not None:
            spec.setdefault(node.target, {}).setdefault(repr(_constants(node)), node)
            means += [node] if node.target in _MEANS else []
    for node in scene.calls:
        own = _constants(node)
        if node.target in _SHAPING:
            continue  # another size does not fit
        for key, same in spec.get(node.target, {}).items():
            given = _constants(same)
            if key == repr(own) or set(given) != set(own):
                continue
            changed = [place for place, value in given.items() if repr(value) != repr(own[place])]
            if len(changed) == 1 and isinstance(changed[0], int):
                yield _as_spec(scene, node, changed[0], same, given[changed[0]])
        for same in means if node.target in _DIVISIONS and isinstance(own.get(1), (int, float)) else ():
            if _entries(same) != own[1]:
                yield _as_spec(scene, node, 1, same, _entries(same))


def shares_of_numbers(scene: Scene) -> Iterator[Move]:
    """Each whole number of a call that the spec's call of the same operator has too, divided by the number of ranks."""
    spec: dict[object, list[torch.fx.Node]] = {}
    for node in scene.spec.graph.graph.nodes:
        spec.setdefault(node.target, []).append(node)
    counts = dict.fromkeys(map(scene.ranks, scene.axis_sets))
    for node in scene.calls if scene.values else ():
        call = node.all_input_nodes[0] if node.target is operator.getitem else node
        if node.target is operator.getitem and node.args[1] != 0:
            continue
        numbers = [
            (place, value)
            for place, value in enumerate(call.args)
            if isinstance(value, int) and not isinstance(value, bool) and value > 1
        ]
        same_calls = spec.get(call.target, ()) if numbers else ()
        alike = [same for same in same_calls if _first_shape(same) != _first_shape(call)]
        for place, value in numbers:
            if any(same.args[place : place + 1] == (value,) for same in alike):
                yield from (_share(scene, call, place, count) for count in counts if value % count == 0)


def _first_shape(node: torch.fx.Node) -> tuple[object, ...]:
    return next((shape_of(operand) for operand in node.all_input_nodes if is_tensor(operand)), ())


def _share(scene: Scene, node: torch.fx.Node, place: int, count: int) -> Move:
    called = _argument(node, place)
    line = model_location_of(node)
    derivatives = () if line is None else scene.backward_of_lines.get(at_line(line), ())
    places = [(other, at) for other in derivatives for at in range(len(other.args)) if _argument(other, at) == called]

    def apply(draft: Draft) -> None:
        changed: list[torch.fx.Node] = []
        for other, at in [(node, place), *(places if called else ())]:
            own = draft.node(other.name)
            number: Any = own.args[at]
            draft.set_arguments(own, (*own.args[:at], number // count, *own.args[at + 1 :]))
            changed.append(own)
        draft.record_again(*changed)

    def texts(draft: Draft) -> tuple[str, str]:
        number: Any = draft.node(node.name).args[place]
        value = scene.value(node)
        message = f"{value} counts {number} on each of {count} ranks, of which each has {number // count}"
        return message, f"pass {number // count}, this rank's share of {number}, at {scene.line(node)}"

    return Move(("share", place, count), node.name, "VC114", texts, apply)


def _argument(node: torch.fx.Node, place: int) -> str:
    """What a whole number among the arguments of a call is called by its operator; "" where it has no name."""
    target = node.target
    arguments = target._schema.arguments if isinstance(target, OpOverload) else ()  # noqa: SLF001 - as torch names it
    return arguments[place].name if place < len(arguments) and isinstance(node.args[place], int) else ""


def numbers_of_lines(scene: Scene) -> Iterator[Move]:
    """The numbers of all calls that one line makes, as those of a line of the spec that calls the same operators: a
    learning rate is in several of them. Of the same line, as those of other turns: that of another layer.
    """
    spec: dict[object, list[torch.fx.Node]] = {}
    turns = _by_line(scene.spec.graph.graph.nodes)
    for calls in turns.values():
        spec.setdefault(tuple(node.target for node in calls), calls)
    for line, calls in _by_line(scene.draft.program.graph.graph.nodes).items():
        targets, of_spec = tuple(node.target for node in calls), turns.get(line, [])
        others = [of_spec[start : start + len(calls)] for start in range(1, len(of_spec) - len(calls) + 1)]
        same = [other for other in others if tuple(node.target for node in other) == targets]
        for other in [spec.get(targets, []), *same]:
            pairs = [pair for pair in zip(calls, other, strict=False) if _numbers(pair[0]) != _numbers(pair[1])]
            is_one = len(pairs) == 1 and other not in same  # which is tried elsewhere
            if pairs and not is_one and all(_numbers(node).keys() == _numbers(own).keys() for node, own in pairs):
                yield _with_numbers(scene, pairs)


def _by_line(nodes: Iterable[torch.fx.Node]) -> dict[object, list[torch.fx.Node]]:
    """The calls that each line makes, in order."""
    found: dict[object, list[torch.fx.Node]] = {}
    for node in nodes:
        frames = frames_of(node) if node.op == "call_function" else ()
        if frames:
            found.setdefault((frames[-1].file, frames[-1].line, is_backward(node)), []).append(node)
    return found


def _numbers(node: torch.fx.Node) -> dict[int | str, float]:
    """The numbers of arithmetic among the arguments of a call, and those of others that are no whole ones: sizes."""
    kinds = (int, float) if node.target in ARITHMETIC else (float,)
    found = _constants(node)
    return {place: number for place, number in found.items() if type(number) in kinds}


def _with_numbers(scene: Scene, pairs: list[tuple[torch.fx.Node, torch.fx.Node]]) -> Move:
    changed = {node.name: _numbers(other) for node, other in pairs}
    told = list(
        dict.fromkeys(
            (f"{own:.6g}", f"{_numbers(other)[place]:.6g}")
            for node, other in pairs
            for place, own in _numbers(node).items()
            if own != _numbers(other)[place]
        )
    )

    def apply(draft: Draft) -> None:
        for name, numbers in changed.items():
            own = draft.node(name)
            args = tuple(numbers.get(place, value) for place, value in enumerate(own.args))
            draft.set_arguments(own, args, {key: numbers.get(key, value) for key, value in own.kwargs.items()})

    first = pairs[0][0]
    found, wanted = (" and ".join(numbers) for numbers in zip(*told[:_MOST_TOLD], strict=True))
    line = scene.line(first)
    message = f"{line} computes with {found}, where the spec has {wanted}"
    hint = f"let {line} compute with {wanted} in the place of {found}, or with what these come from"
    return Move(("numbers", *told), first.name, "VC108", fixed(message, hint), apply)


def _entries(mean: torch.fx.Node) -> int:
    """Of how many entries each element of a result is the mean."""
    return mean.all_input_nodes[0].meta["val"].numel() // max(mean.meta["val"].numel(), 1)


def _as_spec(scene: Scene, node: torch.fx.Node, place: int, same: torch.fx.Node, value: object) -> Move:
    def wanted(draft: Draft) -> Any:
        """The spec's argument, at the sizes of the draft."""
        spec = draft.spec or scene.spec
        found = next(other for other in spec.graph.graph.nodes if other.name == same.name)
        return found.args[place] if found.target is node.target else _entries(found)

    def apply(draft: Draft) -> None:
        own = draft.node(node.name)
        draft.set_arguments(own, (*own.args[:place], wanted(draft), *own.args[place + 1 :]))

    def texts(draft: Draft) -> tuple[str, str]:
        found, given = draft.node(node.name).args[place], wanted(draft)
        message = f"{scene.value(node)} is computed with {found}, where the spec has {given}"
        return message, f"pass {given} in the place of {found} at {scene.line(node)}"

    return Move(("argument", place, repr(value)), node.name, "VC108", texts, apply)


def _constants(node: torch.fx.Node) -> dict[int | str, Any]:
    """The arguments of a call that are no tensors, by position or name."""
    places: dict[int | str, Any] = {**dict(enumerate(node.args)), **node.kwargs}
    return {place: value for place, value in places.items() if not _holds_nodes(value)}


def _holds_nodes(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_holds_nodes(item) for item in value)
    return isinstance(value, (torch.fx.Node, torch.SymInt, torch.device, torch.dtype))
