"""Ranks that run different graphs: pipeline stages, uneven shards, messages; each with mutants that are refuted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor.placement_types import Replicate, Shard

import verifycompile
from tests.programs.rank_graphs import ReduceFromRanks, trace, trace_ranks
from verifycompile.capture.in_parts import in_parts
from verifycompile.program import Program

BATCH, WIDTH = 8, 6
ROWS, COLUMNS, WHOLE = (Shard(0),), (Shard(1),), (Replicate(),)
VERIFIED, REFUTED = verifycompile.Verdict.VERIFIED, verifycompile.Verdict.REFUTED


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def judged(report: verifycompile.Report, verdict: verifycompile.Verdict) -> None:
    """A program that is verified has a certificate that holds."""
    assert report.verdict is verdict, str(report)
    if report.certificate is not None:
        assert str(verifycompile.check_certificate(report.certificate)).startswith("the certificate holds")


# ------------------------------------------------------------------------------------------------ pipeline, backward


def train_step(x: torch.Tensor, y: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> list[torch.Tensor]:
    weights = [first.detach().requires_grad_(), second.detach().requires_grad_()]
    with torch.enable_grad():
        loss = F.mse_loss(torch.tanh(x @ weights[0]) @ weights[1], y)
        return [loss.detach(), *torch.autograd.grad(loss, weights)]


def pipeline_step(micro_batches: int, scale: float, forgotten: int = 0) -> Callable[..., Any]:
    """Two stages; gradients travel back a micro-batch at a time and add up."""

    def first_stage(w: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        sent: list[torch.Tensor] = []
        for rows in x.chunk(micro_batches):
            sent.append(torch.tanh(rows @ w))
            dist.send(sent[-1].detach().clone(), 1)
        total = torch.zeros_like(w)
        for hidden in sent:
            gradient = torch.empty_like(hidden)
            dist.recv(gradient, 1)
            total = total + torch.autograd.grad(hidden, w, gradient)[0]
        return [total]

    def second_stage(w: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        loss, total = torch.zeros(()), torch.zeros_like(w)
        for number, rows in enumerate(y.chunk(micro_batches)):
            hidden = torch.empty(BATCH // micro_batches, WIDTH)
            dist.recv(hidden, 0)
            hidden = hidden.requires_grad_()
            part = F.mse_loss(hidden @ w, rows) * scale
            back, gradient = torch.autograd.grad(part, [hidden, w])
            dist.send(back, 0)
            loss = loss + part.detach()
            if number >= forgotten:
                total = total + gradient
        return [loss, total]

    def run(w: torch.Tensor, **data: torch.Tensor) -> list[torch.Tensor]:
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            return first_stage(w, **data) if dist.get_rank() == 0 else second_stage(w, **data)

    return run


def check_pipeline(program: Callable[..., Any], weights: tuple[str, str] = ("first", "second")) -> verifycompile.Report:
    spec = trace(
        train_step,
        {
            "x": tensor(BATCH, WIDTH),
            "y": tensor(BATCH, WIDTH),
            "first": tensor(WIDTH, WIDTH),
            "second": tensor(WIDTH, WIDTH),
        },
    )

    def arguments(rank: int) -> Mapping[str, torch.Tensor]:
        return {"w": tensor(WIDTH, WIDTH), "x" if rank == 0 else "y": tensor(BATCH, WIDTH)}

    outputs = [{"output.0": "output.1"}, {"output.0": "output.0", "output.1": "output.2"}]
    inputs = [{"w": name} for name in weights]
    return verifycompile.verify_graphs(spec, trace_ranks(program, 2, arguments), inputs, outputs)


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_pipeline_with_gradients(micro_batches: int) -> None:
    judged(check_pipeline(pipeline_step(micro_batches, 1 / micro_batches)), VERIFIED)


def test_pipeline_loss_not_divided_by_the_micro_batches() -> None:
    report = check_pipeline(pipeline_step(2, 1.0))
    assert report.verdict is REFUTED
    assert report.findings[0].code == "VC103"


def test_pipeline_that_forgets_a_gradient() -> None:
    assert check_pipeline(pipeline_step(2, 0.5, forgotten=1)).verdict is REFUTED


def test_pipeline_with_exchanged_stages() -> None:
    assert check_pipeline(pipeline_step(2, 0.5), ("second", "first")).verdict is REFUTED


def stages_of_pairs(x: torch.Tensor | None = None, *, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor | None:
    """Two stages of two ranks each, tensor parallel within a stage."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    stage = dist.get_rank() // 2
    if x is None:
        x = torch.empty(4, WIDTH)
        dist.recv(x, dist.get_rank() - 2)
    y = torch.relu(x @ up) @ down
    dist.all_reduce(y, group=pairs[stage])
    if stage == 0:
        dist.send(y, dist.get_rank() + 2)
        return None
    return y


