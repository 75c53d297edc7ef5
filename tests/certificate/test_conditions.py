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
    waits_checks,
)
from tests.ir import (
    exponential_checks,
    lowest_checks,
    test_algebra,
    test_indicator,
    test_inequality,
    test_masked_exponentials,
    test_pieces,
    test_readings,
    test_relabel,
    test_reshaped,
    test_same_place,
    test_scalar,
    test_sign,
    test_similar,
    test_size,
    test_sliding,
    test_squares,
    test_term,
    test_validate,
    test_window,
)
from tests.lemmas import (
    beside_masks_checks,
    bounded_sums_checks,
    operands_checks,
    padded_pieces_checks,
    places_checks,
    rank_places_checks,
    side_condition_checks,
    similar_checks,
    sliding_checks,
    stretches_checks,
    test_formula,
)
from tests.lemmas.conditions import Check, Mutant, found_by, mutants_of, of_tests, tried
from tests.lowering import (
    call_checks,
    infinity_checks,
    lower_checks,
    result_checks,
    size_checks,
    test_budget,
    unknown_checks,
)
from tests.refinement import (
    attempt_checks,
    closure_checks,
    inputs_checks,
    part_by_part_checks,
    shares_checks,
    test_placement,
)
from verifycompile.certificate import annotations as recorded
from verifycompile.certificate import (
    certificate,
    check,
    digests,
    equalities,
    lemma_steps,
    packing,
    parts,
    read_numbers,
    replay,
    statement,
    storage,
    symbols,
    waits,
)
from verifycompile.ir import (
    algebra,
    budget,
    exponential,
    indicator,
    inequality,
    limit,
    pieces,
    relabel,
    reshaped,
    same_place,
    scalar,
    sign,
    similarity,
    size,
    term,
    validate,
    window,
)
from verifycompile.lowering import checks as results
from verifycompile.lowering import elements, lower, numbers, sizes, unknowns
from verifycompile.refinement import (
    attempt,
    closure,
    definitions,
    dtensor_results,
    dtypes,
    inputs,
    part_by_part,
    placement,
    quotients,
)
from verifycompile.rewrites import builder
from verifycompile.rewrites.operators import elementwise
from verifycompile.rewrites.parts import (
    beside_masks,
    bounded_sums,
    chosen,
    padded_pieces,
    places,
    ranges,
    rank_offsets,
    rank_places,
    similar,
    slices,
    sliding,
    sliding_matrix,
    stretched_counters,
    stretches,
)
from verifycompile.rewrites.side_conditions import formula, index_arithmetic, smt_lib, solver, trials

