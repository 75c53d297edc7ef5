"""``python -m benchmarks neighbours``: reported bugs that the papers of other tools list, next to their right twins.

The programs are those of ``tests``: bugs reported against parallel training code under the proof, and TTrace's fourteen
under ``compare``. A row counts what became of the wrong programs, and of the right ones, where a fix is written down.

``--cases FOLDER`` adds the programs of a folder (``case_folder.py``). The first letters of a name say whose list it is.
A program that gives no verdict, because torch cannot compile it or it takes too long, is counted as such.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from benchmarks.__main__ import table
from benchmarks.case_folder import programs_in, run
from benchmarks.comparison import compared
from tests.comparison.fourteen import BUGS as FOURTEEN
from tests.soundness.test_known_bugs import BUGS, report_of
from verifycompile import Verdict

HEADER = (
    "programs", "by",
    "wrong: refuted", "unproved", "verified", "none", "right: verified", "unproved", "refuted", "none",
)  # fmt: skip
_ORDER = (Verdict.REFUTED, Verdict.UNPROVED, Verdict.VERIFIED)
_LISTS = {"GG": "the GraphGuard paper (Entangle)", "TT": "TTrace's paper", "TV": "TrainVerify's list"}
_OTHERS = "other reports"


def row(name: str, method: str, verdicts: Callable[[bool], Iterable[Verdict | None]]) -> tuple[str, ...]:
    """The cells of one kind of programs. ``verdicts``: of the wrong ones, and of the right ones; None without one."""
    wrong, right = (collections.Counter(verdicts(is_wrong)) for is_wrong in (True, False))
    orders = (wrong, (*_ORDER, None)), (right, (*reversed(_ORDER), None))
    counts = [found[verdict] for found, order in orders for verdict in order]
    return name, method, *map(str, counts)


def rows(most: int | None) -> list[tuple[str, ...]]:
    """Each kind. ``most``: programs of each; all where that is None."""
    known, fourteen = BUGS[:most], list(FOURTEEN.values())[:most]
    single = torch.float32
    return [
        row(
            f"reported bugs of training code: {len(known)}",
            "`verify`",
            lambda wrong: (report_of(bug, bug=wrong).verdict for bug in known if wrong or bug.fixed),
        ),
        row(
            f"the bugs of TTrace's paper: {len(fourteen)}",
            "`compare`",
            lambda wrong: (compared(bug, wrong, single, 0).verdict for bug in fourteen),
        ),
    ]


def rows_of(folder: pathlib.Path, most: int | None) -> Iterator[tuple[str, ...]]:
    """A row a list of bugs, of the programs in ``folder``."""
    lists = {path: _LISTS.get(path.stem[:2], _OTHERS) for path in programs_in(folder)}
    for name in (*_LISTS.values(), _OTHERS):
        files = [path for path, of in lists.items() if of == name][:most]
        if files:
            title = f"{name}, of a folder: {len(files)}"
            yield row(title, "`verify`", lambda wrong, files=files: (_verdict_of(path, wrong) for path in files))


def _verdict_of(file: pathlib.Path, is_wrong: bool) -> Verdict | None:
    """What a program of a folder prints; None where it prints no verdict, which is told with the reason."""
    ran = run(file, file.name, "bad" if is_wrong else "good")
    found = ran.answer.get("verdict", "")
    verdict = Verdict[found] if found in Verdict.__members__ else None
    reason = ran.reason or str(ran.answer.get("error") or found).partition("\n")[0]
    told = found if verdict else f"no verdict: {reason}"
    print(f"{file.stem} {'wrong' if is_wrong else 'right'} {told}", file=sys.stderr, flush=True)
    return verdict


def main(arguments: Sequence[str]) -> int:
    """The table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks neighbours", description=__doc__)
    parser.add_argument("--most", type=int, metavar="N", help="programs of each kind (default: all)")
    parser.add_argument("--cases", type=pathlib.Path, metavar="FOLDER", help="programs of a folder as well")
    parser.add_argument("--cases-alone", action="store_true", help="and none of this repository")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    own = [] if options.cases_alone else rows(options.most)
    found = [] if options.cases is None else rows_of(options.cases, options.most)
    print(table(HEADER, [*own, *found]))
    return 0
