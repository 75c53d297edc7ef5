"""``assert_refines``: a test that fails with the report where a parallel program is not proved equal to its spec."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifycompile.diagnostics.report import Report

_PLUGIN = "verifycompile_pytest"


def assert_refines(
    model: Callable[..., Any] | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Report:
    """``verifycompile.verify``, which see; returns the report of a verified program.

    Raises ``AssertionError`` with the report as its text where the program is refuted or unproved, and ``UsageError``
    where the question is incomplete or contradictory.
    """
    from verifycompile.frontends.model import verify  # which processes of ``run_on_ranks`` need not import

    __tracebackhide__ = True
    report = verify(model, args, kwargs, **options)
    if (plugin := sys.modules.get(_PLUGIN)) is not None:
        plugin.note(report)
    if not report:
        raise AssertionError(str(report))
    return report
