"""``python -m benchmarks egraph``: the programs that the e-graph proves and nothing else does.

    python -m benchmarks egraph docs/design.md

Written are the laws of whose instances each proof consists, whether it is proved without the e-graph, and what the
e-graph's questions cost, on the right program and on its wrong twin.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
from collections.abc import Sequence
from unittest import mock

from benchmarks.trusted import ROOT
from tests.refinement.egraph_programs import PAIRS, Pair
from tests.refinement.test_egraph_programs import checked, instances
from verifycompile.refinement import lemma_stage

PAGE = ROOT / "docs" / "design.md"
BEGIN, END = "<!-- e-graph: begin -->", "<!-- e-graph: end -->"


def row(pair: Pair) -> tuple[tuple[str, ...], float, float]:
    """The row of a program, and the median of its questions in milliseconds: asked again, and of the wrong twin."""
    first, again = checked(pair, pair.implementation), checked(pair, pair.implementation)
    wrong = checked(pair, pair.wrong)
    with mock.patch.object(lemma_stage, "prove_equal", return_value=None):
        without = checked(pair, pair.implementation)
    medians = [result.stages["egraph"].median for result in (first, again, wrong)]
    laws = sorted({instance.code for instance in instances(first)})
    verdicts = ["proved" if result.mismatch is None else "unproved" for result in (first, without, wrong)]
    return (pair.name, ", ".join(laws), *verdicts, *(f"{median:.1f}" for median in medians)), medians[1], medians[2]


def section() -> str:
    """The table, and the median over all programs."""
    found = [row(pair) for pair in PAIRS]
    names = ("program", "laws of the instances", "with", "without", "wrong twin", "ms", "ms again", "ms, wrong")
    lines = [names, tuple("---" for _ in names), *(cells for cells, _, _ in found)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    again = statistics.median(proved for _, proved, _ in found)
    wrong = statistics.median(unproved for _, _, unproved in found)
    return (
        f"{table}\n\nMilliseconds are the median of a program's questions; the first one of a set of operators makes "
        f"its rules.\nA question that is proved costs {again:.1f} ms afterwards, "
        f"one that is not {wrong:.1f} ms (medians)."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks egraph", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("page", nargs="?", type=pathlib.Path, default=PAGE)
    page: pathlib.Path = parser.parse_args(arguments).page
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{section()}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    return 0
