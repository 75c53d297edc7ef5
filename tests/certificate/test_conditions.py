"""The conditions by which a certificate is refused: each of them changed must fail one of the checks beside this file.

Here a part of the mutants is tried; ``python -m tests.lemmas`` tries them all and prints their number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from types import ModuleType

import pytest

from tests.certificate import (
    annotations_checks,
    check_checks,
    parts_checks,
    statement_checks,
    steps_checks,
    storage_checks,
)
from tests.lemmas import padded_pieces_checks
from tests.lemmas.conditions import Check, found_by, mutants_of
from tests.refinement import closure_checks, shares_checks
from verifycompile.certificate import annotations as recorded
from verifycompile.certificate import check, lemma_steps, parts, statement, storage
from verifycompile.refinement import closure, ring
from verifycompile.rewrites import padded_pieces

CHECKED: Mapping[ModuleType, Callable[[], Iterator[tuple[str, Check]]]] = {
    statement: statement_checks.checks,
    storage: storage_checks.checks,
    recorded: annotations_checks.checks,
    check: check_checks.checks,
    parts: parts_checks.checks,
    lemma_steps: steps_checks.checks,
    closure: closure_checks.checks,
    ring: shares_checks.checks,
    padded_pieces: padded_pieces_checks.checks,
}
"""Modules of the checker, with what must hold of each."""
FUNCTIONS: Mapping[ModuleType, Collection[str]] = {ring: shares_checks.FUNCTIONS}
"""Of a module not named here all conditions are changed."""

PART = 12
"""Of so many mutants one is tried."""


@pytest.mark.parametrize("module", CHECKED, ids=lambda module: module.__name__.rpartition(".")[2])
def test_each_check_and_a_part_of_the_mutants(module: ModuleType) -> None:
    checks = tuple(CHECKED[module]())
    for name, run in checks:
        try:
            run()
        except AssertionError as error:
            raise AssertionError(name) from error
    tried = list(itertools.islice(mutants_of(module, FUNCTIONS.get(module, ())), 0, None, PART))
    assert len(tried) >= 4
    assert [mutant.change for mutant in tried if not found_by(mutant, checks)] == []