_SUMS = (
    "test_a_sum_over_a_part_is_the_part_of_the_sum",
    "test_partial_sums_pass_linear_operations",
    "test_sums_of_linear_operations_over_any_dimensions_have_their_values",
    "test_sums_of_chosen_rows_and_of_diagonals_have_their_values",
    "test_a_sum_without_summands_is_zero_and_zero_times_infinity_is_refused",
    "test_counters_of_shards_join",
    "test_counters_join_beside_other_summands_and_slices_of_counters_are_counters",
)
_WHOLE_VALUES = "test_whole_concatenations_and_windows_are_what_they_are_said_to_be"
CHECKED: Mapping[ModuleType, Callable[[], Iterator[tuple[str, Check]]]] = {
    statement: statement_checks.checks,
    storage: storage_checks.checks,
    recorded: annotations_checks.checks,
    check: check_checks.checks,
    parts: parts_checks.checks,
    lemma_steps: steps_checks.checks,
    certificate: certificate_checks.checks,
    packing: certificate_checks.checks,
    symbols: lambda: itertools.chain(annotations_checks.checks(), statement_checks.checks()),
    read_numbers: annotations_checks.checks,
    waits: waits_checks.checks,
    digests: replay_checks.digest_checks,
    equalities: replay_checks.equality_checks,
    replay: replay_checks.checks,
    results: result_checks.checks,
    lower: lambda: itertools.chain(lower_checks.checks(), call_checks.checks()),
    elements: call_checks.element_checks,
    algebra: lambda: itertools.chain(infinity_checks.checks(), of_tests(test_algebra, *_SUMS), of_tests(test_squares)),
    elementwise: infinity_checks.checks,
    builder: infinity_checks.checks,
    sizes: size_checks.checks,
    numbers: size_checks.number_checks,
    unknowns: unknown_checks.checks,
    attempt: attempt_checks.checks,
    placement: lambda: of_tests(test_placement),
    dtypes: inputs_checks.dtype_checks,
    inputs: inputs_checks.input_checks,
    definitions: inputs_checks.definition_checks,
    dtensor_results: inputs_checks.dtensor_checks,
    closure: closure_checks.checks,
    quotients: shares_checks.checks,
    part_by_part: part_by_part_checks.checks,
    padded_pieces: padded_pieces_checks.checks,
    places: places_checks.checks,
    rank_offsets: rank_places_checks.offset_checks,
    rank_places: rank_places_checks.place_checks,
    chosen: operands_checks.chosen_checks,
    slices: operands_checks.slice_checks,
    ranges: operands_checks.window_checks,
    beside_masks: beside_masks_checks.checks,
    bounded_sums: bounded_sums_checks.checks,
    sliding: sliding_checks.checks,
    sliding_matrix: lambda: itertools.chain(
        sliding_checks.matrix_checks(), of_tests(test_sliding, "test_parts_and_reach")
    ),
    stretched_counters: sliding_checks.counter_checks,
    stretches: stretches_checks.checks,
    similar: lambda: itertools.chain(of_tests(test_similar), similar_checks.checks()),
    formula: lambda: itertools.chain(side_condition_checks.formula_checks(), of_tests(test_formula)),
    smt_lib: side_condition_checks.text_checks,
    trials: side_condition_checks.trial_checks,
    solver: side_condition_checks.solver_checks,
    index_arithmetic: side_condition_checks.view_checks,
    scalar: lambda: of_tests(test_scalar),
    size: lambda: of_tests(test_size),
    validate: lambda: of_tests(test_validate),
    similarity: lambda: of_tests(test_similar, "test_keys_tell_operands_in_another_order_and_other_digits_apart"),
    limit: lambda: of_tests(test_budget, "test_a_limit_of_the_thread_ends_the_work"),
    budget: lambda: of_tests(test_budget),
    term: lambda: of_tests(test_term),
    sign: lambda: of_tests(test_sign),
    pieces: lambda: itertools.chain(of_tests(test_readings, _WHOLE_VALUES), of_tests(test_pieces)),
    window: lambda: itertools.chain(
        of_tests(test_readings, _WHOLE_VALUES), of_tests(test_window, "test_parts_of_the_rows")
    ),
    relabel: lambda: itertools.chain(of_tests(test_relabel), of_tests(test_readings)),
    reshaped: lambda: of_tests(test_reshaped),
    indicator: lambda: of_tests(test_indicator),
    inequality: lambda: of_tests(test_inequality),
    same_place: lambda: of_tests(test_same_place),
    exponential: lambda: itertools.chain(
        of_tests(test_masked_exponentials, "test_what_is_positive_and_what_is_minus_infinity"),
        exponential_checks.checks(),
        lowest_checks.checks(),
    ),
}
"""Modules of the checker, with what must hold of each."""
FUNCTIONS: Mapping[ModuleType, Collection[str]] = {
    lower: (*lower_checks.FUNCTIONS, *call_checks.FUNCTIONS),
    algebra: (
        *infinity_checks.ALGEBRA, "sum_over", "_sum_single", "_whole_sum", "_push_linear", "_sum_keeping_rank",
        "_merge_counting", "_without_fixed_digits",
    ),
    elementwise: ("mul", "_is_infinite"),
    builder: ("scale",),
    quotients: shares_checks.FUNCTIONS,
    part_by_part: part_by_part_checks.FUNCTIONS,
    exponential: (
        "is_positive", "_is_positive", "is_minus_infinity", "is_positive_number", "_is_masked_sum",
        *exponential_checks.FUNCTIONS, *lowest_checks.FUNCTIONS,
    ),
}  # fmt: skip
"""Of a module not named here all conditions are changed; of the normal form those that say something of a value. The rest
decides which of equal forms is built: what is wrong there changes a value, and tests of values find it, or costs a proof.
"""

