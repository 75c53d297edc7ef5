"""Fuzzing: whatever verifies must agree numerically on all ranks, and what is wrong must not verify."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

from tests.programs import gpt2, llama, mlp
from tests.programs.captured import capture
from tests.programs.case import Case
from tests.soundness.random_edits import edited
from tests.soundness.random_programs import random_program
from tests.support import fake_mesh_world
from verifycompile.capture import capture_model
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.program import Program
from verifycompile.refinement.check import check_refinement
from verifycompile.witness import Agreement, EvaluationError, compare_outputs

BLOCK = 8


def outcome(spec: Program, implementation: Program) -> tuple[bool, str]:
    """Whether the pair verifies, and what numbers say: ``equal``, ``different`` or ``unknown``."""
    verified = check_refinement(spec, implementation).mismatch is None
    try:
        agreements = {result.agreement for result in compare_outputs(spec, implementation).values()}
    except EvaluationError:
        return verified, "unknown"
    if Agreement.DIFFERENT in agreements:
        return verified, "different"
    return verified, "unknown" if Agreement.UNKNOWN in agreements else "equal"


def random_outcome(seed: int, axes: int) -> tuple[bool, str] | None:
    program = random_program(seed, axes)
    shape = (2,) * axes
    with fake_mesh_world(shape, ("x", "y")[:axes], rank=1) as mesh:
        options: dict[str, Any] = {
            "mesh": mesh,
            "spec": lambda a, b, c: program.spec(a, b, c),
            "in_placements": {"abc"[i]: program.layouts[i] for i in program.used},
        }
        if program.out is not None:
            options["out_placements"] = {"output.0": program.out}
        run = program.implementation(mesh)
        try:
            pair = capture_model(lambda a, b, c: run(a, b, c), program.inputs(shape), {}, Options.from_mapping(options))
        except UsageError:  # shapes that do not fit
            return None
    return outcome(*pair)


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.sweep) for block in range(1, 40))])
def test_random_programs(block, axes):
    torch.manual_seed(0)
    counts: collections.Counter[tuple[bool, str] | None] = collections.Counter()
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        found = random_outcome(seed, axes)
        assert found != (True, "different"), f"seed {seed} on {axes} axes verifies and is wrong"
        counts[found] += 1
    if block == 0:  # Neither side of the comparison is empty: there are right and wrong programs among them.
        assert counts[(True, "equal")]
        assert counts[(False, "different")]


def check_edits(case: Case, seeds: range, *, of_spec: bool) -> collections.Counter[tuple[bool, str]]:
    """Outcomes of random edits of one side. Numbers are compared only where the pair verifies, for that is slow."""
    counts: collections.Counter[tuple[bool, str]] = collections.Counter()
    with fake_mesh_world(case.mesh_shape, case.mesh_names, rank=1) as mesh:
        spec, implementation = capture(case, mesh)
        for seed in seeds:
            changed = edited(spec if of_spec else implementation, seed)
            if changed is None:
                continue
            pair = (changed, implementation) if of_spec else (spec, changed)
            if check_refinement(*pair).mismatch is not None:
                counts[(False, "")] += 1
                continue
            found = outcome(*pair)
            assert found != (True, "different"), f"seed {seed}: the edited graph verifies and is wrong"
            counts[found] += 1
    return counts


@pytest.mark.parametrize("of_spec", [False, True])
def test_random_edits_of_a_perceptron(of_spec):
    counts = check_edits(mlp.residual_case(2), range(10), of_spec=of_spec)
    assert counts[(False, "")] > 5


@pytest.mark.parametrize("case", [llama.block_case(2), gpt2.case(2)], ids=lambda case: case.name)
def test_random_edits(case):
    counts = check_edits(case, range(4), of_spec=False)
    assert counts[(False, "")] > 1


@pytest.mark.sweep
@pytest.mark.parametrize("of_spec", [False, True])
@pytest.mark.parametrize(
    "case", [llama.case(2), gpt2.case(4), llama.block_case(2, data_parallel=2)], ids=lambda case: case.name
)
def test_random_edits_sweep(case, of_spec):
    assert check_edits(case, range(100, 400), of_spec=of_spec)[(False, "")] >= 100
