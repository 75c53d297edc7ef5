"""Prints every mutant with the oracle's verdict and ours. ``python -m tests.mutants [part of a name]``."""

from __future__ import annotations

import sys
import traceback
import warnings

from tests.mutants.mutant import Outcome, outcome
from tests.mutants.table import MUTANTS
from verifycompile import Verdict


def main(part: str = "") -> int:
    warnings.filterwarnings("ignore")
    outcomes: list[Outcome] = []
    failures = 0
    for mutant in MUTANTS:
        if part not in mutant.name:
            continue
        try:
            result = outcome(mutant)
        except Exception as error:
            failures += 1
            print(f"{mutant.name:58} failed: {type(error).__name__} {str(error)[:150]}")
            if part:
                traceback.print_exc()
            continue
        outcomes.append(result)
        name, oracle, ours = result.row()
        flag = (
            ""
            if not mutant.codes or not result.code or result.code in mutant.codes
            else f"(expected {sorted(mutant.codes)})"
        )
        print(f"{name:58} {oracle:44} {ours} {flag}")
    different = [result for result in outcomes if not result.oracle.equal]
    counts = {verdict.name: sum(result.verdict is verdict for result in different) for verdict in Verdict}
    print(f"{len(outcomes)} mutants, {len(different)} change a result: {counts}; {failures} failed")
    return 1 if failures or counts["VERIFIED"] else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
