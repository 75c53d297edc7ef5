"""Moves that take other elements: a value is cut as another one is, holds neighbouring positions of its whole, or is
shifted or surrounded before it is cut.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx

from verifycompile.cause.draft import Draft, DraftError, called
from verifycompile.cause.moves.move import Move, Scene, fixed, is_tensor, shape_of
from verifycompile.cause.moves.whole_dimensions import gathered

aten = torch.ops.aten

_CUTS = frozenset(
    {
        aten.slice.Tensor, aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.cat.default,
        aten.constant_pad_nd.default, aten.flip.default, aten.roll.default, aten.slice_copy.Tensor,
    }
)  # fmt: skip
"""Operators that take, order or surround the positions of one dimension or more."""
_SHAPES = frozenset(
    {
        aten.view.default, aten.reshape.default, aten.clone.default, aten.permute.default,
        aten.transpose.int, aten.t.default, aten.unsqueeze.default, aten.squeeze.dim, aten.select.int,
        aten.alias.default,
    }
)  # fmt: skip
_FILLS = frozenset(
    {
        aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.full.default, aten.full_like.default,
        aten.new_full.default, aten.ones.default, aten.ones_like.default,
    }
)  # fmt: skip
"""Operators whose result holds one number, which may fill up an arrangement."""
MAX_STEPS = 40
"""So many calls may make up one arrangement."""
MAX_PAIRS = 400
_FROM_AN_END = 8
"""Positions are tried up to so many from either end."""


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """``result`` holds elements of ``source`` alone, chosen and ordered by ``steps``, in graph order."""

    source: torch.fx.Node
    steps: tuple[torch.fx.Node, ...]

    @property
    def result(self) -> torch.fx.Node:
        return self.steps[-1]

    @property
    def key(self) -> object:
        """Equal for arrangements that do the same to their sources."""
        position = {node: place for place, node in enumerate((self.source, *self.steps))}

        def shown(argument: Any) -> Any:
            if isinstance(argument, torch.fx.Node):
                return position.get(argument, argument.name)
            return [shown(item) for item in argument] if isinstance(argument, (list, tuple)) else argument

        return repr([(str(step.target), [shown(item) for item in step.args]) for step in self.steps])


def cut_as_others(scene: Scene) -> Iterator[Move]:
    """Each value that is an arrangement of another one, arranged as some other value is.

    Of two that do not fit together the one with fewer steps first: who made the other meant its order.
    """
    found = sorted(_arrangements(scene), key=lambda item: len(item.steps))
    kinds = {item.key: item for item in reversed(found)}
    pairs = 0
    for item in found:
        for other in kinds.values():
            if item.key == other.key or not _fits(item, other):
                continue
            pairs += 1
            if pairs > MAX_PAIRS:
                return
            own, whole, wanted = scene.value(item.result), scene.value(item.source), scene.value(other.result)
            message = f"{own} takes other positions of {whole} than {wanted} does of {scene.value(other.source)}"
            hint = f"cut {whole} at {scene.line(item.result)} as {wanted} is cut at {scene.line(other.result)}"
            change = _arranged_as(item.result.name, item.source.name, other.result.name, other.source.name)
            yield Move(("cut as", other.result.name), item.result.name, "VC104", fixed(message, hint), change)


def neighbouring_positions(scene: Scene) -> Iterator[Move]:
    """Each value that is an arrangement of another one, as neighbouring positions of it."""
    for item in _arrangements(scene):
        found = _cut_dimension(item)
        if found is None:
            continue
        dim, length, whole = found
        for distance in range(min(_FROM_AN_END, whole - length) + 1):
            for from_end in (False, True):
                yield _taken(scene, item, dim, distance, from_end)


def _taken(scene: Scene, item: Arrangement, dim: int, distance: int, from_end: bool) -> Move:
    name, source = item.result.name, item.source.name

    def bounds(draft: Draft) -> tuple[int, int]:
        length, whole = (int(shape_of(draft.node(node))[dim]) for node in (name, source))  # pyright: ignore[reportArgumentType]  # sizes are known where numbers are searched
        start = whole - length - distance if from_end else distance
        return start, start + length

    def apply(draft: Draft) -> None:
        own, first = draft.node(name), bounds(draft)[0]
        if first < 0:
            raise DraftError("positions that do not exist")
        arguments = (draft.node(source), dim, first, bounds(draft)[1])
        draft.redirect(own, draft.insert(own, aten.slice.Tensor, arguments))

    def texts(draft: Draft) -> tuple[str, str]:
        start, stop = bounds(draft)
        value, whole = scene.value(item.result), scene.value(item.source)
        wanted = f"position {start}" if stop - start == 1 else f"positions {start} to {stop - 1}"
        what = scene.line(item.result) if value == whole else value
        message = f"{what} takes other elements of {whole} than {wanted} of dimension {dim}"
        return message, f"take {wanted} of dimension {dim} of {whole} at {scene.line(item.result)}"

    return Move(("positions", dim, distance, from_end), name, "VC104", texts, apply)


def _arrangements(scene: Scene) -> list[Arrangement]:
    """All that cut something, in graph order."""
    sources: dict[torch.fx.Node, torch.fx.Node] = {}
    found: list[Arrangement] = []
    for node in scene.order:
        if node.op != "call_function" or node.target not in (*_CUTS, *_SHAPES, operator.getitem):
            continue
        whole = {sources.get(operand, operand) for operand in node.all_input_nodes if _holds_elements(operand)}
        whole = {operand for operand in whole if operand.target not in _FILLS}
        if len(whole) != 1:
            continue
        (source,) = whole
        if not is_tensor(source):
            continue
        sources[node] = source
        if not is_tensor(node):
            continue
        steps = _steps(node, source)
        if len(steps) <= MAX_STEPS and any(step.target in _CUTS for step in steps):
            found.append(Arrangement(source, steps))
    return found


def _holds_elements(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, (torch.Tensor, list, tuple))


def _steps(node: torch.fx.Node, source: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    """The calls between a source and its arrangement, in graph order."""
    seen: set[torch.fx.Node] = set()
    pending = [node]
    while pending and len(seen) <= MAX_STEPS:
        step = pending.pop()
        if step is not source and step not in seen and step.target not in _FILLS:
            seen.add(step)
            pending.extend(operand for operand in step.all_input_nodes if _holds_elements(operand))
    return tuple(step for step in node.graph.nodes if step in seen)


def _fits(item: Arrangement, other: Arrangement) -> bool:
    """Whether the other's steps make of this one's source what has this one's shape."""
    if shape_of(item.source) == shape_of(other.source):
        return shape_of(item.result) == shape_of(other.result)
    shapes = [shape_of(node) for node in (item.source, item.result, other.source, other.result)]
    if len({len(shape) for shape in shapes}) != 1 or not all(
        step.target in (*_CUTS, operator.getitem) for step in other.steps
    ):
        return False
    return all(
        (whole == its_whole and own == its) or (whole == own and its_whole == its)
        for whole, own, its_whole, its in zip(*shapes, strict=True)
    )


