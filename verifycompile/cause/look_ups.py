"""Moves of what masks and look-ups compare and count: where a rank's part begins, and whether its end belongs to it."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.move import Move, Scene, is_tensor, shape_of
from verifycompile.witness.interpreter import ancestors

aten = torch.ops.aten


def indices_of_part(scene: Scene) -> Iterator[Move]:
    """Each integer that an index is made of, with the beginning of the rank's part of the table taken off."""
    seen: set[tuple[torch.fx.Node, int, int]] = set()
    for node in scene.calls:
        found = _look_up(node)
        if found is None:
            continue
        index, length = found
        needed = ancestors([index])
        for value in scene.order:
            if value not in needed or not _is_integer(value):
                continue
            for axis in scene.axes:
                if (value, axis, length) not in seen:
                    seen.add((value, axis, length))
                    yield _counted_from_part(scene, value, axis, length)


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
        if node.target in _TURNED and all(map(_is_integer, node.all_input_nodes[:1])):
            yield _with_other_bound(scene, node)


def _with_other_bound(scene: Scene, node: torch.fx.Node) -> Move:
    def apply(draft: Draft) -> None:
        own = draft.node(node.name)
        target = _TURNED[own.target]  # pyright: ignore[reportArgumentType]
        draft.redirect(own, draft.insert(own, target, own.args))

    def texts(_: Draft) -> tuple[str, str]:
        found, wanted = (_SIGNS[str(target).split(".")[1]] for target in (node.target, _TURNED[node.target]))  # pyright: ignore[reportArgumentType]
        value = scene.value(node)
        taken = "takes the bound in" if found in ("<=", ">=") else "leaves the bound out"
        message = f"{value} {taken}, which belongs to {'another' if found in ('<=', '>=') else 'this'} part"
        return message, f"compare with `{wanted}` in the place of `{found}` in {value}"

    return Move(("bound",), node.name, "VC117", texts, apply)


def _look_up(node: torch.fx.Node) -> tuple[torch.fx.Node, int] | None:
    """The index of a look-up, and how many entries there are on a rank."""
    if node.target is aten.embedding.default:
        table, dim, index = node.args[0], 0, node.args[1]
    elif node.target in (aten.gather.default, aten.index_select.default):
        table, dim, index = node.args[:3]
    elif node.target is aten.index.Tensor and isinstance(node.args[1], (list, tuple)):
        given = [(dim, item) for dim, item in enumerate(node.args[1]) if item is not None]
        table, (dim, index) = node.args[0], given[0]
    else:
        return None
    if not isinstance(table, torch.fx.Node) or not isinstance(index, torch.fx.Node) or not isinstance(dim, int):
        return None
    length = shape_of(table)[dim] if is_tensor(table) else None
    return (index, length) if isinstance(length, int) and length > 1 else None


def _is_integer(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32)


def _counted_from_part(scene: Scene, node: torch.fx.Node, axis: int, length: int) -> Move:
    def apply(draft: Draft) -> None:
        own = draft.node(node.name)
        reader = next(later for later in own.graph.nodes if later in own.users)
        first = draft.number(reader, operator.mul, (draft.coordinate(axis), length))
        draft.redirect(own, draft.insert(reader, aten.sub.Tensor, (own, first), own.meta["val"], before=True))

    def texts(_: Draft) -> tuple[str, str]:
        over, value = scene.names((axis,)), scene.value(node)
        message = f"{value} counts from the beginning of the whole, where each rank of {over} holds {length} entries"
        return message, f"subtract the rank's coordinate on {over} times {length} from {value}"

    return Move(("counted from part", axis, length), node.name, "VC117", texts, apply)
