"""Moves of what masks and look-ups compare and count: where a rank's part begins, and whether its end belongs to it."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Collection, Iterator
from typing import Any

import torch
import torch.fx
from torch.distributed.tensor.placement_types import Shard

from verifycompile.cause.draft import Draft, DraftError
from verifycompile.cause.moves.move import Move, Scene, is_integer, is_tensor, shape_of
from verifycompile.witness.interpreter import ancestors

aten = torch.ops.aten

_POSITIONS = (aten.arange.default, aten.arange.start, aten.arange.start_step)


def indices_of_part(scene: Scene) -> Iterator[Move]:
    """Each integer that an index is made of, with the beginning of the rank's part of the table taken off."""
    seen: set[tuple[torch.fx.Node, int, int]] = set()
    for look_up in _look_ups(scene):
        for value in _counted(scene, look_up):
            for axis in scene.axes:
                if (value, axis, look_up.length) not in seen:
                    seen.add((value, axis, look_up.length))
                    yield _counted_from_part(scene, value, axis, look_up)
                    yield _counted_from_part(scene, value, axis, look_up, ancestors([look_up.index]))


def foreign_rows(scene: Scene) -> Iterator[Move]:
    """Each look-up whose index is brought into the rank's part, with zeros for what another rank holds."""
    for look_up in _look_ups(scene):
        for value in _counted(scene, look_up):
            if value.meta["val"].numel() == look_up.index.meta["val"].numel():
                yield _foreign_as_zeros(scene, look_up, value, None)
                for axis in scene.axes:
                    yield _foreign_as_zeros(scene, look_up, value, axis)


_TURNED = {
    aten.lt.Scalar: aten.le.Scalar, aten.le.Scalar: aten.lt.Scalar,
    aten.gt.Scalar: aten.ge.Scalar, aten.ge.Scalar: aten.gt.Scalar,
    aten.lt.Tensor: aten.le.Tensor, aten.le.Tensor: aten.lt.Tensor,
    aten.gt.Tensor: aten.ge.Tensor, aten.ge.Tensor: aten.gt.Tensor,
}  # fmt: skip
_SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def other_bounds(scene: Scene) -> Iterator[Move]:
    """Each order of whole numbers with its bound left out, or taken in."""
    for node in scene.calls:
        if node.target in _TURNED and all(map(is_integer, node.all_input_nodes[:1])):
            yield _with_other_bound(scene, node)


def _with_other_bound(scene: Scene, node: torch.fx.Node) -> Move:
    def apply(draft: Draft) -> None:
        own = draft.node(node.name)
        target = _TURNED[own.target]  # pyright: ignore[reportArgumentType]  # the target is an operator
        draft.redirect(own, draft.insert(own, target, own.args))

    def texts(_: Draft) -> tuple[str, str]:
        found, wanted = (_SIGNS[str(target).split(".")[1]] for target in (node.target, _TURNED[node.target]))  # pyright: ignore[reportArgumentType]  # the target is an operator
        value = scene.value(node)
        taken = "takes the bound in" if found in ("<=", ">=") else "leaves the bound out"
        message = f"{value} {taken}, which belongs to {'another' if found in ('<=', '>=') else 'this'} part"
        return message, f"compare with `{wanted}` in the place of `{found}` in {value}"

    return Move(("bound",), node.name, "VC117", texts, apply)


def wrapped_positions(scene: Scene) -> Iterator[Move]:
    """Each remainder of positions by the length of a part, as the positions counted from the rank's own part on."""
    for node in scene.calls:
        length = node.args[1] if node.target is aten.remainder.Scalar and is_integer(node) else None
        if isinstance(length, int):
            yield from (_from_own_part(scene, node, axis) for axis in scene.axes)


def _from_own_part(scene: Scene, node: torch.fx.Node, axis: int) -> Move:
    def apply(draft: Draft) -> None:
        own = draft.node(node.name)
        first = draft.number(own, operator.mul, (draft.coordinate(axis), own.args[1]))
        draft.redirect(own, draft.insert(own, aten.sub.Tensor, (own.args[0], first)))

    def texts(draft: Draft) -> tuple[str, str]:
        over, value, length = scene.names((axis,)), scene.value(node), draft.node(node.name).args[1]
        message = f"{value} is a position in a part of {length} entries, which every rank of {over} takes for its own"
        return message, f"subtract the rank's coordinate on {over} times {length} in the place of the remainder"

    return Move(("wrapped", axis), node.name, "VC117", texts, apply)


def ends_of_parts(scene: Scene) -> Iterator[Move]:
    """Each order of positions within a rank's part, as one of positions in the whole with its bound near its end."""
    for node in scene.calls:
        first, bound = node.args[:2] if node.target in _TURNED else (None, None)
        if isinstance(first, torch.fx.Node) and first.target in _POSITIONS and isinstance(bound, int):
            yield from (_at_end_of_whole(scene, node, axis) for axis in scene.axes)