@pytest.mark.parametrize(("weights", "verdict"), [("abcd", VERIFIED), ("abad", REFUTED), ("cbad", REFUTED)])
def test_stages_of_tensor_parallel_pairs(weights: str, verdict: verifycompile.Verdict) -> None:
    def whole(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.relu(x @ a) @ b @ c) @ d

    up, down = (WIDTH, 8), (8, WIDTH)
    shapes = {"x": (4, WIDTH), "a": up, "b": down, "c": up, "d": down}
    spec = trace(whole, {name: tensor(*shape) for name, shape in shapes.items()})

    def arguments(rank: int) -> Mapping[str, torch.Tensor]:
        held = {"up": tensor(WIDTH, 4), "down": tensor(4, WIDTH)}
        return {"x": tensor(4, WIDTH), **held} if rank < 2 else held

    inputs = [
        {
            "up": (weights[rank // 2 * 2], (Replicate(), Shard(1))),
            "down": (weights[rank // 2 * 2 + 1], (Replicate(), Shard(0))),
        }
        for rank in range(4)
    ]
    report = verifycompile.verify_graphs(
        spec,
        trace_ranks(stages_of_pairs, 4, arguments),
        inputs,
        mesh={"pp": 2, "tp": 2},
        groups={"1": (0, 1), "2": (2, 3)},
    )
    judged(report, verdict)


# ------------------------------------------------------------------------------------------------ uneven shards


def rows_of(rank: int, total: int, ranks: int) -> int:
    each = -(-total // ranks)
    return min(each, total - rank * each)


def layer(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, tangent: torch.Tensor) -> list[torch.Tensor]:
    leaves = [value.detach().requires_grad_() for value in (x, up, down)]
    with torch.enable_grad():
        y = F.layer_norm(torch.relu(leaves[0] @ leaves[1]) @ leaves[2] + leaves[0], (4,))
        return [y.detach(), *torch.autograd.grad(y, leaves, tangent)]


def layer_on_rows(reduced: tuple[int, ...], divided: bool = False) -> Callable[..., Any]:
    def run(**arguments: torch.Tensor) -> list[torch.Tensor]:
        results = [value.clone() for value in layer(**arguments)]
        for number in reduced:
            dist.all_reduce(results[number], dist.ReduceOp.AVG if divided else dist.ReduceOp.SUM)
        return results

    return run


def check_rows(program: Callable[..., Any], total: int, ranks: int) -> verifycompile.Report:
    def arguments(rows: int) -> Mapping[str, torch.Tensor]:
        return {"x": tensor(rows, 4), "up": tensor(4, 6), "down": tensor(6, 4), "tangent": tensor(rows, 4)}

    graphs = trace_ranks(program, ranks, lambda rank: arguments(rows_of(rank, total, ranks)))
    outputs = {"output.0": ROWS, "output.1": ROWS, "output.2": WHOLE, "output.3": WHOLE}
    return verifycompile.verify_graphs(trace(layer, arguments(total)), graphs, {"x": ROWS, "tangent": ROWS}, outputs)


@pytest.mark.parametrize(("total", "ranks"), [(5, 2), (3, 2), (7, 3)])
def test_rows_divided_unevenly(total: int, ranks: int) -> None:
    judged(check_rows(layer_on_rows((2, 3)), total, ranks), VERIFIED)


def test_rows_divided_unevenly_mutants() -> None:
    assert check_rows(layer_on_rows((2,)), 5, 2).verdict is REFUTED
    assert check_rows(layer_on_rows((2, 3), divided=True), 5, 2).verdict is REFUTED
    assert check_rows(layer_on_rows((2, 3, 2)), 5, 2).verdict is REFUTED


def hidden_divided(scale: float = 1.0) -> Callable[..., Any]:
    def run(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return ReduceFromRanks.apply(torch.relu(x @ up) @ down) * scale  # type: ignore[no-any-return]

    return run


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, VERIFIED), (0.5, REFUTED)])
def test_contracted_dimension_divided_unevenly(scale: float, verdict: verifycompile.Verdict) -> None:
    def arguments(width: int) -> Mapping[str, torch.Tensor]:
        return {"x": tensor(4, 4), "up": tensor(4, width), "down": tensor(width, 4)}

    spec = trace(lambda x, up, down: torch.relu(x @ up) @ down, arguments(5))
    graphs = trace_ranks(hidden_divided(scale), 2, lambda rank: arguments(3 - rank))
    report = verifycompile.verify_graphs(spec, graphs, {"up": COLUMNS, "down": ROWS})
    judged(report, verdict)


@pytest.mark.parametrize(("count", "verdict"), [(20, VERIFIED), (12, REFUTED)])
def test_mean_over_uneven_rows(count: int, verdict: verifycompile.Verdict) -> None:
    def mean(x: torch.Tensor) -> torch.Tensor:
        total = (x * x).sum()
        dist.all_reduce(total)
        return total / count

    spec = trace(lambda x: (x * x).mean(), {"x": tensor(5, 4)})
    graphs = trace_ranks(mean, 2, lambda rank: {"x": tensor(3 - rank, 4)})
    judged(verifycompile.verify_graphs(spec, graphs, {"x": ROWS}), verdict)


def test_mean_of_the_means_of_uneven_rows() -> None:
    def mean(x: torch.Tensor) -> torch.Tensor:
        value = (x * x).mean()
        dist.all_reduce(value, dist.ReduceOp.AVG)
        return value

    spec = trace(lambda x: (x * x).mean(), {"x": tensor(5, 4)})
    graphs = trace_ranks(mean, 2, lambda rank: {"x": tensor(3 - rank, 4)})
    assert verifycompile.verify_graphs(spec, graphs, {"x": ROWS}).verdict is REFUTED


@pytest.mark.parametrize(("kept", "verdict"), [(slice(0, 5), VERIFIED), (slice(1, 6), REFUTED)])
def test_gather_of_padded_rows(kept: slice, verdict: verifycompile.Verdict) -> None:
    def gather(x: torch.Tensor) -> torch.Tensor:
        padded = F.pad(x * 2, (0, 0, 0, 3 - x.shape[0]))
        rows = torch.empty(6, 4)
        dist.all_gather_single(rows, padded)
        return torch.relu(rows[kept])

    spec = trace(lambda x: torch.relu(x * 2), {"x": tensor(5, 4)})
    graphs = trace_ranks(gather, 2, lambda rank: {"x": tensor(3 - rank, 4)})
    judged(verifycompile.verify_graphs(spec, graphs, {"x": ROWS}, {"output.0": WHOLE}), verdict)


# ------------------------------------------------------------------------------------------------ messages


def rotation(step: int) -> Callable[..., torch.Tensor]:
    def run(x: torch.Tensor) -> torch.Tensor:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        received = torch.empty_like(x)
        calls = [
            dist.P2POp(dist.irecv, received, (rank - step) % ranks),
            dist.P2POp(dist.isend, x, (rank + step) % ranks),
        ]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        return torch.relu(received) * 2

    return run


@pytest.mark.parametrize(("step", "verdict"), [(1, VERIFIED), (2, REFUTED)])
def test_rotation(step: int, verdict: verifycompile.Verdict) -> None:
    spec = trace(lambda x: torch.cat([torch.relu(x.chunk(3)[i]) * 2 for i in (2, 0, 1)]), {"x": tensor(6, 4)})
    graphs = trace_ranks(rotation(step), 3, lambda _: {"x": tensor(2, 4)})
    judged(verifycompile.verify_graphs(spec, graphs, {"x": ROWS}, {"output.0": ROWS}), verdict)


# ------------------------------------------------------------------------------------------------ memory


def received(x: torch.Tensor) -> torch.Tensor:
    """What the other one of two ranks has."""
    value, other = torch.empty_like(x), 1 - dist.get_rank()
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, value, other), dist.P2POp(dist.isend, x, other)]):
        work.wait()
    return value


