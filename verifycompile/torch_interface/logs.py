"""What torch logs of calls that fail, where failing is expected."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator

from verifycompile.torch_interface.replaced import replaced

_LOGS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")


@contextlib.contextmanager
def without_logged_failures() -> Generator[None]:
    """Inside, torch does not log that an operator rejects its arguments: whoever tries what may fail says so itself."""
    with replaced((logging.getLogger(name), "disabled", True) for name in _LOGS):
        yield
