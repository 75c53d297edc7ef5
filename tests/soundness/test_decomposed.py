"""Operators without a declaration, by torch's decomposition: right programs are proved, wrong ones refuted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._decomp import decomposition_table
from torch.distributed.tensor import Shard
from torch.fx.experimental.proxy_tensor import make_fx

from verifycompile.certificate.check import check_certificate
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.frontends.graphs import verify_graphs
from verifycompile.rewrites.registry import declaration_of
from verifycompile.torch_interface.operators import decompositions

aten = torch.ops.aten

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

PROGRAMS: dict[str, tuple[Function, Function]] = {
    "_weight_norm_interface": (
        lambda x, w: x @ aten._weight_norm_interface(w, w[:, :1], 0)[0].T,
        lambda x, w: x @ aten._weight_norm_interface(w, w[:, 1:2], 0)[0].T,
    ),
    "_euclidean_dist": (aten._euclidean_dist, lambda x, w: aten._euclidean_dist(x, 2 * w)),
    "_chunk_cat": (lambda x, _: aten._chunk_cat([x, x], 1, 2), lambda x, _: aten._chunk_cat([x, x.exp()], 1, 2)),
    "hann_window": (lambda x, _: x * torch.hann_window(8), lambda x, _: x * torch.hamming_window(8)),
    "remainder.Scalar_Tensor": (lambda x, _: torch.remainder(2.0, x), lambda x, _: torch.remainder(3.0, x)),
    "_addmm_activation": (
        lambda x, w: aten._addmm_activation(w[:, 0], x, w.T),
        lambda x, w: aten._addmm_activation(w[:, 0], x, w.T, use_gelu=True),
    ),
    "logspace": (lambda x, _: torch.logspace(0, 1, 8) * x, lambda x, _: torch.logspace(0, 2, 8) * x),
    "affine_grid_generator": (
        lambda x, _: aten.affine_grid_generator(x.view(-1, 2, 4)[:, :, :3], [x.shape[0], 1, 2, 3], False),
        lambda x, _: aten.affine_grid_generator(x.view(-1, 2, 4)[:, :, :3], [x.shape[0], 1, 2, 3], True),
    ),
    "rrelu_with_noise_backward": (
        lambda x, _: aten.rrelu_with_noise_backward(x, x, x, 0.1, 0.3, False, False),
        lambda x, _: aten.rrelu_with_noise_backward(x, x, x, 0.1, 0.4, False, False),
    ),
    "_unsafe_masked_index": (
        lambda x, w: x + aten._unsafe_masked_index(w, w > 0, [None, torch.arange(8)], 0.0)[:1],
        lambda x, w: x + aten._unsafe_masked_index(w, w > 0, [None, torch.arange(8)], 1.0)[:1],
    ),
}
"""Of an operator of the graph: the program, of samples and a weight, and one that computes something else."""


def ask(spec: Function, implementation: Function) -> Report:
    x, w = torch.randn(4, 8), torch.randn(6, 8)
    return verify_graphs(make_fx(spec)(x, w), [make_fx(implementation)(x[:2], w)] * 2, {0: (Shard(0),)})


@pytest.mark.parametrize("operator", PROGRAMS)
def test_right_and_wrong(operator: str) -> None:
    right, wrong = PROGRAMS[operator]
    packet, _, overload = operator.partition(".")
    target = getattr(getattr(aten, packet), overload or "default")
    assert declaration_of(target) is None
    assert target in {n.target for n in make_fx(right)(torch.randn(4, 8), torch.randn(6, 8)).graph.nodes}
    proved = ask(right, right)
    assert proved.verdict is Verdict.VERIFIED, str(proved)
    assert ask(right, wrong).verdict is Verdict.REFUTED


def test_a_certificate_is_checked_by_the_same_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    right, _ = PROGRAMS["_euclidean_dist"]
    report = ask(right, right)
    assert report.certificate is not None
    assert check_certificate(report.certificate)
    monkeypatch.setattr(decompositions, "_known", {})
    monkeypatch.setitem(decomposition_table, aten._euclidean_dist.default, lambda x, w: x @ w.T)
    found = check_certificate(report.certificate)
    assert found.reason == "no relation of `output.0`"
    assert not found
