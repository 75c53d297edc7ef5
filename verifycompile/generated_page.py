"""The command of a page in ``docs/`` that is generated: write it, or check that it is current."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable, Sequence


def write_or_check(
    module: str,
    description: str | None,
    default_path: pathlib.Path,
    render: Callable[[], str],
    arguments: Sequence[str] | None,
) -> int:
    """Write the page, or with ``--check`` say whether it is up to date (exit status 1 where it is not).

    ``module``: whose ``python -m`` command this is.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("path", nargs="?", type=pathlib.Path, default=default_path)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the page is out of date")
    options = parser.parse_args(arguments)
    if not options.check:
        options.path.write_text(render(), encoding="utf-8")
        return 0
    if options.path.exists() and options.path.read_text(encoding="utf-8") == render():
        return 0
    sys.stderr.write(f"{options.path} is out of date: run `{parser.prog}`\n")
    return 1