@pytest.mark.parametrize(
    ("read", "starts"),
    [
        (lambda x: torch.as_strided(x, (2,), (1,), 4), (4, 12)),
        (lambda x: torch.as_strided(x[2:6].clone(), (2,), (1,), 2), (4, 12)),
        (lambda x: torch.as_strided(x[2:6], (2,), (1,), 3), (3, 11)),
        (lambda x: torch.as_strided(x[2:6], (2,), (1,)), (2, 10)),
        (lambda x: torch.as_strided(received(x[2:6]), (2,), (1,), 2), (12, 4)),
        (lambda x: torch.as_strided(x.view(2, 4).t(), (2,), (1,), 1), (1, 9)),
    ],
)
@pytest.mark.parametrize(("moved", "verdict"), [(0, VERIFIED), (1, REFUTED)])
def test_values_that_are_read_through_memory(
    read: Callable[..., Any], starts: tuple[int, int], moved: int, verdict: verifycompile.Verdict
) -> None:
    """A rank's value lies in memory of its own, not where it lies in the whole, at its sender or before a copy."""

    def whole(x: torch.Tensor) -> torch.Tensor:
        first, second = (x[start - moved : start - moved + 2] for start in starts)
        return torch.cat([first.sin(), second.cos()])

    def on_rank(x: torch.Tensor) -> torch.Tensor:
        return read(x).sin() if dist.get_rank() == 0 else read(x).cos()

    graphs = trace_ranks(on_rank, 2, lambda _: {"x": tensor(8)})
    report = verifycompile.verify_graphs(trace(whole, {"x": tensor(16)}), graphs, {"x": ROWS}, {"output.0": ROWS})
    judged(report, verdict)


