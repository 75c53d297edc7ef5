"""``python -m benchmarks coverage``: which programs of public packages verify, and why the others do not.

Every program runs in a process of its own, because a fake process group cannot be made twice. The results are kept in
``docs/coverage.json``; ``docs/coverage.md`` is made from it. Programs of packages that are not installed keep the
result of their last run, which is how one page holds several versions of a package.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MODULES = ("megatron", "torch_models", "torchtitan", "transformers")
"""Modules of ``benchmarks.real_programs``."""

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "coverage.json"
PAGE = ROOT / "docs" / "coverage.md"
LONGEST_REASON = 200


@dataclasses.dataclass(frozen=True)
class Package:
    """``name``: distribution name on PyPI. ``install``: the command that was used, with pinned versions."""

    name: str
    install: str

    def version(self) -> str | None:
        """The installed version, None where there is none."""
        try:
            return importlib.metadata.version(self.name)
        except importlib.metadata.PackageNotFoundError:
            return None


@dataclasses.dataclass(frozen=True, order=True)
class Case:
    """One program. ``mode``: what else tells it apart (``training``, ``inference, sdpa``).

    ``expected``: "verified", "refuted" for a program that is known to be wrong, or "unproved" for one that is right or
    wrong by what its caller does.
    """

    program: str
    degree: str
    mode: str = "training"
    expected: str = "verified"


@dataclasses.dataclass(frozen=True)
class Row:
    """What became of one case. ``verdict``: that of the report, "refused" for a usage error, "failed" for a crash."""

    package: str
    version: str
    program: str
    degree: str
    mode: str
    expected: str
    verdict: str
    reason: str
    seconds: float

    @property
    def key(self) -> tuple[str, ...]:
        """What identifies the program."""
        return (self.package, self.version, self.program, self.degree, self.mode)


def rows(module: str, programs: Sequence[str] = (), timeout: float = 600.0) -> Iterator[Row]:
    """Run the cases of one module (of ``programs`` alone, where some are named); none where it is not installed."""
    source = importlib.import_module(f"benchmarks.real_programs.{module}")
    package: Package = source.PACKAGE
    version = package.version()
    if version is None:
        return
    for case in source.cases(version):
        if not programs or case.program in programs:
            yield _run(module, package, version, case, timeout)


def _run(module: str, package: Package, version: str, case: Case, timeout: float) -> Row:
    command = [sys.executable, "-m", "benchmarks.coverage", module, json.dumps(dataclasses.asdict(case))]
    started = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=timeout)
    except subprocess.TimeoutExpired:
        verdict, reason = "failed", f"not done after {timeout:.0f} s"
    else:
        verdict, reason = _outcome(done)
    seconds = round(time.perf_counter() - started, 1)
    known = dataclasses.asdict(case)
    return Row(package.name, version, **known, verdict=verdict, reason=reason, seconds=seconds)


def _outcome(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode == 0 and last.startswith("{"):
        outcome: dict[str, str] = json.loads(last)
        return outcome["verdict"], _shortened(outcome["reason"])
    return "failed", _shortened(done.stderr.strip().rpartition("\n")[2])


def _shortened(reason: str) -> str:
    text = without_machine(" ".join(reason.split()))
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 3] + "..."


def without_machine(text: str) -> str:
    """A reason without what is of this machine and run alone: folders of packages, and addresses of objects."""
    folders = {str(Path(entry).resolve()) for entry in sys.path if entry} | {entry for entry in sys.path if entry}
    for folder in sorted((folder for folder in folders if folder != "/"), key=len, reverse=True):
        text = text.replace(f"{folder}/", "")
    return re.sub(r"/\S*/(?:site|dist)-packages/", "", re.sub(r" at 0x[0-9a-f]+", "", text))


def check_here(module: str, case: Case) -> dict[str, str]:
    """Verify one case in this process: verdict and reason, as ``Row`` has them."""
    import verifycompile

    source = importlib.import_module(f"benchmarks.real_programs.{module}")
    try:
        report = source.check(case)
    except verifycompile.UsageError as error:
        return {"verdict": "refused", "reason": f"{error.code}: {error.message}"}
    first = report.findings[0] if report.findings else None
    return {
        "verdict": report.verdict.value,
        "reason": "" if first is None else f"{first.code}: {first.message}",
    }


def read() -> list[Row]:
    """The rows of earlier runs."""
    if not DATA.exists():
        return []
    items: list[dict[str, Any]] = json.loads(DATA.read_text())
    return [Row(**item) for item in items]


def write(found: Sequence[Row]) -> None:
    """Keep ``found`` beside the rows of earlier runs that it does not replace, and make the page."""
    merged = {row.key: row for row in (*read(), *found)}
    kept = [merged[key] for key in sorted(merged)]
    DATA.write_text(json.dumps([dataclasses.asdict(row) for row in kept], indent=1) + "\n")
    PAGE.write_text(page(kept))


def page(found: Sequence[Row]) -> str:
    """The Markdown page: a summary and a table for each version of each package."""
    parts = [_HEAD]
    for package, version in dict.fromkeys((row.package, row.version) for row in found):
        own = [row for row in found if (row.package, row.version) == (package, version)]
        right = sum(row.verdict == row.expected for row in own)
        parts.append(f"## {package} {version}\n\n{_install(package, version)}{right} of {len(own)} as expected.\n")
        parts.append(_table(own))
    return "\n".join(parts)


_HEAD = """# Programs of public packages

