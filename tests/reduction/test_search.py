"""Differences of programs that are too large to evaluate, and what a reduction of sizes may not be taken for one."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor.placement_types import Replicate, Shard

from tests.reduction.test_reduce import MLP, MLP_LAYOUTS, MLP_LOCAL, mlp, pair, reduced
from verifycompile.diagnostics.describe import counterexample_lines
from verifycompile.options import Options
from verifycompile.reduction import reduce_sizes
from verifycompile.reduction.search import find_difference
from verifycompile.two_programs import verify_programs
from verifycompile.witness import operators

R, S0, S1 = Replicate(), Shard(0), Shard(1)
SIZES = "(14336 -> 16, 4096 -> 2, 1792 -> 2)"


def test_a_report_says_which_sizes_were_reduced():
    spec, right, wrong = pair(mlp, lambda x, a, b: reduced(mlp(x, a, b)), mlp, MLP, MLP_LOCAL, MLP_LAYOUTS)
    assert verify_programs(spec, right, Options()).verdict.value == "verified"
    report = verify_programs(spec, wrong, Options())
    assert report.verdict.value == "refuted"
    assert report.findings[0].notes == (
        f"the programs are too large to evaluate: the difference is shown at reduced sizes {SIZES}",
    )
    assert report.findings[0].counterexample is not None
    assert len(report.findings[0].counterexample.index) == 2


def test_a_report_says_at_which_sizes_no_difference_was_found():
    spec, right, _ = pair(mlp, lambda x, a, b: reduced(mlp(x, a, b)), mlp, MLP, MLP_LOCAL, MLP_LAYOUTS)
    assert find_difference(spec, right).note == (
        f"the programs are too large to evaluate; at reduced sizes {SIZES} no concrete input was found on which the "
        "programs differ, so this is unproved, not refuted"
    )


def test_small_programs_are_evaluated_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a machine has other work, threads that wait for one another take many times as long."""
    spec, _, wrong = pair(mlp, lambda x, a, b: reduced(mlp(x, a, b)), mlp, MLP, MLP_LOCAL, MLP_LAYOUTS)
    threads: set[int] = set()
    call = operators.evaluate
    monkeypatch.setattr(operators, "evaluate", lambda *all_: (threads.add(torch.get_num_threads()), call(*all_))[1])
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        report = verify_programs(spec, wrong, Options())
        assert (report.verdict.value, threads, torch.get_num_threads()) == ("refuted", {1}, 3)
    finally:
        torch.set_num_threads(before)


def test_what_is_proved_equal_agrees_at_the_reduced_sizes():
    spec, _, wrong = pair(mlp, mlp, mlp, MLP, MLP_LOCAL, MLP_LAYOUTS)
    found = find_difference(spec, wrong, ("output.0",))
    assert found.witness is None
    assert found.note == (
        f"the programs are too large to evaluate; that they differ at reduced sizes {SIZES} may come from the "
        "reduction: `output.0` is proved equal, and differs at the reduced sizes; so this is unproved, not refuted"
    )


def test_numbers_are_shown_at_reduced_sizes_where_many_evaluations_would_take_long():
    """The difference itself is that of the programs' own sizes."""
    whole = {"x": (512, 256), "w1": (256, 1024), "w2": (1024, 256)}
    local = {"x": (512, 256), "w1": (256, 128), "w2": (128, 256)}
    spec, _, wrong = pair(mlp, lambda x, a, b: reduced(mlp(x, a, b)), mlp, whole, local, MLP_LAYOUTS)
    report = verify_programs(spec, wrong, Options())
    sizes = "(1024 -> 16, 512 -> 2, 256 -> 2, 128 -> 2)"
    assert report.findings[0].notes == (
        f"the programs differ at their own sizes; the numbers shown are those at reduced sizes {sizes}",
    )
    found = report.counterexample
    assert found is not None
    inputs = ["x = [[1, 0], [0, 0]]", "w1[0, 0] = 1", "w2[0, 0] = 1", "everything else is 0"]
    assert counterexample_lines(found)[1:] == inputs


LARGE = {"x": (65536, 4096)}
LOCAL = {"x": (65536, 512)}
LAYOUTS = {"x": [S1], "output.0": [R]}


