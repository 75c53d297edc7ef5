"""``python -m benchmarks trusted``: the files that a VERIFIED and a checked certificate rest on, with their lines.

    python -m benchmarks trusted docs/trust.md

A process of its own verifies a program, another one checks the certificate; counted is what each has loaded. What only
proposes or explains is not trusted: a mistake in it cannot make a wrong program VERIFIED.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "trust.md"
BEGIN, END = "<!-- trusted files: begin -->", "<!-- trusted files: end -->"

UNTRUSTED = (
    "verifycompile/cause", "verifycompile/witness", "verifycompile/diagnostics", "verifycompile/reduction",
    "verifycompile/comparison", "verifycompile/symbolic", "verifycompile/reproduction", "verifycompile/command",
    "verifycompile/certificate", "verifycompile/refinement/egraph.py", "verifycompile/refinement/numbers.py",
    "verifycompile/refinement/classify.py", "verifycompile/refinement/diagnose.py",
    "verifycompile/refinement/likely_pairs.py",
    "verifycompile/refinement/missing_gradient.py", "verifycompile/refinement/own_part.py",
    "verifycompile/refinement/own_part_search.py", "verifycompile/refinement/relations.py",
    "verifycompile/refinement/proof.py", "verifycompile/refinement/stages.py", "verifycompile/counterexamples.py",
    "verifycompile/rank_counterexamples.py", "verifycompile/second_look.py", "rewrites/finders",
)  # fmt: skip
"""Of a process that verifies: what looks for proofs, counterexamples and causes, and what shows them."""

_TELL = (
    "import json, sys\n"
    "names = [m.__file__ for n, m in list(sys.modules.items()) if n.split('.')[0] == 'verifycompile' and m.__file__]\n"
    "print(json.dumps(names))\n"
)
_VERIFY = (
    "import pathlib, sys\n"
    "from tests.certificate.test_certificate import of_case\n"
    "from tests.programs import llama\n"
    "report = of_case(llama.case(2, layers=2))\n"
    + _TELL
    + "pathlib.Path(sys.argv[1]).write_text(report.certificate.to_json())\n"
)
_CHECK = (
    "import pathlib, sys\n"
    "from verifycompile.certificate import check_certificate\n"
    "assert check_certificate(pathlib.Path(sys.argv[1]).read_text())\n" + _TELL
)


def files_loaded(script: str, *arguments: str) -> tuple[str, ...]:
    """The files of this project that a process has loaded when the script ends, which prints them."""
    # Torch starts the backends of all installed packages: what they load is no part of what is asked about.
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    paths = (pathlib.Path(path).resolve() for path in json.loads(done.stdout.splitlines()[-1]))
    return tuple(sorted(str(path.relative_to(ROOT)) for path in paths))


def files_of_checker(certificate: str) -> tuple[str, ...]:
    """What is trusted where a certificate (its text) was checked."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "certificate.json"
        file.write_text(certificate, encoding="utf-8")
        return files_loaded(_CHECK, str(file))


def measured() -> dict[str, tuple[str, ...]]:
    """What is trusted for a VERIFIED, and for its certificate once it is checked."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(pathlib.Path(folder) / "certificate.json")
        proof = files_loaded(_VERIFY, file)
        checked = files_loaded(_CHECK, file)
    return {
        "a VERIFIED": tuple(path for path in proof if not path.startswith(UNTRUSTED)),
        "a checked certificate": checked,
    }


def lines_of(path: str) -> int:
    return len((ROOT / path).read_text(encoding="utf-8").splitlines())


def room_of(path: str) -> str:
    folder = pathlib.PurePosixPath(path).parent.as_posix()
    return "rewrites (what declarations and lemmas are made of)" if folder == "rewrites" else folder


def section(files: Mapping[str, Sequence[str]]) -> str:
    """The part of the page: lines by room, then the files of a checked certificate."""
    rooms = sorted({room_of(path) for paths in files.values() for path in paths})
    rows = [("room", *files), ("---", *("---:" for _ in files))]
    for room in rooms:
        rows.append((room, *(_lines([p for p in paths if room_of(p) == room]) for paths in files.values())))
    rows.append(("**all**", *(f"**{_lines(paths)}**" for paths in files.values())))
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    checked = files["a checked certificate"]
    listed = textwrap.fill(", ".join(f"{path} {lines_of(path)}" for path in checked), 118, break_on_hyphens=False)
    return (
        "Lines with comments and documentation, and the number of files, for a Llama of two layers on two ranks\n"
        f"(`tests/programs/llama.py`):\n\n{table}\n\n"
        f"The files of the checked certificate, with their lines:\n\n```\n{listed}\n```"
    )


def _lines(paths: Sequence[str]) -> str:
    return f"{sum(map(lines_of, paths)):,} in {len(paths)}" if paths else ""


def with_section(page: str, files: Mapping[str, Sequence[str]]) -> str:
    """The page with its section replaced by that of these files."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{section(files)}\n{END}{rest.split(END)[1]}"


def listed_files(page: str) -> dict[str, int]:
    """The files of a checked certificate that the page lists, with their lines."""
    listed = page.split(BEGIN)[1].split(END, maxsplit=1)[0].split("```")[1]
    return {path: int(lines) for path, lines in (item.split() for item in listed.split(","))}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks trusted", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("page", nargs="?", type=pathlib.Path, default=PAGE)
    options = parser.parse_args(arguments)
    page = options.page.read_text(encoding="utf-8")
    options.page.write_text(with_section(page, measured()), encoding="utf-8")
    return 0