def arranged_before_cut(scene: Scene) -> Iterator[Move]:
    """Each value that shifts or surrounds a rank's part, made of the whole, of which the rank takes its part then."""
    for item in _arrangements(scene):
        if item.result.target not in _CUTS or any(user.target in _CUTS for user in item.result.users):
            continue  # what is made of it is cut as well
        for position, part in enumerate((item.source, *item.steps[:-1])):
            for dim, axis in _parted(scene, part, is_source=position == 0):
                yield _before_cut(scene, item, part, dim, axis)


def _parted(scene: Scene, part: torch.fx.Node, *, is_source: bool) -> Iterator[tuple[int, int]]:
    """The dimensions of which a value may hold the rank's part, and the mesh axis that cuts it."""
    if not is_tensor(part):
        return
    if is_source:
        for axis in scene.differing(part):
            yield from ((dim, axis) for dim in range(part.meta["val"].dim()))
    elif part.target is aten.slice.Tensor and any(isinstance(item, torch.fx.Node) for item in part.args[2:4]):
        yield from ((_number(part.args[1]), axis) for axis in scene.differing(part))


def _before_cut(scene: Scene, item: Arrangement, part: torch.fx.Node, dim: int, axis: int) -> Move:
    name, part_name = item.result.name, part.name

    def apply(draft: Draft) -> None:
        own, held = draft.node(name), draft.node(part_name)
        steps = _steps(own, held)
        whole = held.args[0] if held.target is aten.slice.Tensor and held is not draft.node(item.source.name) else None
        if not isinstance(whole, torch.fx.Node):
            whole = gathered(draft, steps[0], held, dim, axis)
        local, total = shape_of(held)[dim], whole.meta["val"].shape[dim]
        if not isinstance(local, int) or not isinstance(total, int):
            raise DraftError("a dimension of unknown size")
        copies: dict[torch.fx.Node, torch.fx.Node] = {held: whole}
        for step in steps:
            arguments: Any = torch.fx.map_arg(step.args, lambda operand: copies.get(operand, operand))
            if step.target is aten.slice.Tensor and len(arguments) > 3 and _number(arguments[1]) == dim:
                # An end near the end of the part is counted from there.
                stop = arguments[3]
                near_end = isinstance(stop, int) and local // 2 < stop <= local
                arguments = (*arguments[:3], stop + total - local if near_end else stop, *arguments[4:])
            copies[step] = draft.insert(own, step.target, arguments, before=True)
            copies[step].meta["val"] = called(copies[step])
        result, length = copies[own], shape_of(own)[dim]
        coordinate = draft.coordinate(axis)
        start = draft.number(own, operator.mul, (coordinate, local))
        stop = draft.number(own, operator.add, (start, length))
        draft.redirect(own, draft.insert(own, aten.slice.Tensor, (result, dim, start, stop), before=False))

    over = scene.names((axis,))
    value, cut = scene.value(item.result), scene.value(part)
    message = f"{value} is made of {cut}, the part of each rank of {over}: what crosses the border of two parts is lost"
    hint = f"make {value} of the whole, along dimension {dim}, and let each rank of {over} take its part then"
    return Move(("before cut", part.name, dim, axis), item.result.name, "VC104", fixed(message, hint), apply)


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise DraftError("a dimension that is no number")
    return value


