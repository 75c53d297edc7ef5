"""Results that are views of inputs or of one another: torch differentiates them outside of its joint graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor, Shard

from tests.soundness.plain import Implementation, Spec, verify_functions
from verifycompile import Verdict


def twice(function: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    return lambda a: (lambda y: (y, function(y)))(a.sin())


def report(spec: Spec, implementation: Implementation, **options: Any) -> Any:
    return verify_functions(spec, implementation, (torch.randn(4, 6, requires_grad=True),), **options)


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        (lambda a: a.view(2, 12), lambda a: a.detach().view(2, 12)),
        (lambda a: (a.sin(), a), lambda a: (a.sin(), a.detach())),
        (twice(lambda y: y), twice(torch.Tensor.detach)),
        (twice(lambda y: y.view(2, 12)), twice(lambda y: y.detach().view(2, 12))),
    ],
    ids=["view of an input", "an input", "a result twice", "view of a result"],
)
def test_a_gradient_that_is_cut_off(spec: Spec, wrong: Spec) -> None:
    assert report(spec, lambda _, a: spec(a)).verdict is Verdict.VERIFIED
    assert report(spec, lambda _, a: wrong(a)).verdict is not Verdict.VERIFIED


def test_a_view_and_a_copy_of_it() -> None:
    found = report(lambda a: a.view(2, 12), lambda _, a: a.view(2, 12) * 1)
    assert found.verdict is Verdict.VERIFIED
    assert "grad.a" in found.relations


def test_a_view_of_a_shard() -> None:
    def run(mesh: Any, a: torch.Tensor) -> torch.Tensor:
        return DTensor.from_local(a, mesh, (Shard(0),), run_check=False).to_local()

    found = report(
        lambda a: a.view(8, 6), run, in_placements={"a": (Shard(0),)}, out_placements={"output.0": (Shard(0),)}
    )
    assert found.verdict is Verdict.VERIFIED
    wrong = report(lambda a: a.view(8, 6), lambda m, a: run(m, a).detach(), in_placements={"a": (Shard(0),)})
    assert wrong.verdict is not Verdict.VERIFIED
    scaled = report(lambda a: a.view(8, 6), lambda m, a: run(m, a.detach() * 2 - a), in_placements={"a": (Shard(0),)})
    assert scaled.verdict is Verdict.REFUTED


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        (lambda a: (a.sin(), a.T), lambda a: (a.sin(), (2 * a).T)),
        (lambda a: (a.sin(), a.data), lambda a: (a.sin(), 2 * a.data)),
    ],
    ids=["transposed", "data"],
)
def test_attributes_of_inputs(spec: Spec, wrong: Spec) -> None:
    """Dynamo reads them again behind its graph, which does not return them."""
    right = report(spec, lambda _, a: spec(a))
    assert right.verdict is Verdict.VERIFIED
    assert "output.1" in right.relations
    assert report(spec, lambda _, a: wrong(a)).verdict is Verdict.REFUTED


def written(pick: Callable[[torch.Tensor, torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    def function(a: torch.Tensor) -> Any:
        before = a * 1
        a.add_(1)
        return pick(a, before)

    return function


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        (lambda a, before: (a, before), lambda a, before: (before, a)),
        (lambda a, _: (a, a), lambda a, before: (a, before)),
        (lambda a, _: a.T, lambda _, before: before.T),
    ],
)
def test_inputs_that_are_written_to_are_returned_as_they_are_in_the_end(spec: Any, wrong: Any) -> None:
    x = (torch.randn(4, 6),)
    assert verify_functions(written(spec), lambda _, a: written(spec)(a), x).verdict is Verdict.VERIFIED
    assert verify_functions(written(spec), lambda _, a: written(wrong)(a), x).verdict is Verdict.REFUTED