def test_mutated_buffer_must_be_the_specs() -> None:
    def whole(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(x.sum(0))
        return x * total

    def on_ranks(reduced: bool) -> Callable[..., torch.Tensor]:
        def run(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
            rows = x.sum(0)
            if reduced:
                dist.all_reduce(rows)
            total.add_(rows)
            return x * total

        return run

    spec = trace(whole, {"x": tensor(4, 3), "total": tensor(3)})
    part = {"x": tensor(2, 3), "total": tensor(3)}
    right = verifycompile.verify_graphs(spec, trace_ranks(on_ranks(True), 2, lambda _: part), {"x": ROWS})
    judged(right, VERIFIED)
    assert right.relations["mutation.total"] == "mutation.total"
    wrong = verifycompile.verify_graphs(spec, trace_ranks(on_ranks(False), 2, lambda _: part), {"x": ROWS})
    assert wrong.verdict is REFUTED


# ------------------------------------------------------------------------------------------------ pieces


class JoinedRows(torch.nn.Module):
    """Rows of which the number is read from data are joined and cut, beside pieces of known sizes."""

    def forward(self, mask: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x[torch.where(mask)[0]]
        first, second = torch.cat([rows, rows]).split([rows.shape[0]] * 2)
        return first, second, torch.cat([x[:, 3:], x[:, :3]], 1)


def test_what_has_a_size_that_is_read_from_data_is_not_cut_into_pieces() -> None:
    graph = torch.export.export(JoinedRows(), (torch.ones(3, dtype=torch.bool), tensor(3, 4))).module()
    program = Program(graph, (), ())
    targets = [[str(node.target) for node in whole.graph.graph.nodes] for _, whole in in_parts(program, program)]
    assert [names.count("aten.split_with_sizes.default") for names in targets] == [1, 1]
    assert [names.count("aten.slice_copy.Tensor") for names in targets] == [2, 0]
