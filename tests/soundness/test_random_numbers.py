"""Random operators: equal streams are never assumed, the blocker names the operator, and the rest is still checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard

from tests.soundness.plain import all_reduce, verify_functions
from verifycompile import Verdict
from verifycompile.rewrites.registry import RANDOM

ROWS, WHOLE = (Shard(0),), (Replicate(),)

DRAWS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "dropout": (lambda x: F.dropout(x, 0.5), "dropout with p=0.5"),
    "bernoulli": (lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)), "`aten.bernoulli.default`"),
    "rand_like": (lambda x: x + torch.rand_like(x), "`aten.rand_like.default`"),
    "normal": (lambda x: x + torch.empty_like(x).normal_(), "`aten.normal_functional.default`"),
    "exponential": (lambda x: x + torch.empty_like(x).exponential_(), "`aten.exponential.default`"),
    "gumbel": (F.gumbel_softmax, "`aten.exponential.default`"),
}


@pytest.mark.parametrize("layout", [ROWS, WHOLE], ids=["shards", "replicas"])
@pytest.mark.parametrize("name", DRAWS)
def test_equal_streams_are_not_assumed(name: str, layout: Any) -> None:
    function, operator = DRAWS[name]
    report = verify_functions(function, lambda mesh, a: function(a), [torch.randn(4, 4)], in_placements={"a": layout})
    assert report.verdict is Verdict.UNPROVED, str(report)
    assert (report.findings[0].code, report.findings[0].message) == ("VC216", f"{operator} {RANDOM}")


@pytest.mark.parametrize(("spec", "own"), [(0.5, 0.4), (0.5, 0.0), (0.0, 0.5), (1.0, 0.5)])
def test_another_probability_is_never_verified(spec: float, own: float) -> None:
    report = verify_functions(
        lambda a: F.dropout(a, spec), lambda mesh, a: F.dropout(a, own), [torch.randn(4, 4)], in_placements={"a": ROWS}
    )
    assert report.verdict is not Verdict.VERIFIED


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_a_dropout_that_draws_nothing_is_proved(p: float) -> None:
    report = verify_functions(
        lambda a: a + F.dropout(a, p), lambda mesh, a: a + F.dropout(a, p), [torch.randn(4, 4, requires_grad=True)],
        in_placements={"a": ROWS},
    )  # fmt: skip
    assert report.verdict is Verdict.VERIFIED, str(report)


def test_a_wrong_output_beside_a_random_one_is_refuted() -> None:
    report = verify_functions(
        lambda a: (F.dropout(a, 0.5), a + 1),
        lambda mesh, a: (F.dropout(a, 0.5), all_reduce(a, mesh) + 1),
        [torch.randn(4, 4)],
        in_placements={"a": WHOLE},
    )
    assert report.verdict is Verdict.REFUTED, str(report)
