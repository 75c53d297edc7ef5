"""A number that a verified graph leaves open is compared by the ranks again where it is another one at a later call."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agreement.asked_on_two_ranks import answers_of


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[Any]]:
    return answers_of("numbers_later")


def test_numbers_that_all_ranks_change_alike_run(outcomes: dict[str, list[Any]]) -> None:
    first, second = outcomes["right numbers"]
    assert first == second
    assert all(text.startswith("ran: ") for text in first)
    assert len(set(first)) == 3


def test_numbers_that_stay_cost_no_message(outcomes: dict[str, list[Any]]) -> None:
    assert outcomes["numbers that stay"] == ["3 times, then 0"] * 2


@pytest.mark.parametrize(
    ("name", "number", "first", "second"),
    [
        ("wrong real argument", "k", "3.5", "4.5"),
        ("wrong whole argument", "k", "5", "6"),
        ("wrong number in a container", "settings.gain", "3.5", "4.5"),
        ("wrong number of a module", "temperature", "2.5", "3.5"),
    ],
)
def test_numbers_that_ranks_change_otherwise_do_not(
    outcomes: dict[str, list[Any]], name: str, number: str, first: str, second: str
) -> None:
    assert outcomes[name] == [OTHERWISE.format(number, "Scaled.forward", first, second)] * 2


def test_real_numbers_are_compared_when_the_graph_that_leaves_them_open_is_compiled(
    outcomes: dict[str, list[Any]],
) -> None:
    assert (
        outcomes["wrong second call"]
        == [
            (
                "unproved VC208: the graph leaves sizes or numbers of `k` open, which are 2.5 on rank 0 and 3.5 on rank 1: what is "
                "proved holds where all ranks have the same. Pass the same, or compile with `dynamic=False`."
            )
        ]
        * 2
    )


def test_a_graph_behind_a_break_compares_its_numbers_as_well(outcomes: dict[str, list[Any]]) -> None:
    first, second = outcomes["behind a break"]
    assert first == second
    assert all(text.startswith("ran: ") for text in first[:3])
    assert first[3] == OTHERWISE.format("k", "forward after a graph break", "4.5", "5.5")


def test_a_number_that_is_another_one_at_each_call_is_compared_a_number_of_times(
    outcomes: dict[str, list[Any]],
) -> None:
    assert outcomes["often"] == ["67 calls, 64 comparisons, 0 warnings"] * 2


def test_a_number_that_one_rank_alone_changes_is_named_there(outcomes: dict[str, list[Any]]) -> None:
    first, second = outcomes["alone"]
    assert first.startswith("ran: ")
    assert second == (
        "unproved VC208: `k` is another number than at the call of `Scaled.forward` before, on rank 1 and not on all others "
        "(rank 0: no answer within 1 s). Give all ranks the same number: what is proved is of ranks that have the same."
    )


OTHERWISE = (
    "unproved VC208: `{}` is another number than at the call of `{}` before, and it is {} on rank 0 and {} on rank 1. Give "
    "all ranks the same number: what is proved is of ranks that have the same."
)
