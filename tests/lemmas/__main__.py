"""``python -m tests.lemmas``: every lemma changed in one place, and by which test of the lemma that is noticed."""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable, Sequence

from tests.lemmas import test_laws, test_table
from tests.lemmas.mutants import mutants_of
from verifycompile.rewrites.lemmas.lemma import Lemma


def main() -> int:
    """Print each mutant with what finds it, then the counts; 1 where a mutant survives."""
    families: Sequence[tuple[Sequence[Lemma], Callable[[Lemma, Lemma], str]]] = (
        (test_table.DISPOSED, test_table.outcome),
        (test_laws.UNPROPOSED, test_laws.outcome),
    )
    counts: collections.Counter[str] = collections.Counter()
    for lemmas, outcome in families:
        for lemma in lemmas:
            for change, mutant in mutants_of(lemma):
                found = outcome(lemma, mutant) or "SURVIVES"
                counts[found] += 1
                sys.stdout.write(f"{lemma.code:6} {found:14} {change}\n")
    told = ", ".join(f"{count} by {found}" for found, count in counts.most_common())
    sys.stdout.write(f"{counts.total()} mutants: {told}\n")
    return 1 if counts["SURVIVES"] else 0


if __name__ == "__main__":
    sys.exit(main())
