"""``cross_check``: right programs are equal element by element, wrong ones are refuted by an input."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import verifycompile
from tests.programs.case import Case
from tests.programs.corpus import DEFAULT
from tests.support import fake_mesh_world
from tests.symbolic.opinions import opinion
from verifycompile import CrossCheckReport, Verdict
from verifycompile.symbolic.decide import Answer, Decider
from verifycompile.symbolic.expressions import Expressions
from verifycompile.symbolic.tensor import SymbolicTensor, symbolic, variables
from verifycompile.witness.attention import attention_of

R, S0, P = Replicate(), Shard(0), Partial()


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def of_mlp(width: int = 2, *, wrong: bool = False, **options: Any) -> CrossCheckReport:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = parallelize_module(Mlp(width), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if wrong:
            down: nn.Module = model.get_submodule("down")
            down._forward_hooks.clear()
            down.register_forward_hook(lambda _module, _inputs, output: output.to_local())
        return verifycompile.cross_check(model, (torch.randn(3, width),), **options)


def test_a_right_program() -> None:
    report = of_mlp()
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert report
    assert {output.name for output in report.outputs} == {
        "output.0",
        *(f"grad.{layer}.{kind}" for layer in ("norm", "up", "down") for kind in ("weight", "bias")),
    }
    assert all(output.same + output.proved == output.elements > 0 for output in report.outputs)
    assert str(report).startswith("cross-check: equal element by element\n = compared: 2 ranks, at their own sizes\n")
    assert json.loads(report.to_json())["verdict"] == "verified"


def test_a_wrong_program(tmp_path: pathlib.Path) -> None:
    report = of_mlp(wrong=True)
    assert report.verdict is Verdict.REFUTED, str(report)
    assert not report
    finding = report.findings[0]
    assert (finding.code, finding.output, finding.message) == (
        "VC107",
        "output.0",
        "`output.0` differs from the spec's",
    )
    assert finding.counterexample is not None
    page = tmp_path / "report.html"
    report.save_html(page)
    assert "cross-check: the programs differ" in page.read_text()


@pytest.mark.parametrize("wrong", [False, True])
def test_at_reduced_sizes(wrong: bool) -> None:
    report = of_mlp(512, wrong=wrong)
    assert report.verdict is (Verdict.REFUTED if wrong else Verdict.VERIFIED), str(report)
    assert report.sizes.startswith("at reduced sizes (2048 -> ")
    assert all(output.elements < 100 for output in report.outputs)


Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def scaled_before_its_sum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Equal by distribution only: one side has the product of a sum, the other one the sum of products."""
    return (x * w).sum(0) * 3 + (x.sum(0) * w.sum(0)).exp()


