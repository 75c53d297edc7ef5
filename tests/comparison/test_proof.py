"""Each assumption of a proof beside a run: measured, or open and why; nothing reads its words."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.placement_types import Partial, Replicate

import verifycompile
from tests.comparison.programs import Model, on_ranks, tensor_parallel, tokens
from tests.support import fake_mesh_world
from verifycompile import CompareReport, Report, Verdict
from verifycompile.assumption import Assumption, AssumptionKind, from_data, kind_of, to_data
from verifycompile.comparison.judge import Judged
from verifycompile.comparison.proof import Measured, states_of
from verifycompile.comparison.trace import Kind


def judged(name: str, kind: Kind, error: float) -> Judged:
    return Judged(name, kind, "", (Replicate(),), error=error, threshold=1.0, norm=1.0)


RUN = [judged("input.x", Kind.INPUT, 0.0), judged("output.0", Kind.OUTPUT, 0.25), judged("grad.w", Kind.GRADIENT, 0.5)]
BOTH = "2 tensors are off by at most 0.5 times what rounding explains"


@pytest.mark.parametrize(
    ("kind", "names", "state", "why"),
    [
        (AssumptionKind.PRECISION, (), "measured", BOTH),
        (AssumptionKind.WRAPPER, ("grad.w",), "measured", "`grad.w` is off by 0.5 times what rounding explains"),
        (AssumptionKind.WRAPPER, ("grad.other",), "measured", BOTH),
        (AssumptionKind.OPERATOR, (), "measured", BOTH),
        (AssumptionKind.PLACEMENT, ("x",), "open", "this run gave every rank its part itself"),
        (AssumptionKind.PLACEMENT, ("w",), "measured", "`grad.w` is off by 0.5 times what rounding explains"),
        (AssumptionKind.RANKS, (), "measured", BOTH),
        (AssumptionKind.NUMBER, (), "open", "the spec of this run was recovered from the same model"),
        (AssumptionKind.SIZES, (), "open", "a run has one set of sizes"),
        (AssumptionKind.CONSUMER, ("output.0",), "open", "what reads the result comes after the run"),
        (AssumptionKind.LATER, (), "open", "a later call is none of this run"),
        (AssumptionKind.UNCOMPARED, (), "open", "it has no counterpart in the spec"),
        (AssumptionKind.OTHER, (), "open", "no run can tell"),
    ],
)
def test_the_state_of_an_assumption_goes_by_its_kind(
    kind: AssumptionKind, names: tuple[str, ...], state: str, why: str
) -> None:
    proof = Report(Verdict.VERIFIED, assumptions=(Assumption("a sentence of any words", kind, names),))
    run = Measured(RUN, Verdict.VERIFIED, own_models=True, own_inputs=False, spec_given=False)
    (relations, found), contradiction = states_of(proof, run)
    assert (relations.state, relations.why) == ("proved", "none of them was compared")
    assert (found.state, found.why, contradiction) == (state, why, "")


def test_an_assumption_that_a_difference_speaks_against_is_open() -> None:
    wrong = [*RUN, judged("grad.v", Kind.GRADIENT, 3.0)]
    about_v, about_w = (Assumption("said", AssumptionKind.WRAPPER, [f"grad.{name}"]) for name in "vw")
    proof = Report(Verdict.VERIFIED, {"output.0": "y", "grad.v": "g"}, assumptions=(about_v, about_w))
    run = Measured(wrong, Verdict.REFUTED, own_models=True, own_inputs=True, spec_given=True)
    (relations, first, second), contradiction = states_of(proof, run)
    assert relations.text == "over the real numbers `output.0`, 1 gradient are the spec's"
    assert first.why == "it may not hold: `grad.v` is off by 3 times what rounding explains"
    assert (first.state, second.state) == ("open", "measured")
    assert contradiction.startswith("the proof holds over the real numbers under its assumptions")


def test_an_assumption_is_its_sentence_and_keeps_its_kind_on_the_way_to_another_rank() -> None:
    made = Assumption("said", AssumptionKind.WRAPPER, ["grad.w"])
    assert made == "said"
    assert {made: 1}["said"] == 1
    for other in (pickle.loads(pickle.dumps(made)), *from_data(to_data([made]))):
        assert (other, kind_of(other), other.names) == ("said", AssumptionKind.WRAPPER, ("grad.w",))
    assert kind_of("said") is AssumptionKind.OTHER
    assert from_data(to_data(["said"])) == ("said",)


def both(build: Callable[[DeviceMesh], nn.Module], args: tuple[Any, ...], **options: Any) -> tuple[Report, CompareReport]:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        proof = verifycompile.verify(None, args, build=lambda: build(mesh), mesh=mesh, **options)
    return proof, on_ranks(build, args, proof=proof, **options)


def test_the_assumptions_of_a_real_proof() -> None:
    proof, run = both(lambda mesh: tensor_parallel(Model(), mesh), tokens(), spec=Model())
    assert (proof.verdict, run.verdict) == (Verdict.VERIFIED, Verdict.VERIFIED), str(run)
    assert all(kind_of(text) is AssumptionKind.PLACEMENT for text in proof.assumptions)
    states = {state.text: state.state for state in run.proof}
    assert states["over the real numbers `output.0`, 14 gradients are the spec's"] == "proved"
    assert states["`tokens` is placed (R) by default"] == "open"
    assert states["`head.weight` is placed (R) by default"] == "measured"


class Halves(nn.Module):
    """Leaves a part of a sum on each rank, which could be a mean of doubled values as well."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(0)


def test_results_lie_as_the_proof_has_them() -> None:
    x = torch.randn(4, 3)
    given: dict[str, Any] = {"spec": Halves(), "in_placements": {"x": (Shard(0),)}}
    proof, run = both(lambda mesh: Halves(), (x[:2],), **given)
    assert proof.placements["output.0"] == (Partial("sum"),)
    (output,) = (item for item in run.tensors if item.name == "output.0")
    assert output.layout == (Partial("sum"),)
    assert any(state.why == "what reads the result comes after the run" for state in run.proof)
