"""The command ``verifycompile``, also ``python -m verifycompile``."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import pathlib
import sys
from collections.abc import Callable, Sequence

FORMATS = ("full", "concise", "json", "github", "sarif")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0 all is well, 1 a finding, 2 misuse or a failure."""
    parser = _parser()
    if "_ARGCOMPLETE" in os.environ:
        _complete(parser)
    options = parser.parse_args(arguments)
    match options.command:
        case "run":
            return _run(options)
        case "coverage":
            return _coverage(options)
        case "compare":
            return _compare(options.question, options.ranks, options.format)
        case "check-certificate":
            return _check_certificate(options.file, options.solver)
        case "lemmas":
            return _show(options.command, _lemmas, options.code)
        case _:
            return _show(options.command, _explain, options.code)


def _complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks what may be typed next: `eval "$(register-python-argcomplete verifycompile)"`."""
    try:
        import argcomplete
    except ImportError:
        return
    argcomplete.autocomplete(parser)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="verifycompile",
        description="Proofs for parallelized PyTorch programs.",
        epilog="Exit status: 0 all verified or waived, 1 findings or unproved, 2 misuse or a failure.",
    )
    parser.add_argument(
        "--version", action="version", version=f"verifycompile {importlib.metadata.version('verifycompile')}"
    )
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser("run", help="run a script and check every graph that it compiles")
    run.add_argument("--format", choices=FORMATS, default="full", help="how findings are printed (default: full)")
    run.add_argument("--report", metavar="DIR", help="keep a report a graph, JSON and HTML, in this folder")
    run.add_argument("--keep-going", action="store_true", help="warn of a refusal and run on, to find all of them")
    _add_target(run)

    covered = commands.add_parser("coverage", help="run a script and list operators without a declaration, unproved")
    _add_target(covered)

    compared = commands.add_parser("compare", help="run both programs of a question and compare their tensors")
    question = "a function without arguments that returns those of verifycompile.compare as a dictionary"
    compared.add_argument("question", metavar="FILE.py:FUNCTION", help=question)
    ranks = "how many ranks this process stands for (default: 2); under torchrun its processes are the ranks"
    compared.add_argument("--ranks", type=int, default=2, help=ranks)
    compared.add_argument("--format", choices=("full", "json"), default="full", help="how it is printed (default full)")

    explained = commands.add_parser("explain", help="explain a diagnostic code")
    explained.add_argument("code", help="a code such as VC101")

    lemmas = commands.add_parser("lemmas", help="list the lemmas, or show one")
    lemmas.add_argument("code", nargs="?", help="a code such as VL08; all where it is left out")

    checked = commands.add_parser("check-certificate", help="check a stored proof, without a search engine")
    checked.add_argument("file", help="JSON written by `report.certificate.to_json()`")
    checked.add_argument("--solver", action="store_true", help="ask z3 again for the facts that it lists")
    return parser


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [options] script.py [arguments]\n       %(prog)s [options] -m module [arguments]"
    module = "run a module, for example torch.distributed.run; all that follows is its own"
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help=module)
    parser.add_argument("target", nargs=argparse.REMAINDER, help="a script, and what it is to be called with")


def _target(options: argparse.Namespace) -> list[str] | None:
    """What follows ``python`` on a command line; None, and a sentence on standard error, where there is nothing."""
    if options.module:
        return ["-m", *options.module, *options.target]
    if not options.target:
        _misuse(options.command, "name a script to run, or a module after -m.")
        return None
    if not pathlib.Path(options.target[0]).is_file():
        _misuse(options.command, f"there is no script `{options.target[0]}`.")
        return None
    return options.target


def _run(options: argparse.Namespace) -> int:
    from verifycompile.command.run import FAILED, run

    if (target := _target(options)) is None:
        return FAILED
    try:
        status, printed, said = run(target, options.format, options.report, goes_on=options.keep_going)
    except OSError as error:
        what = f"`{error.filename}`: {error.strerror}"
        _misuse("run", what if options.report is None else f"the option `--report` takes a folder to write to; {what}.")
        return FAILED
    if printed:
        print(printed)
    if said:
        _misuse("run", said)
    return status


def _coverage(options: argparse.Namespace) -> int:
    from verifycompile.command.coverage import coverage

    if (target := _target(options)) is None:
        return 2
    found = coverage(target)
    print(found)
    if found.failure:
        _misuse("coverage", f"the script {found.failure}; later graphs are not listed.")
        return 2
    if not found.graphs:
        _misuse("coverage", "the script compiled no parallel graph.")
        return 2
    return 1 if found.missing else 0


def _compare(question: str, ranks: int, form: str) -> int:
    from verifycompile.command.compare import compare_question
    from verifycompile.errors import UsageError

    try:
        report = compare_question(
            question, ranks, lambda report: print(report.to_json() if form == "json" else report, flush=True)
        )
    except UsageError as error:
        _misuse("compare", str(error))
        return 2
    return 0 if report else 1


def _check_certificate(file: str, ask_solver: bool) -> int:
    from verifycompile.certificate import check_certificate

    try:
        text = pathlib.Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "it holds no text"
        sentence = f"`{file}`: {what}; name the file that holds what `certificate.to_json()` returns."
        _misuse("check-certificate", sentence)
        return 2
    found = check_certificate(text, solver=ask_solver)
    print(f"{file}: {found}")
    return 0 if found else 1


def _explain(code: str) -> str:
    from verifycompile.diagnostics.codes import explain

    return explain(code)


def _lemmas(code: str | None) -> str:
    from verifycompile.rewrites.documentation import entry, render_page

    return render_page() if code is None else entry(code)


def _show(command: str, find: Callable[[str], str], code: str) -> int:
    try:
        text = find(code)
    except ValueError as error:
        _misuse(command, str(error))
        return 2
    print(text, end="")
    return 0


def _misuse(command: str, sentence: str) -> None:
    print(f"verifycompile {command}: {sentence}", file=sys.stderr)
