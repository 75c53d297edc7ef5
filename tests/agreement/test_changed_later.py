"""A tensor that ranks held alike when a graph was verified is compared again where it changes afterwards."""

from __future__ import annotations

import pytest

from tests.agreement.asked_on_two_ranks import answers_of
from tests.agreement.scripts.changed_later import CHANGES


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[str]]:
    return answers_of("changed_later")


@pytest.mark.parametrize("name", [*CHANGES, "layers", "break"])
def test_what_all_ranks_change_alike_runs(outcomes: dict[str, list[str]], name: str) -> None:
    first, second = outcomes[f"right {name}"]
    assert first == second
    assert first.startswith("ran: ")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        *zip(
            CHANGES,
            ("scale", "shift", "OF_MODULE", "scale", "scale", "down.bias", "down.bias", "down.bias"),
            strict=True,
        ),
        ("layers", "scale"),
    ],
)
def test_what_ranks_change_otherwise_does_not(outcomes: dict[str, list[str]], name: str, tensor: str) -> None:
    assert outcomes[f"wrong {name}"] == [DIFFERING.format(tensor, "Layer.forward")] * 2


def test_what_one_rank_changes_and_sends_to_the_others_runs(outcomes: dict[str, list[str]]) -> None:
    first, second = outcomes["received"]
    assert first == second
    assert first.startswith("ran: ")


def test_a_graph_behind_a_break_compares_what_it_holds_as_well(outcomes: dict[str, list[str]]) -> None:
    assert outcomes["wrong break"] == [DIFFERING.format("factor", "forward after a graph break")] * 2


def test_what_one_rank_alone_changes_is_named_there(outcomes: dict[str, list[str]]) -> None:
    first, second = outcomes["alone"]
    assert first.startswith("ran: ")
    assert second == (
        "unproved VC208: `scale` was written to, or is another tensor, since `Layer.forward` was verified, on rank 1 and "
        "not on all others (rank 0: no answer within 1 s). Change it in the same way on all ranks before the call, or "
        "say how it is laid out with `param_placements`."
    )


def test_steps_of_training_cost_no_message(outcomes: dict[str, list[str]]) -> None:
    assert outcomes["trained"] == ["0 times, 1.0000"] * 2
    assert outcomes["counting"] == ["0 times, 5.0000"] * 2


def test_what_changes_at_every_call_is_compared_a_number_of_times_and_then_named(
    outcomes: dict[str, list[str]],
) -> None:
    assert outcomes["often"] == [OFTEN] * 2


def test_what_changes_at_every_call_is_still_compared_now_and_then(outcomes: dict[str, list[str]]) -> None:
    """Rank 1 writes another number at the 66th call alone, and the 128th change is compared."""
    assert outcomes["seldom"] == [f"call 128: {DIFFERING.format('scale', 'Layer.forward')}"] * 2


OFTEN = (
    "`scale` changes between calls of `Layer.forward`, and was the same on all ranks each of the 64 times that it was "
    "compared; from now on it is compared at one change in 64. Change it inside of what is compiled, where it is "
    "verified, to be sure of it."
)
DIFFERING = (
    "unproved VC208: `{}` was written to, or is another tensor, since `{}` was verified, and ranks 0 and 1 hold other "
    "numbers in it now. Change it in the same way on all ranks before the call, or say how it is laid out with "
    "`param_placements`."
)