def outcomes(spec, right, wrong, whole=LARGE, local=LOCAL, layouts=LAYOUTS):  # noqa: PLR0917
    programs = pair(spec, right, wrong, whole, local, layouts)
    return [find_difference(programs[0], program).witness is not None for program in programs[1:]]


def test_a_number_is_read_as_a_size_where_it_is_one():
    assert outcomes(lambda x: x.mean(1), lambda x: reduced(x.sum(1)) / 4096, lambda x: reduced(x.sum(1))) == [
        False,
        True,
    ]
    assert outcomes(
        lambda x: x.mean(1), lambda x: reduced(x.sum(1)) * (1 / 4096), lambda x: reduced(x.sum(1)) * (1 / 512)
    ) == [False, True]


def test_a_number_is_no_size_because_it_equals_one():
    # 4096 = 64 * 64 is an ordinary factor here: only one of the two programs has it in one piece.
    assert outcomes(
        lambda x: x.sum(1) * 4096.0, lambda x: reduced(x.sum(1)) * 64 * 64, lambda x: reduced(x.sum(1)) * 64
    ) == [False, True]


def test_a_size_and_a_number_that_equals_it_in_one_program():
    def spec(x):
        return x.mean(1) * 512.0

    def right(x):
        return reduced(x.sum(1)) / 4096 * 16 * 32

    assert outcomes(spec, right, lambda x: reduced(x.sum(1)) / 4096 * 16) == [False, True]


def test_a_variance_divides_by_one_less():
    def right(x):
        mean = reduced(x.sum(1, keepdim=True)) / 4096
        return reduced((x - mean).square().sum(1)) / 4095

    def wrong(x):
        mean = reduced(x.sum(1, keepdim=True)) / 4096
        return reduced((x - mean).square().sum(1)) / 511

    assert outcomes(lambda x: x.var(1), right, wrong) == [False, True]


def test_a_number_that_was_computed_from_a_size():
    # 0.1 / 4096 is no size, no reciprocal and no root of one.
    assert outcomes(
        lambda x: x.mean(1) * 0.3, lambda x: reduced(x.sum(1)) * (0.3 / 4096), lambda x: reduced(x.sum(1)) * 0.3
    ) == [False, True]


def test_numbers_that_follow_from_sizes_by_a_function_of_their_own():
    import math

    factor = math.log(4096) / 4096
    found = outcomes(
        lambda x: x.mean(1) * math.log(4096), lambda x: reduced(x.sum(1)) * factor, lambda x: reduced(x.sum(1))
    )
    assert found[0] is False


