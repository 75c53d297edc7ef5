"""Forms of training code as engineers write them: the right programs verify, and no mistake does.

Every run verifies all right programs and refutes one mistake of every fifth; the rest is for the sweep.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from tests.programs.forms import (
    attention,
    backwards,
    edges,
    functions,
    inference,
    losses,
    routing,
    running,
    spellings,
    vocabulary,
)
from tests.programs.forms.form import Form
from tests.support import fake_mesh_world
from verifycompile import Verdict
from verifycompile.capture import capture_model
from verifycompile.diagnostics.report import Report
from verifycompile.options import Options
from verifycompile.pipeline import verify_captured
from verifycompile.witness import find_witness

FORMS: tuple[Form, ...] = tuple(
    form
    for family in (vocabulary, losses, backwards, attention, running, inference, spellings, functions, routing, edges)
    for form in family.FORMS
)
MISTAKES = [
    pytest.param(
        form,
        mistake,
        id=f"{form.name}: {mistake}",
        marks=() if number % 5 == 0 and mistake == form.mistakes[0] else (pytest.mark.sweep,),
    )
    for number, form in enumerate(FORMS)
    for mistake in form.mistakes
]


def judged(form: Form, mistake: str) -> tuple[Report, bool]:
    """The report, and whether the programs differ in numbers."""
    with fake_mesh_world(tuple(form.mesh.values()), tuple(form.mesh), rank=form.world_size - 1) as mesh:
        build = lambda: form.program(mesh, mistake)  # noqa: E731 - as users write it
        options = Options.from_mapping({**form.options, "mesh": mesh, "spec": form.spec(), "build": build})
        spec, implementation = capture_model(form.program(mesh, mistake), form.args(), {}, options)
        report = verify_captured(spec, implementation, options)
        if report.verdict is not Verdict.UNPROVED or implementation.ranks:
            return report, report.verdict is Verdict.REFUTED
        return report, find_witness(spec, implementation) is not None


def test_names_are_distinct() -> None:
    assert len({form.name for form in FORMS}) == len(FORMS)


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("form", [pytest.param(form, id=form.name) for form in FORMS])
def test_verifies(form: Form) -> None:
    report, _ = judged(form, "")
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert len(form.mistakes) >= 3


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(("form", "mistake"), MISTAKES)
def test_mistake_is_not_verified(form: Form, mistake: str) -> None:
    report, differs = judged(form, mistake)
    assert report.verdict is not Verdict.VERIFIED, str(report)
    assert differs, str(report)


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        pytest.param("caches-by-sequence-2", inference.written_and_read(-1e30), marks=pytest.mark.sweep),
        ("caches-merged-4", inference.seen_up_to(float("-inf"))),
    ],
)
def test_the_exponential_of_a_finite_mask_is_not_zero(name: str, spec: Callable[..., torch.Tensor]) -> None:
    """In floating point no input tells the programs apart; over the real numbers they differ."""
    (form,) = (form for form in FORMS if form.name == name)
    report, differs = judged(dataclasses.replace(form, spec=lambda: spec), "")
    assert report.verdict is Verdict.UNPROVED, str(report)
    assert not differs
    assert "`output.0` has no relation to the spec's value" in str(report)
