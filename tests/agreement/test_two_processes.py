"""Two gloo processes that capture the same, or not: both are told the same."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from tests.agreement.asked_on_two_ranks import answers_of

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "two_ranks.py"


@pytest.fixture(scope="module")
def answers() -> dict[str, list[Any]]:
    return answers_of("two_ranks", VERIFYCOMPILE_RANKS_TIMEOUT="60")


def same_on_both(found: list[Any]) -> Any:
    assert found[0] == found[1]
    return found[0]


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(SCRIPT.read_text().splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    "name",
    [
        "alike",
        "rows of the rank",
        "a number alike",
        "alike again",
        "replicated alike",
        "replicated alike on a mesh",
        "a DTensor of tokens alike",
    ],
)
def test_right_programs_verify_on_both_ranks(answers: dict[str, list[Any]], name: str) -> None:
    found = same_on_both(answers[name])
    assert found["verdict"] == "verified", found["text"]
    assert "; 2 ranks compared" in found["text"]
    assert "every rank runs the graph" not in found["text"]


def test_what_a_constructor_computed_wrongly_of_the_rank_is_refuted(answers: dict[str, list[Any]]) -> None:
    found = same_on_both(answers["rows of no rank"])
    assert found["verdict"] == "refuted"
    assert found["differing"] == [1]


@pytest.mark.parametrize("name", ["replicated differing", "replicated differing on a mesh"])
def test_where_nothing_is_sharded_all_ranks_are_compared(answers: dict[str, list[Any]], name: str) -> None:
    """Without a collective too: that a tensor is replicated says something of every rank."""
    found = same_on_both(answers[name])
    assert found["verdict"] == "refuted"
    assert found["differing"] == [1]


def test_an_activation_chosen_by_rank_is_refuted_at_its_line(answers: dict[str, list[Any]]) -> None:
    found = same_on_both(answers["activation"])
    assert found["verdict"] == "refuted"
    assert found["findings"][0]["line"] == line_of("return self.down(self.activation")


def test_without_a_spec_the_ranks_recover_other_specs(answers: dict[str, list[Any]]) -> None:
    found = same_on_both(answers["activation without a spec"])
    line = line_of("return self.down(self.activation")
    assert found["verdict"] == "unproved"
    assert found["findings"][0]["code"] == "VC208"
    assert found["findings"][0]["message"] == (
        "ranks 0 and 1 run code of which specs are recovered that differ: rank 1 calls `aten.gelu.default` where rank 0 "
        f"calls `aten.relu.default` (line {line}); run the same on all ranks, keep what one rank alone does, as logging, "
        "from being compiled (`torch.compiler.disable`), or pass the same single-device program on all ranks as the "
        "option `spec`."
    )
    assert found["findings"][0]["line"] == line


def test_a_number_of_the_rank_that_is_returned_is_found(answers: dict[str, list[Any]]) -> None:
    found = same_on_both(answers["a number of each rank"])
    assert found["verdict"] == "unproved"
    assert found["findings"][0]["code"] == "VC208"
    assert found["findings"][0]["message"] == (
        "what is returned at ['number'] is 3 on rank 0 and 4 on rank 1, and the spec returns one of them. Return the same "
        "on all ranks, or return it from code that is not compiled."
    )


SENT = (
    "its DTensor says so. Make it with `distribute_tensor`, which sends one rank's numbers to all, or of the same numbers "
    "on all ranks."
)
OTHER_NUMBERS = {
    "buffer": ("scale", "say how it is laid out with `param_placements`, or give all ranks the same."),
    "replicas of a DTensor": ("down.bias", SENT),
    "a DTensor of tokens of each rank": ("input", SENT),
}


@pytest.mark.parametrize("name", OTHER_NUMBERS)
def test_a_tensor_that_differs_by_rank_is_found(answers: dict[str, list[Any]], name: str) -> None:
    tensor, advice = OTHER_NUMBERS[name]
    found = same_on_both(answers[name])
    assert found["verdict"] == "unproved"
    assert found["findings"][0]["message"] == (
        f"`{tensor}` is taken to be the same tensor on every rank, and ranks 0 and 1 hold other numbers in it; {advice}"
    )


def test_a_rank_whose_capture_fails_is_named_with_its_reason(answers: dict[str, list[Any]]) -> None:
    first, second = answers["failing"]
    assert second["verdict"] == "usage error"
    assert first["verdict"] == "unproved"
    assert first["findings"][0]["message"] == (
        "a rank that runs this program has not said what it captured: rank 1: it stopped with error[VC303]: the model "
        "does not run on these inputs."
    )


def test_a_rank_that_does_not_answer_is_named(answers: dict[str, list[Any]]) -> None:
    first, second = answers["alone"]
    assert second is None
    assert first["verdict"] == "unproved"
    assert first["findings"][0]["message"].startswith(
        "a rank that runs this program has not said what it captured: rank 1: no answer within "
    )


def test_when_one_rank_compiles_another_program_both_stop_with_the_same_report(answers: dict[str, list[Any]]) -> None:
    assert same_on_both(answers["compiled 0"])["verdict"] == "ran"
    found = same_on_both(answers["compiled 1"])
    assert found["verdict"] == "refuted"
    assert f"two_ranks.py:{line_of('return self.down(self.activation')}" in found["text"]


def test_a_rank_goes_on_with_what_is_unproved_only_where_all_do(answers: dict[str, list[Any]]) -> None:
    found = same_on_both(answers["warned on one rank"])
    assert found["verdict"] == "unproved"
    assert "the option `on_unproved` is not the same on ranks 0 and 1: give all ranks the same." in found["text"]
    assert same_on_both(answers["warned on all ranks"])["verdict"] == "ran"
