"""What disposes of proposals, checked condition by condition: each of them changed must fail one of these checks.

Here a part of the mutants is tried; ``python -m tests.lemmas`` tries them all and prints their number.
"""

from __future__ import annotations

import itertools

from tests.lemmas.conditions import found_by, mutants_of
from tests.lemmas.kernel_checks import KERNEL, checks

PART = 12
"""Of so many mutants one is tried."""


def test_what_the_kernel_must_say() -> None:
    """Guards, readings, buildings and steps one by one, instances of all lemmas, and what is nearly one."""
    assert len(checks()) > 1200
    for name, check in checks():
        try:
            check()
        except AssertionError as error:
            raise AssertionError(name) from error


def test_a_part_of_the_kernels_mutants() -> None:
    mutants = itertools.chain.from_iterable(map(mutants_of, KERNEL))
    tried = list(itertools.islice(mutants, 0, None, PART))
    assert len(tried) > 30
    assert [mutant.change for mutant in tried if not found_by(mutant, checks())] == []
