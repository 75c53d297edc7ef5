"""Errors that show on some legal inputs alone: ignored labels, negative indices, equal elements, empty selections."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor.placement_types import Replicate, Shard

from tests.witness.graphs import mesh, trace
from verifycompile.witness import Agreement, compare_outputs, find_witness

TP = mesh(("tp", 2))
R, S0, S1 = Replicate(), Shard(0), Shard(1)
collective = torch.ops._c10d_functional


def reduced(value, op="sum"):
    return collective.wait_tensor(collective.all_reduce(value, op, "tp"))


def gathered(value):
    return collective.wait_tensor(collective.all_gather_into_tensor(value, 2, "tp"))


def on_ranks(function, local, **layouts):
    return trace(function, local, on=TP, layouts={"output.0": [R], **layouts}, groups={"tp": (0,)})


LABELS = {"x": torch.zeros(6, 5), "t": torch.zeros(6, dtype=torch.int64)}
LOCAL_LABELS = {"x": torch.zeros(3, 5), "t": torch.zeros(3, dtype=torch.int64)}


def mean_of_all(x, t):
    return reduced(F.cross_entropy(x, t, reduction="sum")) / reduced((t != -100).sum())


def mean_of_means(x, t):
    return reduced(F.cross_entropy(x, t), "avg")


def test_the_class_that_a_loss_ignores_unless_told_otherwise():
    spec = trace(lambda x, t: F.cross_entropy(x, t), LABELS)
    assert find_witness(spec, on_ranks(mean_of_all, LOCAL_LABELS, x=[S0], t=[S0])) is None
    wrong = on_ranks(mean_of_means, LOCAL_LABELS, x=[S0], t=[S0])
    assert compare_outputs(spec, wrong)["output.0"].agreement is Agreement.EQUAL
    found = find_witness(spec, wrong)
    assert found is not None
    assert -100 in found.inputs["t"]
    assert found.premise == (
        "`t` holds -100, the class that the spec's loss ignores; no difference was found with labels of other classes "
        "alone: where no label is -100, let the spec ignore none, as "
        "`-x.log_softmax(-1).gather(-1, labels[..., None])` does"
    )


@pytest.mark.parametrize(("ignore", "differs"), [(-100, False), (-1, True)])
def test_labels_that_the_implementation_does_not_leave_out(ignore, differs):
    spec = trace(lambda x, t: F.nll_loss(x, t, reduction="none", ignore_index=ignore), LABELS)

    def picked(x, t):
        return torch.where(t == -100, 0.0, -x.gather(1, t.clamp(min=0)[:, None])[:, 0])

    assert (find_witness(spec, on_ranks(picked, LABELS)) is not None) is differs


def test_a_difference_on_ordinary_labels_has_no_premise():
    spec = trace(lambda x, t: F.cross_entropy(x, t), LABELS)
    found = find_witness(spec, on_ranks(lambda x, t: F.cross_entropy(x, t) * 2, LABELS))
    assert found is not None
    assert not found.premise


WORDS = {"ids": torch.zeros(5, dtype=torch.int64), "w": torch.zeros(8, 3)}
LOCAL_WORDS = {"ids": torch.zeros(5, dtype=torch.int64), "w": torch.zeros(4, 3)}


def test_an_index_that_counts_from_the_end():
    def from_the_whole(ids, w):
        return gathered(w)[ids]

    def clamped(ids, w):
        return gathered(w)[ids.clamp(min=0)]

    spec = trace(lambda ids, w: w[ids], WORDS)
    assert find_witness(spec, on_ranks(from_the_whole, LOCAL_WORDS, w=[S0])) is None
    wrong = on_ranks(clamped, LOCAL_WORDS, w=[S0])
    assert compare_outputs(spec, wrong)["output.0"].agreement is Agreement.EQUAL
    found = find_witness(spec, wrong)
    assert found is not None
    assert min(found.inputs["ids"]) < 0
    assert found.premise == (
        "`ids` holds negative indices, which count from the end; no difference was found without negative indices: "
        "where there are none, let the spec look up with `F.embedding`, which takes none"
    )


def test_a_lookup_that_takes_no_negative_index():
    """The spec refuses them, so that the programs agree on everything that it accepts."""
    spec = trace(lambda ids, w: F.embedding(ids, w), WORDS)
    right = on_ranks(lambda ids, w: gathered(w)[ids.clamp(min=0)], LOCAL_WORDS, w=[S0])
    assert find_witness(spec, right) is None


def largest_place(order):
    """The first of several equal elements is what ``argmax`` documents."""

    def place(x):
        value, own = x.max(0)
        start = torch.zeros((), dtype=torch.int64)
        offsets = torch.cat([start[None], start[None] + 3])
        values, places = gathered(value[None]), gathered(own[None]) + offsets
        candidates = torch.where(values == values.max(), places, 6 if order == "min" else -1)
        return candidates.min() if order == "min" else candidates.max()

    return place


def test_equal_elements_on_two_ranks():
    spec = trace(lambda x: x.argmax(0), {"x": torch.zeros(6)})
    local = {"x": torch.zeros(3)}
    assert find_witness(spec, on_ranks(largest_place("min"), local, x=[S0])) is None
    assert find_witness(spec, on_ranks(largest_place("max"), local, x=[S0])) is not None


def test_an_order_of_equal_elements_that_torch_does_not_specify():
    """Which of two equal elements is among the largest is open: another choice is no error."""

    def by_rank(x):
        return x.flip(0).topk(2, 0).indices.neg() + 5

    spec = trace(lambda x: x.topk(2, 0).indices, {"x": torch.zeros(6)})
    assert find_witness(spec, on_ranks(by_rank, {"x": torch.zeros(6)})) is None


MASKED = {"x": torch.zeros(6), "m": torch.zeros(6, dtype=torch.bool)}
LOCAL_MASKED = {"x": torch.zeros(3), "m": torch.zeros(3, dtype=torch.bool)}


def test_a_mask_of_which_one_rank_has_nothing_left():
    def total(x, m):
        return reduced(torch.where(m, x, 0.0).sum())

    def through_the_mean(x, m):
        count = m.sum()
        return reduced(torch.where(m, x, 0.0).sum() / count * count)

    spec = trace(lambda x, m: torch.where(m, x, 0.0).sum(), MASKED)
    assert find_witness(spec, on_ranks(total, LOCAL_MASKED, x=[S0], m=[S0])) is None
    assert find_witness(spec, on_ranks(through_the_mean, LOCAL_MASKED, x=[S0], m=[S0])) is not None


def test_all_rows_of_one_group():
    """The group sizes are right as long as no group is larger than the others together."""

    def capped(ids):
        return (ids[:, None] == torch.arange(4)).sum(0).clamp(max=5)

    inputs = {"ids": torch.zeros(6, dtype=torch.int64)}
    spec = trace(lambda ids: (ids[:, None] == torch.arange(4)).sum(0), inputs)
    assert find_witness(spec, on_ranks(capped, inputs)) is not None


@pytest.mark.parametrize(
    ("program", "wrong"),
    [
        (lambda ids: (ids[:, None] == torch.arange(16)).sum(), lambda ids: (ids < 8).sum()),
        (lambda ids: (ids != 500).sum(), lambda ids: (ids != 501).sum()),
    ],
)
def test_whole_numbers_are_drawn_around_what_they_are_compared_with(program, wrong):
    """The wrong programs are right for all small numbers."""
    inputs = {"ids": torch.zeros(6, dtype=torch.int64)}
    spec = trace(program, inputs)
    assert find_witness(spec, on_ranks(program, inputs)) is None
    assert find_witness(spec, on_ranks(wrong, inputs)) is not None


def test_norms_of_parts_that_are_nearly_those_of_others():
    """Of many normal numbers each rank's part has the norm of all, but for a factor that is nearly the same."""

    def step(p, u):
        return p - 1e-4 * (p.norm() / u.norm()) * u

    many = 1 << 17
    spec = trace(step, {"p": torch.zeros(many), "u": torch.zeros(many)})
    local = {"p": torch.zeros(many // 2), "u": torch.zeros(many // 2)}
    wrong = on_ranks(step, local, p=[S0], u=[S0], **{"output.0": [S0]})
    assert compare_outputs(spec, wrong)["output.0"].agreement is Agreement.EQUAL
    assert find_witness(spec, wrong, simplify=False) is not None


@pytest.mark.parametrize("search", [torch.searchsorted, lambda b, x: torch.bucketize(x, b)])
def test_boundaries_of_a_search_ascend(search):
    inputs, local = {"b": torch.zeros(8), "x": torch.zeros(5)}, {"b": torch.zeros(4), "x": torch.zeros(5)}
    spec = trace(lambda b, x: search(2 * b.view(8), x), inputs)  # what is searched is computed
    direct = trace(lambda b, x: search(b.view(8), x), inputs)
    assert find_witness(direct, on_ranks(lambda b, x: reduced(search(b, x)), local, b=[S0], x=[R])) is None
    found = find_witness(direct, on_ranks(lambda b, x: reduced(search(b, x), "max"), local, b=[S0], x=[R]))
    assert found is not None
    assert bool((found.inputs["b"].diff() >= 0).all())
    assert find_witness(spec, on_ranks(lambda b, x: reduced(search(2 * b, x)), local, b=[S0], x=[R])) is None
