"""Moves about when memory is read: before or after the program writes to it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import torch
import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.move import Move, Scene, fixed, is_tensor, shape_of, views
from verifycompile.program import OutputKind
from verifycompile.torch_interface.operators.evaluation import is_view
from verifycompile.torch_interface.source_lines.value_names import call_name

_READERS = 8
"""Of so many readers it is tried how many of them read what was there before."""
_WORDS = re.compile(r"\w+")


def other_versions(scene: Scene) -> Iterator[Move]:
    """What a buffer holds after a write to it, taken for what it held before, and the other way round."""
    inputs = {item.name: item.node for item in scene.draft.program.inputs}
    for output in scene.draft.program.outputs:
        name = output.name.partition(".")[2]
        before, after = inputs.get(name), output.node
        if output.kind is not OutputKind.MUTATION or before is None or not is_tensor(before):
            continue
        if shape_of(before) != shape_of(after):
            continue
        line = scene.line(after)
        written = f"what {line} writes to it"
        as_before = f"`{name}` is read with {written}, where the spec reads what it held before"
        as_after = f"`{name}` is read as it was before, where the spec reads it with {written}"
        for when, value, other, message, hint in (
            ("before", after, before, as_before, f"read `{name}` before {line} writes to it"),
            ("after", before, after, as_after, f"read `{name}` after {line} has written to it"),
        ):
            readers = [reader.name for reader in _readers(scene, value, after)]
            if readers:
                change = functools.partial(_exchange, value.name, other.name, readers)
                texts = fixed(message, hint)
                yield Move(("version", when), readers[0], "VC108", texts, change, runs_beside=after.name)


def overwritten(scene: Scene) -> Iterator[Move]:
    """What memory held before the last write to it, for its first readers: those behind the write that are called by
    the name of what was written before, or as many as stand first where only the last write is read.
    """
    named: dict[str, list[torch.fx.Node]] = {}
    for node in scene.calls:
        before = node.args[0] if node.target is torch.ops.aten.copy.default else None
        readers = [reader for reader in scene.order if node in reader.all_input_nodes]
        if isinstance(before, torch.fx.Node) and len(readers) <= _READERS and before.op == "call_function":
            for count in range(1, len(readers)):
                yield _overwritten(scene, before, node, readers[:count])
        if is_view(node.target) or not is_tensor(node):
            continue
        words = set(_WORDS.findall(call_name(node)))
        for looked_at in (view for operand in node.all_input_nodes for view in views(operand)[-1:]):
            name = scene.value(looked_at).strip("`") if is_tensor(looked_at) else ""
            if not name.isidentifier() or name in words:
                continue
            for earlier in (value for word in words for value in named.get(word, ())):
                if earlier is not looked_at and shape_of(earlier) == shape_of(looked_at):
                    yield _overwritten(scene, earlier, looked_at, [node])
        named.setdefault(scene.value(node).strip("`"), []).append(node)


def _overwritten(scene: Scene, before: torch.fx.Node, after: torch.fx.Node, readers: list[torch.fx.Node]) -> Move:
    first = readers[0]

    def apply(draft: Draft) -> None:
        for reader in readers:
            own, taken, wanted = draft.node(reader.name), draft.node(after.name), draft.node(before.name)
            for operand in dict.fromkeys(own.all_input_nodes):
                seen = views(operand)
                if seen[-1] is not taken and operand is not taken:
                    continue
                value = wanted
                for view in reversed(seen[: seen.index(taken)]):
                    value = draft.insert(own, view.target, (value, *view.args[1:]), view.meta["val"], before=True)
                draft.redirect(operand, value, [own])

    found, wanted, line = scene.value(after), scene.value(before), scene.line(first)
    message = f"{found} lies where {wanted} lay, which {line} still reads"
    hint = f"copy {wanted} before {scene.line(after)} writes {found} to its memory"
    if found == wanted:  # the same line of a helper made both
        message = f"what is written here lies where something lay that {line} still reads"
        hint = f"copy what the memory holds before {scene.line(after)} writes to it again"
    return Move(("overwritten",), first.name, "VC108", fixed(message, hint), apply, pointed=after)


def _readers(scene: Scene, value: torch.fx.Node, written: torch.fx.Node) -> list[torch.fx.Node]:
    """The calls behind a write that read ``value``."""
    behind = scene.order[scene.order.index(written) + 1 :] if written in scene.needed else scene.order
    return [node for node in behind if node in value.users and node is not written]


def _exchange(value: str, other: str, readers: list[str], draft: Draft) -> None:
    draft.redirect(draft.node(value), draft.node(other), [draft.node(reader) for reader in readers])
