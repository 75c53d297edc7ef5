"""What traced code read from outside of it, by Dynamo's guards: the path that leads there and the line."""

from __future__ import annotations

from collections.abc import Iterator

from torch._guards import Source, TracingContext

from verifycompile.torch_interface.source import is_user_file
from verifycompile.torch_interface.sources import SourcePath


def guarded_values(context: TracingContext) -> Iterator[tuple[SourcePath, tuple[str, int] | None]]:
    """Each path once, with file and line of the user's code that read it first."""
    seen: set[Source] = set()
    for guard in context.guards_context.dynamo_guards:
        source = guard.originating_source
        path = None if source in seen else SourcePath.of(source)
        seen.add(source)
        if path is None:
            continue
        frames = [frame for frame in guard.user_stack or () if is_user_file(frame.filename)]
        yield path, (frames[-1].filename, frames[-1].lineno or 0) if frames else None
