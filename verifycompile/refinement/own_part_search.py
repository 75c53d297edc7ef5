"""Which operator of the implementation computes with a rank's own part where the spec's reads the whole."""

from __future__ import annotations

import dataclasses

import torch
import torch.fx

from verifycompile.refinement.classify import Found, Kind
from verifycompile.refinement.own_part import MEAN_OF_OWN, PIECES, fault_of_operator
from verifycompile.refinement.relations import NodeRelations, ordered_ancestors
from verifycompile.rewrites.operators.pointwise_losses import ignored_by_mean
from verifycompile.torch_interface.operators.evaluation import is_view
from verifycompile.torch_interface.source_lines.value_names import names_of_inputs, value_name


@dataclasses.dataclass(frozen=True)
class OwnPart:
    """A fault with its code. ``node``: the operator; ``found``: how its value stands to the spec's.

    ``cut``: where each rank takes its piece of a fused tensor, with what there is to say there.
    """

    code: str
    message: str
    node: torch.fx.Node
    found: Found
    cut: torch.fx.Node | None = None
    cut_label: str = ""


def on_another_line(relations: NodeRelations, root: torch.fx.Node) -> OwnPart | None:
    """The spec's operator on the spec's operands, on another line than the spec's."""
    for node in relations.impl_order:
        if node.target == root.target and len(node.all_input_nodes) == len(root.all_input_nodes):
            found = quotient_of_own_sums(relations, root, node) or own_part(relations, root, node)
            if found is not None:
                return found
    return None


def quotient_of_own_sums(relations: NodeRelations, root: torch.fx.Node, node: torch.fx.Node) -> OwnPart | None:
    """A rank's own sum, divided by a number that is a sum over its own elements too."""
    operands = list(zip(root.all_input_nodes, node.all_input_nodes, strict=False))
    if root.target is not torch.ops.aten.div.Tensor or len(operands) != 2 or relations.mesh is None:
        return None
    related = [relations.classify(*pair) for pair in operands]
    sums = {None if found is None or found.kind is not Kind.PARTIAL else found.axes for found in related}
    axes = sums.pop() if len(sums) == 1 else None
    if axes is None:
        return None
    inputs = names_of_inputs(relations.spec.program)
    total, count = (value_name(operand, inputs) for operand, _ in operands)
    over = ", ".join(relations.mesh.axes[axis].name for axis in axes)
    message = f"`{total}` and `{count}` are a rank's own sums over {over}: their quotient is no mean of the whole"
    return OwnPart(MEAN_OF_OWN, message, node, relations.classify(root, node) or Found(Kind.DIFFERENT))


def own_part(relations: NodeRelations, root: torch.fx.Node, node: torch.fx.Node) -> OwnPart | None:
    """An operator that needs all of a dimension, on operands of which each rank holds a part along it."""
    pairs = zip(root.all_input_nodes, node.all_input_nodes, strict=False)
    related = [relations.classify(*pair) for pair in pairs]
    if relations.mesh is None or any(found is None or not found.whole for found in related):
        return None
    names = [axis.name for axis in relations.mesh.axes]
    layouts = [None if found is None else found.placements for found in related]
    inputs = names_of_inputs(relations.implementation.program)
    fault = fault_of_operator(node, layouts, names, ignored_by_mean(root.target, root.args), inputs)
    if fault is None:
        return None
    code, message = fault
    found = relations.classify(root, node) or Found(Kind.DIFFERENT)
    cut = _own_piece(relations, node) if code == PIECES else None
    if cut is None:
        return OwnPart(code, message, node, found)
    whole = value_name(cut.all_input_nodes[0], inputs)
    return OwnPart(code, message, node, found, cut, f"each rank takes one piece of the fused `{whole}` here")


def _own_piece(relations: NodeRelations, node: torch.fx.Node) -> torch.fx.Node | None:
    """The first operator before ``node`` that takes a rank's own piece of what all ranks hold."""
    view = relations.implementation.view
    axes = range(0 if relations.mesh is None else len(relations.mesh.axes))
    for earlier in ordered_ancestors(relations.implementation, [node]):
        value, operands = view(earlier), earlier.all_input_nodes
        if earlier.op != "call_function" or value is None or not operands or not is_view(earlier.target):
            continue
        source = view(operands[0])
        if source is not None and any(value.uses(axis) and not source.uses(axis) for axis in axes):
            return earlier
    return None
