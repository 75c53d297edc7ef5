"""One diagnostic code and its documentation."""

from __future__ import annotations

import dataclasses

from verifycompile.diagnostics.severity import Severity


@dataclasses.dataclass(frozen=True)
class Code:
    """A stable code with its explanation.

    ``title`` stands alone: lower case, no final period, names the problem and not the fix; ``certain_title`` stands in
    its place where the title speaks of the proof and a concrete input shows a wrong value. ``meaning``, ``reason``
    and ``fix`` are one paragraph of Markdown each; ``example`` and ``fixed_example`` are Python source
    (``fixed_example`` may be empty where the fix is not a change of the program).
    """

    code: str
    title: str
    severity: Severity
    meaning: str
    reason: str
    example: str
    fix: str
    fixed_example: str = ""
    certain_title: str = ""