def test_attention_scales_by_the_root_of_a_size():
    def spec(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    def right(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v

    def wrong(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) * 0.0625, -1) @ v

    whole = dict.fromkeys("qkv", (64, 32, 1024, 64))
    local = dict.fromkeys("qkv", (64, 4, 1024, 64))
    layouts = {name: [S1] for name in (*"qkv", "output.0")}
    assert outcomes(spec, right, wrong, whole, local, layouts) == [False, True]


def test_the_tables_of_a_vocabulary_are_cut_at_the_rank():
    def spec(ids, table):
        return F.embedding(ids, table)

    def shard(first):
        def parallel(ids, table):
            rows = ids - first
            outside = (ids < first) | (ids >= first + 16032)
            return F.embedding(rows.masked_fill(outside, 0), table).masked_fill(outside.unsqueeze(-1), 0.0)

        return parallel

    def right(ids, table):
        return sum(shard(16032 * rank)(ids, table[16032 * rank : 16032 * (rank + 1)]) for rank in range(8))

    def wrong(ids, table):
        return sum(shard(16032 * rank)(ids, table[:16032]) for rank in range(8))

    whole = {"ids": torch.zeros(16, 512, dtype=torch.int64), "table": (128256, 4096)}
    layouts = {"ids": [R], "table": [R], "output.0": [R]}
    assert outcomes(spec, right, wrong, whole, whole, layouts) == [False, True]


def test_a_mask_that_compares_positions():
    def spec(x):
        causal = torch.arange(4096).unsqueeze(1) >= torch.arange(4096).unsqueeze(0)
        return torch.softmax((x @ x.transpose(1, 2)).masked_fill(~causal, -torch.inf), -1)

    def rows(first):
        def part(x):
            causal = torch.arange(first, first + 512).unsqueeze(1) >= torch.arange(4096).unsqueeze(0)
            return torch.softmax((x[:, first : first + 512] @ x.transpose(1, 2)).masked_fill(~causal, -torch.inf), -1)

        return part

    def right(x):
        return torch.cat([rows(512 * rank)(x) for rank in range(8)], 1)

    def wrong(x):
        return torch.cat([rows(512 * rank)(x) for rank in (0, 1, 2, 3, 4, 5, 7, 6)], 1)

    whole = {"x": (64, 4096, 256)}
    assert outcomes(spec, right, wrong, whole, {"x": (8, 4096, 256)}, {"x": [S0], "output.0": [S0]}) == [False, True]


def test_sizes_that_become_equal_hide_an_error_and_show_none():
    def spec(x, w):
        return x @ w

    whole = {"x": (4096, 8192), "w": (8192, 2048)}
    layouts = {"x": [R], "w": [R], "output.0": [R]}
    assert outcomes(spec, lambda x, w: (w.T @ x.T).T, lambda x, w: x @ w.flip(0), whole, whole, layouts) == [
        False,
        True,
    ]


def test_a_program_without_smaller_sizes_is_said_to_have_none():
    def spec(x):
        return torch.as_strided(x, (4096, 16384), (16384, 1)) + 1

    programs = pair(spec, spec, lambda x: spec(x) + 1, {"x": (4096, 16384)}, {"x": (4096, 16384)}, {"x": [R]})
    found = find_difference(programs[0], programs[2])
    assert found.note == (
        "the programs are too large to evaluate, and no smaller sizes were found; so this is unproved, not refuted"
    )
    small = dataclasses.replace(programs[2])
    assert (found.witness, found.spec, found.implementation.graph) == (None, programs[0], small.graph)


def test_sizes_stay_apart_where_the_smallest_hide_an_error():
    # The wrong program scales by the width of another matrix, which is reduced to the same size.
    def spec(x, w, u):
        return x @ w / 4096**0.5, x @ u / 8192**0.5

    def wrong(x, w, u):
        return x @ w / 8192**0.5, x @ u / 8192**0.5

    whole = {"x": (16384, 2048), "w": (2048, 4096), "u": (2048, 8192)}
    layouts = {"x": [S0], "w": [R], "u": [R], "output.0": [S0], "output.1": [S0]}
    programs = pair(spec, spec, wrong, whole, whole | {"x": (2048, 2048)}, layouts)
    small, large = (reduce_sizes(programs[0], programs[2], apart=apart) for apart in (False, True))
    assert small is not None
    assert large is not None
    assert dict(small.sizes)[4096] == dict(small.sizes)[8192] == 2
    assert len(set(dict(large.sizes).values())) == len(large.sizes)
    assert find_difference(programs[0], programs[1]).witness is None
    assert find_difference(programs[0], programs[2]).witness is not None


def test_a_number_that_the_graph_holds_as_a_tensor():
    spec, right, _ = pair(
        lambda x: x.mean(1), lambda x: reduced(x.sum(1)) / torch.tensor(4096.0), lambda x: x, LARGE, LOCAL, LAYOUTS
    )
    assert "_tensor_constant0" in str(right.graph.graph)
    assert find_difference(spec, right).witness is None


def test_ranges_of_a_rank_that_do_not_start_at_a_multiple():
    def spec(x):
        return x * torch.arange(1, 1025)

    def right(x):
        return torch.cat(
            [x[:, 128 * r : 128 * r + 128] * torch.arange(1 + 128 * r, 129 + 128 * r) for r in range(8)], 1
        )

    def other(x):
        return torch.cat(
            [x[:, 128 * r : 128 * r + 128] * torch.arange(17 + 128 * r, 145 + 128 * r) for r in range(8)], 1
        )

    whole = {"x": (65536, 1024)}
    layouts = {"x": [R], "output.0": [R]}
    assert outcomes(spec, right, other, whole, whole, layouts)[0] is False
    assert outcomes(lambda x: x * torch.arange(17, 1041), other, right, whole, whole, layouts)[0] is False


def test_a_square_of_a_size():
    assert outcomes(
        lambda x: x.mean(1) ** 2, lambda x: reduced(x.sum(1)) ** 2 / 4096**2, lambda x: reduced(x.sum(1)) ** 2 / 4096
    ) == [False, True]
