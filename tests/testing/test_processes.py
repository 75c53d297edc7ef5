"""A function on real processes."""

from __future__ import annotations

import pytest

from tests.testing.functions import rank_1_ends, rank_1_raises, sum_of_ranks
from verifycompile.testing import RankError, run_on_ranks


def test_what_each_rank_returns() -> None:
    assert run_on_ranks(sum_of_ranks, 2, 10) == [10, 10]


def test_a_rank_that_raises_fails_the_test_with_its_traceback() -> None:
    with pytest.raises(RankError, match=r"rank 1: Traceback[\s\S]*this rank is wrong") as caught:
        run_on_ranks(rank_1_raises, 2)
    assert caught.value.rank == 1


def test_ranks_that_do_not_answer_are_named() -> None:
    with pytest.raises(RankError) as caught:
        run_on_ranks(sum_of_ranks, 2, 10, seconds=0.01)
    assert str(caught.value) == "rank 0: no answer within 0.01 s."


@pytest.mark.parametrize("collective", [False, True])
def test_a_process_that_ends_is_not_waited_for_and_is_named_before_its_peers_errors(collective: bool) -> None:
    with pytest.raises(RankError) as caught:
        run_on_ranks(rank_1_ends, 2, collective)
    assert str(caught.value) == "rank 1: its process ended with exit status 3 before `function` returned."
