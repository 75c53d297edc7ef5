"""Hand-written vocabulary parallelism: embedding, cross entropy, z-loss. Right forms verify, each mistake does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel

from tests.soundness.plain import all_gather, all_reduce, reduce_out, verify_functions
from verifycompile import Verdict

WORDS, RANKS = 8, 2
ROWS, COLUMNS, WHOLE = (Shard(0),), (Shard(1),), (Replicate(),)


def own(x: torch.Tensor, mesh: Any, dim: int = 0) -> torch.Tensor:
    """This rank's part of a whole tensor."""
    return DTensor.from_local(x, mesh, WHOLE, run_check=False).redistribute(mesh, (Shard(dim),)).to_local()


def start_of(mesh: Any) -> torch.Tensor:
    """The first word of this rank's part of the vocabulary."""
    return own(torch.arange(WORDS), mesh)[0]


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """``right``: whether it must verify. ``layouts``: of the inputs; the output is whole."""

    name: str
    right: bool
    spec: Callable[..., torch.Tensor]
    program: Callable[..., torch.Tensor]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    layouts: tuple[Any, ...]


# ------------------------------------------------------------------------------------------------ embedding

OWN_ROWS = WORDS // RANKS


def table_and_words() -> tuple[torch.Tensor, ...]:
    return torch.randn(OWN_ROWS, 4, requires_grad=True), torch.tensor([[0, 5, 4], [7, 1, 4]])


def written(
    m: Any, w: torch.Tensor, ids: torch.Tensor, *, low: int = 0, high: int = 0, again: bool = False
) -> torch.Tensor:
    """Megatron's: ids of other ranks become zero, then their rows."""
    start = start_of(m) + low
    outside = (ids < start) | (ids >= start + OWN_ROWS + high - low)
    local = ids.clone() - start_of(m)
    local[outside] = 0
    rows = F.embedding(local, w)
    if again:
        outside = (local < start) | (local >= start + OWN_ROWS)
    rows[outside, :] = 0.0
    return reduce_out(rows, m)


