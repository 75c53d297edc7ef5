"""What a call decides, and other ranks otherwise, after all that it may run was verified."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agreement.asked_on_two_ranks import answers_of


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[Any]]:
    return answers_of("chosen_later")


@pytest.mark.parametrize("name", ["right flags", "right rows", "right DDP", "right fully_shard", "evaluated alone"])
def test_what_all_ranks_decide_alike_runs(outcomes: dict[str, list[Any]], name: str) -> None:
    first, second = outcomes[name]
    assert first == second
    assert all(text.startswith("ran: ") for text in first if not text.endswith("comparisons"))


def test_ranks_speak_where_another_graph_runs_and_where_none_does_not(outcomes: dict[str, list[Any]]) -> None:
    assert [answers[-1] for answers in outcomes["right flags"]] == ["3 comparisons"] * 2


def test_ranks_that_run_different_graphs_of_one_code(outcomes: dict[str, list[Any]]) -> None:
    (first,), (second,) = outcomes["wrong flags"]
    assert (
        first
        == second
        == (
            "unproved VC208: the graph of `Flagged.forward` that runs is not the one of the call before, and it is number 4 of "
            "those compiled on rank 0 and number 5 of those compiled on rank 1. Give all ranks the same sizes, flags and "
            "modules: each graph is proved of ranks that run it together."
        )
    )


def test_ranks_that_pass_different_sizes(outcomes: dict[str, list[Any]]) -> None:
    (first,), (second,) = outcomes["wrong rows"]
    assert (
        first
        == second
        == (
            "unproved VC208: `x.size(0)` is another number than at the call of `Loss.forward` before, and it is 8 on rank 0 and "
            "10 on rank 1. Give all ranks the same number: what is proved is of ranks that have the same."
        )
    )


def test_ranks_whose_sizes_have_graphs_of_their_own(outcomes: dict[str, list[Any]]) -> None:
    (first,), (second,) = outcomes["wrong rows of one graph each"]
    assert first == second
    assert "the graph of `Loss.forward` that runs is not the one of the call before" in first


@pytest.mark.parametrize("name", ["DDP", "fully_shard"])
def test_a_rank_that_alone_leaves_its_gradients_for_a_later_step(outcomes: dict[str, list[Any]], name: str) -> None:
    (first,), (second,) = outcomes[f"wrong {name}"]
    assert first.startswith("ran: ")
    assert second == (
        "unproved VC208: whether wrappers reduce the gradients of `Loss.forward` is not as at the call before, on rank 1 and "
        "not on all others (rank 0: no answer within 1 s). Switch it on all ranks before the same call: who reduces waits "
        "for the others."
    )
