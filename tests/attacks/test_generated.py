"""Generated programs with one unsound edit each: what numbers call wrong is never verified."""

from __future__ import annotations

import collections
import dataclasses

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.attacks.generated import Answer, Numbers, Question, Step, Way, ask, decisions, questions
from tests.attacks.parallel import OPERATORS
from verifycompile import Verdict

PROFILE = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


@pytest.mark.parametrize(("way", "examples"), [(Way.GRAPHS, 40)])
def test_what_is_wrong_does_not_verify(way: Way, examples: int) -> None:
    seen: collections.Counter[tuple[Verdict, Numbers]] = collections.Counter()

    @settings(PROFILE, max_examples=examples)
    @given(questions())
    def run(question: Question) -> None:
        answer = ask(question, way)
        if answer is None:
            return
        assert not answer.verified_wrongly, f"{question} {answer}"
        assert answer.edited is not None or answer.numbers is Numbers.EQUAL, f"wrong by construction: {question}"
        seen[answer.verdict, answer.numbers] += 1

    run()
    # Neither side of the comparison is empty.
    assert seen[Verdict.VERIFIED, Numbers.EQUAL]
    assert seen[Verdict.REFUTED, Numbers.WRONG]


def single(operator: str, layouts: tuple[tuple[object, ...], ...], edit: tuple[int, int, int | None] | None) -> Question:
    return Question((2,), layouts, (Step(operator, (0, 1), 1),), 1, True, edit)


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_is_parallelized_rightly(operator: str) -> None:
    """What the generator calls right by construction is right by numbers, and is not refuted."""
    answer = ask(single(operator, ((1,), ("R",), (0,)), None))
    assert answer is not None
    assert answer.numbers is Numbers.EQUAL
    assert answer.verdict is not Verdict.REFUTED


@pytest.mark.parametrize("way", range(8))
@pytest.mark.parametrize("layouts", [((1,), ("R",), (0,)), ((0,), (0,), ("R",)), (("R",), (1,), (1,))])
def test_every_mistake_of_a_product_is_seen(layouts: tuple[tuple[object, ...], ...], way: int) -> None:
    question = single("product", layouts, None)
    found: list[Answer] = []
    for place in range(len(decisions(question)[0])):
        answer = ask(dataclasses.replace(question, edit=(place, way, None)))
        if answer is not None:
            assert not answer.verified_wrongly, answer
            found.append(answer)
    assert any(answer.numbers is Numbers.WRONG for answer in found)
