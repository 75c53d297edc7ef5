"""Moves that let each rank take its own part: slices, selections and positions that do not step with the rank."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.move import Move, Scene, fixed, is_floating, is_integer, is_tensor, shape_of
from verifycompile.cause.moves.whole_dimensions import gathered
from verifycompile.torch_interface.source_lines.value_names import is_backward

aten = torch.ops.aten

_POSITIONS = (aten.arange.default, aten.arange.start, aten.arange.start_step)
_SPLITS = (aten.split.Tensor, aten.chunk.default)
_SLICES: dict[object, int] = {aten.slice.Tensor: 1, aten.slice_backward.default: 2, aten.slice_scatter.default: 2}
_SELECTIONS: dict[object, int] = {aten.select.int: 1, aten.select_backward.default: 2, aten.select_scatter.default: 2}
"""What takes a part of a whole, and what puts one into it -> the place of the dimension among its arguments."""
_FINDING = (aten.argmax.default, aten.argmin.default, aten.max.dim, aten.min.dim, aten.topk.default)


def own_parts(scene: Scene) -> Iterator[Move]:
    """Each slice, selection and range of positions, begun where the rank's part begins."""
    for node in scene.calls:
        for axis in scene.axes:
            if node.target in _SLICES:
                yield from _slice(scene, node, axis)
            elif node.target in _SELECTIONS:
                yield from _select(scene, node, axis)
            elif node.target in _POSITIONS:
                yield from _positions(scene, node, axis)
            elif node.target is operator.getitem:
                yield from _piece(scene, node, axis)
            if node.target is aten.slice.Tensor:
                yield from _with_steps(scene, node, axis)


def missing_scatters(scene: Scene) -> Iterator[Move]:
    """Each slice that begins at one place on all ranks, of a value of which they have different ones, as the rank's own
    part of the sum; and each gradient that all ranks put at one place, as the parts of all ranks.
    """
    for node in scene.calls:
        if is_backward(node):
            yield from _gathered_gradient(scene, node)
        source, own_part = _taken_alike(node)
        if source is None or own_part is None or not is_floating(source):
            continue
        for axis in scene.differing(source):
            for move in own_part(scene, node, axis):
                yield _scattered(scene, node, source, axis, move)


def _taken_alike(node: torch.fx.Node) -> tuple[torch.fx.Node | None, Callable[..., Iterator[Move]] | None]:
    """The value of which a call takes the same part on all ranks, and the moves that take each rank's own."""
    source = node.args[0] if node.target in (aten.slice.Tensor, operator.getitem) else None
    if not isinstance(source, torch.fx.Node):
        return None, None
    if node.target is aten.slice.Tensor:
        return (source, _slice) if isinstance(dict(enumerate(node.args)).get(2, 0), int) else (None, None)
    whole = source.args[0] if source.target in _SPLITS else None
    return (whole, _piece) if isinstance(whole, torch.fx.Node) else (None, None)


def _gathered_gradient(scene: Scene, node: torch.fx.Node) -> Iterator[Move]:
    """The gradient of a part, with zeros for what is not taken of the whole."""
    zeros = (aten.zeros.default, aten.zeros_like.default, aten.full.default)
    if node.target is aten.slice_backward.default:
        part, dim = node.args[0], _integer(node.args[2])
    elif node.target is aten.cat.default:
        parts = [operand for operand in node.all_input_nodes if operand.target not in zeros]
        part, dim = parts[0] if len(parts) == 1 else None, _integer(dict(enumerate(node.args)).get(1, 0))
    else:
        return
    for axis in scene.axes if isinstance(part, torch.fx.Node) else ():
        if isinstance(part, torch.fx.Node) and _size(node, dim) == _size(part, dim) * scene.ranks((axis,)):
            yield _with_all_parts(scene, node, part, dim, axis)


