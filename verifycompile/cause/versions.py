"""Moves about when a buffer is read: before or after the program writes to it."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.move import Move, Scene, fixed, is_tensor, shape_of
from verifycompile.program import OutputKind


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


def _readers(scene: Scene, value: torch.fx.Node, written: torch.fx.Node) -> list[torch.fx.Node]:
    """The calls behind a write that read ``value``."""
    behind = scene.order[scene.order.index(written) + 1 :] if written in scene.needed else scene.order
    return [node for node in behind if node in value.users and node is not written]


def _exchange(value: str, other: str, readers: list[str], draft: Draft) -> None:
    draft.redirect(draft.node(value), draft.node(other), [draft.node(reader) for reader in readers])