def filled(m: Any, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    outside = (ids < start_of(m)) | (ids >= start_of(m) + OWN_ROWS)
    rows = F.embedding((ids - start_of(m)).masked_fill_(outside, 0), w)
    return reduce_out(rows.masked_fill_(outside.unsqueeze(-1), 0.0), m)


def selected(m: Any, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    inside = (ids >= start_of(m)) & (ids < start_of(m) + OWN_ROWS)
    rows = F.embedding(torch.where(inside, ids - start_of(m), torch.zeros_like(ids)), w)
    return reduce_out(torch.where(inside[..., None], rows, 0.0), m)


def multiplied(m: Any, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    inside = torch.logical_and(ids >= start_of(m), ids < start_of(m) + OWN_ROWS)
    return reduce_out(F.embedding(inside.long() * (ids - start_of(m)), w) * inside[..., None], m)


def clamped(m: Any, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    inside = (ids >= start_of(m)) & (ids < start_of(m) + OWN_ROWS)
    return reduce_out(F.embedding((ids - start_of(m)).clamp(0, OWN_ROWS - 1), w) * inside[..., None].to(w.dtype), m)


def modular(m: Any, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    outside = (ids < start_of(m)) | (ids >= start_of(m) + OWN_ROWS)
    return reduce_out(F.embedding(ids % OWN_ROWS, w).masked_fill(outside[..., None], 0.0), m)


def one_hot(m: Any, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return reduce_out((ids[..., None] == torch.arange(OWN_ROWS) + start_of(m)).to(w.dtype) @ w, m)


def unmasked(m: Any, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    outside = (ids < start_of(m)) | (ids >= start_of(m) + OWN_ROWS)
    return reduce_out(F.embedding((ids - start_of(m)).masked_fill(outside, 0), w), m)


def placed(m: Any, w: torch.Tensor, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    table = DTensor.from_local(w, m, ROWS, run_check=False)
    words = DTensor.from_local(ids, m, WHOLE, run_check=False)
    return F.embedding(words, table, **options).redistribute(m, WHOLE).to_local()


def looked_up(w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.embedding(ids, w)


def padded(w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.embedding(ids, w, padding_idx=5)


def counted(w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.embedding(ids, w, scale_grad_by_freq=True)


def _embedding(name: str, right: bool, program: Callable[..., torch.Tensor], spec: Any = looked_up) -> Vocabulary:
    return Vocabulary(f"embedding, {name}", right, spec, program, table_and_words, (ROWS, WHOLE))


EMBEDDINGS = (
    *(_embedding(f.__name__, True, f) for f in (written, filled, selected, multiplied, clamped, modular, one_hot, placed)),
    _embedding("padding row", True, lambda m, w, i: placed(m, w, i, padding_idx=5), padded),
    _embedding("mask of masked ids", False, lambda m, w, i: written(m, w, i, again=True)),
    _embedding("mask begins late", False, lambda m, w, i: written(m, w, i, low=1)),
    _embedding("mask ends early", False, lambda m, w, i: written(m, w, i, high=-1)),
    _embedding("rows not masked", False, unmasked),
    _embedding("not reduced", False, lambda m, w, i: written(m, w, i) - written(m, w, i) + F.embedding(i % OWN_ROWS, w)),
    _embedding("padding row dropped", False, written, padded),
    _embedding("frequencies dropped", False, written, counted),
)  # fmt: skip


# ------------------------------------------------------------------------------------------------ cross entropy

IGNORED = -100


def logits_and_labels() -> tuple[torch.Tensor, ...]:
    return torch.randn(6, WORDS // RANKS, requires_grad=True), torch.tensor([0, 5, IGNORED, 7, 1, 3])


class ByHand(torch.autograd.Function):
    """Megatron's cross entropy, with a label smoothing and places for mistakes."""

    @staticmethod
    def forward(
        context: Any, logits: torch.Tensor, labels: torch.Tensor, m: Any, form: tuple[float, str]
    ) -> torch.Tensor:
        smoothing, mistake = form
        largest = logits.amax(-1)
        shifted = logits - (largest if mistake == "maximum" else all_reduce(largest, m, operation="max")).unsqueeze(-1)
        words, start = logits.shape[-1], start_of(m) + (mistake == "offset")
        outside = (labels < start) | (labels >= start + words)
        local = labels.clone() - start
        local[outside] = 0
        rows = torch.arange(labels.shape[0])
        picked = shifted[rows, local].clone()
        picked[outside] = 0.0
        picked = picked if mistake == "target" else all_reduce(picked, m)
        power = shifted.exp()
        total = power.sum(-1) if mistake == "divisor" else all_reduce(power.sum(-1), m)
        power.div_(total.unsqueeze(-1))
        loss = total.log() - picked
        context.share = 0.0
        context.size = words if mistake == "local vocabulary" else WORDS
        if smoothing:
            context.share = smoothing * context.size / (context.size - 1)
            mean = power.log().mean(-1)
            mean = mean if mistake == "local mean" else all_reduce(mean, m) / RANKS
            loss = (1 - context.share) * loss - context.share * mean
        context.mistake = mistake
        context.save_for_backward(power, outside, local, rows)
        return loss

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        power, outside, local, rows = context.saved_tensors
        result = power.clone()
        update = torch.ones_like(gradient) if context.mistake == "backward mask" else 1.0 - outside.float()
        result[rows, local] -= (1.0 - context.share) * update
        if context.share:
            result -= context.share / context.size
        return result * gradient.unsqueeze(-1), None, None, None


def by_hand(m: Any, x: torch.Tensor, t: torch.Tensor, smoothing: float = 0.0, mistake: str = "") -> torch.Tensor:
    return ByHand.apply(x, t, m, (smoothing, mistake))


def by_autograd(m: Any, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    shifted = x - all_reduce(x.detach().amax(-1, keepdim=True), m, operation="max")
    words, start = x.shape[-1], start_of(m)
    inside = (t >= start) & (t < start + words)
    local = (t - start).clamp(0, words - 1)
    picked = torch.where(inside, shifted.gather(1, local[:, None])[:, 0], 0.0)
    return reduce_out(shifted.exp().sum(-1), m).log() - reduce_out(picked, m)


def ignoring(m: Any, x: torch.Tensor, t: torch.Tensor, mean: bool = True, index: int = IGNORED) -> torch.Tensor:
    kept = t != index
    total = torch.where(kept, by_autograd(m, x, t), 0.0).sum()
    return total / kept.sum() if mean else total


def picked(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return -x.log_softmax(-1).gather(1, t[:, None])[:, 0]


def smoothed(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    share = 0.1 * WORDS / (WORDS - 1)
    return (1 - share) * picked(x, t) - share * x.log_softmax(-1).mean(-1)


def with_torch(**options: Any) -> Callable[..., torch.Tensor]:
    return lambda x, t: F.cross_entropy(x, t, **options)


def placed_loss(m: Any, x: torch.Tensor, t: torch.Tensor, **options: Any) -> torch.Tensor:
    logits = DTensor.from_local(x, m, COLUMNS, run_check=False)
    labels = DTensor.from_local(t, m, WHOLE, run_check=False)
    with loss_parallel():
        return F.cross_entropy(logits, labels, **options).to_local()


def squared(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return (torch.logsumexp(x, -1) ** 2).mean() + 0 * t.sum()


def squared_by_hand(m: Any, x: torch.Tensor, t: torch.Tensor, reduce: Any = reduce_out) -> torch.Tensor:
    largest = all_reduce(x.detach().amax(-1, keepdim=True), m, operation="max")
    return ((reduce((x - largest).exp().sum(-1), m).log() + largest[:, 0]) ** 2).mean() + 0 * t.sum()


def _loss(name: str, right: bool, spec: Callable[..., Any], program: Callable[..., Any]) -> Vocabulary:
    return Vocabulary(f"loss, {name}", right, spec, program, logits_and_labels, (COLUMNS, WHOLE))


LOSSES = (
    _loss("by hand", True, picked, by_hand),
    _loss("by hand, summed", True, lambda x, t: picked(x, t).sum(), lambda m, x, t: by_hand(m, x, t).sum()),
    _loss("by hand, smoothed", True, smoothed, lambda m, x, t: by_hand(m, x, t, 0.1)),
    _loss("by autograd", True, picked, by_autograd),
    _loss("by autograd, mean", True, lambda x, t: picked(x, t).mean(), lambda m, x, t: by_autograd(m, x, t).mean()),
    _loss("ignoring, mean", True, with_torch(), ignoring),
    _loss("ignoring, sum", True, with_torch(reduction="sum"), lambda m, x, t: ignoring(m, x, t, mean=False)),
    _loss("ignoring a word", True, with_torch(ignore_index=3), lambda m, x, t: ignoring(m, x, t, index=3)),
    _loss("squared log-sum-exp", True, squared, squared_by_hand),
    *(_loss(f"wrong {mistake}", False, picked, lambda m, x, t, mistake=mistake: by_hand(m, x, t, 0.0, mistake))
      for mistake in ("maximum", "offset", "target", "divisor", "backward mask")),
    *(_loss(f"smoothed, {mistake}", False, smoothed, lambda m, x, t, mistake=mistake: by_hand(m, x, t, 0.1, mistake))
      for mistake in ("local vocabulary", "local mean")),
    _loss("gathered logits", False, picked, lambda m, x, t: by_hand(m, all_gather(x, m, dim=1), t)),
    _loss("ignored labels counted", False, with_torch(), lambda m, x, t: ignoring(m, x, t, mean=False) / t.shape[0]),
    _loss("ignoring another word", False, with_torch(ignore_index=3), ignoring),
    _loss("squared, not reduced", False, squared, lambda m, x, t: squared_by_hand(m, x, t, lambda y, _: y)),
)  # fmt: skip

CASES = (*EMBEDDINGS, *LOSSES)


def report_of(case: Vocabulary) -> Any:
    layouts = dict(zip("ab", case.layouts, strict=True))
    options = {"in_placements": layouts, "out_placements": {"output.0": WHOLE}}
    return verify_functions(case.spec, case.program, case.inputs(), (RANKS,), **options)


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_vocabulary_parallel(case: Vocabulary) -> None:
    report = report_of(case)
    assert (report.verdict is Verdict.VERIFIED) is case.right, str(report)


@pytest.mark.sampled(every=2, of=("right",))
@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"reduction": "none"}, {"ignore_index": 3}], ids=str)
@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
def test_loss_parallel(options: dict[str, Any], right: bool) -> None:
    """The context that makes torch's own loss parallel is entered around the call."""
    given = options if right else {**options, "ignore_index": 3 - options.get("ignore_index", 0)}

    def program(m: Any, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        logits = DTensor.from_local(x, m, COLUMNS, run_check=False)
        labels = DTensor.from_local(t, m, WHOLE, run_check=False)
        return F.cross_entropy(logits, labels, **given).to_local()

    with loss_parallel():
        report = report_of(_loss("parallel", right, with_torch(**options), program))
    assert (report.verdict is Verdict.VERIFIED) is right, str(report)