def _with_all_parts(scene: Scene, node: torch.fx.Node, part: torch.fx.Node, dim: int, axis: int) -> Move:
    def apply(draft: Draft) -> None:
        own = draft.node(node.name)
        draft.redirect(own, gathered(draft, own, draft.node(part.name), dim, axis))

    over, value = scene.names((axis,)), scene.value(part)
    message = f"{value} is put at the same positions on every rank of {over}, with zeros for what other ranks have"
    hint = f"all-gather {value} over {over} along dimension {dim}"
    return Move(("scatter", axis), node.name, "VC104", fixed(message, hint), apply)


def _scattered(scene: Scene, node: torch.fx.Node, source: torch.fx.Node, axis: int, own_part: Move) -> Move:
    def apply(draft: Draft) -> None:
        own, whole = draft.node(node.name), draft.node(source.name)
        known = set(draft.added)
        own_part.apply(draft)
        taken = [own, *(later for later in whole.users if later in draft.added - known)]
        draft.redirect(whole, draft.all_reduce(whole, "sum", (axis,)), taken)

    def texts(_: Draft) -> tuple[str, str]:
        over, value = scene.names((axis,)), scene.value(source)
        message = f"{value} is a partial sum over {over}, of which every rank takes the same positions"
        if is_backward(node):
            return message, f"reduce-scatter the gradient that {scene.line(node)} computes over {over} (sum)"
        return message, f"reduce-scatter {value} over {over} (sum) at {scene.line(node)}"

    return Move(("scatter", axis), node.name, "VC101", texts, apply)


def own_part_of_operand(scene: Scene) -> Iterator[Move]:
    """Integers that are positions within the rank's part: each call's operand, with the part's beginning added."""
    for node in scene.calls:
        if not is_integer(node) or node.target in _POSITIONS or not node.meta["val"].dim():
            continue
        for axis in scene.axes:
            for dim in range(node.meta["val"].dim()):
                if _size(node, dim) > 1:
                    yield _shifted(scene, node, axis, dim)
    for node in scene.calls:
        found = _found_along(node)
        if found is not None:
            yield from (_shifted(scene, node, axis, found[1], found[0]) for axis in scene.differing(node))


def _found_along(node: torch.fx.Node) -> tuple[torch.fx.Node, int] | None:
    """The value and the dimension of it along which whole numbers are found as indices: those of the largest."""
    call = node.args[0] if node.target is operator.getitem and node.args[1] == 1 else node
    if not isinstance(call, torch.fx.Node) or call.target not in _FINDING or not is_integer(node):
        return None
    source, dim = call.args[0], dict(enumerate(call.args)).get(2 if call.target is aten.topk.default else 1, -1)
    rank = len(shape_of(source)) if isinstance(source, torch.fx.Node) else 0
    return (source, dim % rank) if isinstance(source, torch.fx.Node) and isinstance(dim, int) and rank else None


def _piece(scene: Scene, node: torch.fx.Node, axis: int) -> Iterator[Move]:
    """The piece of equal ones that the rank's coordinate counts."""
    pieces, index = node.args
    if not isinstance(pieces, torch.fx.Node) or pieces.target not in _SPLITS or not isinstance(index, int):
        return
    source, values = pieces.args[0], pieces.meta["val"]
    dim = _integer(dict(enumerate(pieces.args)).get(2, 0))
    alike = all(value.shape == values[0].shape for value in values)
    if not isinstance(source, torch.fx.Node) or not alike or index + scene.mesh.axes[axis].size > len(values):
        return

    def apply(draft: Draft) -> None:
        own, whole = draft.node(node.name), draft.node(source.name)
        length = _size(own, dim)
        place = draft.number(own, operator.add, (draft.coordinate(axis), index)) if index else draft.coordinate(axis)
        first = draft.number(own, operator.mul, (place, length))
        last = draft.number(own, operator.add, (first, length))
        draft.redirect(own, draft.insert(own, aten.slice.Tensor, (whole, dim, first, last), own.meta["val"]))

    over, value = scene.names((axis,)), scene.value(node)
    message = f"{value} takes piece {index} of {scene.value(source)} on every rank of {over}"
    hint = f"take the piece that the rank's coordinate on {over} counts" + (f", plus {index}" if index else "")
    yield Move(("own piece", axis), node.name, "VC104", lambda _: (message, hint), apply)


