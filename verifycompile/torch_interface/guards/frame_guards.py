"""Guards of our own on a frame: where one fails, Dynamo compiles the frame again, and it is verified again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch._dynamo.source import GlobalStateSource
from torch._guards import TracingContext

Check = Callable[[dict[str, Any]], bool]
"""Given the local variables of a call, whether it is one that the compiled code was verified for."""


def verify_again_unless(checks: Sequence[Check], sentence: str) -> None:
    """Guard the frame under compilation by ``checks``. ``sentence``: what they say, for Dynamo's logs.

    Call it inside a Dynamo backend.
    """
    context = TracingContext.try_get()
    if context is None:
        return

    def is_as_it_was_verified(builder: Any, guard: Any) -> None:  # noqa: ARG001 - how Dynamo calls it
        def check(local_values: dict[str, Any]) -> bool:
            return all(holds(local_values) for holds in checks)

        builder.guard_manager.root.add_lambda_guard(check, [sentence], None)

    context.guards_context.dynamo_guards.add(GlobalStateSource().make_guard(is_as_it_was_verified))
