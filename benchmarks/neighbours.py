"""``python -m benchmarks neighbours``: reported bugs that the papers of other tools list, next to their right twins.

The programs are those of ``tests``: bugs reported against parallel training code under the proof, and TTrace's fourteen
under ``compare``. A row counts what became of the wrong programs, and of the right ones, where a fix is written down.
"""

from __future__ import annotations

import argparse
import collections
import warnings
from collections.abc import Callable, Iterable, Sequence

import torch

from benchmarks.__main__ import table
from benchmarks.comparison import compared
from tests.comparison.fourteen import BUGS as FOURTEEN
from tests.soundness.test_known_bugs import BUGS, report_of
from verifycompile import Verdict

HEADER = ("programs", "by", "wrong: refuted", "unproved", "verified", "right: verified", "unproved", "refuted")
_ORDER = (Verdict.REFUTED, Verdict.UNPROVED, Verdict.VERIFIED)


def row(name: str, method: str, verdicts: Callable[[bool], Iterable[Verdict]]) -> tuple[str, ...]:
    """The cells of one kind of programs. ``verdicts``: of the wrong ones, and of their right twins."""
    wrong, right = (collections.Counter(verdicts(is_wrong)) for is_wrong in (True, False))
    counts = [*(wrong[verdict] for verdict in _ORDER), *(right[verdict] for verdict in reversed(_ORDER))]
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


def main(arguments: Sequence[str]) -> int:
    """The table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks neighbours", description=__doc__)
    parser.add_argument("--most", type=int, metavar="N", help="programs of each kind (default: all)")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    print(table(HEADER, rows(options.most)))
    return 0
