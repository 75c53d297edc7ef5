"""Right programs of real size that numbers, positions or orders make right at that size: none is ever refuted.

The proof is not asked: what is looked for is a difference that comes from the reduction.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor.placement_types import Replicate, Shard

from tests.reduction.test_reduce import TP, program, reduced
from verifycompile.reduction.search import find_difference

R, S0, S1 = Replicate(), Shard(0), Shard(1)
ROWS = ((16384, 4096), (2048, 4096), [S0], [S0])
COLUMNS = ((16384, 4096), (16384, 512), [S1], [R])
WHOLE = ((16384, 4096), (16384, 4096), [R], [R])
CLASSES = ((16384, 32000), (2048, 32000), [S0], [S0])


def first(count, form):
    if form == "slice":
        return lambda x: x[:, :count].sum(1)
    return lambda x: torch.where((torch.arange(4096) < count)[None], x, 0.0).sum(1)


def standardised(x):
    mean = reduced(x.sum(1, keepdim=True)) / 4096
    return reduced(((x - mean) ** 2).sum(1)) / 4096


PROGRAMS = {
    "a variance by hand": (COLUMNS, lambda x: x.var(1, correction=0), standardised),
    "a smoothing of the other classes": (CLASSES, lambda x: x.sum(1) * (0.1 / 31999), lambda x: x.sum(1) / 31999 * 0.1),
    "a logarithm of the number of classes": (
        CLASSES, lambda x: x.logsumexp(1) - math.log(32000), lambda x: x.exp().mean(1).log(),
    ),
    "the middle of an even number": (ROWS, lambda x: x.median(1)[0], lambda x: x.sort(1)[0][:, 2047]),
    "the middle as the so manieth": (ROWS, lambda x: x.median(1)[0], lambda x: x.kthvalue(2048, 1)[0]),
    "the largest half": (ROWS, lambda x: x.median(1)[0], lambda x: x.topk(2049, 1)[0][:, -1]),
    "a root of one less": (
        ROWS, lambda x: x.std(1) / 64, lambda x: ((x - x.mean(1, keepdim=True)).square().mean(1) / 4095).sqrt(),
    ),
    "a product of a size and another number": (
        COLUMNS, lambda x: torch.tanh(x.mean(1) / 30), lambda x: torch.tanh(reduced(x.sum(1)) / (4096 * 30)),
    ),
    "a quotient of a size and another number": (
        COLUMNS, lambda x: x.mean(1) * 5120, lambda x: reduced(x.sum(1)) * 1.25,
    ),
    "a decimal that is a size": (ROWS, lambda x: x.sum(1) * 0.001, lambda x: x.mean(1) * 4.096),
    "counts of signs": (
        ROWS, lambda x: (x > 0).float().mean(1) * 2 - 1, lambda x: ((x > 0).sum(1) - (x <= 0).sum(1)) / 4096,
    ),
    "a shift of bits": (
        WHOLE, lambda x: x * (torch.arange(16384) << 12)[:, None], lambda x: x * (torch.arange(16384) * 4096)[:, None],
    ),
    "places in a flat tensor": (WHOLE, lambda x: x.flatten()[torch.arange(16384) * 4096 + 7], lambda x: x[:, 7]),
    "a transform that divides by the size": (
        ROWS, lambda x: torch.fft.ifft(x).abs(), lambda x: (torch.fft.ifft(x, norm="forward") / 4096).abs(),
    ),
    **{f"the first {count}": (ROWS, first(count, "slice"), first(count, "mask")) for count in (5, 100, 1024, 1365)},
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_difference(name):
    (whole, local, layout, result), spec, right = PROGRAMS[name]
    layouts = {"x": layout, "output.0": result}
    found = find_difference(program(spec, x=whole), program(right, on=TP, layouts=layouts, x=local))
    assert found.witness is None
    assert found.note.endswith("so this is unproved, not refuted")


def test_causal_windows_in_two_forms():
    def by_distance(x):
        place = torch.arange(2048)
        return torch.softmax((x @ x.mT).masked_fill((place[:, None] - place[None]).abs() > 256, -1e9), -1)

    def by_triangles(x):
        inside = torch.ones(2048, 2048, dtype=torch.bool).tril(256) & torch.ones(2048, 2048, dtype=torch.bool).triu(
            -256
        )
        return torch.softmax((x @ x.mT).masked_fill(~inside, -1e9), -1)

    layouts = {"x": [S0], "output.0": [S0]}
    spec = program(by_distance, x=(64, 2048, 256))
    found = find_difference(spec, program(by_triangles, on=TP, layouts=layouts, x=(8, 2048, 256)))
    assert found.witness is None


def test_slopes_of_heads_in_two_forms():
    def powers(q):
        return q + torch.pow(2.0, -8 / 128 * torch.arange(1, 129))[:, None]

    def exponentials(q):
        step = -8 / 128 * math.log(2)
        return F.relu(q) - F.relu(-q) + torch.exp(torch.arange(128) * step + step)[:, None]

    layouts = {"q": [S0], "output.0": [S0]}
    found = find_difference(
        program(powers, q=(64, 128, 65536)), program(exponentials, on=TP, layouts=layouts, q=(8, 128, 65536))
    )
    assert found.witness is None