_FASTER = "what is computed otherwise is the same"
_WITHOUT_LEMMAS = "the same sum, of which no lemma is tried: it can cost a proof"
_NOT_ZERO = "a weight is not zero"
_WHOLE = "a digit of the size of its dimension begins at one"
_MAY_CHANGE = (
    "not (self._may_hold(view, depth) or (is_elementwise(view.term) and self._may_hold_index(view.term, depth)) or "
    "may_decide(self._mask.term, view.term) or may_look_up(self._pool, self._mask.term, view.term, depth))"
)
_OTHER_FORM = "the same value in another form: it can cost a proof"
_ORDER = "dimensions in another order, by which a sum is found again"
_LINEAR = "(operation.linear or operation.jointly_linear)"
_CONSTANT_COUNTER = "v.term.operation is IOTA and any((d[0] == CONSTANT for d in v.axes[0]))"
_IN_BOTH_ORDERS = "(_same(_Places(pool, one_by_one), left, right) for one_by_one in (True, False))"
_IN_RING = "equal_in_ring(places.pool, first, second)"
_TAKES_A_LIST = "any((isinstance(argument, (list, tuple)) for argument in node.args))"
_GIVES_NO_LIST = "not isinstance(node.meta.get('val'), (list, tuple))"
_ONLY_LOOKED_AT = "what may hold nothing is looked at for nothing"
SAME: Mapping[ModuleType, Mapping[str, str]] = {
    recorded: {"`True` for `symbols_of(program) - {*program.coordinates} or program.size_values`": _FASTER},
    algebra: {
        "`False` for `not bound`": _FASTER,
        "`True` for `known is None`": _FASTER,
        "`all((view.shape[d] == 0 for d in bound))` for `any((view.shape[d] == 0 for d in bound))`": _FASTER,
        "`view.coefficient >= 0` for `view.coefficient > 0`": "a sum of which the coefficient is zero is not noted",
        "`True` for `digit[0] != CONSTANT`": _ORDER,
        "`d <= free` for `d < free`": _ORDER,
        "`True` for `d < free`": _ORDER,
        **{
            f"`not fixed or {other}` for `not fixed or not {_LINEAR} or has_windows([view])`": _OTHER_FORM
            for other in ("has_windows([view])", f"not {_LINEAR}")
        },
        f"`False` for `not {_LINEAR}`": _FASTER,
        f"`operation.linear` for `{_LINEAR[1:-1]}`": _OTHER_FORM,
        "`False` for `operation.jointly_linear`": _OTHER_FORM,
        "`False` for `d not in through_fresh`": _OTHER_FORM,
        "`True` for `operand.uses(d)`": "an operand that does not use a dimension is as many times itself",
        "`True` for `rest`": _FASTER,
        "`False` for `d in dims`": "dimensions that were summed are dropped",
        f"`False` for `not any(({_CONSTANT_COUNTER} for v in operands))`": _FASTER,
        f"`v.term.operation is IOTA` for `{_CONSTANT_COUNTER}`": _FASTER,
        "`d[0] != CONSTANT` for `d[0] == CONSTANT`": _OTHER_FORM,
        "`view.term.operation is not IOTA` for "
        "`view.term.operation is not IOTA or not any((d[0] == CONSTANT for d in view.axes[0]))`": (
            "digits of a counter join again"
        ),
    },
    statement: {"`True` for `program.size_values or any(map(is_derived_number, sizes_of(given)))`": _FASTER},
    beside_masks: {
        "`True` for `key not in pool.answers`": _FASTER,
        "`True` for `view not in self._found`": _FASTER,
        "`False` for `operands == list(opened.operands)`": _FASTER,
        "`depth == 0 or term.fresh` for `term.id <= index.id or depth == 0 or term.fresh`": _ONLY_LOOKED_AT,
        "`term.id < index.id` for `term.id <= index.id`": _ONLY_LOOKED_AT,
        "`digit[0] == CONSTANT` for `digit[0] != CONSTANT`": _ONLY_LOOKED_AT,
        "`False` for `digit[0] != CONSTANT`": _ONLY_LOOKED_AT,
        "`False` for `not all(map(view.uses, self._dimensions)) and (not _HAS_TRUTHS(view.term))`": _ONLY_LOOKED_AT,
        "`any(map(view.uses, self._dimensions))` for `all(map(view.uses, self._dimensions))`": _ONLY_LOOKED_AT,
        **{
            f"`depth == 0{others}` for `depth == 0 or {_MAY_CHANGE}`": _ONLY_LOOKED_AT
            for others in ("", f" and ({_MAY_CHANGE})")
        },
        "`is_elementwise(view.term)` for `is_elementwise(view.term) and self._may_hold_index(view.term, depth)`": (
            _ONLY_LOOKED_AT
        ),
        "`all((may_hold(self._pool, index, term, depth) for index, _ in self._positions))` for "
        "`any((may_hold(self._pool, index, term, depth) for index, _ in self._positions))`": _ONLY_LOOKED_AT,
        "`True` for `mask.term.operation in (AT_MOST, LESS, LESS_EQUAL, NOT)`": _ONLY_LOOKED_AT,
        "`True` for `factor is not lookup`": "at the mask's position the look-up is the mask, which is one",
    },
    inputs: {
        "`shape` for `shape or ()`": "an input that is a tensor has a shape",
        "`False` for `not numbers`": _FASTER,
    },
    results: {
        "`sympy.simplify(sympy.sympify(left) - sympy.sympify(right)) == 0` for "
        "`left == right or sympy.simplify(sympy.sympify(left) - sympy.sympify(right)) == 0`": _FASTER
    },
    lower: {
        "`True` for `t not in self.values`": _FASTER,
        "`True` for `split is None`": _FASTER,
        f"`all{_TAKES_A_LIST[3:]}` for `{_TAKES_A_LIST}`": _FASTER,
        **{
            f"`{other}` for `not takes_list or {_GIVES_NO_LIST}`": _FASTER
            for other in ("not takes_list", _GIVES_NO_LIST, f"not takes_list and ({_GIVES_NO_LIST})", "False")
        },
        "`_draws_undeclared(node)` for `node.op == 'call_function' and _draws_undeclared(node)`": "nothing but calls draws",
    },
    builder: {
        "`isinstance(factor, sympy.Expr)` for "
        "`isinstance(factor, sympy.Expr) and factor.free_symbols & set(self.coordinates)`": _FASTER,
    },
    sizes: {
        "`False` for `isinstance(value, int)`": _FASTER,
        "`unknown - self.counts.views.keys()` for `unknown and unknown - self.counts.views.keys()`": _FASTER,
    },
    sliding: {"`False` for `mask is None`": _FASTER},
    formula: {"`False` for `parts[1:] in ((), (1,))`": _FASTER},
    trials: {"`True` for `kind == 'real'`": "halves that are no whole numbers are left out"},
    index_arithmetic: {
        "`left <= right` for `left < right`": "of equal numbers either one",
        "`number <= 0` for `number < 0`": "zero is cut off to zero from both sides",
        "`view.shape[dim] == size` for `divisor == 1 and view.shape[dim] == size`": _WHOLE,
        "`divisor != 1` for `divisor == 1`": _FASTER,
        "`False` for `whole`": _FASTER,
        "`term.operation not in _COPIES` for `term.operation in _COPIES`": _FASTER,
    },
    part_by_part: {
        f"`all({_IN_BOTH_ORDERS})` for `any({_IN_BOTH_ORDERS})`": _OTHER_FORM,
        f"`{_IN_RING}` for `same_value(first, second) or {_IN_RING}`": _FASTER,
        f"`same_value(first, second)` for `same_value(first, second) or {_IN_RING}`": _OTHER_FORM,
        f"`same_value(first, second) and {_IN_RING}` for `same_value(first, second) or {_IN_RING}`": _OTHER_FORM,
        "`term.attributes[0] >= 0` for `term.attributes[0] > 0`": "no exponent is zero",
        "`True` for `known is None`": _FASTER,
        "`len(self._known) >= _MOST_VIEWS` for `len(self._known) > _MOST_VIEWS`": "one value less",
    },
    exponential: {
        "`term.operation is not CONTRACT` for `term.operation is not CONTRACT or term.summed`": (
            "infinity has no index, so that it is no factor within a sum"
        ),
        "`number <= 0` for `number < 0`": _NOT_ZERO,
        "`factors is None` for "
        "`factors is None or (len(factors) == 1 and factors[0].term.operation not in (EXPONENTIAL, POWER))`": _FASTER,
        "`len(rest) > 1` for `len(rest) > 1 and positive`": "a product is its own only factor",
        "`len(rest) >= 1` for `len(rest) > 1`": _FASTER,
    },
    indicator: {
        "`c <= 0` for `c < 0`": "what is zero is a number, of which the sign is not asked",
        "`digits != counter.axes[0]` for `digits != counter.axes[0] and rest`": "a sum of such counters alone is a counter",
    },
    inequality: {
        "`weight >= 0` for `weight > 0`": _NOT_ZERO,
        "`value >= 0` for `value > 0`": _NOT_ZERO,
        "`step >= 1` for `step > 1`": "a digit has two values or more, so none is without effect where the step is one",
    },
    relabel: {
        "`False` for `len(source) == 1 and source[0][2] == digit[2] and (digit[1] == 1)`": _FASTER,
        "`len(source) == 1 and source[0][2] == digit[2]` for "
        "`len(source) == 1 and source[0][2] == digit[2] and (digit[1] == 1)`": _WHOLE,
        "`digit[1] != 1` for `digit[1] == 1`": _WHOLE,
        "`False` for `old_shape == shape`": _FASTER,
        "`block is None` for `count is None or block is None`": "what does not fit is refused by `extract`",
    },
    similar: {
        "`False` for `term.operation is algebra.COMBINE`": _WITHOUT_LEMMAS,
        "`False` for `term.operation is algebra.CONTRACT`": _WITHOUT_LEMMAS,
        "`isinstance(d[1], int)` for `d[0] == CONSTANT and isinstance(d[1], int)`": "divisors of similar views are alike",
        "`True` for `isinstance(value, int)`": "a symbolic number is spelled by no digit",
    },
    slices: {
        "`True` for `uses`": _FASTER,
        "`self._narrow(operand)` for `part or self._narrow(operand)`": _FASTER,
    },
    stretches: {
        "`len(views) >= 1` for `len(views) > 1`": _FASTER,
        "`True` for `len(views) > 1`": _FASTER,
        "`True` for `view.term.operation is CONCATENATE`": _FASTER,
    },
    size: {
        "`False` for `isinstance(size, int)`": _FASTER,
        "`False` for `isinstance(numerator, int) and isinstance(denominator, int)`": _FASTER,
        "`isinstance(numerator, int)` for `isinstance(numerator, int) and isinstance(denominator, int)`": _FASTER,
        "`False` for `all((isinstance(cut, int) for cut in cuts))`": _FASTER,
    },
    scalar: {
        "`False` for `left is ONE`": _FASTER,
        "`False` for `right is ONE`": _FASTER,
        "`False` for `isinstance(total, Fraction)`": _FASTER,
        "`False` for `min(result.denominator, right.denominator) <= _SIMPLE_DENOMINATOR`": _FASTER,
        "`min(result.denominator, right.denominator) < _SIMPLE_DENOMINATOR` for "
        "`min(result.denominator, right.denominator) <= _SIMPLE_DENOMINATOR`": _FASTER,
    },
}
"""Changes by which a module answers nothing else, with the reason."""

PART = 12
"""Of so many mutants one is tried."""


def what_is_changed(mutant: Mutant) -> str:
    """Without the line, which moves."""
    return mutant.change.partition(": ")[2]


OF_ALL = pytest.mark.parametrize("module", CHECKED, ids=lambda module: module.__name__.rpartition(".")[2])


def survivors(module: ModuleType, every: int | None = None) -> list[str]:
    """Changes that no check finds: of all mutants, or of one in ``every``."""
    checks = tried(CHECKED[module](), module)
    mutants = list(mutants_of(module, FUNCTIONS.get(module, ())))
    same = SAME.get(module, {})
    assert same.keys() - {what_is_changed(mutant) for mutant in mutants} == set()
    mutants = [mutant for mutant in mutants if what_is_changed(mutant) not in same]
    part = mutants if every is None else mutants[:: min(every, max(1, len(mutants) // 4))]
    return [mutant.change for mutant in part if not found_by(mutant, checks)]


@OF_ALL
def test_each_check_and_a_part_of_the_mutants(module: ModuleType) -> None:
    assert survivors(module, PART) == []


@pytest.mark.sweep
@OF_ALL
def test_every_mutant(module: ModuleType) -> None:
    assert survivors(module) == []
