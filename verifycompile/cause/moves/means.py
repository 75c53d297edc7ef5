"""Moves that let a mean divide by the number of items that count: on all ranks, and of those that a mask keeps."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator

import torch
import torch.fx

from verifycompile.cause.draft import Draft, DraftError
from verifycompile.cause.moves.move import Move, Scene, fixed, is_derivative, is_floating, is_tensor, shape_of
from verifycompile.program import Role
from verifycompile.rewrites.operators.loss import SUM
from verifycompile.rewrites.operators.pointwise_losses import ignored_by_mean
from verifycompile.torch_interface.source_lines.value_names import is_backward

aten = torch.ops.aten

_DIVISIONS = (aten.div.Tensor, aten.div.Scalar)
_REDUCTION = 3
"""The position of the argument ``reduction``."""


def means_of_all(scene: Scene) -> Iterator[Move]:
    """Each mean over targets that are counted: the rank's sum, divided by the mean number of targets on the ranks; and
    each other division by a number of the rank's own.
    """
    for node in scene.order:
        if ignored_by_mean(node.target, node.args) is not None:
            for axes in scene.axis_sets:
                for is_reduced in (False, True):
                    yield _counted_on_all(scene, node, axes, is_reduced)
    for node in [node for node in scene.calls if node.target is aten.div.Tensor and not is_backward(node)]:
        count = node.args[1]
        if isinstance(count, torch.fx.Node) and is_tensor(count) and shape_of(count) == ():
            for axes in [axes for axes in scene.axis_sets if {*axes} <= {*scene.differing(count)}]:
                yield _divided_by_all(scene, node, count, axes)


def means_of_kept(scene: Scene) -> Iterator[Move]:
    """Each division by a number of entries of which a mask keeps some, as one by the number of those that it keeps on
    all ranks that hold a part of them.
    """
    inputs = {item.node for item in scene.draft.program.inputs if item.role is Role.INPUT}
    nodes = [node for node in scene.order if is_tensor(node) and not is_backward(node)]
    masks = [node for node in nodes if node.meta["val"].dtype is torch.bool or (node in inputs and is_floating(node))]
    for node in [node for node in scene.calls if node.target in _DIVISIONS and not is_backward(node)]:
        for mask, axes in itertools.product(masks, [(), *scene.axis_sets]):
            entries = mask.meta["val"].numel()
            if entries > 1 and node.args[1] == entries * scene.ranks(axes):
                yield _over_kept(scene, node, mask, axes)


def _over_kept(scene: Scene, node: torch.fx.Node, mask: torch.fx.Node, axes: tuple[int, ...]) -> Move:
    nodes = scene.draft.program.graph.graph.nodes
    same = [item for item in nodes if item.target in _DIVISIONS and item.args[1:] == node.args[1:]]
    names = [item.name for item in same if item is node or is_derivative(item, node)]

    def apply(draft: Draft) -> None:
        kept = draft.node(mask.name)
        number = kept.meta["val"].new_empty((), dtype=None if is_floating(kept) else torch.int64)
        count = draft.insert(kept, aten.sum.default, (kept,), number)
        count = draft.all_reduce(count, "sum", axes) if axes else count
        for own in map(draft.node, names):
            draft.redirect(own, draft.insert(own, aten.div.Tensor, (own.args[0], count)))

    def texts(draft: Draft) -> tuple[str, str]:
        value, kept, entries = scene.value(node), scene.value(mask), draft.node(node.name).args[1]
        message = f"{value} divides by {entries}, the number of all entries, of which {kept} keeps some"
        total = f"the sum of it, all-reduced over {scene.names(axes)}," if axes else "the sum of it,"
        return message, f"divide by the number of entries that {kept} keeps, {total} at {scene.line(node)}"

    return Move(("over kept", axes), node.name, "VC113", texts, apply)


def _counted_on_all(scene: Scene, node: torch.fx.Node, axes: tuple[int, ...], is_reduced: bool) -> Move:
    """``is_reduced``: the sum too is the ranks' mean, where nothing reduces the loss later."""

    def apply(draft: Draft) -> None:
        own = draft.node(node.name)
        loss, count = _result(draft, own, 0), _result(draft, own, 1)
        readers = [later for later in own.graph.nodes if later in loss.users]
        if not readers:
            raise DraftError("a loss that nothing reads")
        draft.set_arguments(own, (*own.args[:_REDUCTION], SUM, *own.args[_REDUCTION + 1 :]))
        counted = draft.all_reduce(count, "avg", axes)
        draft.redirect(count, counted)
        total = draft.all_reduce(loss, "avg", axes) if is_reduced else loss
        arguments = (total, counted)
        mean = draft.insert(readers[0], torch.ops.aten.div.Tensor, arguments, loss.meta["val"], before=True)
        draft.redirect(loss, mean)
        draft.set_arguments(mean, arguments)

    def texts(_: Draft) -> tuple[str, str]:
        over, line = scene.names(axes), scene.line(node)
        message = f"{scene.value(node)} is the mean over a rank's own targets"
        reduced = f", all-reduce it over {over} (avg)" if is_reduced else ""
        what = f'take the sum (`reduction="sum"`) at {line}{reduced}'
        return message, f"{what}, and divide it by the number of targets that count, all-reduced over {over} (avg)"

    return Move(("mean of all", axes, is_reduced), node.name, "VC113", texts, apply)


def _divided_by_all(scene: Scene, node: torch.fx.Node, count: torch.fx.Node, axes: tuple[int, ...]) -> Move:
    """The mean of the ranks' numbers: of whole numbers, which no collective takes a mean of, their sum divided."""
    ranks, is_whole = scene.ranks(axes), not is_floating(count)

    def apply(draft: Draft) -> None:
        own, value = draft.node(count.name), draft.node(node.name).meta["val"]
        total = draft.all_reduce(own, "sum" if is_whole else "avg", axes)
        mean = draft.insert(total, aten.div.Tensor, (total, ranks), value.new_empty(())) if is_whole else total
        draft.redirect(own, mean)

    over, number, line = scene.names(axes), scene.value(count), scene.line(count)
    message = f"{scene.value(node)} divides by {number} of the rank, which is another one on each rank of {over}"
    how = f"(sum) after {line}, and divide it by {ranks}" if is_whole else f"(avg) after {line}"
    texts = fixed(message, f"all-reduce {number} over {over} {how}")
    return Move(("divided by all", axes), node.name, "VC113", texts, apply)


def _result(draft: Draft, node: torch.fx.Node, index: int) -> torch.fx.Node:
    """One of the two results of a loss: the loss, and the number by which its mean divides."""
    for user in node.users:
        if user.target is operator.getitem and user.args[1] == index:
            return user
    return draft.insert(node, operator.getitem, (node, index), node.meta["val"][index])
