"""Hand-written collectives on plain tensors: right ones verify, each with a mistake does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import Partial, Replicate, Shard

from tests.soundness.plain import (
    Function,
    all_gather,
    all_reduce,
    copy_in,
    reduce_out,
    reduce_scatter,
    verify_functions,
    verify_modules,
)
from verifycompile import Verdict

ROWS, COLUMNS, WHOLE, SUM = (Shard(0),), (Shard(1),), (Replicate(),), (Partial(),)


def perceptron(s: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ s.up) @ s.down + s.bias


def hidden(mesh: Any, s: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(copy_in(x, mesh) @ s.up) @ s.down


# The first is right; the others hold one mistake each.
PERCEPTRONS: dict[str, Callable[..., torch.Tensor]] = {
    "right": lambda m, s, x: reduce_out(hidden(m, s, x), m) + s.bias,
    "no reduction": lambda m, s, x: hidden(m, s, x) + s.bias,
    "no reduction, bias divided": lambda m, s, x: hidden(m, s, x) + s.bias / 2,
    "bias before the reduction": lambda m, s, x: reduce_out(hidden(m, s, x) + s.bias, m),
    "reduced twice": lambda m, s, x: reduce_out(reduce_out(hidden(m, s, x), m), m) + s.bias,
    "reduced twice and halved, forward only": lambda m, s, x: (
        reduce_out(reduce_out(hidden(m, s, x), m) / 2, m) + s.bias
    ),
    "mean for sum": lambda m, s, x: reduce_out(hidden(m, s, x), m) / 2 + s.bias,
    "gradient of the sum reduced again": lambda m, s, x: all_reduce(hidden(m, s, x), m) + s.bias,
    "gradient of the input not reduced": lambda m, s, x: reduce_out(torch.relu(x @ s.up) @ s.down, m) + s.bias,
    "activation after the reduction": lambda m, s, x: reduce_out(torch.relu(copy_in(x, m) @ s.up @ s.down), m) + s.bias,
    "this rank's number": lambda m, s, x: reduce_out(hidden(m, s, x), m) + s.bias * dist.get_rank(),
    "this rank's number on the mesh": lambda m, s, x: reduce_out(hidden(m, s, x), m) + s.bias * m.get_local_rank(),
    "this rank's coordinate": lambda m, s, x: reduce_out(hidden(m, s, x), m) + s.bias * m.get_coordinate()[0],
    "this rank's number in a group": lambda m, s, x: (
        reduce_out(hidden(m, s, x), m) + s.bias * dist.get_rank(m.get_group())
    ),
    "rank 0 alone": lambda m, s, x: reduce_out(hidden(m, s, x) * (dist.get_rank() == 0), m) + s.bias,
    "dropout": lambda m, s, x: reduce_out(F.dropout(hidden(m, s, x)), m) + s.bias,
    "gradient of a weight cut off": lambda m, s, x: (
        reduce_out(torch.relu(copy_in(x, m) @ s.up.detach()) @ s.down, m) + s.bias
    ),
}


def verify_perceptron(function: Callable[..., torch.Tensor], **options: Any) -> Any:
    def build(mesh: Any) -> tuple[Function, Function]:
        spec = Function(perceptron, {"up": torch.randn(8, 8), "down": torch.randn(8, 8), "bias": torch.randn(8)})
        local = {"up": torch.randn(8, 4), "down": torch.randn(4, 8), "bias": torch.randn(8)}
        return spec, Function(lambda s, x: function(mesh, s, x), local)

    options = {"param_placements": {"up": COLUMNS, "down": ROWS}, **options}
    return verify_modules(build, (torch.randn(4, 8, requires_grad=True),), **options)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", PERCEPTRONS)
def test_perceptron(name):
    report = verify_perceptron(PERCEPTRONS[name])
    assert (report.verdict is Verdict.VERIFIED) is (name == "right"), str(report)


def test_declared_layouts_are_required():
    right = PERCEPTRONS["right"]
    assert verify_perceptron(right, out_placements={"output.0": WHOLE}, grad_placements={"bias": WHOLE})
    assert not verify_perceptron(right, out_placements={"output.0": SUM})
    assert not verify_perceptron(right, grad_placements={"bias": SUM})
    assert not verify_perceptron(PERCEPTRONS["no reduction"], out_placements={"output.0": SUM})


@dataclasses.dataclass(frozen=True)
class Plain:
    """``right``: whether it must verify. ``options``: layouts of inputs and outputs."""

    name: str
    right: bool
    spec: Callable[..., Any]
    implementation: Callable[..., Any]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    layouts: tuple[tuple[Any, ...], ...]
    out: tuple[Any, ...] | None = None
    shape: tuple[int, ...] = (2,)


def value(*shape: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(*shape),)


def logits_and_labels() -> tuple[torch.Tensor, ...]:
    return torch.randn(2, 8, requires_grad=True), torch.tensor([1, 2])


def losses_and_mask() -> tuple[torch.Tensor, ...]:
    return torch.randn(4), torch.ones(4)


def pair() -> tuple[torch.Tensor, ...]:
    return torch.randn(2, 8), torch.randn(2, 8)


def activation_and_weight(rows: int, columns: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(rows, 4, requires_grad=True), torch.randn(4, columns, requires_grad=True))


def same(x: torch.Tensor) -> torch.Tensor:
    return x * 1


def gathered(*axes: int) -> Callable[..., torch.Tensor]:
    def gather(mesh: Any, x: torch.Tensor) -> torch.Tensor:
        for axis in axes:
            x = all_gather(x, mesh, axis)
        return x

    return gather


def count_of_all(t: torch.Tensor, mesh: Any) -> torch.Tensor:
    return all_reduce((t != -100).sum(), mesh)


PLAIN = (
    # a dimension that two mesh axes shard: the inner axis is gathered first
    Plain("inner axis first", True, same, gathered(1, 0), value(2, 8), ((Shard(0), Shard(0)),), (Replicate(),) * 2, (2, 2)),
    Plain("outer axis first", False, same, gathered(0, 1), value(2, 8), ((Shard(0), Shard(0)),), (Replicate(),) * 2, (2, 2)),
    Plain("outer axis first, any layout", False, same, gathered(0, 1), value(2, 8), ((Shard(0), Shard(0)),), None, (2, 2)),
    Plain("outer axis alone", False, same, gathered(0), value(2, 8), ((Shard(0), Shard(0)),), None, (2, 2)),
    Plain("inner axis alone", True, same, gathered(1), value(2, 8), ((Shard(0), Shard(0)),), (Shard(0), Replicate()), (2, 2)),
    Plain("inner axis alone, other declaration", False, same, gathered(1), value(2, 8), ((Shard(0), Shard(0)),),
          (Replicate(), Shard(0)), (2, 2)),
    Plain("axes of sizes 2 and 3", True, same, gathered(1, 0), value(2, 8), ((Shard(0), Shard(0)),), (Replicate(),) * 2, (2, 3)),
    Plain("axes of sizes 2 and 3, wrong order", False, same, gathered(0, 1), value(2, 8), ((Shard(0), Shard(0)),), None, (2, 3)),
    # axes
    Plain("sum over the wrong axis", False, lambda x: x.sum(0, keepdim=True), lambda m, x: all_reduce(x, m, 0), value(1, 8),
          ((Replicate(), Shard(0)),), (Replicate(),) * 2, (2, 2)),
    Plain("sum over the right axis", True, lambda x: x.sum(0, keepdim=True), lambda m, x: all_reduce(x, m, 1), value(1, 8),
          ((Replicate(), Shard(0)),), (Replicate(),) * 2, (2, 2)),
    Plain("sum over both axes", False, lambda x: x.sum(0, keepdim=True), lambda m, x: all_reduce(all_reduce(x, m, 1), m, 0),
          value(1, 8), ((Replicate(), Shard(0)),), (Replicate(),) * 2, (2, 2)),
    Plain("an axis of one rank", True, same, lambda m, x: all_reduce(x, m, 0), value(1, 8), ((Replicate(), Replicate()),), None, (1, 2)),
    Plain("an axis of one rank, the other summed", False, same, lambda m, x: all_reduce(x, m, 1), value(1, 8),
          ((Replicate(), Replicate()),), None, (1, 2)),
    Plain("a sharding axis of one rank", True, same, lambda m, x: all_gather(x, m, 0), value(2, 8), ((Shard(0), Replicate()),),
          (Replicate(),) * 2, (1, 2)),
    # partial inputs
    Plain("partial input reduced", True, same, lambda m, x: all_reduce(x, m), value(2, 8), (SUM,), WHOLE),
    Plain("partial input scattered", True, same, lambda m, x: reduce_scatter(x, m), value(2, 8), (SUM,), ROWS),
    Plain("partial input scattered along the other dimension", False, same, lambda m, x: reduce_scatter(x, m, dim=1),
          value(4, 4), (SUM,), ROWS),
    Plain("partial input, scaled", True, lambda x: 2 * x, lambda m, x: all_reduce(2 * x, m), value(2, 8), (SUM,), WHOLE),
    Plain("partial input, shifted", False, lambda x: x + 1, lambda m, x: all_reduce(x + 1, m), value(2, 8), (SUM,), WHOLE),
    Plain("partial input, not linear", False, torch.relu, lambda m, x: all_reduce(torch.relu(x), m), value(2, 8), (SUM,), WHOLE),
    Plain("partial input kept", True, same, lambda _, x: same(x), value(2, 8), (SUM,), SUM),
    Plain("partial input taken as whole", False, same, lambda _, x: same(x), value(2, 8), (SUM,), WHOLE),
    Plain("averaged input", True, same, lambda m, x: all_reduce(x, m, operation="avg"), value(2, 8), ((Partial("avg"),),), WHOLE),
    Plain("averaged input summed", False, same, lambda m, x: all_reduce(x, m), value(2, 8), ((Partial("avg"),),), WHOLE),
    Plain("sum averaged", False, same, lambda m, x: all_reduce(x, m, operation="avg"), value(2, 8), (SUM,), WHOLE),
    Plain("sum for largest", False, lambda x: x.amax(0), lambda m, x: all_reduce(x.amax(0), m), value(2, 8), (ROWS,), WHOLE),
    Plain("largest of largest", True, lambda x: x.amax(0), lambda m, x: all_reduce(x.amax(0), m, operation="max"), value(2, 8),
          (ROWS,), WHOLE),
    Plain("product of sums", True, lambda x, y: x * y, lambda m, x, y: all_reduce(x, m) * all_reduce(y, m), pair, (SUM, SUM), WHOLE),
    Plain("sum of products", False, lambda x, y: x * y, lambda m, x, y: all_reduce(x * y, m), pair, (SUM, SUM), WHOLE),
    Plain("partial on one axis, sharded on the other", True, same, lambda m, x: all_gather(all_reduce(x, m, 0), m, 1), value(2, 8),
          ((Partial(), Shard(0)),), (Replicate(),) * 2, (2, 2)),
    Plain("partial on one axis, gathered on it", False, same, lambda m, x: all_reduce(all_gather(x, m, 0), m, 1), value(2, 8),
          ((Partial(), Shard(0)),), None, (2, 2)),
    # a batch that is sharded, and weights that are not
    Plain("gradient of a shared weight reduced", True, torch.mm, lambda m, x, w: x @ copy_in(w, m), activation_and_weight(2, 4),
          (ROWS, WHOLE), ROWS),
    Plain("gradient of a shared weight left partial", False, torch.mm, lambda _, x, w: x @ w, activation_and_weight(2, 4),
          (ROWS, WHOLE), ROWS),
    Plain("batch declared along the other dimension", False, torch.mm, lambda m, x, w: x @ copy_in(w, m),
          activation_and_weight(4, 4), (WHOLE, WHOLE), ROWS),
    Plain("uneven batch padded", False, same, lambda m, x: all_gather(x, m)[:5], value(3, 8), (ROWS,)),
    # losses whose divisor depends on values
    Plain("mean of means", False, F.cross_entropy, lambda m, x, t: all_reduce(F.cross_entropy(x, t), m, operation="avg"),
          lambda: (torch.randn(2, 8), torch.tensor([1, 2])), (ROWS, ROWS)),
    Plain("mean of a rank as the mean", False, F.cross_entropy, lambda _, x, t: F.cross_entropy(x, t), logits_and_labels,
          (ROWS, ROWS)),
    Plain("sum over a constant count", False, F.cross_entropy,
          lambda m, x, t: all_reduce(F.cross_entropy(x, t, reduction="sum"), m) / 4,
          lambda: (torch.randn(2, 8), torch.tensor([1, 2])), (ROWS, ROWS)),
    Plain("sum over the count of all", True, F.cross_entropy,
          lambda m, x, t: all_reduce(F.cross_entropy(x, t, reduction="sum"), m) / count_of_all(t, m),
          lambda: (torch.randn(2, 8), torch.tensor([1, 2])), (ROWS, ROWS)),
    Plain("mean of masked means", False, lambda a, k: (a * k).sum() / k.sum(),
          lambda m, a, k: all_reduce((a * k).sum() / k.sum(), m, operation="avg"), losses_and_mask, (ROWS, ROWS)),
    Plain("masked sums", True, lambda a, k: (a * k).sum() / k.sum(),
          lambda m, a, k: all_reduce((a * k).sum(), m) / all_reduce(k.sum(), m), losses_and_mask, (ROWS, ROWS)),
    Plain("mean of means of equal counts", True, lambda a: (a**2).mean(),
          lambda m, a: all_reduce((a**2).mean(), m, operation="avg"), value(4, 8), (ROWS,), WHOLE),
    Plain("norm with a replicated part counted on every rank", False, lambda d, e: ((d**2).sum() + (e**2).sum()).sqrt(),
          lambda m, d, e: all_reduce((d**2).sum() + (e**2).sum(), m).sqrt(), pair, (WHOLE, ROWS)),
    Plain("norm", True, lambda d, e: ((d**2).sum() + (e**2).sum()).sqrt(),
          lambda m, d, e: ((d**2).sum() + all_reduce((e**2).sum(), m)).sqrt(), pair, (WHOLE, ROWS)),
    # normalizations over a sharded dimension
    Plain("layer norm of a part", False, lambda x: F.layer_norm(x, (8,)), lambda m, x: all_gather(F.layer_norm(x, (4,)), m, dim=1),
          value(4, 4), (COLUMNS,), WHOLE),
    Plain("softmax of a part", False, lambda x: F.softmax(x, 1), lambda _, x: F.softmax(x, 1), value(4, 4), (COLUMNS,), COLUMNS),
    Plain("softmax with a reduced divisor", True, lambda x: F.softmax(x, 1),
          lambda m, x: x.exp() / all_reduce(x.exp().sum(1, keepdim=True), m), value(4, 4), (COLUMNS,), COLUMNS),
    Plain("causal mask of a rank's own rows", False, torch.tril, lambda _, x: torch.tril(x), value(4, 8), (ROWS,), ROWS),
    Plain("counter of a rank's own rows", False, lambda x: x + torch.arange(8)[:, None], lambda _, x: x + torch.arange(4)[:, None],
          value(4, 8), (ROWS,), ROWS),
    # fused weights
    Plain("halves of a fused weight", False, lambda x: x[:, :4] * x[:, 4:], lambda _, x: x[:, :2] * x[:, 2:], value(4, 4),
          (COLUMNS,), COLUMNS),
    Plain("halves of a fused weight with its own axis", True, lambda x: x[:, 0] * x[:, 1], lambda _, x: x[:, 0] * x[:, 1],
          value(4, 2, 2), ((Shard(2),),), COLUMNS),
)  # fmt: skip


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in PLAIN])
def test_plain(case):
    options: dict[str, Any] = {"in_placements": dict(zip("abc", case.layouts, strict=False))}
    if case.out is not None:
        options["out_placements"] = {"output.0": case.out}
    report = verify_functions(case.spec, case.implementation, case.inputs(), case.shape, **options)
    assert (report.verdict is Verdict.VERIFIED) is case.right, str(report)


def accumulated(s: Any, x: torch.Tensor) -> torch.Tensor:
    s.total.add_(x.sum(0))
    return x * 1


def accumulated_twice(s: Any, x: torch.Tensor) -> torch.Tensor:
    s.total.add_(2 * x.sum(0))
    return x * 1


def unchanged(s: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 1 + 0 * s.total


def used_then_written(s: Any, x: torch.Tensor) -> torch.Tensor:
    result = x * s.total
    s.total.add_(1)
    return result


def written_then_used(s: Any, x: torch.Tensor) -> torch.Tensor:
    s.total.add_(1)
    return x * s.total


def reduced(s: Any, x: torch.Tensor, mesh: Any) -> torch.Tensor:
    s.total.add_(all_reduce(x.sum(0), mesh))
    return x * 1


@pytest.mark.parametrize(
    ("spec", "implementation", "right"),
    [
        (accumulated, accumulated, True),
        (accumulated, accumulated_twice, False),
        (accumulated, unchanged, False),
        (unchanged, accumulated, False),
        (written_then_used, used_then_written, False),
        (used_then_written, written_then_used, False),
    ],
)
def test_buffer_that_is_written(spec, implementation, right):
    report = verify_modules(
        lambda _: (
            Function(spec, buffers={"total": torch.zeros(8)}),
            Function(implementation, buffers={"total": torch.zeros(8)}),
        ),
        (torch.randn(4, 8),),
    )
    assert (report.verdict is Verdict.VERIFIED) is right, str(report)
    assert ("mutation.total" in report.relations) is right or not right


@pytest.mark.parametrize("right", [True, False])
def test_statistics_of_a_sharded_batch(right):
    def build(mesh: Any) -> tuple[Function, Function]:
        implementation = (lambda s, x: reduced(s, x, mesh)) if right else accumulated
        buffers = {"total": torch.zeros(8)}
        return Function(accumulated, buffers=buffers), Function(implementation, buffers=buffers)

    report = verify_modules(build, (torch.randn(2, 8),), in_placements={"inputs.0": ROWS})
    assert (report.verdict is Verdict.VERIFIED) is right, str(report)


def scaled(s: Any, x: torch.Tensor) -> torch.Tensor:
    return x * s.scales


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("placement", [Replicate(), Shard(0)])
def test_contents_of_buffers_are_compared(placement, right):
    whole = torch.arange(8.0)
    held = whole if right else whole + 1
    if placement == Shard(0):
        held = held.chunk(2)[1]

    report = verify_modules(
        lambda _: (Function(scaled, buffers={"scales": whole}), Function(scaled, buffers={"scales": held.clone()})),
        (torch.randn(4, held.shape[0]),),
        param_placements={"scales": (placement,)},
        in_placements={"inputs.0": WHOLE if placement == Replicate() else COLUMNS},
    )
    assert (report.verdict is Verdict.VERIFIED) is right, str(report)
    if not right:
        assert report.findings[0].message == "buffer `scales` holds other values in the spec than in the model."
