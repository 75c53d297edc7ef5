"""``verifycompile coverage``: the operators of a script's parallel graphs that have no declaration."""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Sequence

from verifycompile.backends.autoload import COVERAGE_VARIABLE
from verifycompile.command.job import run_job
from verifycompile.diagnostics.describe import plural
from verifycompile.diagnostics.source_text import display_path


@dataclasses.dataclass(frozen=True)
class Operators:
    """``uses``: operator -> how often it is called. ``missing``: operators without a declaration -> the first line."""

    uses: dict[str, int]
    missing: dict[str, str]
    graphs: int
    failure: str = ""
    """How the script ended, where that is not well."""

    def __str__(self) -> str:
        lines = [
            f"{where}: `{name}` has no declaration ({plural(self.uses[name], 'call')})"
            for name, where in self.missing.items()
        ]
        operators, graphs = plural(len(self.uses), "operator"), plural(self.graphs, "graph")
        lines.append(f"{graphs}, {operators}: {len(self.uses) - len(self.missing)} declared, {len(self.missing)} not")
        return "\n".join(lines)


def coverage(target: Sequence[str]) -> Operators:
    """Run a script and list what its parallel graphs call. Raises ``OSError`` where Python cannot be started."""
    with tempfile.TemporaryDirectory(prefix="verifycompile-") as name:
        folder = pathlib.Path(name)
        job = run_job(target, folder, goes_on=True, quiet=False, **{COVERAGE_VARIABLE: "1"})
        files = sorted(folder.glob("operators-*.jsonl"))
        lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    uses: collections.Counter[str] = collections.Counter()
    missing: dict[str, str] = {}
    for call in (call for line in lines for call in json.loads(line)):
        uses[call["operator"]] += 1
        if not call["declared"]:
            place = f"{display_path(call['file'])}:{call['line']}" if call["file"] else "an unknown line"
            missing.setdefault(call["operator"], place)
    return Operators(dict(uses), missing, len(lines), job.end if job.status else "")
