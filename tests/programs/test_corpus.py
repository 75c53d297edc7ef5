"""Correct programs: the oracle agrees with them, no witness is found, and they verify, forward and backward."""

from __future__ import annotations

import pytest
import torch

from tests.mutants.edits import ALL_REDUCE, drop
from tests.oracle import run_module
from tests.programs import llama, mlp, torch_transformer
from tests.programs.captured import capture
from tests.programs.case import Case
from tests.programs.corpus import DEFAULT, SWEEP
from tests.support import fake_mesh_world
from verifycompile import Verdict
from verifycompile.capture import capture_model
from verifycompile.options import Options
from verifycompile.program import OutputKind, Role
from verifycompile.two_programs import verify_programs
from verifycompile.witness import Agreement, compare_outputs, find_witness

CASES = [
    *(pytest.param(case, id=case.name) for case in DEFAULT),
    *(pytest.param(case, id=case.name, marks=pytest.mark.sweep) for case in SWEEP),
]


def _is_recoverable(case: Case) -> bool:
    # Torch's own plan writes the local number of heads into the module, so that only a given spec has the global one.
    return not case.name.startswith("transformer")


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("case", CASES)
def test_oracle_agrees(case):
    assert run_module(case).equal


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("case", CASES)
def test_verifies(case):
    given = None if _is_recoverable(case) else case
    with fake_mesh_world(case.mesh_shape, case.mesh_names) as mesh:
        spec, implementation = capture(case, mesh, given_spec=given)
    report = verify_programs(spec, implementation, Options())
    assert report.verdict is Verdict.VERIFIED, str(report)
    gradients = {output.name for output in spec.outputs if output.kind is OutputKind.GRADIENT}
    assert {f"grad.{name}" for name, _ in case.spec().named_parameters()} <= gradients
    assert gradients <= report.relations.keys()
    assert find_witness(spec, implementation) is None
    agreements = {name: result.agreement for name, result in compare_outputs(spec, implementation).items()}
    assert set(agreements.values()) == {Agreement.EQUAL}, agreements


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("case", [mlp.case(2), mlp.residual_case(4), llama.block_case(2)], ids=lambda case: case.name)
def test_dynamic_batch_size(case):
    with fake_mesh_world(case.mesh_shape, case.mesh_names) as mesh:
        (x,) = case.rank_inputs(0)
        torch._dynamo.mark_dynamic(x, 0)
        spec, implementation = capture_model(case.build(mesh), (x,), {}, Options())
    assert [entry.role for entry in spec.inputs].count(Role.SIZE) == 1
    report = verify_programs(spec, implementation, Options())
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert {result.agreement for result in compare_outputs(spec, implementation).values()} == {Agreement.EQUAL}


def test_dynamic_batch_size_of_a_wrong_program():
    case = mlp.residual_case(2)
    with fake_mesh_world(case.mesh_shape, case.mesh_names) as mesh:
        (x,) = case.rank_inputs(0)
        torch._dynamo.mark_dynamic(x, 0)
        spec, implementation = capture_model(case.build(mesh), (x,), {}, Options())
    wrong = drop(ALL_REDUCE, 0, backward=False)(implementation)
    report = verify_programs(spec, wrong, Options())
    assert (report.verdict, report.findings[0].code) == (Verdict.REFUTED, "VC101"), str(report)


def test_inputs_of_a_block_are_sharded_as_its_first_style_says():
    case = llama.block_case(2)
    with fake_mesh_world(case.mesh_shape, case.mesh_names) as mesh:
        _, implementation = capture(case, mesh)
    (placements,) = [entry.placements for entry in implementation.inputs if entry.name == "x"]
    assert str(placements) == "(Shard(dim=1),)"


def test_complex_rotary_embedding_agrees_numerically():
    case = llama.case(2, complex_rotary=True)
    assert run_module(case).equal
    with fake_mesh_world(case.mesh_shape, case.mesh_names) as mesh:
        spec, implementation = capture(case, mesh)
    assert {result.agreement for result in compare_outputs(spec, implementation).values()} == {Agreement.EQUAL}
    assert find_witness(spec, implementation) is None


def test_transformers_tied_weight_is_one_parameter():
    case = torch_transformer.case(2)
    with fake_mesh_world(case.mesh_shape, case.mesh_names) as mesh:
        spec, _ = capture(case, mesh, given_spec=case)
    names = [output.name for output in spec.outputs]
    assert "grad.tok_embeddings.weight" in names
    assert "grad.output.weight" not in names