def _cut_dimension(item: Arrangement) -> tuple[int, int, int] | None:
    """The only dimension of which the result has fewer positions than the source: which, how many, of how many."""
    own, whole = shape_of(item.result), shape_of(item.source)
    differing = [dim for dim in range(len(own)) if len(own) == len(whole) and own[dim] != whole[dim]]
    if len(differing) != 1:
        return None
    (dim,) = differing
    length, size = own[dim], whole[dim]
    return (dim, length, size) if isinstance(length, int) and isinstance(size, int) and 0 < length < size else None


def _arranged_as(name: str, source: str, other: str, other_source: str) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        own, whole, pattern = draft.node(name), draft.node(source), draft.node(other_source)
        copies: dict[torch.fx.Node, torch.fx.Node] = {pattern: whole}
        place = {node: position for position, node in enumerate(own.graph.nodes)}

        def copied(argument: torch.fx.Node) -> Any:
            if argument not in copies and place[argument] > place[own]:
                copies[argument] = _again(draft, own, argument, copied)
            return copies.get(argument, argument)

        for step in _steps(draft.node(other), pattern):
            value = _resized(step.meta["val"], shape_of(pattern), whole.meta["val"])
            arguments = torch.fx.map_arg(step.args, copied)
            copies[step] = draft.insert(own, step.target, arguments, value, before=True)
        draft.redirect(own, copies[draft.node(other)])

    return apply


def _again(draft: Draft, place: torch.fx.Node, number: torch.fx.Node, copied: Callable[[torch.fx.Node], Any]) -> Any:
    """A number that is computed behind ``place``, computed in front of it."""
    if number.op != "call_function" or is_tensor(number):
        raise DraftError("a position that is not known where it is needed")
    return draft.insert(place, number.target, torch.fx.map_arg(number.args, copied), number.meta["val"], before=True)


def _resized(value: Any, before: tuple[object, ...], whole: torch.Tensor) -> Any:
    """What torch would record of a step on ``whole``, given what it recorded on a source of the shape ``before``."""
    if isinstance(value, (list, tuple)):
        return type(value)(_resized(item, before, whole) for item in value)
    shape = tuple(whole.shape)
    if shape != before:
        shape = [own if own != old else found for own, old, found in zip(shape, before, value.shape, strict=True)]
        return whole.new_empty(shape)
    return whole.new_empty(tuple(value.shape))
