"""Wrong operators and wrong arguments of operators, without any parallelism: none may verify."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.soundness.plain import verify_functions
from verifycompile import Verdict


def tensor(*shape: int, requires_grad: bool = False, seed: int = 0) -> torch.Tensor:
    value = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return value.requires_grad_(requires_grad)


def whole(*shape: int, high: int = 4) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(0))


@dataclasses.dataclass(frozen=True)
class Pair:
    name: str
    spec: Callable[..., Any]
    wrong: Callable[..., Any]
    inputs: Callable[[], tuple[torch.Tensor, ...]]


def one() -> tuple[torch.Tensor, ...]:
    return (tensor(4, 8, requires_grad=True),)


def square() -> tuple[torch.Tensor, ...]:
    return (tensor(4, 4, requires_grad=True),)


def two() -> tuple[torch.Tensor, ...]:
    return tensor(4, 4, requires_grad=True), tensor(4, 4, requires_grad=True, seed=1)


def three() -> tuple[torch.Tensor, ...]:
    return (*two(), tensor(4, 4, seed=2))


def plain() -> tuple[torch.Tensor, ...]:
    return (tensor(4, 8),)


def integers() -> tuple[torch.Tensor, ...]:
    return (torch.arange(8),)


def at_place(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return values.gather(1, places[:, None])[:, 0]


def labelled() -> tuple[torch.Tensor, ...]:
    return tensor(4, 8, requires_grad=True), whole(4)


def indexed() -> tuple[torch.Tensor, ...]:
    return tensor(4, 4), whole(4, 4)


def rows() -> tuple[torch.Tensor, ...]:
    return tensor(4, 4, requires_grad=True), whole(4)


def heads() -> tuple[torch.Tensor, ...]:
    return (tensor(2, 2, 4, 8),)


def attention(q: torch.Tensor, **arguments: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, q, q, **arguments)


def grouped(q: torch.Tensor, k: torch.Tensor, heads_of: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, heads_of(k), heads_of(k))


def written(x: torch.Tensor) -> torch.Tensor:
    z = x * 1
    z[0].mul_(2)
    return z


def same(x: torch.Tensor) -> torch.Tensor:
    return x * 1


PAIRS = (
    # operands in the wrong place
    Pair("operands of sub", lambda a, b: a - b, lambda a, b: b - a, two),
    Pair("operands of div", lambda a, b: a / b, lambda a, b: b / a, two),
    Pair("operands of mm", lambda a, b: a @ b, lambda a, b: b @ a, two),
    Pair("transposed square weight", lambda a, b: a @ b, lambda a, b: a @ b.t(), two),
    Pair("both transposed, not swapped", lambda a, b: (a @ b).t(), lambda a, b: a.t() @ b.t(), two),
    Pair("one operand for both", lambda a, b: a * b, lambda a, b: a * a + 0 * b, two),
    Pair("pieces of a concatenation", lambda a, b: torch.cat([a, b]), lambda a, b: torch.cat([b, a]), two),
    Pair("parts of a complex number", lambda a, b: torch.view_as_real(torch.complex(a, b)),
         lambda a, b: torch.view_as_real(torch.complex(b, a)), two),
    Pair("radius and angle", lambda a, b: torch.view_as_real(torch.polar(a, b)),
         lambda a, b: torch.view_as_real(torch.polar(b, a)), lambda: (tensor(4, 4), tensor(4, 4, seed=1))),
    Pair("conjugate", lambda a: torch.view_as_real(torch.view_as_complex(a.view(4, 4, 2))),
         lambda a: torch.view_as_real(torch.view_as_complex(a.view(4, 4, 2)).conj().resolve_conj()), one),
    # offsets and layouts
    Pair("third of three uneven pieces", lambda a: a[:, 4:6] * 1, lambda a: a.split([2, 3, 3], 1)[2][:, :2] * 1, plain),
    Pair("last piece as long as the first", lambda a: a[:, 4:6] * 1, lambda a: a.split([2, 3, 2, 1], 1)[2] * 1, plain),
    Pair("offset of a slice", lambda a: a[:, 2:4] * 1, lambda a: a[:, 1:3] * 1, plain),
    Pair("step of a slice", lambda a: a[:, ::2] * 1, lambda a: a[:, :4] * 1, plain),
    Pair("gradient of a slice", lambda a: a[:, 2:4] * 1, lambda a: a[:, 4:6] * 1, one),
    Pair("half of a chunk", lambda a: a.chunk(2, 1)[0] * 1, lambda a: a.chunk(2, 1)[1] * 1, one),
    Pair("view for transpose", lambda a: a.t() * 1, lambda a: a.view(8, 4) * 1, one),
    Pair("interleaved rows", same, lambda a: a.view(2, 2, 8).transpose(0, 1).reshape(4, 8) * 1, one),
    Pair("split heads", lambda a: a.view(4, 2, 4).transpose(0, 1) * 1, lambda a: a.view(2, 4, 4) * 1, one),
    Pair("strides of a transpose", lambda a: a.t() * 1, lambda a: a.t().as_strided((8, 4), (4, 1)) * 1, one),
    Pair("flip", same, lambda a: a.flip(0), one),
    Pair("roll", same, lambda a: a.roll(1, 0), one),
    # dimensions of square values
    Pair("dim of sum", lambda a: a.sum(1), lambda a: a.sum(0), square),
    Pair("dim of mean", lambda a: a.mean(1), lambda a: a.mean(0), square),
    Pair("dim of amax", lambda a: a.amax(1), lambda a: a.amax(0), square),
    Pair("dim of softmax", lambda a: F.softmax(a, 1), lambda a: F.softmax(a, 0), square),
    Pair("dim of log_softmax", lambda a: F.log_softmax(a, 1), lambda a: F.log_softmax(a, 0), square),
    Pair("dim of gather", lambda a, i: a.gather(1, i), lambda a, i: a.gather(0, i), indexed),
    Pair("dim of index_select", lambda a, i: a.index_select(1, i), lambda a, i: a.index_select(0, i), lambda: (tensor(4, 4), whole(4))),
    Pair("dim of argmax", lambda a: a.argmax(1), lambda a: a.argmax(0), lambda: (tensor(4, 4),)),
    Pair("keepdim", lambda a: a * a.sum(1, keepdim=True), lambda a: a * a.sum(1), square),
    Pair("normalized shape", lambda a: F.layer_norm(a, (8,)), lambda a: F.layer_norm(a, (4, 8)), one),
    # arguments
    Pair("alpha of add", lambda a, b: a + b, lambda a, b: torch.add(a, b, alpha=2), two),
    Pair("alpha of rsub", lambda a, b: b - a, lambda a, b: torch.rsub(a, b, alpha=2), two),
    Pair("alpha of addmm", torch.addmm, lambda c, a, b: torch.addmm(c, a, b, alpha=2), three),
    Pair("beta of addmm", torch.addmm, lambda c, a, b: torch.addmm(c, a, b, beta=2), three),
    Pair("eps of layer_norm", lambda a: F.layer_norm(a, (8,)), lambda a: F.layer_norm(a, (8,), eps=1e-6), one),
    Pair("eps of rms_norm", lambda a: F.rms_norm(a, (8,), eps=1e-5), lambda a: F.rms_norm(a, (8,), eps=1e-6), one),
    Pair("default eps of rms_norm", lambda a: F.rms_norm(a, (8,), eps=1e-5), lambda a: F.rms_norm(a, (8,)), one),
    Pair("approximation of gelu", F.gelu, lambda a: F.gelu(a, approximate="tanh"), one),
    Pair("beta of softplus", F.softplus, lambda a: F.softplus(a, 2.0), one),
    Pair("threshold of softplus", lambda a: F.softplus(a, threshold=5), lambda a: -F.logsigmoid(-a), one),
    Pair("threshold of softplus in double precision", F.softplus, lambda a: -F.logsigmoid(-a), lambda: (plain()[0].double(),)),
    Pair("softplus of the negated value", F.softplus, lambda a: -F.logsigmoid(a), one),
    Pair("logarithm of a multiple", lambda a, b: ((a.exp() + b.exp()) / 2).log(), lambda a, b: ((a.exp() + b.exp()) / 3).log(), two),
    Pair("value at the place of the other extreme", lambda a: a.amax(1), lambda a: at_place(a, a.argmin(1)), plain),
    Pair("value at the place of another value's extreme", lambda a: a.amax(1), lambda a: at_place(a, (a * a).argmax(1)), plain),
    Pair("value at the place of another row's extreme", lambda a: a.amax(1), lambda a: a[torch.arange(4).flip(0), a.argmax(1)], plain),
    Pair("largest of a negated value", lambda a: (2 * a).topk(2, 1).indices, lambda a: (-a).topk(2, 1).indices, plain),
    Pair("place in a sum with the other sign", lambda a: (a.sum(1, keepdim=True) - 2 * a).argmin(1), lambda a: a.argmin(1), plain),
    Pair("decimals of round", torch.round, lambda a: torch.round(a, decimals=1), plain),
    Pair("diagonal of tril", torch.tril, lambda a: torch.tril(a, 1), square),
    Pair("triangle", torch.tril, torch.triu, square),
    Pair("upper bound of clamp", lambda a: a.clamp(0), lambda a: a.clamp(0, 1), one),
    Pair("exponent", lambda a: a.pow(3), lambda a: a.pow(2), one),
    Pair("root of a square", same, lambda a: (a * a).sqrt(), one),
    Pair("strict comparison", lambda a: (a >= 1).float(), lambda a: (a > 1).float(), plain),
    Pair("causal mask left out", lambda q: attention(q, is_causal=True), lambda q: attention(q), heads),
    Pair("scale of attention", attention, lambda q: attention(q, scale=0.5), heads),
    Pair("dropout of attention", attention, lambda q: attention(q, dropout_p=0.1), heads),
    Pair("boolean mask added", lambda q, m: attention(q, attn_mask=m), lambda q, m: attention(q, attn_mask=m.float()),
         lambda: (tensor(2, 2, 4, 8), torch.ones(4, 4, dtype=torch.bool).tril())),
    Pair("offset of a causal mask", lambda q: attention(q, attn_mask=torch.ones(4, 4, dtype=torch.bool).tril()),
         lambda q: attention(q, attn_mask=torch.ones(4, 4, dtype=torch.bool).tril(-1)), heads),
    Pair("grouping of key heads", lambda q, k: grouped(q, k, lambda t: t.repeat_interleave(2, 1)),
         lambda q, k: grouped(q, k, lambda t: t.repeat(1, 2, 1, 1)), lambda: (tensor(2, 4, 4, 8), tensor(2, 2, 4, 8, seed=1))),
    Pair("scale of scores", lambda a, b: F.softmax(a @ b / 2, -1), lambda a, b: F.softmax(a @ b / 4, -1), two),
    # losses
    Pair("reduction of a loss", F.cross_entropy, lambda a, t: F.cross_entropy(a, t, reduction="sum"), labelled),
    Pair("ignored label", F.cross_entropy, lambda a, t: F.cross_entropy(a, t, ignore_index=2), labelled),
    Pair("ignored label, no reduction", lambda a, t: F.cross_entropy(a, t, reduction="none"),
         lambda a, t: F.cross_entropy(a, t, reduction="none", ignore_index=1), labelled),
    Pair("label smoothing", F.cross_entropy, lambda a, t: F.cross_entropy(a, t, label_smoothing=0.1), labelled),
    Pair("more label smoothing", lambda a, t: F.cross_entropy(a, t, label_smoothing=0.1),
         lambda a, t: F.cross_entropy(a, t, label_smoothing=0.2), labelled),
    Pair("other labels", lambda a, t, u: F.cross_entropy(a, t) + 0 * u.sum(), lambda a, t, u: F.cross_entropy(a, u) + 0 * t.sum(),
         lambda: (tensor(4, 8), whole(4), whole(4))),
    Pair("shifted labels", F.cross_entropy, lambda a, t: F.cross_entropy(a, (t + 1) % 4), labelled),
    Pair("reduction of mse_loss", F.mse_loss, lambda a, b: F.mse_loss(a, b, reduction="sum"), two),
    Pair("padding row of an embedding", lambda w, i: F.embedding(i, w), lambda w, i: F.embedding(i, w, padding_idx=1), rows),
    Pair("frequency of an embedding", lambda w, i: F.embedding(i, w),
         lambda w, i: F.embedding(i, w, scale_grad_by_freq=True), rows),
    # dtypes
    Pair("int8", same, lambda a: a.to(torch.int8).float(), plain),
    Pair("int16", lambda a: (a * 20_000).float(), lambda a: (a.to(torch.int16) * 20_000).float(), integers),
    Pair("uint8", lambda a: (a - 3).float(), lambda a: (a.to(torch.uint8) - 3).float(), integers),
    Pair("float8", same, lambda a: a.to(torch.float8_e4m3fn).float(), plain),
    Pair("float to int", same, lambda a: a.to(torch.int32).float(), plain),
    Pair("float to bool", same, lambda a: a.bool().float(), plain),
    Pair("floor division", lambda a: a / 2, lambda a: (a // 2).float(), integers),
    Pair("truncated quotient", lambda a: a / 2, lambda a: (a / 2).long().float(), integers),
    Pair("store in integers", same, lambda a: torch.zeros(4, 8, dtype=torch.int64).copy_(a).float(), plain),
    Pair("sum of booleans", lambda a: (a > 0).float() + (a > 1).float(), lambda a: ((a > 0) + (a > 1)).float(), plain),
    # values outside of real arithmetic
    Pair("zero times infinity", lambda a: torch.where(a > 0, -torch.inf, 0.0) + a, lambda a: (a > 0).float() * -torch.inf + a, plain),
    # random numbers and uninitialised memory
    Pair("dropout", same, lambda a: F.dropout(a, 0.5), one),
    Pair("two dropouts", lambda a: F.dropout(a, 0.5), lambda a: F.dropout(a, 0.5), one),
    Pair("two random streams", lambda a: a + torch.rand_like(a), lambda a: a + torch.rand_like(a), one),
    Pair("uninitialised memory", lambda a: a + torch.empty(4, 8), lambda a: a + torch.empty(4, 8), one),
    # gradients and writes
    Pair("gradient cut off", lambda a, b: a * b, lambda a, b: a * b.detach(), two),
    Pair("gradient cut off in part", lambda a: a * a, lambda a: a * a.detach(), one),
    Pair("gradient that the spec lacks", lambda a, b: a * b.detach(), lambda a, b: a * b, two),
    Pair("write to a view", same, written, plain),
    Pair("write to an input", lambda a: a * 2, lambda a: a.mul_(2) * 1, plain),
)  # fmt: skip


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("pair", [pytest.param(pair, id=pair.name) for pair in PAIRS])
def test_wrong_program_is_not_verified(pair):
    report = verify_functions(pair.spec, lambda _, *a: pair.wrong(*a), pair.inputs())
    assert report.verdict is not Verdict.VERIFIED


# A pair whose spec does not even verify against itself is no test of soundness.
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("pair", [pytest.param(pair, id=pair.name) for pair in PAIRS])
def test_spec_verifies_against_itself(pair):
    report = verify_functions(pair.spec, lambda _, *a: pair.spec(*a), pair.inputs())
    expected = pair.name not in OUTSIDE_OF_THE_PROOF
    assert (report.verdict is Verdict.VERIFIED) is expected, str(report)


OUTSIDE_OF_THE_PROOF = frozenset({"two dropouts", "two random streams", "uninitialised memory"})


def joined_softplus(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    first, second = (torch.cat([a, b]) * 1).chunk(2)
    return F.softplus(second - first)


EQUAL = (
    Pair("softmax along the other dimension of the transpose", lambda a: F.softmax(a, 1), lambda a: F.softmax(a.t(), 0).t(), square),
    Pair("product of transposes", lambda a, b: (a @ b).t(), lambda a, b: b.t() @ a.t(), two),
    Pair("addition in another order", lambda a, b, c: (a + b) + c, lambda a, b, c: c + (b + a), three),
    Pair("distributed product", lambda a, b, c: (a + b) @ c, lambda a, b, c: a @ c + b @ c, three),
    Pair("pieces assembled", same, lambda a: torch.cat(a.split(2, 1), 1) * 1, plain),
    Pair("slice as a piece", lambda a: a[:, 5:8] * 1, lambda a: a.split([2, 3, 3], 1)[2] * 1, plain),
    Pair("mean as a scaled sum", lambda a: a.mean(1), lambda a: a.sum(1) / 8, one),
    Pair("softmax by hand", lambda a: F.softmax(a, 1), lambda a: a.exp() / a.exp().sum(1, keepdim=True), plain),
    Pair("value at the place of an extreme", lambda a: -a.amin(1), lambda a: at_place(-a, (-a).argmax(1)), plain),
    Pair("value at the place of an extreme of each row", lambda a: a.amax(1), lambda a: a[torch.arange(4), a.argmax(1)], plain),
    Pair("largest of a multiple", lambda a: (a / 0.7).topk(2, 1), lambda a: ((t := a.topk(2, 1)).values / 0.7, t.indices), plain),
    Pair("place in a sum", lambda a: (a.sum(1, keepdim=True) - 2 * a).argmin(1), lambda a: a.argmax(1), plain),
    Pair("softplus by a sigmoid", F.softplus, lambda a: -F.logsigmoid(-a), one),
    Pair("sigmoids of joined pieces", lambda a, b: -F.logsigmoid(a - b), joined_softplus, two),
    Pair("logarithm of half a quotient", lambda a, b: a - ((a.exp() + b.exp()) / 2).log(),
         lambda a, b: (2 * a.exp() / (a.exp() + b.exp())).log(), two),
    Pair("grouped heads", lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True),
         lambda q, k: grouped(q, k, lambda t: t.repeat_interleave(2, 1)), lambda: (tensor(2, 4, 4, 8), tensor(2, 2, 4, 8, seed=1))),
)  # fmt: skip


@pytest.mark.parametrize("pair", [pytest.param(pair, id=pair.name) for pair in EQUAL])
def test_equal_program_is_verified(pair):
    report = verify_functions(pair.spec, lambda _, *a: pair.wrong(*a), pair.inputs())
    assert report.verdict is Verdict.VERIFIED, str(report)