def _at_end_of_whole(scene: Scene, node: torch.fx.Node, axis: int) -> Move:
    ranks = scene.ranks((axis,))

    def bounds(draft: Draft) -> tuple[int, int, int]:
        """How many positions a part has, the bound, and the bound that is as far from the end of the whole."""
        own = draft.node(node.name)
        length, bound = own.all_input_nodes[0].meta["val"].numel(), int(own.args[1])  # pyright: ignore[reportArgumentType]  # a number, see the caller
        return length, bound, bound + (ranks - 1) * length

    def apply(draft: Draft) -> None:
        own, (length, _, last) = draft.node(node.name), bounds(draft)
        first = draft.number(own, operator.mul, (draft.coordinate(axis), length))
        positions = own.all_input_nodes[0]
        moved = draft.insert(own, aten.add.Tensor, (positions, first), positions.meta["val"], before=True)
        draft.set_arguments(own, (moved, last))

    def texts(draft: Draft) -> tuple[str, str]:
        over, value, (length, found, wanted) = scene.names((axis,)), scene.value(node), bounds(draft)
        message = f"{value} takes the end of each rank's part for the end of the whole"
        where = f"the rank's coordinate on {over} times {length}"
        return message, f"count from {where} on in {value}, and compare with {wanted} in the place of {found}"

    return Move(("end of whole", axis), node.name, "VC117", texts, apply)


def numbers_of_part(scene: Scene) -> Iterator[Move]:
    """Each whole number that indices are compared with, counted from the beginning of the rank's part: an expert's."""
    for node in scene.calls:
        if node.target not in (aten.eq.Scalar, aten.ne.Scalar) or not all(map(is_integer, node.all_input_nodes[:1])):
            continue
        number = node.args[1]
        if not isinstance(number, int):
            continue
        for item in scene.draft.program.inputs:
            for axis, placement in enumerate(item.placements or ()):
                if type(placement) is not Shard or axis not in scene.axes or not is_tensor(item.node):
                    continue
                if 0 <= number < _entries(item.node, placement.dim):
                    yield _own_number(scene, node, axis, item.node.name, placement.dim)


def _entries(node: torch.fx.Node, dim: int) -> int:
    size = shape_of(node)[dim]
    return size if isinstance(size, int) else 0


def _own_number(scene: Scene, node: torch.fx.Node, axis: int, part: str, dim: int) -> Move:
    def apply(draft: Draft) -> None:
        own, count = draft.node(node.name), _entries(draft.node(part), dim)
        first = draft.number(own, operator.mul, (draft.coordinate(axis), count))
        draft.set_arguments(own, (own.args[0], draft.number(own, operator.add, (first, own.args[1]))))

    def texts(draft: Draft) -> tuple[str, str]:
        over, value, count = scene.names((axis,)), scene.value(node), _entries(draft.node(part), dim)
        message = f"{value} compares with the same numbers on every rank of {over}, of which each has {count} entries"
        return message, f"compare in {value} with the rank's coordinate on {over} times {count} plus the number"

    return Move(("own number", axis, part, dim), node.name, "VC117", texts, apply)


@dataclasses.dataclass(frozen=True)
class _LookUp:
    """``node`` picks entries of a table by ``index``, or adds to the gradient of the table.

    ``length``: how many entries a rank has. ``entries``: what was picked, or the gradient of it, and ``behind``: its
    dimensions behind those of the index.
    """

    node: torch.fx.Node
    index: torch.fx.Node
    length: int
    entries: torch.fx.Node
    behind: int


def _length(draft: Draft, look_up: _LookUp) -> int:
    """How many entries a rank has, at the sizes of the draft."""
    found = _look_up(draft.node(look_up.node.name))
    if found is None:
        raise DraftError("no look-up")
    return found.length


def _look_ups(scene: Scene) -> list[_LookUp]:
    return [found for node in scene.calls if (found := _look_up(node)) is not None]


def _look_up(node: torch.fx.Node) -> _LookUp | None:
    args, target = node.args, node.target
    if target is aten.embedding_dense_backward.default:
        return _of_table(node, args[1], args[2], args[0], 1)
    if target is aten.embedding.default:
        return _of_dimension(node, args[0], 0, args[1], node)
    if target in (aten.index_select.default, aten.gather.default):
        return _of_dimension(node, args[0], args[1], args[2], node)
    if target is aten.scatter_add.default:
        return _of_dimension(node, args[0], args[1], args[2], args[3])
    if target in (aten.index.Tensor, aten.index_put.default) and isinstance(args[1], (list, tuple)):
        dim, index = next((dim, item) for dim, item in enumerate(args[1]) if item is not None)
        return _of_dimension(node, args[0], dim, index, node if target is aten.index.Tensor else args[2])
    return None


