"""The command ``verifycompile``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from verifycompile.diagnostics.codes import explain


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0 done, 2 misuse."""
    parser = argparse.ArgumentParser(prog="verifycompile", description="Proofs for parallelized PyTorch programs.")
    commands = parser.add_subparsers(dest="command", required=True)
    explain_parser = commands.add_parser("explain", help="explain a diagnostic code")
    explain_parser.add_argument("code", help="a code such as VC101")
    options = parser.parse_args(arguments)
    return _explain(options.code)


def _explain(code: str) -> int:
    try:
        text = explain(code)
    except ValueError as error:
        print(f"verifycompile explain: {error}", file=sys.stderr)
        return 2
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
