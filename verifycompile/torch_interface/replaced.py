"""Attributes of torch's classes and modules that are others for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable
from typing import Any
from unittest import mock


@contextlib.contextmanager
def replaced(attributes: Iterable[tuple[Any, str, Any]]) -> Generator[None]:
    """While entered, ``name`` of ``owner`` is ``value`` for each ``(owner, name, value)``."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in attributes:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield
