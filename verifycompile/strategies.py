"""Ways to a verdict that are tried in order, and the account of them that a report gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Generic, TypeGuard, TypeVar

from verifycompile.diagnostics.report import Report, Tried, noted
from verifycompile.diagnostics.verdict import Verdict

Asked = TypeVar("Asked")


@dataclasses.dataclass(frozen=True)
class Strategy(Generic[Asked]):
    """One way to a report on what is asked.

    ``reason``: why it is tried, given the report of those before it; empty where it is not.
    ``attempt``: the report; a text that the report so far says as well; or None where it comes to nothing.
    """

    name: str
    reason: Callable[[Asked, Report | None], str]
    attempt: Callable[[Asked, Report | None], Report | str | None]


def answer(strategies: Sequence[Strategy[Asked]], asked: Asked) -> Report:
    """The report of the last strategy that came further than those before it, with all that were tried.

    One that proves and refutes nothing changes no report that does not either.
    """
    known: Report | None = None
    tried: list[Tried] = []
    for strategy in strategies:
        reason = strategy.reason(asked, known)
        if not reason:
            continue
        found = strategy.attempt(asked, known)
        if not isinstance(found, Report):
            tried.append(Tried(strategy.name, reason, found or "it proves nothing more"))
            known = noted(known, found) if found and known is not None else known
            continue
        tried += [Tried(strategy.name, reason, _outcome(found)), *found.strategies]
        if not is_unproved(known) or not is_unproved(found):
            known = found
    assert known is not None, "the first strategy of all makes a report"
    return dataclasses.replace(known, strategies=tuple(tried))


def _outcome(report: Report) -> str:
    codes = ", ".join(dict.fromkeys(finding.code for finding in report.findings))
    return report.verdict.value + (f": {codes}" if codes else "")


def is_unproved(report: Report | None) -> TypeGuard[Report]:
    """Whether there is a report, and it neither proves nor refutes."""
    return report is not None and report.verdict is Verdict.UNPROVED