def _part_and_whole(node: torch.fx.Node) -> tuple[object, object]:
    """What is taken from a whole, or put into it, and the whole."""
    source = node.args[0]
    if node.target in (aten.slice.Tensor, aten.select.int):
        return node, source
    is_backward_of = node.target in (aten.slice_backward.default, aten.select_backward.default)
    return (source, node) if is_backward_of else (node.args[1], source)


def _copied(part: torch.fx.Node) -> torch.fx.Node:
    """What an assignment writes, in the place of the copy that it makes of it."""
    copied = part.args[1] if part.target is aten.copy.default else part
    return copied if isinstance(copied, torch.fx.Node) else part


def _slice(scene: Scene, node: torch.fx.Node, axis: int) -> Iterator[Move]:
    at = _SLICES[node.target]
    part, source = _part_and_whole(node)
    if not isinstance(source, torch.fx.Node) or not is_tensor(source) or not isinstance(part, torch.fx.Node):
        return
    given = dict(enumerate(node.args))
    dim, start = _integer(given.get(at, 0)), given.get(at + 1, 0)
    length, whole = shape_of(part)[dim], shape_of(source)[dim]
    ranks = scene.mesh.axes[axis].size
    begin = start if isinstance(start, int) else 0
    if given.get(at + 3, 1) != 1 or not isinstance(length, int) or not isinstance(whole, int) or length == 0:
        return
    if begin < 0 or begin + length * ranks > whole:
        return

    def apply(draft: Draft) -> None:
        own = draft.node(node.name)
        length = _size(_part_and_whole(own)[0], dim)
        coordinate = draft.coordinate(axis)
        own_start: Any = dict(enumerate(own.args)).get(at + 1, 0)
        base = own_start if isinstance(own_start, int) and draft.rank is None else 0
        first = draft.number(own, operator.mul, (coordinate, length))
        first = draft.number(own, operator.add, (first, base)) if base else first
        last = draft.number(own, operator.add, (first, length))
        step = (1,) if node.target is aten.slice_backward.default else ()
        draft.set_arguments(own, (*own.args[:at], dim, first, last, *step), {})

    def texts(_: Draft) -> tuple[str, str]:
        over = scene.names((axis,))
        message = f"{scene.value(node)} takes the same positions on every rank of {over}"
        if not isinstance(start, int):
            message = f"{scene.value(node)} begins at a wrong position on the ranks of {over}"
        if node.target is aten.slice_scatter.default:
            written = scene.value(_copied(part))
            message = f"{written} is written to the same positions on every rank of {over}"
            hint = f"write {written} from the rank's coordinate on {over} times its length on"
            return message, hint + (" plus where it is written now" if begin else "")
        hint = f"begin {scene.value(node)} at the rank's own part: at the rank's coordinate on {over} times its length"
        return message, hint + (" plus where it begins now" if begin else "")

    yield Move(("own slice", axis), node.name, "VC104", texts, apply)


