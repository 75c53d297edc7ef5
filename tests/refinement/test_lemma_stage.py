"""The e-graph stage on whole programs: several equalities, one after the other, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.support import fake_mesh_world
from verifycompile.capture import capture_model
from verifycompile.options import Options
from verifycompile.refinement import lemma_stage
from verifycompile.refinement.check import check_refinement
from verifycompile.refinement.result import RefinementResult

Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Model(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.a, self.b = nn.Parameter(torch.zeros(4, 4)), nn.Parameter(torch.zeros(4, 4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.function(x, y, self.a, self.b)


def checked(spec: Function, implementation: Function) -> RefinementResult:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        options = Options.from_mapping({"spec": Model(spec), "mesh": mesh})
        inputs = torch.zeros(8, 4), torch.zeros(8, 4)
        return check_refinement(*capture_model(Model(implementation), inputs, {}, options))


def whole(x, y, a, b):
    return torch.relu((x + 2 * (y @ a)) @ b).sum()


def test_distributed_forward_and_backward():
    result = checked(whole, lambda x, y, a, b: torch.relu(x @ b + 2 * ((y @ a) @ b)).sum())
    assert result.mismatch is None
    assert result.counts.ring >= 2
    assert result.counts.egraph == result.counts.solver == result.counts.memo == 0
    assert result.counts.unrelated > 0  # what the spec multiplies and the implementation does not
    assert result.stages["ring"].count >= result.counts.ring


def test_equal_programs_are_proved_by_normal_form_alone():
    counts = checked(whole, whole).counts
    assert counts.normal_form > 0
    assert counts.ring == counts.egraph == counts.solver == counts.memo == counts.unrelated == 0


def test_a_question_ends_at_its_limit_and_the_limit_is_named(monkeypatch):
    monkeypatch.setattr(lemma_stage, "_MAX_STEPS", 3)
    result = checked(whole, lambda x, y, a, b: torch.relu(x @ b + 2 * ((y @ a) @ b)).sum())
    assert result.mismatch is not None
    assert result.exhausted == ("3 steps of normal forms for a question",)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, y, a, b: torch.relu(x @ b + 3 * ((y @ a) @ b)).sum(),
        lambda x, y, a, b: torch.relu(x @ a + 2 * ((y @ a) @ b)).sum(),
        lambda x, y, a, b: torch.relu(x @ b + 2 * (y @ a) @ b + x).sum(),
        lambda x, y, a, b: (torch.relu(x @ b) + torch.relu(2 * ((y @ a) @ b))).sum(),
        lambda x, y, a, b: torch.relu(x @ b + 2 * ((y @ a).detach() @ b)).sum(),
    ],
)
def test_what_looks_like_it_is_not_proved(wrong):
    assert checked(whole, wrong).mismatch is not None
