"""What torch logs of calls that fail, where failing is expected."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from unittest import mock

_LOGS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")


@contextlib.contextmanager
def without_logged_failures() -> Generator[None]:
    """Inside, torch does not log that an operator rejects its arguments: whoever tries what may fail says so itself."""
    tensors, shapes = map(logging.getLogger, _LOGS)
    with mock.patch.object(tensors, "disabled", True), mock.patch.object(shapes, "disabled", True):
        yield
