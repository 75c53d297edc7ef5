"""``verify_graphs`` on graphs captured rank by rank: correct programs verify, each mutant is refuted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.fx
import torch.nn.functional as F
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.tensor.placement_types import Replicate, Shard

import verifycompile
from tests.programs.rank_graphs import (
    CASES,
    CopyToRanks,
    CopyWithoutReduction,
    GatherRows,
    RankCase,
    ReduceFromRanks,
    ScatterRows,
    trace,
    trace_ranks,
    with_gradients,
)

ROWS = (Shard(0),)


def check(case: RankCase, ranks: int = 2) -> verifycompile.Report:
    spec = trace(case.spec, case.whole())
    graphs = trace_ranks(case.ranks, ranks, lambda rank: case.part(rank, ranks))
    return verifycompile.verify_graphs(spec, graphs, case.layouts, case.outputs)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_correct_program(case: RankCase, ranks: int) -> None:
    report = check(case, ranks)
    assert report.verdict is verifycompile.Verdict.VERIFIED, str(report)


def mlp_without_gradient_reduction(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return ReduceFromRanks.apply(F.gelu(CopyWithoutReduction.apply(x) @ up.t()) @ down.t())  # type: ignore[no-any-return]


def mlp_without_reduction(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return F.gelu(CopyToRanks.apply(x) @ up.t()) @ down.t()


def mlp_reduced_twice(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    once = ReduceFromRanks.apply(F.gelu(CopyToRanks.apply(x) @ up.t()) @ down.t())
    return ReduceFromRanks.apply(once)  # type: ignore[no-any-return]


def sequence_mlp_in_other_order(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    gathered = GatherRows.apply(x).roll(x.shape[0], 0)
    return ScatterRows.apply(F.gelu(gathered @ up.t()) @ down.t())  # type: ignore[no-any-return]


def sequence_mlp_reduced_before_scatter(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    hidden = ReduceFromRanks.apply(F.gelu(GatherRows.apply(x) @ up.t()) @ down.t())
    return ScatterRows.apply(hidden)  # type: ignore[no-any-return]


def embedding(offset: Callable[[int], int], masked: bool) -> Callable[..., torch.Tensor]:
    def run(tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        start = offset(table.shape[0])
        outside = (tokens < start) | (tokens >= start + table.shape[0])
        rows = F.embedding((tokens - start).masked_fill(outside, 0), table)
        if masked:
            rows = rows.masked_fill(outside.unsqueeze(-1), 0.0)
        return ReduceFromRanks.apply(rows)  # type: ignore[no-any-return]

    return run


MUTANTS = [
    (0, with_gradients(mlp_without_gradient_reduction, ("x", "up", "down"))),
    (0, with_gradients(mlp_without_reduction, ("x", "up", "down"))),
    (0, with_gradients(mlp_reduced_twice, ("x", "up", "down"))),
    (1, with_gradients(sequence_mlp_in_other_order, ("x", "up", "down"))),
    (1, with_gradients(sequence_mlp_reduced_before_scatter, ("x", "up", "down"))),
    (2, with_gradients(embedding(lambda rows: 0, True), ("table",))),
    (2, with_gradients(embedding(lambda rows: dist.get_rank() * rows, False), ("table",))),
    (2, with_gradients(embedding(lambda rows: (1 - dist.get_rank()) * rows, True), ("table",))),
]


@pytest.mark.parametrize("number", range(len(MUTANTS)))
def test_mutant(number: int) -> None:
    index, ranks = MUTANTS[number]
    report = check(dataclasses.replace(CASES[index], ranks=ranks))
    assert report.verdict is verifycompile.Verdict.REFUTED, str(report)


# ------------------------------------------------------------------------------------------------ order of the calls


def wrong_order(x: torch.Tensor) -> torch.Tensor:
    first, second = x + 1, x * 3
    if dist.get_rank() == 0:
        dist.all_reduce(first)
        dist.broadcast(second, 0)
    else:
        dist.broadcast(second, 0)
        dist.all_reduce(first)
    return first + second


def missing_call(x: torch.Tensor) -> torch.Tensor:
    value = x + 1
    if dist.get_rank() == 0:
        dist.all_reduce(value)
    return value


def other_size(x: torch.Tensor) -> torch.Tensor:
    value = x[: 4 - dist.get_rank()] + 1
    dist.all_reduce(value)
    return x


def other_reduction(x: torch.Tensor) -> torch.Tensor:
    value = x + 1
    dist.all_reduce(value, dist.ReduceOp.SUM if dist.get_rank() == 0 else dist.ReduceOp.MAX)
    return value


def no_receiver(x: torch.Tensor) -> torch.Tensor:
    if dist.get_rank() == 0:
        dist.send(x, 1)
    return x


def each_waits_for_the_other(x: torch.Tensor) -> torch.Tensor:
    other = torch.empty_like(x)
    dist.recv(other, 1 - dist.get_rank())
    value = x + other
    dist.send(value, 1 - dist.get_rank())
    return value


def missing_barrier(x: torch.Tensor) -> torch.Tensor:
    if dist.get_rank() == 1:
        dist.barrier()
    return x


def other_group(x: torch.Tensor) -> torch.Tensor:
    pair, everyone = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
    value = x + 1
    if dist.get_rank() == 0:
        dist.all_reduce(value, group=pair)
    dist.all_reduce(value, group=everyone)
    return value


@pytest.mark.parametrize(
    ("program", "ranks", "message"),
    [
        (wrong_order, 2, "ranks meet at different collectives: `all_reduce` on rank 0, `broadcast` on rank 1"),
        (missing_call, 2, "rank 0 waits in `all_reduce` for rank 1, which ends without it"),
        (other_size, 2, "`all_reduce` gets float32[4, 4] on rank 0 and float32[3, 4] on rank 1"),
        (other_reduction, 2, "`reduce_op` of `all_reduce` is sum on rank 0 and max on rank 1"),
        (no_receiver, 2, "rank 0 sends a message that rank 1 never receives"),
        (each_waits_for_the_other, 2, "rank 0 waits for a message of rank 1, which waits itself"),
        (missing_barrier, 2, "rank 1 waits in `all_reduce` for rank 0, which ends without it"),
        (other_group, 3, "rank 0 waits in `all_reduce` for rank 1, which waits elsewhere"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_ranks_that_wait_for_ever(program: Callable[..., Any], ranks: int, message: str) -> None:
    x = {"x": torch.randn(4, 4)}
    spec, graphs = trace(lambda x: x, x), trace_ranks(program, ranks, lambda _: x)
    report = verifycompile.verify_graphs(spec, graphs, groups={"1": (0, 1), "2": (0, 1, 2)})
    assert report.verdict is verifycompile.Verdict.REFUTED
    (finding,) = report.findings
    assert (finding.code, finding.message) == ("VC109", message)
    assert "error[VC109]: ranks wait for different collectives" in str(report)


@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        (lambda x: {"q": x.cos(), "p": x.sin(), "n": 3}, verifycompile.Verdict.VERIFIED),
        (lambda x: {"q": x.sin(), "p": x.cos(), "n": 3}, verifycompile.Verdict.REFUTED),
        (lambda x: {"p": x.sin(), "q": x.cos(), "n": 4}, verifycompile.Verdict.UNPROVED),
    ],
)
def test_results_belong_together_by_their_places(program: Callable[..., Any], verdict: verifycompile.Verdict) -> None:
    x = torch.randn(4, 4)
    spec = torch.fx.symbolic_trace(lambda x: {"p": x.sin(), "q": x.cos(), "n": 3})
    graphs = [torch.fx.symbolic_trace(program)] * 2
    report = verifycompile.verify_graphs(spec, graphs, spec_inputs=[x], rank_inputs=[x])
    assert report.verdict is verdict, str(report)


def test_both_places_are_named() -> None:
    x = {"x": torch.randn(4, 4)}
    report = verifycompile.verify_graphs(trace(lambda x: x, x), trace_ranks(wrong_order, 2, lambda _: x))
    (finding,) = report.findings
    assert finding.impl_location is not None
    assert finding.impl_location.file == "<the graph of rank 0>"
    assert [label.location.file for label in finding.labels] == ["<the graph of rank 1>"]


# ------------------------------------------------------------------------------------------------ different graphs


def spec_stages(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ first) @ second


def stages(scale: float = 1.0) -> Callable[..., torch.Tensor]:
    def run(w: torch.Tensor, x: torch.Tensor | None = None) -> torch.Tensor | None:
        if x is not None:
            dist.send(torch.relu(x @ w) * scale, 1)
            return None
        hidden = torch.empty(4, 8)
        dist.recv(hidden, 0)
        return hidden @ w

    return run


def pipeline(program: Callable[..., Any], names: tuple[str, str] = ("first", "second")) -> verifycompile.Report:
    weight, x = torch.randn(8, 8), torch.randn(4, 8)
    spec = trace(spec_stages, {"x": x, "first": weight, "second": torch.randn(8, 8)})
    ranks = trace_ranks(program, 2, lambda rank: {"w": weight, "x": x} if rank == 0 else {"w": weight})
    return verifycompile.verify_graphs(spec, ranks, [{"w": names[0]}, {"w": names[1]}])


def test_pipeline_stages() -> None:
    report = pipeline(stages())
    assert report.verdict is verifycompile.Verdict.VERIFIED, str(report)
    assert report.relations == {"output.0": "output.0"}


def test_pipeline_stages_with_exchanged_weights() -> None:
    assert pipeline(stages(), ("second", "first")).verdict is verifycompile.Verdict.REFUTED


def test_pipeline_stages_with_a_scaled_message() -> None:
    assert pipeline(stages(0.5)).verdict is verifycompile.Verdict.REFUTED


def test_rank_that_takes_another_way() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        value = x * 2 if dist.get_rank() == 0 else x + x
        dist.all_reduce(value)
        return value / 2

    x = {"x": torch.randn(4, 4)}
    report = verifycompile.verify_graphs(trace(lambda x: x * 2, x), trace_ranks(run, 2, lambda _: x))
    assert report.verdict is verifycompile.Verdict.VERIFIED, str(report)


# ------------------------------------------------------------------------------------------------ what is asked


def halves(later: slice) -> Callable[..., torch.Tensor]:
    def run(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        part = slice(None, 3) if dist.get_rank() == 0 else later
        return all_reduce(torch.relu(x @ first[:, part]) @ second[part], "sum", dist.group.WORLD)

    return run


@pytest.mark.parametrize("later", [slice(3, None), slice(-3, None), slice(3, 6)])
def test_ranks_that_write_their_parts_in_other_ways(later: slice) -> None:
    inputs = {"x": torch.randn(2, 4), "first": torch.randn(4, 6), "second": torch.randn(6, 2)}
    outputs = [{"output.0": "output.0"}] * 2
    spec = trace(spec_stages, inputs)
    for part, verdict in ((later, verifycompile.Verdict.VERIFIED), (slice(2, 5), verifycompile.Verdict.REFUTED)):
        graphs = trace_ranks(halves(part), 2, lambda _: inputs)
        report = verifycompile.verify_graphs(spec, graphs, None, outputs)
        assert report.verdict is verdict, str(report)


def test_layout_must_be_given() -> None:
    case = dataclasses.replace(CASES[0], layouts={"up": ROWS})
    spec = trace(case.spec, case.whole())
    graphs = trace_ranks(case.ranks, 2, lambda rank: CASES[0].part(rank, 2))
    with pytest.raises(verifycompile.UsageError, match=r"VC308.*`down` of the graph of rank 0 has shape \[8, 8\]"):
        verifycompile.verify_graphs(spec, graphs, case.layouts)


def test_one_graph_for_all_ranks_needs_a_mesh() -> None:
    x = {"x": torch.randn(4, 4)}
    graph = trace(lambda x: x * 2, x)
    with pytest.raises(verifycompile.UsageError, match="VC301"):
        verifycompile.verify_graphs(graph, graph)
    assert verifycompile.verify_graphs(graph, graph, {"x": (Replicate(), Replicate())}, mesh={"dp": 2, "tp": 4})


def test_one_graph_for_all_ranks_with_a_group() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ReduceFromRanks.apply(x @ w)  # type: ignore[no-any-return]

    x, w = torch.randn(4, 8), torch.randn(8, 8)
    spec = trace(lambda x, w: x @ w, {"x": x, "w": w})
    (graph, _) = trace_ranks(run, 2, lambda _: {"x": x[:, :4], "w": w[:4]})
    layouts = {"x": (Shard(1),), "w": ROWS}
    assert verifycompile.verify_graphs(spec, graph, layouts, mesh=(2,))
    wrong = verifycompile.verify_graphs(spec, graph, {"x": (Shard(1),), "w": ROWS}, {"output.0": ROWS}, mesh=(2,))
    assert wrong.verdict is not verifycompile.Verdict.VERIFIED


def test_write_through_a_view_is_followed() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        value = x * 1
        view = value.view(-1)
        dist.all_reduce(value)
        return view.view(4, 4) + 0

    x = {"x": torch.randn(4, 4)}
    graphs = trace_ranks(run, 2, lambda _: x)
    assert verifycompile.verify_graphs(trace(lambda x: x * 2, x), graphs)
    assert not verifycompile.verify_graphs(trace(lambda x: x * 1, x), graphs)


def test_graph_with_modules() -> None:
    linear = torch.nn.Linear(4, 4)
    spec = torch.fx.symbolic_trace(linear)
    rank = torch.fx.symbolic_trace(linear)
    x = torch.randn(3, 4)
    assert verifycompile.verify_graphs(spec, [rank, rank], spec_inputs=[x], rank_inputs=[x])


def test_group_without_known_members_is_unproved() -> None:
    x = {"x": torch.randn(4, 4)}
    report = verifycompile.verify_graphs(trace(lambda x: x, x), trace_ranks(other_group, 3, lambda _: x))
    assert report.verdict is verifycompile.Verdict.UNPROVED
    assert report.findings[0].message == (
        "the members of the process group `1` are not known here; pass them as `groups`."
    )


def test_functional_default_group_is_all_ranks() -> None:
    def reduced(x: torch.Tensor) -> torch.Tensor:
        return all_reduce(x, "sum", dist.group.WORLD)

    x = {"x": torch.randn(4, 4)}
    report = verifycompile.verify_graphs(trace(lambda x: x * 3, x), trace_ranks(reduced, 3, lambda _: x))
    assert report.verdict is verifycompile.Verdict.VERIFIED, str(report)
    assert "the process group `0`, which torch calls its default group, is all ranks" in report.assumptions


def test_unsupported_collective_is_unproved() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        value = x * 1
        dist.reduce(value, 0)
        return value

    x = {"x": torch.randn(4, 4)}
    report = verifycompile.verify_graphs(trace(lambda x: x * 2, x), trace_ranks(run, 2, lambda _: x))
    assert report.verdict is verifycompile.Verdict.UNPROVED
    assert report.findings[0].message == "the collective `c10d.reduce_.default` has no functional form"
