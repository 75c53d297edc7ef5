"""Labels that both programs leave out of a loss, as ``ignore_index`` does: the class, and which inputs hold labels."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.fx

from verifycompile.program import Program
from verifycompile.torch_interface.evaluation import argument_names, operator_name
from verifycompile.witness.indices import keeps_values

_DEFAULT = -100
"""The class that torch's losses ignore unless told otherwise; most data do not have it."""


def ignored_classes(spec: Program, implementation: Program) -> dict[torch.fx.Node, int]:
    """Placeholders of the spec that a loss takes its labels from -> the class that the loss ignores.

    Only where the implementation knows that class too, and where some program says that there are such labels: by a
    class other than torch's default, or by reading or writing it elsewhere, as padding does. Otherwise the programs are
    written for labels without it, and an input that nobody passes shows nothing.
    """
    found: dict[torch.fx.Node, int] = {}
    for node in _calls(spec):
        if not _is_loss(node):
            continue
        arguments = dict(zip(argument_names(node.target), node.args, strict=False))
        ignored, target = arguments.get("ignore_index"), arguments.get("target")
        if not isinstance(ignored, int) or not isinstance(target, torch.fx.Node):
            continue
        known = any(_mentions(node, ignored) for node in _calls(implementation))
        others = [node for program in (spec, implementation) for node in _calls(program) if not _is_loss(node)]
        if known and (ignored != _DEFAULT or any(_mentions(node, ignored) for node in others)):
            found.update(dict.fromkeys(_origins(target), ignored))
    return found


def _is_loss(node: torch.fx.Node) -> bool:
    name = operator_name(node.target) or ""
    return name.startswith("aten.nll_loss")


def _mentions(node: torch.fx.Node, number: int) -> bool:
    return any(type(argument) in (int, float) and argument == number for argument in node.args)


def _calls(program: Program) -> list[torch.fx.Node]:
    return [node for node in program.graph.graph.nodes if node.op == "call_function"]


def _origins(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The placeholders whose elements ``node`` holds."""
    seen: set[torch.fx.Node] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        if current.op == "placeholder":
            yield current
        elif keeps_values(current):
            stack.extend(current.all_input_nodes)
