"""Code behind a graph break that is not parallel is passed where all ranks run the same of it, and there alone."""

from __future__ import annotations

import pytest

from tests.agreement.asked_on_two_ranks import answers_of
from tests.agreement.scripts.behind_a_break import RIGHT, WRONG


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[str]]:
    return answers_of("behind_a_break")


@pytest.mark.parametrize("name", RIGHT)
def test_what_all_ranks_run_alike_runs(outcomes: dict[str, list[str]], name: str) -> None:
    first, second = outcomes[f"right {name}"]
    assert first == second
    assert first.startswith("ran: ")


@pytest.mark.parametrize("name", WRONG)
def test_what_the_ranks_run_otherwise_does_not(outcomes: dict[str, list[str]], name: str) -> None:
    first, second = outcomes[f"wrong {name}"]
    assert first == second
    assert first.startswith("unproved VC208: ")


def test_where_the_graph_before_was_not_asked_about_the_function_is_named(outcomes: dict[str, list[str]]) -> None:
    assert outcomes["wrong broken again"][0] == (
        "unproved VC208: `broken_again after a graph break` takes what a graph before it returns, and the ranks 0, 1 do "
        "not all run the same of it: give all ranks the same numbers, tensors, hooks and branches, or remove the graph "
        "break before it (`fullgraph=True` shows where)"
    )


def test_what_a_graph_before_a_break_does_alike_on_all_ranks_runs(outcomes: dict[str, list[str]]) -> None:
    assert outcomes["right before"][0].startswith("ran: ")
    assert outcomes["right before"][0] == outcomes["right before"][1]


@pytest.mark.parametrize("name", ["number before", "buffer before"])
def test_what_it_does_otherwise_is_told_where_its_result_is_taken(outcomes: dict[str, list[str]], name: str) -> None:
    assert (
        outcomes[name]
        == [
            (
                "unproved VC208: `x` is taken to be the same tensor on every rank, and the graph that returns it, before a "
                "graph break, is not the same on ranks 0 and 1: give all ranks the same numbers, tensors and branches there, "
                "or say how it is laid out with `in_placements`."
            )
        ]
        * 2
    )


def test_what_one_rank_alone_compiles_is_named_after_one_wait(outcomes: dict[str, list[str]]) -> None:
    first, second = outcomes["logging"]
    assert first == (
        "unproved VC208: `logged` takes what a graph before it returns, and not all of the ranks 0, 1 compile it (rank 1: "
        "no answer within 1 s): call it on all of them, or keep what one rank alone does, as logging, from being compiled "
        "(`torch.compiler.disable`)"
    )
    assert second.startswith("ran: ")


@pytest.mark.parametrize("name", ["in one piece", "in pieces"])
def test_a_partial_sum_of_ranks_that_differ_is_one_for_the_function_that_takes_it(
    outcomes: dict[str, list[str]], name: str
) -> None:
    """Whether the ranks' graphs are one, with numbers of the rank, or are checked rank by rank."""
    assert outcomes[f"sum {name}"] == ["ran: 0.000"] * 2
    assert outcomes[f"part {name}"] == [TAKES_A_PART] * 2


TAKES_A_PART = "refuted VC101: `torch.tanh(y)` needs the full value of `y`, which is a partial sum over tp"
