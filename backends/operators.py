"""The operators that a graph calls, kept for ``verifycompile coverage`` instead of a proof."""

from __future__ import annotations

import os
from typing import Any

from verifycompile.backends.autoload import COVERAGE_VARIABLE, FOLDER_VARIABLE
from verifycompile.backends.reports import keep_line
from verifycompile.program import Program
from verifycompile.torch_interface.source_lines.source import location_of


def lists_operators() -> bool:
    """Whether this process lists what its graphs call, and proves nothing."""
    return os.environ.get(COVERAGE_VARIABLE) == "1" and bool(os.environ.get(FOLDER_VARIABLE))


def keep_operators(spec: Program, implementation: Program) -> None:
    """Add a line for one graph to the report folder. Raises ``UsageError`` where that cannot be written."""
    from verifycompile.rewrites import families  # here, and in `_calls`: a job that proves asks for none of this

    families.load()
    keep_line("operators", [*_calls(spec), *_calls(implementation)])


def _calls(program: Program) -> list[dict[str, Any]]:
    from verifycompile.lowering.undeclared import is_declared

    calls: list[dict[str, Any]] = []
    for node in program.graph.graph.nodes:
        if node.op != "call_function":
            continue
        place = location_of(node)
        calls.append(
            {
                "operator": str(node.target),
                "declared": is_declared(node, program),
                "file": "" if place is None else place.file,
                "line": 0 if place is None else place.line,
            }
        )
    return calls
