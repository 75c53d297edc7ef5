"""Programs on images: the right ones verify, forward and backward; the wrong ones do not."""

from __future__ import annotations

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
from verifycompile.verification import verify_programs


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verifies(case: Case) -> None:
    assert run_module(case).equal
    spec, implementation = captured(case, case)
    report = verify_programs(spec, implementation, Options())
    assert report.verdict is Verdict.VERIFIED, str(report)
    gradients = {output.name for output in spec.outputs if output.kind is OutputKind.GRADIENT}
    assert {f"grad.{name}" for name, _ in case.spec().named_parameters()} <= gradients <= report.relations.keys()


@pytest.mark.parametrize("mutant", IMAGE_MUTANTS, ids=lambda mutant: mutant.name)
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
    with fake_mesh_world(case.mesh_shape, case.mesh_names) as mesh:
        options = {"in_placements": cut.input_placements()}
        spec, implementation = capture(cut, mesh, given_spec=case, options=options)
    report = verify_programs(spec, implementation, Options())
    assert report.verdict is Verdict.REFUTED, str(report)
