"""Bugs that were reported against parallel training code, each next to its fix: the fix verifies, the bug does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import local_map

from tests.soundness.plain import all_gather, all_reduce, copy_in, reduce_out, verify_functions
from verifycompile import Verdict

ROWS, COLUMNS, WHOLE, SUM = (Shard(0),), (Shard(1),), (Replicate(),), (Partial(),)


def own(x: torch.Tensor, mesh: Any, dim: int) -> torch.Tensor:
    """This rank's part of a whole tensor."""
    return DTensor.from_local(x, mesh, WHOLE, run_check=False).redistribute(mesh, (Shard(dim),)).to_local()


def placed(x: torch.Tensor, mesh: Any, layout: tuple[Any, ...]) -> DTensor:
    return DTensor.from_local(x, mesh, layout, run_check=False)


@dataclasses.dataclass(frozen=True)
class Bug:
    """``program(mesh, bug, *inputs)``. ``fixed``: whether its fix is within what is proved today."""

    name: str
    spec: Callable[..., Any]
    program: Callable[..., Any]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    layouts: tuple[tuple[Any, ...], ...]
    out: tuple[Any, ...] | None = None
    fixed: bool = True
    shape: tuple[int, ...] = (2,)


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def auxiliary(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x @ w).softmax(-1).mean(0) ** 2).sum() * 3


