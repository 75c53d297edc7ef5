"""What traced code read from outside of it, by Dynamo's guards: the path that leads there and the line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from torch._guards import Source, TracingContext

from verifycompile.torch_interface.dynamo.sources import SourcePath
from verifycompile.torch_interface.source_lines.source import is_user_file


@dataclasses.dataclass
class GuardedValue:
    """``line``: file and line of the user's code that read it first. ``is_direct``: it was no code that this called."""

    path: SourcePath
    line: tuple[str, int] | None = None
    is_direct: bool = False


def guarded_values(context: TracingContext) -> Iterator[GuardedValue]:
    """Each path once."""
    found: dict[Source, GuardedValue | None] = {}
    for guard in context.guards_context.dynamo_guards:
        source = guard.originating_source
        if source not in found:
            path = SourcePath.of(source)
            found[source] = None if path is None else GuardedValue(path)
        value, stack = found[source], [*(guard.user_stack or ())]
        if value is None or not stack:
            continue
        frames = [frame for frame in stack if is_user_file(frame.filename)]
        if value.line is None and frames:
            value.line = frames[-1].filename, frames[-1].lineno or 0
        value.is_direct |= frames[-1:] == stack[-1:]
    yield from (value for value in found.values() if value is not None)
