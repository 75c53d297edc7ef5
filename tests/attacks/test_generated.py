"""Generated programs with one unsound edit each: what numbers call wrong is never verified."""

from __future__ import annotations

import collections
import dataclasses

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.attacks import dtensors
from tests.attacks.families import ANY, RIGHT, Family, Site, ask_family, families, held, is_value, proved
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


@pytest.mark.parametrize(("way", "examples"), [(Way.GRAPHS, 20)])
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


def test_wrong_programs_of_dtensors_do_not_verify() -> None:
    seen: collections.Counter[tuple[Verdict, Numbers]] = collections.Counter()

    @settings(PROFILE, max_examples=5)
    @given(dtensors.questions())
    def run(question: dtensors.Question) -> None:
        answer = dtensors.ask(question)
        if answer is None:
            return
        assert not answer.verified_wrongly, f"{question} {answer}"
        assert answer.edited is not None or answer.numbers is Numbers.EQUAL, f"wrong by construction: {question}"
        assert answer.verdict is not Verdict.REFUTED or answer.numbers is Numbers.WRONG, f"{question} {answer}"
        seen[answer.verdict, answer.numbers] += 1

    run()
    assert seen[Verdict.VERIFIED, Numbers.EQUAL]


OF_DTENSORS = dtensors.Question(
    (2,),
    ("R",),
    (("S0",), ("S1",), ("R",)),
    (
        dtensors.Step("product 0", ("S1",), False),
        dtensors.Step("own rows", None, False),
        dtensors.Step("columns centred", None, False),
    ),
    True,
    None,
)
"""A product of which every rank computes a summand, of whose sum it takes its rows."""


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("mistake", [None, *dtensors.MISTAKES])
def test_every_mistake_with_dtensors_is_seen(mistake: str | None) -> None:
    place = {"as a sum": 0, "as whole": 1, "no word on gradients": 1}.get(mistake or "", 2)
    answer = dtensors.ask(dataclasses.replace(OF_DTENSORS, mistake=mistake and (place, mistake)))
    assert answer is not None
    expected = (Verdict.REFUTED, Numbers.WRONG) if mistake else (Verdict.VERIFIED, Numbers.EQUAL)
    assert (answer.verdict, answer.numbers) == expected


def test_edited_graphs_do_not_verify_wrongly() -> None:
    seen: collections.Counter[tuple[Verdict, Numbers]] = collections.Counter()

    @settings(PROFILE, max_examples=8)
    @given(families(8))
    def run(family: Family) -> None:
        for answer, _ in ask_family(family):
            assert not answer.verified_wrongly, f"{family} {answer}"
            assert answer.edited not in {None, *RIGHT} or answer.numbers is Numbers.EQUAL, (
                f"wrong by construction: {family}"
            )
            seen[answer.verdict, answer.numbers] += 1

    run()
    assert seen[Verdict.VERIFIED, Numbers.EQUAL]
    assert seen[Verdict.UNPROVED, Numbers.WRONG]


EDITED = Question((2,), ((1,), (0,), ("R",)), (Step("product", (0, 2), 0),), 1, False, None)
"""A product of which every rank computes a summand, and the sum over the ranks."""


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("rank", [None, 0, 1])
@pytest.mark.parametrize("called", ANY)
def test_every_edit_of_a_value_is_seen(called: str, rank: int | None) -> None:
    """At the place where ranks hold parts of a sum, and nothing is verified that numbers call wrong."""
    found = held(EDITED)
    assert found is not None
    assert proved(found.asked(alike=True))
    names = [name for name, node in found.drafts[0].nodes.items() if is_value(node)]
    for number, draft in enumerate(found.drafts):
        if rank in (None, number):
            ANY[called](Site(draft, draft.nodes[names[-1]], number, EDITED.mesh, 0))
    assert found.numbers(alike=rank is None) is Numbers.WRONG
    assert not proved(found.asked(alike=rank is None))
    for draft in found.drafts:
        draft.undo()
    assert found.numbers(alike=True) is Numbers.EQUAL
    assert proved(found.asked(alike=True))


@pytest.mark.parametrize("called", RIGHT)
def test_other_ways_of_writing_the_same_are_proved(called: str) -> None:
    found = held(EDITED)
    assert found is not None
    names = [name for name, node in found.drafts[0].nodes.items() if is_value(node)]
    draft = found.drafts[0]
    RIGHT[called](Site(draft, draft.nodes[names[-1]], 0, EDITED.mesh, 0))
    assert found.numbers(alike=False) is Numbers.EQUAL
    assert proved(found.asked(alike=False))


def single(
    operator: str, layouts: tuple[tuple[object, ...], ...], edit: tuple[int, int, int | None] | None
) -> Question:
    return Question((2,), layouts, (Step(operator, (0, 1), 1),), 1, True, edit)


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_is_parallelized_rightly(operator: str) -> None:
    """What the generator calls right by construction is right by numbers, and is not refuted."""
    answer = ask(single(operator, ((1,), ("R",), (0,)), None))
    assert answer is not None
    assert answer.numbers is Numbers.EQUAL
    assert answer.verdict is not Verdict.REFUTED


@pytest.mark.sampled(every=2)
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
