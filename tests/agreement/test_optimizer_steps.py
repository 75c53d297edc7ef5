"""What writes to parameters that ranks hold alike is compared, also where no wrapper and no DTensor is in its graph."""

from __future__ import annotations

import pytest

from tests.agreement.asked_on_two_ranks import answers_of

KINDS = ("decay", "later", "by hand", "verified before", "clipping", "noise", "argument")


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[list[str]]]:
    return answers_of("optimizer_steps")


@pytest.mark.parametrize("name", [*(f"right {kind}" for kind in KINDS), "each its own", "parts", "logged"])
def test_steps_alike_and_what_one_rank_logs_run(outcomes: dict[str, list[list[str]]], name: str) -> None:
    first, second = outcomes[name]
    assert first == second
    assert {*first} == {"ran"}


@pytest.mark.parametrize("name", [f"wrong {kind}" for kind in KINDS])
def test_steps_by_other_numbers_do_not(outcomes: dict[str, list[list[str]]], name: str) -> None:
    first, second = outcomes[name]
    assert first == second
    assert first[-1].startswith("unproved VC208: ")


def test_the_step_and_the_parameter_are_named(outcomes: dict[str, list[list[str]]]) -> None:
    assert outcomes["wrong decay"][0][0] == (
        "unproved VC208: `Adam.step` writes to `self.param_groups.0.params.0`, which the ranks 0, 1 hold alike, and they "
        "do not all run the same of it: give all ranks the same numbers (as learning rates), tensors (as gradients, "
        "which are the same once they are reduced), hooks and branches"
    )


def test_a_rate_that_one_rank_changes_later_is_named(outcomes: dict[str, list[list[str]]]) -> None:
    *before, after = outcomes["wrong later"][0]
    assert before == ["ran"]
    assert after == (
        "unproved VC208: `self.param_groups.0.lr` was written to, or is another tensor, since `Adam.step` was verified, "
        "and ranks 0 and 1 hold other numbers in it now. Change it in the same way on all ranks before the call, or say "
        "how it is laid out with `param_placements`."
    )
