"""Programs on images: the right ones verify, forward and backward; the wrong ones do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.mutants.images import IMAGE_MUTANTS
from tests.mutants.mutant import captured, outcome
from tests.oracle import run_module
from tests.programs.captured import capture
from tests.programs.case import Case
from tests.programs.vision import (
    CASES,
    convnet_case,
    on_local_tensors,
    strided_case,
    with_input_shard,
)
from tests.support import fake_mesh_world
from verifycompile import Verdict
from verifycompile.options import Options
from verifycompile.program import OutputKind
from verifycompile.two_programs import verify_programs


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verifies(case: Case) -> None:
    assert run_module(case).equal
    spec, implementation = captured(case, case)
    report = verify_programs(spec, implementation, Options())
    assert report.verdict is Verdict.VERIFIED, str(report)
    gradients = {output.name for output in spec.outputs if output.kind is OutputKind.GRADIENT}
    assert {f"grad.{name}" for name, _ in case.spec().named_parameters()} <= gradients <= report.relations.keys()


SLOW = ("unet-dp", "unet-tp", "vit-tp", "poolnet-dp-2:gradient")
"""Programs whose mutants are for the sweep, but for the first of each."""


def _marked() -> Iterator[Any]:
    seen: set[str] = set()
    for mutant in IMAGE_MUTANTS:
        program = next((name for name in SLOW if mutant.name.startswith(name)), None)
        slow = program is not None and program in seen
        seen |= {program} if program else set()
        yield pytest.param(mutant, id=mutant.name, marks=[pytest.mark.sweep] if slow else [])


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("mutant", list(_marked()))
def test_mutant(mutant) -> None:
    result = outcome(mutant)
    assert not result.oracle.equal
    assert result.verdict is Verdict.REFUTED, str(result.report)


@pytest.mark.parametrize(
    ("case", "style"),
    [
        (convnet_case(2), on_local_tensors()),
        (strided_case(2), on_local_tensors()),
    ],
    ids=["convnet", "strided"],
)
def test_images_cut_in_space_need_their_neighbours_borders(case: Case, style) -> None:
    cut = with_input_shard(case, 3, style)
    with fake_mesh_world(cut.mesh_shape, cut.mesh_names) as mesh:
        options = {"in_placements": cut.input_placements()}
        spec, implementation = capture(cut, mesh, given_spec=case, options=options)
    report = verify_programs(spec, implementation, Options())
    assert report.verdict is Verdict.REFUTED, str(report)
