"""What traced code read from outside of it, by Dynamo's guards: the expression that leads there and the line."""

from __future__ import annotations

from collections.abc import Iterator

from torch._guards import TracingContext

from verifycompile.torch_interface.source import is_user_file

_OF_DYNAMO = ("__import_", "__builtins_dict__", "___")


def guarded_values(context: TracingContext) -> Iterator[tuple[str, tuple[str, int] | None]]:
    """Each expression once, as ``L['self'].n_heads``, with file and line of the user's code that read it first."""
    seen: set[str] = set()
    for guard in context.guards_context.dynamo_guards:
        name = guard.originating_source.name
        if not name or name in seen or any(part in name for part in _OF_DYNAMO):
            continue
        seen.add(name)
        frames = [frame for frame in guard.user_stack or () if is_user_file(frame.filename)]
        yield name, (frames[-1].filename, frames[-1].lineno or 0) if frames else None
