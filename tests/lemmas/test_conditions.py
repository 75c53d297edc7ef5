"""What disposes of proposals, checked condition by condition: each of them changed must fail one of these checks.

Guards, readings, buildings and steps one by one, instances of all lemmas, and what is nearly one. Here a part of the
mutants is tried; ``python -m tests.lemmas`` tries them all and prints their number.
"""

from __future__ import annotations

import itertools

from tests.lemmas.conditions import found_by, mutants_of, tried
from tests.lemmas.kernel_checks import KERNEL, checks

PART = 12
"""Of so many mutants one is tried."""


def test_what_the_kernel_must_say_and_a_part_of_its_mutants() -> None:
    held = tried(checks(), *KERNEL)
    assert len(held) > 1200
    part = list(itertools.islice(itertools.chain.from_iterable(map(mutants_of, KERNEL)), 0, None, PART))
    assert len(part) > 30
    assert [mutant.change for mutant in part if not found_by(mutant, held)] == []
