"""Ring attention, forward and backward: verified on every rank's graph; what goes wrong in it is refuted."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Shard

import verifycompile
from tests.programs.online_softmax import causal, whole
from tests.programs.ring import by_logarithm, by_messages, by_permutation, by_sigmoid, masked_blocks
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

SEQUENCE = (Shard(2),)
GRADIENTS = {"grad.query", "grad.key", "grad.value"}


def report_on(
    program: Callable[..., Any], spec: Callable[..., Any] = whole, mistake: str = "", ranks: int = 2, grad: bool = True
) -> Report:
    with fake_mesh_world((ranks,), ("x",), rank=1) as mesh:
        return verifycompile.verify(
            None,
            tuple(torch.randn(1, 1, 2, 2, requires_grad=grad) for _ in range(3)),
            build=lambda: program(mesh, mistake),
            spec=spec,
            mesh=mesh,
            in_placements={"query": SEQUENCE, "key": SEQUENCE, "value": SEQUENCE},
            out_placements={"output.0": SEQUENCE},
        )


@pytest.mark.parametrize("program", [by_messages, by_permutation])
def test_all_blocks_are_the_whole(program: Callable[..., Any]) -> None:
    report = report_on(program)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert set(report.relations) == {"output.0", *GRADIENTS}


@pytest.mark.parametrize("program", [by_messages, by_permutation])
def test_causal_rings_skip_or_mask_what_comes_later(program: Callable[..., Any]) -> None:
    report = report_on(functools.partial(program, causal=True), causal)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert set(report.relations) == {"output.0", *GRADIENTS}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("mistake", ["own block alone", "every block masked"])
def test_mistake_in_causal_messages_is_refuted(mistake: str) -> None:
    report = report_on(functools.partial(by_messages, causal=True), causal, mistake, grad=False)
    assert report.verdict is Verdict.REFUTED, str(report)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("mistake", ["own block's positions", "sum not rescaled"])
def test_mistake_in_causal_positions_is_refuted(mistake: str) -> None:
    report = report_on(functools.partial(by_permutation, causal=True), causal, mistake, grad=False)
    assert report.verdict is Verdict.REFUTED, str(report)


@pytest.mark.sweep
def test_other_direction_is_refuted() -> None:
    report = report_on(functools.partial(by_permutation, causal=True), causal, "other direction", 3, grad=False)
    assert report.verdict is Verdict.REFUTED, str(report)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("merge", [by_logarithm, by_sigmoid])
def test_block_that_is_masked_wholly_is_no_number(merge: Callable[..., Any]) -> None:
    """On the first rank all of the second block is masked: its softmax, and whatever takes it, is no number."""
    report = report_on(functools.partial(masked_blocks, merge=merge), causal, grad=False)
    assert report.verdict is Verdict.REFUTED, str(report)
    assert math.isnan(report.findings[0].counterexample.implementation_value)  # type: ignore[union-attr]


@pytest.mark.sweep
@pytest.mark.parametrize("merge", [by_logarithm, by_sigmoid])
def test_gradients_of_blocks_that_are_merged_on_three_ranks(merge: Callable[..., Any]) -> None:
    """What is merged first is divided by a sum that the sum of all blocks holds."""
    report = report_on(functools.partial(by_messages, merge=merge), ranks=3)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert set(report.relations) == {"output.0", *GRADIENTS}


@pytest.mark.sweep
def test_mistake_on_three_ranks_is_refuted() -> None:
    report = report_on(functools.partial(by_messages, merge=by_logarithm), mistake="weights turned round", ranks=3)
    assert (report.verdict, report.findings[0].code) == (Verdict.REFUTED, "VC107"), str(report)


@pytest.mark.sweep
@pytest.mark.parametrize("is_causal", [False, True])
def test_four_ranks(is_causal: bool) -> None:
    program = functools.partial(by_messages, merge=by_logarithm, causal=is_causal)
    report = report_on(program, causal if is_causal else whole, ranks=4)
    assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.sweep
@pytest.mark.parametrize("is_causal", [False, True])
def test_six_ranks_without_gradients(is_causal: bool) -> None:
    """Blocks of which some are a half and some a third of all, by the time that one is left."""
    program = functools.partial(by_messages, merge=by_logarithm, causal=is_causal)
    report = report_on(program, causal if is_causal else whole, ranks=6, grad=False)
    assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize(
    "mistake", ["one step too few", "values stay", "not rescaled", "weights turned round", "gradients not sent home"]
)
def test_mistake_with_messages_is_refuted(mistake: str) -> None:
    report = report_on(by_messages, mistake=mistake, grad=mistake == "gradients not sent home")
    assert report.verdict is Verdict.REFUTED, str(report)


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("mistake", ["one step too few", "values stay", "sum not rescaled"])
def test_mistake_with_permutations_is_refuted(mistake: str) -> None:
    report = report_on(by_permutation, mistake=mistake, grad=False)
    assert report.verdict is Verdict.REFUTED, str(report)
