"""What the checker says of certificates, row by row: what holds says what it covers, all else why it does not hold."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from tests.certificate.test_certificate import sealed, text_of
from tests.certificate.test_forged import with_steps
from tests.lemmas.conditions import Check
from verifycompile.certificate import Certificate, CertificateCheck, check_certificate
from verifycompile.certificate import check as checker
from verifycompile.certificate.lemma_steps import LemmaSteps
from verifycompile.rewrites.side_conditions.formula import index
from verifycompile.rewrites.side_conditions.solver import Question

EQUALITIES, STEPS, FACTS = "equalities of the e-graph", "steps", "facts of the solver"


def text(name: str) -> str:
    return json.dumps(with_steps()) if name == STEPS else text_of(name)


@functools.cache
def said_of(name: str) -> str:
    return str(check_certificate(text(name)))


def checks() -> Iterator[tuple[str, Check]]:
    yield "texts", _texts
    yield "no certificate", _is_none
    for name in (EQUALITIES, STEPS):
        yield f"{name} hold", functools.partial(_holds, name, said_of(name))
    for number, (name, change, said) in enumerate(_forged()):
        yield f"forged {number}", functools.partial(_is_rejected, name, change, said)
    yield "facts", _facts
    yield "faults", _faults
    yield f"{FACTS} hold", functools.partial(_holds, FACTS, said_of(FACTS))
    for number, change in enumerate(_facts_changed()):
        yield f"facts {number}", functools.partial(_is_rejected, FACTS, change, "it lists a fact that nothing needs")


def _texts() -> None:
    """What a check says of itself."""
    assert str(CertificateCheck(reason="so")) == "the certificate does not hold: so"
    assert not CertificateCheck(reason="so")
    assert str(CertificateCheck(valid=True)).splitlines() == ["the certificate holds", "  question: "]
    found = CertificateCheck(
        ("output.0", "output.1"), ("grad.w",), ("mutation.b",), {"x": "concat(x)", "w": "w"}, "dp=2", "spec given",
        ("s is 2*k",), valid=True, assumptions=("one", "two"), facts=("fact",),
    )  # fmt: skip
    assert found
    assert str(found).splitlines() == [
        "the certificate holds", "  outputs: output.0, output.1", "  gradients: grad.w", "  mutations: mutation.b",
        "  inputs: x = concat(x), w = w", "  mesh: dp=2", "  question: spec given", "  sizes: s is 2*k",
        "  assumption: one", "  assumption: two", "  fact of the solver: fact",
    ]  # fmt: skip


def _is_none() -> None:
    what = "a certificate is `report.certificate` of a verified program, or the text that its `to_json()` returns"
    wrong: Any = None
    assert check_certificate(wrong).reason == f"{what}, and this is of type NoneType"
    assert check_certificate("{").reason == f"{what}, and this text is no JSON"
    unsealed = json.dumps({**json.loads(text(EQUALITIES)), "seal": "0" * 64})
    assert check_certificate(unsealed).reason == "its content is not what was sealed"
    assert check_certificate("{}").reason == "no certificate: ValueError: not a verifycompile certificate"


def _holds(name: str, said: str) -> None:
    assert said.startswith("the certificate holds")
    for certificate in (text(name), Certificate.from_json(text(name))):
        assert str(check_certificate(certificate)) == said


def _is_rejected(name: str, change: Callable[[dict[str, Any]], object], said: str) -> None:
    data = copy.deepcopy(json.loads(text(name)))
    change(data)
    found = check_certificate(sealed(data))
    assert not found
    assert found.reason == said, found.reason


def _forged() -> Iterator[tuple[str, Callable[[dict[str, Any]], object], str]]:
    families = "it lists other families of declarations than the proof has used"
    yield EQUALITIES, lambda d: d["families"].append("writing"), families
    yield EQUALITIES, lambda d: d["families"].reverse(), families
    yield EQUALITIES, lambda d: d["facts"].append("(check-sat)"), "it lists a fact that nothing needs"
    yield EQUALITIES, lambda d: d.update(relations={}), "its relations are other ones"
    yield EQUALITIES, lambda d: d["values"].update(spec="0"), "its values are other ones"
    yield (
        EQUALITIES,
        lambda d: d["implementation"]["assumptions"].append("two"),
        ("it does not list the assumption: two"),
    )
    yield EQUALITIES, lambda d: d.update(equalities=[]), "no relation of `output.0`"
    yield EQUALITIES, lambda d: d["views"].append(0), "it holds a view that no step needs"
    yield STEPS, lambda d: d["views"].append(d["views"][0]), "it holds a view that no step needs"
    yield (
        STEPS,
        lambda d: d["steps"].append({**d["steps"][0], "position": "0" * 16}),
        (f"it lists a step at `{with_steps()['steps'][0]['node']}` that nothing needs"),
    )
    for number, step in enumerate(with_steps()["steps"]):
        yield (
            STEPS,
            lambda d, number=number: d["steps"][number].update(node="other"),
            (f"its step by {step['lemma']} at `other` is needed at `{step['node']}`"),
        )

    yield EQUALITIES, lambda d: d.update(outer=1), "no certificate: ValueError: not a verifycompile certificate"


def _facts() -> None:
    """A fact is tried at many points, and asked again where that is wanted."""
    wrong = "a fact is wrong where {('index', 0): 1}"
    unproved = "a fact is not proved by the solver"
    position = index(0)
    for claim, size, ask, said in (
        (position < 2, 2, False, ""), (position < 2, 2, True, ""), (position < 1, 2, False, wrong),
        (position < 1, 2, True, wrong), (position * position != 123**2, 1000, False, ""),
        (position * position != 123**2, 1000, True, unproved),
    ):  # fmt: skip
        try:
            checker._check_fact(Question(claim, ((0, size),)), ask)
        except checker._RejectedError as error:
            found = str(error)
        else:
            found = ""
        assert found == said


def _faults() -> None:
    """A step that is none is told, also where all outputs are related without it."""
    rules, given = LemmaSteps(()), mock.Mock()
    with mock.patch.object(checker, "replay", return_value=given):
        assert checker._replayed(given, given, given, rules) is given
        rules.fault = "its step is none"
        try:
            checker._replayed(given, given, given, rules)
        except checker._RejectedError as error:
            found = str(error)
        else:
            found = ""
    assert found == "its step is none"


def _facts_changed() -> Iterator[Callable[[dict[str, Any]], object]]:
    yield lambda d: d["facts"].append(d["facts"][0])
    yield lambda d: d["facts"].append("(set-logic ALL) (assert false) (check-sat)")
