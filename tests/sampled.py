"""Long tables of programs: which of their rows every run takes, and which are for the sweep.

``@pytest.mark.sampled(every=3, of=("name",))`` stands at a test with parameters. Its rows are told apart by kind: by
what ``of`` names of the parameters, attributes of them included. Of the n-th kind every run takes the n-th row and
each ``every``-th one before and behind it, so that neighbouring kinds are tried with different values of the other
parameters; every kind has at least one row in every run. All other rows are marked as ``sweep``; rows so marked by hand are
not counted.

The choice depends on the table alone: what is left out today is left out until a row is added.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

Row = TypeVar("Row")


def taken(rows: Sequence[Row], every: int, kind: Callable[[Row], Hashable] = lambda _: None) -> list[Row]:
    """The rows of a table that every run takes, in their order."""
    kinds: dict[Hashable, list[int]] = {}
    for place, row in enumerate(rows):
        kinds.setdefault(kind(row), []).append(place)
    chosen = {
        place
        for number, places in enumerate(kinds.values())
        for place in places[number % min(every, len(places)) :: every]
    }
    return [row for place, row in enumerate(rows) if place in chosen]


def leave_the_rest_to_the_sweep(items: Iterable[pytest.Item]) -> None:
    """Marks the rows of sampled tests that not every run takes."""
    tables: dict[str, list[pytest.Function]] = {}
    for item in items:
        if not isinstance(item, pytest.Function) or item.get_closest_marker("sweep") is not None:
            continue
        if item.get_closest_marker("sampled") is not None:
            tables.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for rows in tables.values():
        mark = rows[0].get_closest_marker("sampled")
        assert mark is not None
        found = set(taken(rows, mark.kwargs["every"], functools.partial(_kind, mark.kwargs.get("of", ()))))
        for row in rows:
            if row not in found:
                row.add_marker(pytest.mark.sweep)


def _kind(of: Sequence[str], item: pytest.Function) -> tuple[str, ...]:
    values: list[Any] = []
    for path in of:
        name, _, attribute = path.partition(".")
        value = item.callspec.params[name]
        values.append(operator.attrgetter(attribute)(value) if attribute else value)
    return tuple(map(str, values))