def distributed(factor: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        pairs = (x.unsqueeze(0) * w.unsqueeze(1)).sum((0, 1))
        return (x * w * factor).sum(0) + pairs.exp()

    return program


class Called(nn.Module):
    def __init__(self, function: Program, mesh: DeviceMesh | None, placement: Placement) -> None:
        super().__init__()
        self.function, self.mesh, self.placement = function, mesh, placement

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if self.mesh is None:
            return self.function(x, w)
        x, w = (DTensor.from_local(value, self.mesh, [self.placement]) for value in (x, w))
        result = self.function(x, w)
        assert isinstance(result, DTensor)
        return result.full_tensor()


def of_functions(
    spec: Program, own: Program, placement: Placement = R, shape: tuple[int, ...] = (3, 2)
) -> CrossCheckReport:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        return verifycompile.cross_check(
            Called(own, mesh, placement),
            (torch.randn(shape), torch.randn(shape)),
            spec=Called(spec, None, placement),
            mesh=mesh,
        )


@pytest.mark.parametrize(("factor", "verdict"), [(3.0, Verdict.VERIFIED), (2.0, Verdict.REFUTED)])
def test_what_only_z3_or_distribution_shows(factor: float, verdict: Verdict) -> None:
    report = of_functions(scaled_before_its_sum, distributed(factor))
    assert report.verdict is verdict, str(report)
    if verdict is Verdict.VERIFIED:
        assert report.outputs[0].proved == report.outputs[0].elements


def losses(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.log_softmax(x, -1).mul(w.softmax(-1)).sum()


def test_softmax_over_shards() -> None:
    assert of_functions(losses, losses, S0).verdict is Verdict.VERIFIED
    assert of_functions(losses, lambda x, w: losses(x, w) * 3, S0).verdict is Verdict.REFUTED
    assert of_functions(losses, lambda x, w: losses(x, w) / 2, S0).verdict is Verdict.REFUTED


def test_what_depends_on_values_is_undecided() -> None:
    def sorted_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.sort(-1).values + w

    report = of_functions(sorted_rows, sorted_rows)
    assert report.verdict is Verdict.UNPROVED
    assert [finding.code for finding in report.findings] == ["VC212"]
    assert report.findings[0].message == (
        "`output.0` was not compared: `aten.sort.default` has no meaning element by element."
    )


def test_limits() -> None:
    report = of_mlp(time_limit=1e-6)
    assert report.verdict is Verdict.UNPROVED
    told = "the comparison element by element was not begun: the time limit of 1e-06 s left no time for it"
    assert report.findings[0].message == told


TOO_LARGE = frozenset(
    (
        *("transformer-sp-2layers-2", "transformer-tp-2x4", "llama-2layers-2", "llama-1layers-2x2", "llama-1layers-8"),
        *("llama-block-4",),
    )
)
"""Programs of the corpus whose sizes do not reduce, because sizes that have nothing to do with each other are equal."""
LONG = frozenset(
    (
        *("transformer-sp-untied-2", "transformer-tp-2", "transformer-sp-4", "llama-block-2", "llama-1layers-2"),
        *("gpt2-2layers-2", "gpt2-1layers-4", "fsdp-tp-sp-llama-2x2"),
        "transformer-tp-untied-2",
    )
)
"""Programs whose opinion takes ten seconds or more."""
FOR_THE_SWEEP = LONG | {"transformer-sp-2", "gpt2-1layers-2"}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[pytest.mark.sweep] if case.name in FOR_THE_SWEEP else []) for case in DEFAULT],
)
def test_no_program_of_the_corpus_contradicts_its_proof(case: Case) -> None:
    found = opinion(case)
    assert found.proof is Verdict.VERIFIED
    assert not found.contradicts, found.row()
    if case.name in TOO_LARGE:
        assert found.opinion is Verdict.UNPROVED
        reason = "the programs are too large to compare element by element, and no smaller sizes were found."
        assert found.reason == reason
    elif case.name not in LONG:
        assert found.opinion is Verdict.VERIFIED, found.row()


@pytest.mark.parametrize(("scale", "differs"), [(0.5, False), (0.25, True)])
def test_attention(scale: float, differs: bool) -> None:
    pool = Expressions()
    q, k, v = (variables(pool, name, torch.empty(1, 1, 2, 1)) for name in "qkv")
    name = "aten._scaled_dot_product_flash_attention.default"
    found = attention_of(name, {"query": q, "key": k, "value": v, "is_causal": True, "scale": scale})[0]
    scores = ((0.5 * q) @ k.transpose(-2, -1)).masked_fill(torch.ones(2, 2, dtype=torch.bool).triu(1), -math.inf)
    expected = scores.softmax(-1) @ v
    assert isinstance(found, SymbolicTensor)
    pairs = zip(found.numbers.flatten().tolist(), symbolic(pool, expected).numbers.flatten().tolist(), strict=True)
    first, last = (Decider(pool).compare(*pair) for pair in pairs)
    assert first is not Answer.DIFFERENT  # its only key that is not in the future
    assert (last is Answer.DIFFERENT) is differs
