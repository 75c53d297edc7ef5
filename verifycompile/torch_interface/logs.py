"""What torch logs of calls that fail, where failing is expected."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator

_LOGS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")


@contextlib.contextmanager
def without_logged_failures() -> Generator[None]:
    """Inside, torch does not log that an operator rejects its arguments: whoever tries what may fail says so itself."""
    logs = [logging.getLogger(name) for name in _LOGS]
    before = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    try:
        yield
    finally:
        for log, was_disabled in zip(logs, before, strict=True):
            log.disabled = was_disabled
