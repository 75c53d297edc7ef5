"""Limits of the work on normal forms, so that what they do not suit ends as unproved rather than never.

Steps are applications of an operation to operands, which is what normal forms are built of. Seconds are processor time
of this thread: other work on the machine does not count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Generator

from verifycompile.ir import limit

_STEPS_PER_CLOCK = 64
"""The clock is read that rarely."""


class BudgetExceededError(Exception):
    """The normal form of a node or of a question took too much. The message names what ran out."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one node may take. What all of a verification may take is limited elsewhere, see ``bounds.py``."""

    node_steps: int = 200_000
    node_seconds: float = 20.0


class Budget:
    """What is left. Work that is done between nodes, such as looking for the reason of a failure, has no budget."""

    def __init__(self) -> None:
        self.limits = Limits()
        self._steps = self._most_steps = 0
        self._started: float | None = None

    @contextlib.contextmanager
    def node(self, steps: int | None = None) -> Generator[None]:
        """Raises BudgetExceededError as soon as what is built within goes beyond a limit, of ``steps`` where given."""
        if self._started is not None:  # a node or a question that another one needed
            yield
            return
        self._steps, self._most_steps = 0, self.limits.node_steps if steps is None else steps
        self._started = time.thread_time()
        try:
            yield
        finally:
            self._started = None

    def spend(self) -> None:
        """One step. Raises BudgetExceededError, and LimitReachedError where the verification has reached a limit."""
        limit.check()
        if self._started is None:
            return
        self._steps += 1
        if self._steps > self._most_steps:
            raise BudgetExceededError(f"its normal form took {self._most_steps} steps")
        if self._steps % _STEPS_PER_CLOCK == 0 and time.thread_time() - self._started > self.limits.node_seconds:
            raise BudgetExceededError(f"its normal form took {self.limits.node_seconds:g} seconds")
