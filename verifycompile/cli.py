"""The command ``verifycompile``."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable, Sequence

from verifycompile.diagnostics.codes import explain


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0 done, 1 a certificate that does not hold, 2 misuse."""
    parser = argparse.ArgumentParser(prog="verifycompile", description="Proofs for parallelized PyTorch programs.")
    commands = parser.add_subparsers(dest="command", required=True)
    explain_parser = commands.add_parser("explain", help="explain a diagnostic code")
    explain_parser.add_argument("code", help="a code such as VC101")
    lemmas_parser = commands.add_parser("lemmas", help="list the lemmas, or show one")
    lemmas_parser.add_argument("code", nargs="?", help="a code such as VL08; all where it is left out")
    check_parser = commands.add_parser("check-certificate", help="check a stored proof, without a search engine")
    check_parser.add_argument("file", help="JSON written by `report.certificate.to_json()`")
    check_parser.add_argument("--solver", action="store_true", help="ask z3 again for the facts that it lists")
    options = parser.parse_args(arguments)
    if options.command == "check-certificate":
        return _check_certificate(options.file, options.solver)
    return _show(options.command, explain if options.command == "explain" else _lemmas, options.code)


def _check_certificate(file: str, ask_solver: bool) -> int:
    from verifycompile.certificate import check_certificate

    try:
        text = pathlib.Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        print(f"verifycompile check-certificate: {error}", file=sys.stderr)
        return 2
    found = check_certificate(text, solver=ask_solver)
    print(f"{file}: {found}")
    return 0 if found else 1


def _lemmas(code: str | None) -> str:
    from verifycompile.rewrites.documentation import entry, render_page

    return render_page() if code is None else entry(code)


def _show(command: str, find: Callable[[str], str], code: str) -> int:
    try:
        text = find(code)
    except ValueError as error:
        print(f"verifycompile {command}: {error}", file=sys.stderr)
        return 2
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
