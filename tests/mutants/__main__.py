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
        except Exception as error:  # noqa: BLE001 (a mutant that cannot be judged is counted, and the next one tried)
            failures += 1
            sys.stdout.write(f"{mutant.name:58} failed: {type(error).__name__} {str(error)[:150]}\n")
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
        sys.stdout.write(f"{name:58} {oracle:44} {ours} {flag}\n")
    different = [result for result in outcomes if not result.oracle.equal]
    counts = {verdict.name: sum(result.verdict is verdict for result in different) for verdict in Verdict}
    sys.stdout.write(f"{len(outcomes)} mutants, {len(different)} change a result: {counts}; {failures} failed\n")
    return 1 if failures or counts["VERIFIED"] else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