class _Gather(torch.autograd.Function):
    """All-gather whose gradient is reduce-scattered, as sequence parallelism does before a sharded layer."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, mesh: Any) -> torch.Tensor:
        context.mesh = mesh
        return all_gather(x, mesh)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        from tests.soundness.plain import reduce_scatter

        return reduce_scatter(gradient.contiguous(), context.mesh), None


class _WrongSquare(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        context.save_for_backward(x)
        context.factor = factor
        return x * x

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return context.factor * context.saved_tensors[0] * gradient, None


def vocabulary_lookup(mesh: Any, bug: bool, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    size = w.shape[0]
    first = own(torch.arange(2 * size), mesh, 0)[0]
    outside = (ids < first) | (ids >= first + size)
    local = torch.where(outside, 0, ids - first)
    rows = F.embedding(local, w)
    if bug:
        outside = (local < first) | (local >= first + size)
    return reduce_out(torch.where(outside[:, None], 0.0, rows), mesh)


def vocabulary_loss(mesh: Any, bug: bool, logits: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    shifted = logits - all_reduce(logits.detach().amax(-1, keepdim=True), mesh, operation="max")
    total = shifted.exp().sum(-1)
    return (total if bug else reduce_out(total, mesh)).log() + 0 * t


def attention_of(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, k)


BUGS = (
    Bug("row-parallel bias added on every rank", lambda x, w, b: x @ w + b,
        lambda m, bug, x, w, b: reduce_out(x @ w + b, m) if bug else reduce_out(x @ w, m) + b,
        lambda: (leaf(4, 3), leaf(3, 3), leaf(3)), (COLUMNS, ROWS, WHOLE), WHOLE),
    Bug("auxiliary loss not divided by the degree", auxiliary,
        lambda m, bug, x, w: auxiliary(_Gather.apply(x, m), w) if bug else auxiliary(_Gather.apply(x, m) / 2 + _Gather.apply(x, m).detach() / 2, w),
        lambda: (leaf(4, 4), torch.randn(4, 3)), (ROWS, WHOLE), WHOLE),
    Bug("experts still sharded after the switch to sequence parallelism", lambda x, a, b: F.gelu(x @ a) @ b,
        lambda m, bug, x, a, b: F.gelu(x @ (a if bug else all_gather(a, m, dim=1))) @ (b if bug else all_gather(b, m)),
        lambda: (torch.randn(4, 4), torch.randn(4, 3), torch.randn(3, 4)), (ROWS, COLUMNS, ROWS), ROWS),
    Bug("norm weight under sequence parallelism not reduced", lambda x, w: F.layer_norm(x, (4,), w),
        lambda m, bug, x, w: F.layer_norm(x, (4,), w if bug else copy_in(w, m)), lambda: (leaf(4, 4), leaf(4)), (ROWS, WHOLE), ROWS),
    Bug("router weight under sequence parallelism not reduced", lambda x, w: (x @ w).softmax(-1),
        lambda m, bug, x, w: (x @ (w if bug else copy_in(w, m))).softmax(-1), lambda: (leaf(4, 4), leaf(4, 3)), (ROWS, WHOLE), ROWS),
    Bug("norm of sharded heads not reduced", lambda q, g: F.rms_norm(q, (4,), g, 1e-5),
        lambda m, bug, q, g: F.rms_norm(q, (4,), g if bug else copy_in(g, m), 1e-5), lambda: (leaf(4, 2, 4), leaf(4)),
        ((Shard(1),), WHOLE), (Shard(1),)),
    Bug("gradient of the frozen column-parallel layer not reduced", torch.mm,
        lambda m, bug, x, w: (x if bug else copy_in(x, m)) @ w, lambda: (leaf(4, 4), torch.randn(4, 3)), (WHOLE, COLUMNS), COLUMNS),
    Bug("shared expert reduced twice", lambda x, a, e: x @ a + x @ e,
        lambda m, bug, x, a, e: all_reduce(all_reduce(x @ a, m) + x @ e, m) if bug else all_reduce(x @ a + x @ e, m),
        lambda: (torch.randn(4, 3), torch.randn(3, 4), torch.randn(3, 4)), (COLUMNS, ROWS, ROWS), WHOLE),
    Bug("norm weight reduced although its gradient is whole", lambda x, w: F.rms_norm(x, (4,), w, 1e-5),
        lambda m, bug, x, w: F.rms_norm(x, (4,), copy_in(w, m) if bug else w, 1e-5), lambda: (leaf(4, 4), leaf(4)), (WHOLE, WHOLE), WHOLE),
    Bug("positions not sliced under sequence parallelism", rotate,
        lambda m, bug, x, t: rotate(x, t[:4] if bug else own(t, m, 0)), lambda: (leaf(4, 4), torch.randn(8, 2)), (ROWS, WHOLE), ROWS),
    Bug("amax reduced over the wrong axis", lambda x: x / x.abs().amax(),
        lambda m, bug, x: x / (lambda a: a if bug else all_reduce(a, m, 0, "max"))(all_reduce(x.abs().amax(), m, 1, "max")),
        lambda: (torch.randn(2, 4),), ((Shard(0), Shard(1)),), (Shard(0), Shard(1)), shape=(2, 2)),
    Bug("mask of the vocabulary rebuilt from masked ids", lambda w, ids: F.embedding(ids, w), vocabulary_lookup,
        lambda: (leaf(4, 4), torch.tensor([0, 5, 4, 7, 1, 4])), (ROWS, WHOLE), WHOLE),
    Bug("divisor of the vocabulary-parallel softmax not reduced", lambda x, t: (x - x.amax(-1, keepdim=True)).exp().sum(-1).log() + 0 * t,
        vocabulary_loss, lambda: (torch.randn(6, 4), torch.randn(6)), (COLUMNS, WHOLE), WHOLE),
    Bug("vocabulary-parallel loss on gathered logits", lambda x: x.exp().sum(-1).log(),
        lambda m, bug, x: all_reduce((all_gather(x, m, dim=1) if bug else x).exp().sum(-1), m).log(), lambda: (torch.randn(6, 4),),
        (COLUMNS,), WHOLE),
    Bug("mean log-probability of the local vocabulary", lambda x: x.mean(-1),
        lambda m, bug, x: x.mean(-1) if bug else all_reduce(x.sum(-1), m) / 8, lambda: (torch.randn(6, 4),), (COLUMNS,), WHOLE),
    Bug("fused query, key and value sharded as one", lambda x, w: (x @ w)[:, :4] * (x @ w)[:, 4:8] + (x @ w)[:, 8:],
        lambda _, bug, x, w: (lambda y: y[:, :2] * y[:, 2:4] + y[:, 4:])(x @ w) if bug else (lambda y: y[0] * y[1] + y[2])(
            (x @ w).view(3, 3, 2).unbind(1)), lambda: (torch.randn(3, 4), torch.randn(4, 6)), (WHOLE, COLUMNS), COLUMNS, fixed=False),
    Bug("key heads mapped by the local number", lambda q, k: attention_of(q, k.repeat_interleave(2, 1)),
        lambda m, bug, q, k: attention_of(q, k if bug else own(k, m, 1).repeat_interleave(2, 1)),
        lambda: (torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8)), ((Shard(1),), WHOLE), (Shard(1),)),
    Bug("norm over a sharded dimension", lambda x: x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt(),
        lambda m, bug, x: x * ((x.pow(2).mean(-1, keepdim=True) if bug else all_reduce(x.pow(2).mean(-1, keepdim=True), m) / 2) + 1e-5).rsqrt(),
        lambda: (torch.randn(4, 4),), (COLUMNS,), COLUMNS),
    Bug("causal mask of the local positions", lambda s: s * torch.ones(8, 8).tril(),
        lambda m, bug, s: s * (torch.ones(4, 8).tril() if bug else own(torch.ones(8, 8).tril(), m, 0)),
        lambda: (torch.randn(4, 8),), (ROWS,), ROWS),
    Bug("labels shifted within a rank", lambda x, t: x * t.roll(-1, 0), lambda m, bug, x, t: x * t.roll(-1, 0),
        lambda: (torch.randn(4), torch.randn(4)), (ROWS, ROWS), ROWS, fixed=False),
    Bug("rotary table of a contiguous split for a zigzag one", lambda x: torch.cat([x[:2], x[6:], x[2:4], x[4:6]]),
        lambda m, bug, x: x * 1, lambda: (torch.randn(4, 4),), (ROWS,), ROWS, fixed=False),
    Bug("expert gradient without its scale", torch.mm, lambda m, bug, x, w: x @ (copy_in(w, m) if bug else w),
        lambda: (leaf(4, 4), leaf(4, 4)), (WHOLE, WHOLE), WHOLE),
    Bug("wrong backward of a custom function", lambda x: x * x, lambda _, bug, x: _WrongSquare.apply(x, 1.0 if bug else 2.0),
        lambda: (leaf(4, 4),), (ROWS,), ROWS),
    Bug("to_local without gradient placements", torch.mm,
        lambda m, bug, x, w: x @ placed(w, m, WHOLE).to_local(**({} if bug else {"grad_placements": SUM})),
        lambda: (leaf(2, 4), leaf(4, 3)), (ROWS, WHOLE), ROWS),
    Bug("local_map without gradient placements", torch.mm,
        lambda m, bug, x, w: local_map(
            torch.mm, out_placements=[Shard(0)], in_placements=([Shard(0)], [Replicate()]), device_mesh=m,
            **({} if bug else {"in_grad_placements": ([Shard(0)], [Partial()])}),
        )(placed(x, m, ROWS), placed(w, m, WHOLE)).to_local(),
        lambda: (leaf(2, 4), leaf(4, 3)), (ROWS, WHOLE), ROWS),
    Bug("activation of a partial value", lambda x, w: torch.relu(x @ w),
        lambda m, bug, x, w: all_reduce(torch.relu(x @ w), m) if bug else torch.relu(all_reduce(x @ w, m)),
        lambda: (torch.randn(4, 3), torch.randn(3, 4)), (COLUMNS, ROWS), WHOLE),
    Bug("partial value relabelled as whole", lambda x, w: x @ w,
        lambda m, bug, x, w: placed(x @ w, m, WHOLE if bug else SUM).redistribute(m, WHOLE).to_local(),
        lambda: (torch.randn(4, 3), torch.randn(3, 4)), (COLUMNS, ROWS), WHOLE),
    Bug("shard of one dimension relabelled as another", lambda x: x * 1,
        lambda m, bug, x: placed(x, m, COLUMNS if bug else ROWS).redistribute(m, WHOLE).to_local()[:4, :4] * 1,
        lambda: (torch.randn(2, 4),), (ROWS,), WHOLE),
    Bug("transposed part of a square weight", lambda x, w: x @ w,
        lambda m, bug, x, w: x @ (own(w, m, 0).t() if bug else own(w, m, 1)), lambda: (torch.randn(3, 4), torch.randn(4, 4)),
        (WHOLE, WHOLE), COLUMNS),
    Bug("bias divided before the reduction", lambda x, w, b: x @ w + b,
        lambda m, bug, x, w, b: all_reduce(x @ w + (b if bug else b / 2), m),
        lambda: (torch.randn(4, 3), torch.randn(3, 3), torch.randn(3)), (COLUMNS, ROWS, WHOLE), WHOLE),
    Bug("replicated value summed", lambda x: x * 1, lambda m, bug, x: all_reduce(x, m, operation="sum" if bug else "avg"),
        lambda: (torch.randn(4, 3),), (WHOLE,), WHOLE),
)  # fmt: skip


def report_of(case: Bug, *, bug: bool) -> Any:
    options: dict[str, Any] = {"in_placements": dict(zip("abc", case.layouts, strict=False))}
    if case.out is not None:
        options["out_placements"] = {"output.0": case.out}
    return verify_functions(case.spec, lambda m, *a: case.program(m, bug, *a), case.inputs(), case.shape, **options)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in BUGS])
def test_bug_is_not_verified(case):
    assert report_of(case, bug=True).verdict is not Verdict.VERIFIED


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in BUGS if case.fixed])
def test_fix_is_verified(case):
    report = report_of(case, bug=False)
    assert report.verdict is Verdict.VERIFIED, str(report)
