"""What a program does not use: a summand that a rank receives, which a move adds; an input that the spec reads."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import torch
import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.move import Move, Scene, is_floating, shape_of
from verifycompile.diagnostics.finding import Finding
from verifycompile.program import Program, Role
from verifycompile.witness.interpreter import ancestors


def unused_summands(scene: Scene) -> Iterator[Move]:
    """Each value that nothing uses, added to each output of its shape."""
    leaving = {output.node for output in scene.draft.program.outputs}
    unused = [node for node in scene.calls if is_floating(node) and not node.users and node not in leaving]
    for total in dict.fromkeys(output.node for output in scene.outputs):
        for node in unused:
            if shape_of(node) == shape_of(total):
                texts = functools.partial(_texts, scene, node, total)
                change = functools.partial(_add, node.name, total.name)
                yield Move(("add unused",), total.name, "VC108", texts, change, pointed=node)


def _texts(scene: Scene, node: torch.fx.Node, total: torch.fx.Node, _: Draft) -> tuple[str, str]:
    value, other = scene.value(node), scene.value(total)
    message = f"{value} is used by nothing, and is a summand of what {other} has to be"
    return message, f"add {value} to {other}, which {scene.line(total)} makes"


def _add(name: str, leaving: str, draft: Draft) -> None:
    unused, total = draft.node(name), draft.node(leaving)
    added = draft.insert(max(unused, total), torch.ops.aten.add.Tensor, (total, unused), total.meta["val"])
    draft.redirect_outputs(total, added)


def with_unread_input(finding: Finding, spec: Program, implementation: Program) -> Finding:
    """The finding, of an output that differs for no known reason, with an input that the program never reads."""
    read = ancestors(output.node for output in implementation.outputs)
    known = {item.name for item in implementation.inputs if item.node in read}
    needed = ancestors(output.node for output in spec.outputs if output.name == finding.output)
    unread = [item.name for item in spec.inputs if item.node in needed and item.role is not Role.TANGENT]
    name = next((name for name in unread if name not in known), "")
    if finding.code != "VC107" or not name:
        return finding
    message = f"the program never reads `{name}`, of which the spec computes `{finding.output}`"
    return dataclasses.replace(finding, code="VC108", message=message, label=message)