_OF_EACH_ELEMENT = (aten.gather.default, aten.scatter_add.default)
"""The index has all dimensions of the entries."""


def _of_dimension(node: torch.fx.Node, table: object, dim: object, index: object, entries: object) -> _LookUp | None:
    """What picks entries of one dimension of ``table``."""
    if not isinstance(table, torch.fx.Node) or not isinstance(dim, int) or not is_tensor(table) or not shape_of(table):
        return None
    shape = shape_of(table)
    dim %= len(shape)
    return _of_table(node, index, shape[dim], entries, 0 if node.target in _OF_EACH_ELEMENT else len(shape) - dim - 1)


def _of_table(node: torch.fx.Node, index: object, length: object, entries: object, behind: int) -> _LookUp | None:
    if not isinstance(index, torch.fx.Node) or not isinstance(entries, torch.fx.Node) or not is_tensor(entries):
        return None
    return _LookUp(node, index, length, entries, behind) if isinstance(length, int) and length > 1 else None


def _counted(scene: Scene, look_up: _LookUp) -> list[torch.fx.Node]:
    """The integers that an index is made of, in graph order."""
    needed = ancestors([look_up.index])
    return [value for value in scene.order if value in needed and is_integer(value)]


def _counted_from_part(
    scene: Scene, node: torch.fx.Node, axis: int, look_up: _LookUp, way: Collection[torch.fx.Node] | None = None
) -> Move:
    """``way``: what alone takes the changed integers, where masks compare those that count from the whole."""
    readers = [later for later in scene.order if later in node.users and (way is None or later in way)]
    readers = [later for later in readers if way is None or is_integer(later)]
    names = {later.name for later in readers}

    def apply(draft: Draft) -> None:
        own = draft.node(node.name)
        users = [later for later in own.graph.nodes if later in own.users and later.name in names]
        first = draft.number(users[0], operator.mul, (draft.coordinate(axis), _length(draft, look_up)))
        counted = draft.insert(users[0], aten.sub.Tensor, (own, first), own.meta["val"], before=True)
        draft.redirect(own, counted, None if way is None else users)

    def texts(draft: Draft) -> tuple[str, str]:
        over, value, length = scene.names((axis,)), scene.value(node), _length(draft, look_up)
        message = f"{value} counts from the beginning of the whole, where each rank of {over} holds {length} entries"
        where = "" if way is None else ", where it is made an index"
        return message, f"subtract the rank's coordinate on {over} times {length} from {value}{where}"

    place = node if way is None or not readers else readers[0]
    return Move(("counted from part", axis, look_up.length, way is None), place.name, "VC117", texts, apply)


def _foreign_as_zeros(scene: Scene, look_up: _LookUp, value: torch.fx.Node, axis: int | None) -> Move:
    """``axis``: that over which the table is cut, where ``value`` counts from the beginning of the whole."""
    node = look_up.node

    def apply(draft: Draft) -> None:
        own, index, length = draft.node(node.name), draft.node(value.name), _length(draft, look_up)
        first: Any = 0 if axis is None else draft.number(own, operator.mul, (draft.coordinate(axis), length))
        last: Any = draft.number(own, operator.add, (first, length))
        shape = (*shape_of(draft.node(look_up.index.name)), *(1 for _ in range(look_up.behind)))
        flags = index.meta["val"].new_empty(shape_of(index), dtype=torch.bool)
        entries = draft.node(look_up.entries.name)
        before = draft.insert(own, aten.lt.Scalar, (index, first), flags, before=True)
        after = draft.insert(own, aten.ge.Scalar, (index, last), flags, before=True)
        either = draft.insert(own, aten.bitwise_or.Tensor, (before, after), flags, before=True)
        foreign = draft.insert(own, aten.view.default, (either, list(shape)), flags.view(shape), before=True)
        is_result = entries is own
        arguments = (entries, foreign, 0)
        kept = draft.insert(own, aten.masked_fill.Scalar, arguments, entries.meta["val"], before=not is_result)
        draft.redirect(entries, kept, None if is_result else [own])

    def texts(draft: Draft) -> tuple[str, str]:
        found, counted, length = scene.value(look_up.entries), scene.value(value), _length(draft, look_up)
        over = "" if axis is None else f" from the rank's coordinate on {scene.names((axis,))} times {length} on"
        message = f"{found} is some row of this rank where another rank holds the entry; the sum then has both"
        return message, f"set {found} to 0 where {counted} is none of the rank's {length} entries{over}"

    return Move(("foreign as zeros", value.name, axis), node.name, "VC117", texts, apply)
