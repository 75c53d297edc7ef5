"""Differences that rounding alone makes are no differences of the programs, in whichever of the two it happens."""

from __future__ import annotations

import pytest
import torch

import verifycompile
from tests.refinement.egraph_programs import PAIRS
from tests.support import fake_mesh_world
from verifycompile import Verdict, two_programs
from verifycompile.refinement import check


def test_digits_that_only_the_implementation_loses_are_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """``2 * sigmoid(2 * h) - 1`` is ``tanh(h)``, but a difference of nearly equal values where ``tanh`` is none."""
    monkeypatch.setattr(check, "prove_one_more", lambda *_, **__: None)
    monkeypatch.setattr(two_programs, "OF_PAIRS", (two_programs.AS_CAPTURED,))
    pair = PAIRS[0]
    for function, verdict in ((pair.implementation, Verdict.UNPROVED), (pair.wrong, Verdict.REFUTED)):
        tensors = [torch.randn(4, 4, requires_grad=True) for _ in range(4)]
        with fake_mesh_world((2,), ("tp",)) as mesh:
            report = verifycompile.verify(function, tensors, spec=pair.spec, mesh=mesh)
        assert report.verdict is verdict, str(report)
