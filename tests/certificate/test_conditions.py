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
    certificate_checks,
    check_checks,
    parts_checks,
    replay_checks,
    statement_checks,
    steps_checks,
    storage_checks,
)
from tests.ir import test_indicator, test_inequality, test_pieces, test_readings, test_sign, test_similar, test_window
from tests.lemmas import padded_pieces_checks, places_checks
from tests.lemmas.conditions import Check, found_by, mutants_of, of_tests, tried
from tests.refinement import attempt_checks, closure_checks, inputs_checks, shares_checks, test_placement
from verifycompile.certificate import annotations as recorded
from verifycompile.certificate import (
    certificate,
    check,
    digests,
    equalities,
    lemma_steps,
    parts,
    replay,
    statement,
    storage,
)
from verifycompile.ir import indicator, inequality, pieces, relabel, sign, window
from verifycompile.refinement import (
    attempt,
    closure,
    definitions,
    dtensor_results,
    dtypes,
    inputs,
    placement,
    quotients,
)
from verifycompile.rewrites import padded_pieces, places, similar

CHECKED: Mapping[ModuleType, Callable[[], Iterator[tuple[str, Check]]]] = {
    statement: statement_checks.checks,
    storage: storage_checks.checks,
    recorded: annotations_checks.checks,
    check: check_checks.checks,
    parts: parts_checks.checks,
    lemma_steps: steps_checks.checks,
    certificate: certificate_checks.checks,
    digests: replay_checks.digest_checks,
    equalities: replay_checks.equality_checks,
    replay: replay_checks.checks,
    attempt: attempt_checks.checks,
    placement: lambda: of_tests(test_placement),
    dtypes: inputs_checks.dtype_checks,
    inputs: inputs_checks.input_checks,
    definitions: inputs_checks.definition_checks,
    dtensor_results: inputs_checks.dtensor_checks,
    closure: closure_checks.checks,
    quotients: shares_checks.checks,
    padded_pieces: padded_pieces_checks.checks,
    places: places_checks.checks,
    similar: lambda: of_tests(test_similar),
    sign: lambda: of_tests(test_sign),
    pieces: lambda: itertools.chain(of_tests(test_readings), of_tests(test_pieces)),
    window: lambda: itertools.chain(of_tests(test_readings), of_tests(test_window, "test_parts_of_the_rows")),
    relabel: lambda: of_tests(test_readings),
    indicator: lambda: of_tests(test_indicator),
    inequality: lambda: of_tests(test_inequality, "test_whole_values"),
}
"""Modules of the checker, with what must hold of each."""
FUNCTIONS: Mapping[ModuleType, Collection[str]] = {
    quotients: shares_checks.FUNCTIONS,
    similar: ("_stack_axes", "_rebuild_inequality"),
    sign: (
        "is_nonnegative", "is_positive_sum", "known_equal", "known_order", "_number", "_is_positive", "_is_nonnegative_number",
        "_is_nonnegative_term",
    ),
    pieces: ("concatenated_dim", "whole_dim_of_fresh"),
    window: ("window_at", "is_single"),
    relabel: ("inverse_digits",),
    indicator: ("is_indicator", "_is_indicator"),
    inequality: ("is_whole", "_is_whole", "_may_be_made_of_wholes"),
}  # fmt: skip
"""Of a module not named here all conditions are changed; of the normal form those that say something of a value. The rest
decides which of equal forms is built: what is wrong there changes a value, and tests of values find it, or costs a proof.
"""

PART = 12
"""Of so many mutants one is tried."""


@pytest.mark.parametrize("module", CHECKED, ids=lambda module: module.__name__.rpartition(".")[2])
def test_each_check_and_a_part_of_the_mutants(module: ModuleType) -> None:
    checks = tried(CHECKED[module](), module)
    mutants = list(mutants_of(module, FUNCTIONS.get(module, ())))
    part = mutants[:: min(PART, len(mutants) // 4)]
    assert [mutant.change for mutant in part if not found_by(mutant, checks)] == []
