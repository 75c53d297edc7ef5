"""Wrong programs: the oracle's verdict and ours side by side. ``python -m tests.mutants`` prints the table."""

from __future__ import annotations

import pytest

from tests.mutants.mutant import captured, outcome
from tests.mutants.table import MUTANTS, every_collective
from tests.programs import gpt2, llama, torch_transformer
from verifycompile import Verdict

EXHAUSTIVE = [
    torch_transformer.case(4),
    torch_transformer.case(2, sequence_parallel=False),
    llama.case(2),
    llama.case(2, data_parallel=2),
    llama.block_case(4),
    gpt2.case(4),
    gpt2.case(2, data_parallel=2),
]

NOT_REFUTED = {
    # Plain outputs that hold the spec's elements in another order, or among others: no value refutes every layout.
    "transformer-sp-2:rotate:all-gather-forward-3",
    "gpt2-1layers-2:input-layouts:head",
}
"""Mutants that change a result without a captured input and output that show it."""

EQUAL = {
    # A plain output may be sharded: that is a clean relation.
    "gpt2-1layers-2:output-layouts:head",
    # The hook does by hand what the style does.
    "mlp-residual-2x2:hook-right-axis:down",
}
"""Changes after which the program is still right."""

NEAR_CODES = frozenset({"VC107"})
"""What any mistake may be called: no relation was found."""


@pytest.mark.sampled(every=12, of=("mutant.kind",))
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant(mutant):
    result = outcome(mutant)
    assert result.oracle.equal == (mutant.name in EQUAL)
    if result.oracle.equal:
        assert result.verdict is Verdict.VERIFIED, str(result.report)
        return
    expected = Verdict.UNPROVED if mutant.name in NOT_REFUTED else Verdict.REFUTED
    assert result.verdict is expected, str(result.report)
    # Another change than the mutation may mend the program as well: the report's own was proved to.
    if mutant.codes and not (result.report.findings[0].hint or "").endswith("(checked)"):
        assert result.code in mutant.codes | NEAR_CODES, str(result.report)
    if mutant.changed is None:
        return
    # A mistake of a user is located in the user's file.
    location = result.report.findings[0].impl_location
    assert location is not None
    user_files = ("/tests/programs/", "/tests/mutants/", "/testing/_internal/distributed/_tensor/common_dtensor.py")
    assert any(part in location.file for part in user_files)


def test_there_are_enough_mutants_of_every_kind():
    kinds = {mutant.kind for mutant in MUTANTS}
    assert {"drop", "twice", "scale", "axis", "rotate", "other-rank", "swap", "partial-kept", "input-layouts"} <= kinds
    assert len(MUTANTS) - len(EQUAL) >= 40
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.sweep
@pytest.mark.parametrize("case", EXHAUSTIVE, ids=lambda case: case.name)
def test_no_edit_of_any_collective_is_misjudged(case):
    _, implementation = captured(case, case)
    outcomes = [outcome(mutant) for mutant in every_collective(case, implementation)]
    different = [result for result in outcomes if not result.oracle.equal]
    assert [result.row() for result in different if result.verdict is Verdict.VERIFIED] == []
    assert [result.row() for result in outcomes if result.oracle.equal and result.verdict is Verdict.REFUTED] == []
    refuted = [result for result in different if result.verdict is Verdict.REFUTED]
    assert 3 * len(refuted) >= 2 * len(different), [result.row() for result in different if result not in refuted]
