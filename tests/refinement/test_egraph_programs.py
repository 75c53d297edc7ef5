"""Programs that the e-graph proves and nothing else does; their wrong twins; and what an e-graph of nonsense proves."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch import nn

from tests.refinement.egraph_programs import BY_CASES, PAIRS, Function, Pair
from tests.support import fake_mesh_world
from verifycompile import Verdict, check_certificate, verify
from verifycompile.capture import capture_model
from verifycompile.options import Options
from verifycompile.refinement import egraph, lemma_stage
from verifycompile.refinement.check import check_refinement
from verifycompile.refinement.closure import LAWS, Instance
from verifycompile.refinement.lemma_stage import ProvedEquality
from verifycompile.refinement.result import RefinementResult

every_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)

USED = {
    "clipped objective by a maximum": {"VL122"},
    "tanh gate by a sigmoid": {"VL110"},
    "silu written by hand": {"VL111"},
    "highway gate by the sigmoid of the negated gate": {"VL111"},
    "binary cross entropy with logits": {"VL112", "VL113"},
    "softplus of the negated value": {"VL113"},
    "complementary error function": {"VL118"},
    "fast gelu": {"VL110"},
    "root of a square": {"VL121"},
    "hyperbolic tangent by exponentials": {"VL110", "VL111"},
}
"""The laws whose instances prove each pair."""


class Model(nn.Module):
    def __init__(self, function: Function, *, trained: bool) -> None:
        super().__init__()
        self.function = function
        self.a, self.b = (nn.Parameter(torch.zeros(4, 4), requires_grad=trained) for _ in "ab")

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.function(x, y, self.a, self.b)


def checked(pair: Pair, implementation: Function) -> RefinementResult:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        options = Options.from_mapping({"spec": Model(pair.spec, trained=pair.backward), "mesh": mesh})
        inputs = torch.zeros(8, 4), torch.zeros(8, 4)
        model = Model(implementation, trained=pair.backward)
        return check_refinement(*capture_model(model, inputs, {}, options))


def instances(result: RefinementResult) -> list[Instance]:
    proofs = [step.proof for step in result.steps if isinstance(step, ProvedEquality)]
    return [instance for proof in proofs for instance in proof.instances]


@every_pair
def test_right_programs_are_proved_by_instances_of_these_laws(pair: Pair) -> None:
    result = checked(pair, pair.implementation)
    assert result.mismatch is None
    assert result.counts.egraph >= 1
    assert result.counts.ring == result.counts.solver == result.counts.memo == 0
    assert {instance.code for instance in instances(result)} == USED[pair.name]
    assert 1 <= result.stages["egraph"].count <= 3


@every_pair
def test_wrong_programs_are_not(pair: Pair) -> None:
    result = checked(pair, pair.wrong)
    assert result.mismatch is not None
    assert result.counts.egraph == 0
    assert result.exhausted == ()  # neither rounds nor e-nodes ran out, which bounds what a question costs


@every_pair
def test_nothing_else_proves_them(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lemma_stage, "prove_equal", lambda *_: None)
    assert checked(pair, pair.implementation).mismatch is not None


@pytest.mark.parametrize("pair", BY_CASES, ids=lambda pair: pair.name)
def test_cases_need_no_law(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(pair, pair.wrong).mismatch is not None
    monkeypatch.setattr(lemma_stage, "prove_equal", lambda *_: None)
    result = checked(pair, pair.implementation)
    assert result.mismatch is None
    assert result.counts.solver >= 1


def nonsense(space: Any, left: Any, right: Any) -> list[Instance]:
    """Instances at random: of any law, with expressions of either side in the place of any value."""
    draw = random.Random(len(space.leaves))
    parts: list[Any] = [left, right, *range(len(space.leaves)), ("one",), ("zero",)]
    values = [{name: draw.choice(parts) for name in "abcdp"} for _ in range(40)]
    return [Instance(draw.choice([*LAWS]), chosen) for chosen in values]


def everything_equal(space: Any, left: Any, right: Any) -> list[Instance]:
    """Every law with every two expressions, as if all were one class."""
    parts: list[Any] = [left, right, *range(len(space.leaves))]
    return [
        Instance(code, {"a": a, "b": b, "c": a, "d": b})
        for code in LAWS
        for a, b in itertools.permutations(parts[:3], 2)
    ]


@pytest.mark.parametrize("proposer", [nonsense, everything_equal])
@pytest.mark.parametrize("name", ["tanh gate by a sigmoid", "softplus of the negated value", "root of a square"])
def test_an_e_graph_of_nonsense_proves_nothing(proposer: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (pair,) = [pair for pair in PAIRS if pair.name == name]
    monkeypatch.setattr(egraph, "propose", proposer)
    monkeypatch.setattr(egraph, "differ", lambda *_: False)
    assert checked(pair, pair.wrong).mismatch is not None
    assert checked(pair, pair.implementation).mismatch is not None


def test_a_certificate_lists_the_instances_and_is_checked_by_them() -> None:
    (pair,) = [pair for pair in PAIRS if pair.name == "highway gate by the sigmoid of the negated gate"]
    inputs = torch.zeros(8, 4), torch.zeros(8, 4)
    models = (Model(function, trained=True) for function in (pair.implementation, pair.spec))
    with fake_mesh_world((2,), ("tp",)) as mesh:
        report = verify(next(models), inputs, spec=next(models), mesh=mesh)
    assert report.verdict is Verdict.VERIFIED
    assert report.certificate is not None
    text = report.certificate.to_json()
    assert '"law": "VL111"' in text
    assert check_certificate(text)
