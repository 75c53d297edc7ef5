"""Graphs of tensors on a GPU, written by hand: they verify without one, and so does what checks and replays them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import Shard
from torch.fx.experimental.proxy_tensor import make_fx

import verifycompile
from tests.warm import python
from verifycompile import Verdict

aten = torch.ops.aten
Results = tuple[torch.Tensor, ...]


def flash(q: Any, k: Any, v: Any, gradient: Any, mistake: str) -> Results:
    causal, scale = mistake != "not causal", 0.25 if mistake == "scale" else None
    out, lse, *rest = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)
    seed, offset = rest[4:6]
    lengths = (None, None, q.shape[2], k.shape[2])
    causal = causal and mistake != "backward not causal"
    backward = aten._scaled_dot_product_flash_attention_backward
    of_query, of_key, of_value = backward(gradient, q, k, v, out, lse, *lengths, 0.0, causal, seed, offset, scale=scale)
    return (out, of_query, of_value, of_key) if mistake == "gradients exchanged" else (out, of_query, of_key, of_value)


def cudnn(q: Any, k: Any, v: Any, gradient: Any, mistake: str) -> Results:
    out, lse, *rest = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True)
    seed, offset = rest[4:6]
    saved = out if mistake != "another output" else v
    lengths = (None, None, q.shape[2], k.shape[2])
    backward = aten._scaled_dot_product_cudnn_attention_backward
    return (out, *backward(gradient, q, k, v, saved, lse, seed, offset, None, *lengths, 0.0, True))


def efficient(q: Any, k: Any, v: Any, gradient: Any, mistake: str) -> Results:
    mask = aten.full.default([*q.shape[:3], k.shape[2]], -2.0, dtype=q.dtype, device=q.device).tril(1)
    out, lse, seed, offset = aten._scaled_dot_product_efficient_attention(q, k, v, mask, True)
    mask = None if mistake == "mask dropped in backward" else mask
    wanted = [True, True, True, mask is not None]
    backward = aten._scaled_dot_product_efficient_attention_backward
    gradients = backward(gradient, q, k, v, mask, out, lse, seed, offset, 0.0, wanted)
    return out, *gradients[:3]


def normalizations(x: Any, y: Any, z: Any, gradient: Any, mistake: str) -> Results:
    """Layers whose statistics a GPU has in other dtypes and shapes than the CPU."""
    width = 64 if mistake != "over another width" else 8
    out, mean, rstd = aten.native_layer_norm(x, [8, 8][-1 if width == 8 else 0 :], None, None, 1e-5)
    saved = (x, out.shape[-1 if width == 8 else -2 :], mean, rstd, None, None, [True, False, False])
    one = aten.full([8], 2.0, device=y.device)
    scaled = aten._native_batch_norm_legit_no_training(y.flatten(0, 1), None, None, one, one, 0.1, 1e-5)[0]
    return out, aten.native_layer_norm_backward(gradient, *saved)[0], scaled, z + 1


def batch_norm(x: Any, y: Any, z: Any, gradient: Any, mistake: str) -> Results:
    """Its statistics are of float32 on a GPU, whose batch the rank has in whole and whose channels it has a part of."""
    size = x.shape[1]
    mean, variance = (aten.full([size], number, device=x.device) for number in (0.0, 1.0))
    momentum = 0.1 if mistake != "momentum" else 0.2
    ran = aten._native_batch_norm_legit_functional(x, None, None, mean, variance, True, momentum, 1e-5)
    out, saved, inverse, mean, variance = ran
    mask = [True, False, False]
    of_input = aten.native_batch_norm_backward(gradient, x, None, mean, variance, saved, inverse, True, 1e-5, mask)[0]
    return out, mean, variance, of_input


def expert_counts(x: Any, y: Any, z: Any, gradient: Any, mistake: str) -> Results:
    """How many tokens chose each expert, counted in whole numbers, which the CPU does not."""
    chosen = aten.topk(aten.select(x, 1, 0).flatten(0, 1), 2)[1].to(torch.int32)
    lowest = 0 if mistake != "another range" else 1
    return (aten.histc(chosen, 8, lowest, 7), *(t + 1 for t in (y, z)))


PROGRAMS: list[tuple[Callable[..., Results], int, tuple[str, ...]]] = [
    (flash, 1, ("scale", "not causal", "backward not causal", "gradients exchanged")),
    (cudnn, 1, ("another output",)),
    (efficient, 1, ("mask dropped in backward",)),
    (normalizations, 0, ("over another width",)),
    (batch_norm, 1, ("momentum",)),
    (expert_counts, 2, ("another range",)),
]


def graph(program: Callable[..., Results], dim: int, ranks: int, mistake: str = "") -> torch.fx.GraphModule:
    shape = [4, 4, 8, 8]
    shape[dim] //= ranks
    with FakeTensorMode(allow_non_fake_inputs=True):
        operands = [torch.empty(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
        return make_fx(lambda *given: program(*given, mistake))(*operands)


def report_on(program: Callable[..., Results], dim: int, mistake: str = "") -> verifycompile.Report:
    spec, rank = graph(program, dim, 1), graph(program, dim, 2, mistake)
    layouts = {node.name: [Shard(dim)] for node in rank.graph.find_nodes(op="placeholder")}
    return verifycompile.verify_graphs(spec, [rank, rank], layouts, mesh=(2,))


@pytest.mark.parametrize(("program", "dim"), [(p, d) for p, d, _ in PROGRAMS], ids=lambda v: getattr(v, "__name__", ""))
def test_verifies_and_is_checked(program: Callable[..., Results], dim: int) -> None:
    report = report_on(program, dim)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert report.certificate is not None
    checked = verifycompile.check_certificate(report.certificate)
    assert checked.valid, str(checked)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("program", "dim", "mistake"), [(p, d, m) for p, d, ms in PROGRAMS for m in ms],
    ids=lambda v: getattr(v, "__name__", str(v)),
)  # fmt: skip
def test_mistake_is_refuted(program: Callable[..., Results], dim: int, mistake: str) -> None:
    report = report_on(program, dim, mistake)
    assert report.verdict is Verdict.REFUTED, str(report)
    assert {finding.code for finding in report.findings} == {"VC103" if mistake == "momentum" else "VC107"}


def test_a_counterexample_runs_without_a_gpu(tmp_path: Path) -> None:
    report = report_on(flash, 1, "backward not causal")
    assert report.counterexample is not None
    script = tmp_path / "repro.py"
    report.counterexample.save(str(script))
    assert "cuda" not in script.read_text()
    ran = subprocess.run([python(), str(script)], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "AssertionError: output.1 at [0, 0, 0, 0] is" in ran.stderr, ran.stderr
