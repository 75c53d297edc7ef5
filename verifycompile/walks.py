"""Walks over what has parts that it shares: each item is met once, however many paths lead to it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, MutableMapping
from typing import Any, TypeVar

Item = TypeVar("Item", bound=Hashable)
Answer = TypeVar("Answer")


def reached(starts: Iterable[Item], following: Callable[[Item], Iterable[Item]]) -> dict[Item, None]:
    """``starts`` and all that is met from there, in some order."""
    found: dict[Item, None] = {}
    pending = list(starts)
    while pending:
        item = pending.pop()
        if item not in found:
            found[item] = None
            pending.extend(following(item))
    return found


def parts_first(
    known: MutableMapping[Any, Answer],
    wanted: Item,
    parts: Callable[[Item], Iterable[Item]],
    answer: Callable[[Item], Answer],
) -> Answer:
    """The answer for ``wanted``; ``answer`` is asked once for each item that is not ``known``, behind its parts.

    No recursion: a deep network has longer paths than Python calls itself.
    """
    pending = [wanted]
    while pending:
        item = pending[-1]
        missing = [] if item in known else [part for part in parts(item) if part not in known]
        if missing:
            pending.extend(missing)
            continue
        pending.pop()
        if item not in known:
            known[item] = answer(item)
    return known[wanted]
