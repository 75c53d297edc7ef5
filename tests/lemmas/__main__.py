"""``python -m tests.lemmas``: every lemma changed in one place, every condition of what disposes of them and of the
checker of certificates, and by which test that is noticed.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable, Iterator, Sequence

from tests.certificate.test_conditions import CHECKED, FUNCTIONS, SAME, what_is_changed
from tests.lemmas import conditions, kernel_checks, test_laws, test_table
from tests.lemmas.mutants import mutants_of
from verifycompile.rewrites.lemmas.lemma import Lemma


def main() -> int:
    """Print each mutant with what finds it, then the counts; 1 where a mutant survives."""
    survivors = _tell("lemmas", _of_lemmas()) + _tell("conditions", _of_conditions())
    return 1 if survivors else 0


def _of_lemmas() -> Iterator[tuple[str, str, str]]:
    """``(code, changed place, test that finds it)``."""
    families: Sequence[tuple[Sequence[Lemma], Callable[[Lemma, Lemma], str]]] = (
        (test_table.DISPOSED, test_table.outcome),
        (test_laws.UNPROPOSED, test_laws.outcome),
    )
    for lemmas, outcome in families:
        for lemma in lemmas:
            for change, mutant in mutants_of(lemma):
                yield lemma.code, change, outcome(lemma, mutant)


def _of_conditions() -> Iterator[tuple[str, str, str]]:
    """``(file, changed place, family of checks that finds it)``."""
    kernel = dict.fromkeys(kernel_checks.KERNEL, kernel_checks.checks)
    for module, checks in {**kernel, **CHECKED}.items():
        held = conditions.tried(checks(), module)
        for mutant in conditions.mutants_of(module, FUNCTIONS.get(module, ())):
            same = SAME.get(module, {}).get(what_is_changed(mutant))
            found = "answers-the-same" if same else conditions.found_by(mutant, held)
            yield module.__name__.rpartition(".")[2], mutant.change, found.partition(" ")[0]


def _tell(what: str, mutants: Iterator[tuple[str, str, str]]) -> int:
    """Print mutants and their counts; the number of those that survive."""
    counts: collections.Counter[str] = collections.Counter()
    for where, change, found in mutants:
        counts[found] += 1
        sys.stdout.write(f"{where:12} {found or 'SURVIVES':14} {change}\n")
    survivors = counts.pop("", 0)
    told = ", ".join(f"{count} by {found}" for found, count in counts.most_common())
    sys.stdout.write(f"{what}: {counts.total() + survivors} mutants, {survivors} survive: {told}\n")
    return survivors


if __name__ == "__main__":
    sys.exit(main())
