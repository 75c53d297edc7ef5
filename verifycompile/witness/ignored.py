"""Inputs that are not ordinary ones: labels that the spec leaves out of a loss, as ``ignore_index`` does, and indices
that count from the end; and what sets an input apart, in words.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.fx

from verifycompile.program import Program
from verifycompile.torch_interface.operators.calls import by_name
from verifycompile.torch_interface.operators.evaluation import operator_name
from verifycompile.walks import reached
from verifycompile.witness.indices import counts_from_the_end, keeps_values
from verifycompile.witness.inputs import Inputs, tensor_inputs


def ignored_classes(spec: Program) -> dict[torch.fx.Node, int]:
    """Placeholders of the spec that a loss takes its labels from -> the class that the loss ignores.

    The class is part of what the spec computes, whether or not a program writes it: torch's losses leave out -100
    unless told otherwise, and the proof admits it as well (see the assumption on the classes of a loss).
    """
    found: dict[torch.fx.Node, int] = {}
    for node in spec.graph.graph.nodes:
        if node.op != "call_function" or not _is_loss(node):
            continue
        arguments = by_name(node.target, node.args, node.kwargs)
        ignored, target = arguments.get("ignore_index"), arguments.get("target")
        if isinstance(ignored, int) and isinstance(target, torch.fx.Node):
            found.update((origin, ignored) for origin in _origins(target) if _holds_integers(origin))
    return found


def _is_loss(node: torch.fx.Node) -> bool:
    name = operator_name(node.target) or ""
    return name.startswith("aten.nll_loss")


def _holds_integers(node: torch.fx.Node) -> bool:
    traced = node.meta.get("val")
    if not isinstance(traced, torch.Tensor) or traced.dtype == torch.bool:
        return False
    return not traced.dtype.is_floating_point and not traced.dtype.is_complex


def _origins(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The placeholders whose elements ``node`` holds."""
    met = reached([node], lambda current: current.all_input_nodes if keeps_values(current) else ())
    return (current for current in met if current.op == "placeholder")


def premise_of(spec: Program, inputs: Inputs) -> str:
    """What the inputs hold that most data do not; "" where they are ordinary."""
    return "; ".join(_unusual(spec, inputs))


def _unusual(spec: Program, inputs: Inputs) -> Iterator[str]:
    classes = ignored_classes(spec)
    for name, entry in tensor_inputs(spec).items():
        value = inputs.spec[name]
        ignored = classes.get(entry.node)
        if ignored is not None and bool((value == ignored).any()):
            yield (
                f"`{name}` holds {ignored}, the class that the spec's loss ignores; "
                f"no difference was found with labels of other classes alone: where no label is {ignored}, "
                "let the spec ignore none, as `-x.log_softmax(-1).gather(-1, labels[..., None])` does"
            )
        elif counts_from_the_end(entry.node) and bool((value < 0).any()):
            yield (
                f"`{name}` holds negative indices, which count from the end; "
                "no difference was found without negative indices: where there are none, "
                "let the spec look up with `F.embedding`, which takes none"
            )