def _with_steps(scene: Scene, node: torch.fx.Node, axis: int) -> Iterator[Move]:
    """Every so many-th position, where the rank's part is positions that lie next to each other."""
    source = node.args[0]
    dim, step = _integer(node.args[1] if len(node.args) > 1 else 0), node.args[4] if len(node.args) > 4 else 1
    if not isinstance(step, int) or step == 1 or not isinstance(source, torch.fx.Node) or _size(source, dim) % step:
        return

    def apply(draft: Draft) -> None:
        own, whole = draft.node(node.name), draft.node(source.name)
        length, users = _size(whole, dim) // step, list(own.users)
        first = draft.number(own, operator.mul, (draft.coordinate(axis), length))
        last = draft.number(own, operator.add, (first, length))
        value = whole.meta["val"].narrow(dim, 0, length)
        draft.redirect(own, draft.insert(own, aten.slice.Tensor, (whole, dim, first, last), value))
        draft.record_again(*users)

    def texts(draft: Draft) -> tuple[str, str]:
        over, length = scene.names((axis,)), _size(draft.node(source.name), dim) // step
        value, whole = scene.value(node), scene.value(source)
        message = (
            f"{value} takes positions of {whole} in steps of {step}, where each rank of {over} needs neighbouring ones"
        )
        return message, f"take {length} positions of {whole} from the rank's coordinate on {over} times {length} on"

    yield Move(("neighbours", axis), node.name, "VC104", texts, apply)


def _select(scene: Scene, node: torch.fx.Node, axis: int) -> Iterator[Move]:
    at = _SELECTIONS[node.target]
    _, source = _part_and_whole(node)
    if not isinstance(source, torch.fx.Node) or not is_tensor(source) or len(node.args) < at + 2:
        return
    dim, index = _integer(node.args[at]), node.args[at + 1]
    whole = shape_of(source)[dim]
    ranks = scene.mesh.axes[axis].size
    if not isinstance(index, int) or not isinstance(whole, int) or index < 0:
        return
    for divided in (False, True):
        stride = whole // ranks if divided else 1
        if stride == 0 or index + stride * (ranks - 1) >= whole:
            continue

        def apply(draft: Draft, divided: bool = divided) -> None:
            own = draft.node(node.name)
            stride = _size(_part_and_whole(own)[1], dim) // ranks if divided else 1
            first = draft.number(own, operator.mul, (draft.coordinate(axis), stride))
            place = draft.number(own, operator.add, (first, own.args[at + 1]))
            draft.set_arguments(own, (*own.args[: at + 1], place))

        def texts(draft: Draft, divided: bool = divided) -> tuple[str, str]:
            over = scene.names((axis,))
            stride = _size(_part_and_whole(draft.node(node.name))[1], dim) // ranks if divided else 1
            message = f"{scene.value(node)} takes the same entry on every rank of {over}"
            step = f"the rank's coordinate on {over}" + (f" times {stride}" if stride > 1 else "")
            return message, f"add {step} to the index"

        yield Move(("own entry", axis, divided), node.name, "VC104", texts, apply)


def _positions(scene: Scene, node: torch.fx.Node, axis: int) -> Iterator[Move]:
    if _size(node, 0):
        yield _shifted(scene, node, axis, 0)


def _shifted(scene: Scene, node: torch.fx.Node, axis: int, dim: int, of: torch.fx.Node | None = None) -> Move:
    """The positions within a rank's part, with the beginning of the part added: so many as there are along ``dim``.

    ``of``: the value in which they are positions; by default there are as many of them.
    """
    counted = (node if of is None else of).name

    def apply(draft: Draft) -> None:
        own = draft.node(node.name)
        first = draft.number(own.next, operator.mul, (draft.coordinate(axis), _size(draft.node(counted), dim)))
        place = first if isinstance(first, torch.fx.Node) else own
        draft.redirect(own, draft.insert(place, aten.add.Tensor, (own, first), own.meta["val"]))

    def texts(draft: Draft) -> tuple[str, str]:
        over, value, length = scene.names((axis,)), scene.value(node), _size(draft.node(counted), dim)
        message = f"{value} holds positions within a rank's part, the same on every rank of {over}"
        return message, f"add the rank's coordinate on {over} times {length} to {value}"

    return Move(("own positions", axis, dim), node.name, "VC117", texts, apply)


def _size(node: object, dim: int) -> int:
    return _integer(shape_of(node)[dim]) if isinstance(node, torch.fx.Node) else 0


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0
