"""An operator without a declaration is no cause where its value is not in the output: memory written before it is read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.distributed.tensor import Shard
from torch.fx.experimental.proxy_tensor import make_fx

from verifycompile.diagnostics.verdict import Verdict
from verifycompile.frontends.graphs import verify_graphs


def _whole(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


def _wrong(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x).copy_(x).exp() + x


def _right(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x).copy_(x).exp()


def _reads(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x).exp() + x


@pytest.mark.causes
@pytest.mark.parametrize(
    ("program", "verdicts", "code"),
    [
        (_right, (Verdict.VERIFIED,), None),
        (_wrong, (Verdict.REFUTED,), "VC108"),
        (_reads, (Verdict.REFUTED, Verdict.UNPROVED), "VC201"),
    ],
)
def test_the_cause_is_in_the_output(
    program: Callable[[torch.Tensor], torch.Tensor], verdicts: tuple[Verdict, ...], code: str | None
) -> None:
    spec = make_fx(_whole)(torch.randn(4, 2))
    implementation = make_fx(program)(torch.randn(2, 2))
    report = verify_graphs(spec, [implementation] * 2, {0: (Shard(0),)})
    assert report.verdict in verdicts, str(report)
    assert [finding.code for finding in report.findings] == ([] if code is None else [code])
