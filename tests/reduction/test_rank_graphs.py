"""Ranks of different graphs at the sizes of a model: layouts that numbers choose, and differences."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor.placement_types import Replicate, Shard
from torch.fx.experimental.proxy_tensor import make_fx

import verifycompile
from verifycompile import Verdict

RANKS = 4
WIDTH, HIDDEN, TOKENS = 4096, 14336, 8192


def graph(function, *shapes):
    with torch._subclasses.FakeTensorMode():
        return make_fx(function)(*(torch.empty(shape) for shape in shapes))


def reduced(value, op="sum"):
    return torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(value, op, "tp"))


@pytest.mark.parametrize(("biased", "verdict"), [((0,), Verdict.VERIFIED), ((0, 2), Verdict.REFUTED)])
def test_a_partial_sum_that_nobody_declared(biased, verdict):
    def rank(number):
        def run(x, w, bias):
            return x @ w + bias if number in biased else x @ w

        return graph(run, (TOKENS, HIDDEN // RANKS), (HIDDEN // RANKS, WIDTH), (WIDTH,))

    spec = graph(lambda x, w, bias: x @ w + bias, (TOKENS, HIDDEN), (HIDDEN, WIDTH), (WIDTH,))
    layouts = {"x": (Shard(1),), "w": (Shard(0),)}
    report = verifycompile.verify_graphs(spec, [rank(number) for number in range(RANKS)], layouts)
    assert report.verdict is verdict
    if verdict is Verdict.VERIFIED:
        assert report.relations["output.0"] == "sum(output.0, over=rank)"


@pytest.mark.parametrize(("late", "verdict"), [(False, Verdict.VERIFIED), (True, Verdict.REFUTED)])
def test_a_vocabulary_that_the_ranks_do_not_share_evenly(late, verdict):
    vocabulary = 50257
    each = -(-vocabulary // RANKS)

    def rank(number):
        def run(x, w):
            y = x @ w
            e = torch.exp(y - reduced(y.amax(1, keepdim=True), "max"))
            total = e.sum(1, keepdim=True)
            return e / (total if late and number == RANKS - 1 and reduced(total) is not None else reduced(total))

        columns = min(each, vocabulary - each * number)
        return graph(run, (TOKENS, WIDTH), (WIDTH, columns))

    spec = graph(lambda x, w: torch.softmax(x @ w, 1), (TOKENS, WIDTH), (WIDTH, vocabulary))
    graphs = [rank(number) for number in range(RANKS)]
    report = verifycompile.verify_graphs(
        spec, graphs, {"x": (Replicate(),), "w": (Shard(1),)}, {"output.0": (Shard(1),)}, groups={"tp": range(RANKS)}
    )
    assert report.verdict is verdict
    if verdict is Verdict.REFUTED:
        assert (
            "the programs are too large to evaluate: the difference is shown at reduced sizes (8192 -> 2, 4096 -> 2)"
            in (report.findings[0].notes)
        )


def test_the_rank_that_holds_the_element_is_that_of_the_reduced_sizes():
    def rank(number):
        run = (lambda x, w: torch.relu(x @ w) + 1) if number == 2 else (lambda x, w: torch.relu(x @ w))
        return graph(run, (TOKENS, WIDTH), (WIDTH, HIDDEN // RANKS))

    spec = graph(lambda x, w: torch.relu(x @ w), (TOKENS, WIDTH), (WIDTH, HIDDEN))
    report = verifycompile.verify_graphs(spec, [rank(number) for number in range(RANKS)], {"w": (Shard(1),)})
    assert report.verdict is Verdict.REFUTED
    assert report.counterexample is not None
    assert report.counterexample.rank == 2
    assert report.stats.peak_memory < 4 * 2**30
