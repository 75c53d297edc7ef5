"""Moves of numbers that are computed of the rank: other coordinates or multiples of them, or the same on all ranks."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch.fx

from verifycompile.cause.draft import Draft, DraftError, symbol_of
from verifycompile.cause.moves.move import Move, Scene, fixed, is_tensor, shape_of
from verifycompile.torch_interface.operators.evaluation import symbolic_expression

Numbers = list[int]
_SHOWN = 8
"""Numbers of so many ranks are listed."""

_STEPS = ("one", "inner", "range")
"""By how much the number may grow from one rank of an axis to the next: see ``_times``."""


def other_numbers(scene: Scene) -> Iterator[Move]:
    """Each number of the rank that calls take, as another multiple of a coordinate above the least of its values."""
    shape = scene.mesh.shape
    for node in scene.order if scene.draft.rank is None else ():
        found = None if is_tensor(node) or not any(map(is_tensor, node.users)) else _by_rank(scene.draft, node)
        if found is None or min(found) == max(found):
            continue
        yield from (_alike(scene, node, number) for number in dict.fromkeys((min(found), *_of_spec(scene, node))))
        seen = [found]
        for axis, step in itertools.product(scene.axes, _STEPS):
            wanted = _multiples(found, shape, axis, step)
            if wanted not in seen:
                seen.append(wanted)
                yield _changed(scene, node, axis, step)


def shifted_numbers(scene: Scene) -> Iterator[Move]:
    """The numbers of the rank that a call takes, all of them one or one part less or more, begun at zero, or alike."""
    for call in scene.calls if scene.draft.rank is None else ():
        numbers = _of_ranks(scene.draft, call)
        least = min(map(min, numbers.values()), default=0)
        for distance in dict.fromkeys((-1, 1, -least, *_lengths(call))) if numbers else ():
            if distance and least + distance >= 0:
                yield _shifted(scene, call, distance)
        if numbers:
            yield _of_first_rank(scene, call)


def _lengths(call: torch.fx.Node) -> tuple[int, ...]:
    """The length of the part that a call takes, or of the positions that it computes, less and more."""
    sizes, dim = shape_of(call), call.args[1] if call.target is torch.ops.aten.slice.Tensor else len(shape_of(call)) - 1
    length = sizes[dim] if isinstance(dim, int) and sizes else None
    return (-length, length) if isinstance(length, int) else ()


def _of_ranks(draft: Draft, call: torch.fx.Node) -> dict[torch.fx.Node, Numbers]:
    """The numbers that a call takes and that differ from rank to rank."""
    found = {operand: _by_rank(draft, operand) for operand in call.all_input_nodes if not is_tensor(operand)}
    return {operand: numbers for operand, numbers in found.items() if numbers and min(numbers) != max(numbers)}


def _shifted(scene: Scene, call: torch.fx.Node, distance: int) -> Move:
    def apply(draft: Draft) -> None:
        own = draft.node(call.name)
        numbers = {number: draft.number(own, operator.add, (number, distance)) for number in _of_ranks(draft, own)}
        draft.set_arguments(own, *torch.fx.map_arg((own.args, own.kwargs), lambda item: numbers.get(item, item)))

    def texts(draft: Draft) -> tuple[str, str]:
        found = next(iter(_of_ranks(draft, draft.node(call.name)).values()))
        line, wanted = scene.line(call), _listed([number + distance for number in found])
        message = f"{scene.value(call)} computes with {_listed(found)} on the ranks, where {wanted} is needed"
        return message, f"let {line} take {wanted} on the ranks: {abs(distance)} {'less' if distance < 0 else 'more'}"

    return Move(("number", "shifted", distance), call.name, "VC117", texts, apply)


def _of_first_rank(scene: Scene, call: torch.fx.Node) -> Move:
    def apply(draft: Draft) -> None:
        own = draft.node(call.name)
        least = {number: min(found) for number, found in _of_ranks(draft, own).items()}
        draft.set_arguments(own, *torch.fx.map_arg((own.args, own.kwargs), lambda item: least.get(item, item)))

    def texts(draft: Draft) -> tuple[str, str]:
        found = next(iter(_of_ranks(draft, draft.node(call.name)).values()))
        message = f"{scene.value(call)} computes with {_listed(found)} on the ranks, where all need the same number"
        return message, f"let {scene.line(call)} take {min(found)} on all ranks"

    return Move(("number", "alike"), call.name, "VC117", texts, apply)


def other_coordinates(scene: Scene) -> Iterator[Move]:
    """Each coordinate of the rank on a mesh axis, as that on another axis."""
    draft = scene.draft
    for node in scene.order if draft.rank is None and len(scene.axes) > 1 else ():
        symbol = symbol_of(node)
        axis = None if symbol is None else draft.program.coordinates.get(symbol)
        if axis is not None and node.op == "call_function":
            yield from (_on_other_axis(scene, node, axis, other) for other in scene.axes if other != axis)


def _on_other_axis(scene: Scene, node: torch.fx.Node, axis: int, other: int) -> Move:
    def apply(draft: Draft) -> None:
        now: dict[torch.fx.Node, Any] = {draft.node(node.name): draft.coordinate(other)}
        for later in list(draft.program.graph.graph.nodes):
            if now.keys().isdisjoint(later.all_input_nodes):
                continue
            args, kwargs = torch.fx.map_arg((later.args, later.kwargs), lambda item: now.get(item, item))
            if is_tensor(later):
                draft.set_arguments(later, args, kwargs)
            else:  # numbers are recorded as what they are of the coordinates
                now[later] = draft.number(later, later.target, args)

    found, wanted = scene.names((axis,)), scene.names((other,))
    message = f"a rank's part is counted by its coordinate on {found}, where the parts lie along {wanted}"
    hint = f"compute with the rank's coordinate on {wanted} in the place of that on {found}"
    return Move(("coordinate", axis, other), node.name, "VC105", fixed(message, hint), apply)


def _of_spec(scene: Scene, number: torch.fx.Node) -> Iterator[int]:
    """The numbers that calls of the spec take where calls of the same operators take ``number``."""
    places = {(user.target, user.args.index(number)) for user in number.users if number in user.args}
    for node in scene.spec.graph.graph.nodes:
        for place, value in enumerate(node.args):
            if (node.target, place) in places and isinstance(value, int):
                yield value


def _alike(scene: Scene, node: torch.fx.Node, number: int) -> Move:
    """The same number on all ranks."""
    user = next(user for user in node.users if is_tensor(user))

    def apply(draft: Draft) -> None:
        own = draft.node(node.name)
        for later in list(own.users):
            taken = torch.fx.map_arg((later.args, later.kwargs), lambda item: number if item is own else item)
            draft.set_arguments(later, *taken)

    def texts(draft: Draft) -> tuple[str, str]:
        found = _listed(_by_rank(draft, draft.node(node.name)) or [])
        message = f"{scene.value(user)} computes with {found} on the ranks, where all need the same number"
        return message, f"let {scene.line(user)} take {number} on all ranks"

    return Move(("number", number), user.name, "VC117", texts, apply)


def _changed(scene: Scene, node: torch.fx.Node, axis: int, step: str) -> Move:
    shape, user = scene.mesh.shape, next(user for user in node.users if is_tensor(user))

    def now(draft: Draft) -> Numbers:
        found = _by_rank(draft, draft.node(node.name))
        if found is None:
            raise DraftError("no number of the rank")
        return found

    def apply(draft: Draft) -> None:
        own, found = draft.node(node.name), now(draft)
        first = draft.number(own, operator.mul, (draft.coordinate(axis), _times(found, shape, axis, step)))
        number: Any = draft.number(own, operator.add, (first, min(found))) if min(found) else first
        for later in list(own.users):
            taken = torch.fx.map_arg((later.args, later.kwargs), lambda item: number if item is own else item)
            draft.set_arguments(later, *taken)

    def texts(draft: Draft) -> tuple[str, str]:
        found, line = now(draft), scene.line(user)
        wanted, times = _multiples(found, shape, axis, step), _times(found, shape, axis, step)
        message = f"{scene.value(user)} computes with {_listed(found)} on the ranks, where {_listed(wanted)} is needed"
        plus = f", plus {min(found)}" if min(found) else ""
        over = f"the rank's coordinate on {scene.names((axis,))} times {times}{plus}"
        return message, f"let {line} take {_listed(wanted)} on the ranks: {over}"

    return Move(("number", axis, step), user.name, "VC117", texts, apply)


def _multiples(found: Numbers, shape: tuple[int, ...], axis: int, step: str) -> Numbers:
    times = _times(found, shape, axis, step)
    return [place[axis] * times + min(found) for place in _places(shape)]


def _times(found: Numbers, shape: tuple[int, ...], axis: int, step: str) -> int:
    if step == "range":
        return (max(found) - min(found)) // (shape[axis] - 1)
    return math.prod(shape[axis + 1 :]) if step == "inner" else 1


def _places(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, shape))


def _by_rank(draft: Draft, node: torch.fx.Node) -> Numbers | None:
    """A number on each rank, where it depends on the coordinates alone."""
    expression = symbolic_expression(node.meta.get("val"))
    mesh, axes = draft.program.mesh, draft.program.coordinates
    if not isinstance(expression, sympy.Expr) or mesh is None or not expression.free_symbols:
        return None
    if not axes.keys() >= expression.free_symbols:
        return None
    places = _places(mesh.shape)
    found = [expression.subs({symbol: place[axis] for symbol, axis in axes.items()}) for place in places]
    return [int(value) for value in found] if all(value.is_Integer for value in found) else None


def _listed(numbers: Numbers) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    return f"{shown}, ..." if len(numbers) > _SHOWN else shown
