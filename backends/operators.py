"""The operators that a graph calls, kept for ``verifycompile coverage`` instead of a proof."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

from verifycompile.backends.reports import FOLDER_VARIABLE
from verifycompile.command.coverage import COVERAGE_VARIABLE
from verifycompile.lowering.lower import is_declared
from verifycompile.program import Program
from verifycompile.rewrites import families
from verifycompile.torch_interface.source import location_of

families.load()


def lists_operators() -> bool:
    """Whether this process lists what its graphs call, and proves nothing."""
    return os.environ.get(COVERAGE_VARIABLE) == "1" and bool(os.environ.get(FOLDER_VARIABLE))


def keep_operators(spec: Program, implementation: Program) -> None:
    """Add a line for one graph to the report folder. Raises ``OSError`` where that cannot be written."""
    folder = pathlib.Path(os.environ[FOLDER_VARIABLE])
    folder.mkdir(parents=True, exist_ok=True)
    calls = [*_calls(spec), *_calls(implementation)]
    with (folder / f"operators-{os.getpid()}.jsonl").open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(calls) + "\n")


def _calls(program: Program) -> list[dict[str, Any]]:
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