Made by `python -m benchmarks coverage`; `docs/coverage.json` holds the same. Every program is the package's own, built
with tiny sizes on one CPU under a fake process group and checked by `verifycompile.verify`; a seconds figure is a
whole process, or where many ran one after the other the program alone, some of them on a machine that was busy with
other work. *verified*, *refuted* and *unproved* are the report's verdicts; *refused* is a
`UsageError` (the question was incomplete or the program does not capture), *failed* anything else. A program that is
known to be wrong has *refuted* as its expected verdict, or *unproved* where code outside of the graph could mend it.
"""


def _install(package: str, version: str) -> str:
    for module in MODULES:
        source = importlib.import_module(f"benchmarks.real_programs.{module}")
        if source.PACKAGE.name == package:
            command = re.sub(rf"\b{package}==\S+", f"{package}=={version.partition('+')[0]}", source.PACKAGE.install)
            return f"    {command}\n\n"
    return ""


def _table(found: Sequence[Row]) -> str:
    head = ("program", "degree", "mode", "verdict", "expected", "seconds", "reason")
    lines = [head, tuple("-" * len(cell) for cell in head)]
    for row in found:
        reason = row.reason.replace("|", "\\|")
        lines.append((row.program, row.degree, row.mode, row.verdict, row.expected, f"{row.seconds:.1f}", reason))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """``python -m benchmarks coverage [--package NAME] [--program NAME] [--page]``.

    Exit status: 0 where every program that ran is as expected, 1 where one is not, 2 where nothing ran.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks coverage", description=__doc__)
    parser.add_argument("--package", action="append", choices=MODULES, help="only these (default: all installed)")
    parser.add_argument("--program", action="append", default=[], help="only these programs")
    parser.add_argument("--page", action="store_true", help="only make the page from the results at hand")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    if options.page:
        write([])
        return 0
    found: list[Row] = []
    for module in options.package or MODULES:
        for row in rows(module, options.program):
            found.append(row)
            print(f"{row.package} {row.version} {row.program} {row.degree} {row.mode}: {row.verdict} {row.reason}")
            if not options.dry:
                write([row])
    if not found:
        return 2
    return 0 if all(row.verdict == row.expected for row in found) else 1


def run_one(module: str, case: str) -> None:
    """``python -m benchmarks.coverage MODULE CASE`` prints one outcome as JSON, as the last line."""
    print(json.dumps(check_here(module, Case(**json.loads(case)))))


if __name__ == "__main__":
    run_one(*sys.argv[1:])
