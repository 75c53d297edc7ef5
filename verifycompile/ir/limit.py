"""The limit under which a thread works: who sets one (``bounds.py``) puts it here, and all that takes long asks it."""

from __future__ import annotations

import threading
from typing import Protocol


class Limit(Protocol):
    """``place``: what the work is at."""

    place: object

    def check(self) -> None:
        """Raises where the limit is reached."""


_local = threading.local()


def current() -> Limit | None:
    """The limit of this thread."""
    return getattr(_local, "limit", None)


def put(limit: Limit | None) -> None:
    """From now on this thread works under ``limit``."""
    _local.limit = limit


def check() -> None:
    """Raises ``LimitReachedError`` where this thread works under a limit that is reached."""
    limit = current()
    if limit is not None:
        limit.check()


def note_place(place: object) -> None:
    """What the work is at, for the message where a limit ends it there. Raises ``LimitReachedError``."""
    limit = current()
    if limit is not None:
        limit.check()
        limit.place = place
