"""A turn of a loop that takes what belongs to another turn is told there, in a graph of one rank of several too."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor.placement_types import Partial, Shard
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support import fake_mesh_world, fake_world
from verifycompile import Report, Verdict, verify, verify_graphs

Program = Callable[..., list[torch.Tensor]]
SHAPES = {"x": (6, 4), "a": (4, 3), "b": (3, 5), "y": (6, 5)}


def whole(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    h = torch.tanh(x @ a)
    error = h @ b - y
    return [x.t() @ ((error @ b.t()) * (1 - h * h)), h.t() @ error]


def received(rows: int, width: int, source: int) -> torch.Tensor:
    value = torch.empty(rows, width)
    dist.recv(value, source)
    return value


def first_stage(taken: Sequence[int]) -> Program:
    """``taken``: the micro-batch of which each turn of the backward pass takes what was kept."""

    def program(x: torch.Tensor, a: torch.Tensor) -> list[torch.Tensor]:
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        for rows in x.chunk(3):
            h = torch.tanh(rows @ a)
            kept.append((rows, h))
            dist.send(h, 1)
        total = torch.zeros_like(a)
        for turn in range(3):
            gradient = received(2, 3, 1)
            rows, h = kept[taken[turn]]
            total = total + rows.t() @ (gradient * (1 - h * h))
        return [total]

    return program


def last_stage(taken: Sequence[int]) -> Program:
    """``taken``: the micro-batch of which each turn takes the targets."""

    def program(b: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        targets, total = y.chunk(3), torch.zeros_like(b)
        for h, turn in zip([received(2, 3, 0) for _ in range(3)], taken, strict=True):
            error = h @ b - targets[turn]
            total = total + h.t() @ error
            dist.send(error @ b.t(), 0)
        return [total]

    return program


def traced(program: Program, inputs: Mapping[str, torch.Tensor]) -> torch.fx.GraphModule:
    graph = make_fx(program, tracing_mode="fake", record_stack_traces=True)(*inputs.values())
    for node, name in zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True):
        node.name = node.target = name
    graph.recompile()
    return graph


def report_of(kept: Sequence[int], targets: Sequence[int]) -> Report:
    inputs = {name: torch.empty(shape) for name, shape in SHAPES.items()}
    stages = (first_stage(kept), ("x", "a")), (last_stage(targets), ("b", "y"))
    graphs: list[torch.fx.GraphModule] = []
    for rank, (program, names) in enumerate(stages):
        with fake_world(2, rank=rank):
            graphs.append(traced(program, {name: inputs[name] for name in names}))
    outputs = [{"output.0": f"output.{rank}"} for rank in range(2)]
    return verify_graphs(traced(whole, inputs), graphs, [{}, {}], outputs)


def test_each_turn_takes_its_own() -> None:
    report = report_of(range(3), range(3))
    assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.parametrize(
    ("kept", "targets", "line", "message"),
    [
        (
            (2, 2, 2),
            range(3),
            "total = total + rows.t() @ (gradient * (1 - h * h))",
            "turn 1 of a loop takes piece 2 of `x`, where piece 0 of `x` is expected",
        ),
        (
            range(3),
            (0, 0, 1),
            "error = h @ b - targets[turn]",
            "turn 2 of a loop takes piece 0 of `y`, where piece 1 of `y` is expected",
        ),
    ],
)
def test_what_belongs_to_another_turn_is_told(
    kept: Sequence[int], targets: Sequence[int], line: str, message: str
) -> None:
    report = report_of(kept, targets)
    (finding,) = report.findings
    assert finding.impl_location is not None
    found = linecache.getline(finding.impl_location.file, finding.impl_location.line).strip()
    assert (report.verdict, finding.code, found, finding.message) == (Verdict.REFUTED, "VC119", line, message)
    assert finding.hint is not None
    assert finding.hint.startswith(f"use {message.partition(', where ')[2].partition(' is ')[0]} in the place of ")
    assert finding.hint.endswith("(checked)")


def sum_of_chunks(taken: Sequence[int]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        halves = [torch.tanh(part @ w) for part in x.chunk(2, 1)]
        total = torch.zeros(())
        for turn in range(2):
            total = total + (turn + 1) * halves[taken[turn]].square().sum()
        return total

    return program


@pytest.mark.parametrize("taken", [(0, 1), (0, 0)])
def test_what_was_computed_in_another_turn_is_told(taken: Sequence[int]) -> None:
    with fake_mesh_world((2,), ("dp",)) as mesh:
        options: dict[str, Any] = {"mesh": mesh, "in_placements": {"x": (Shard(0),)}}
        program, inputs = sum_of_chunks(taken), (torch.empty(4, 6), torch.empty(3, 2))
        report = verify(program, inputs, spec=sum_of_chunks((0, 1)), **options)
    if taken == (0, 1):
        assert report.verdict is Verdict.VERIFIED, str(report)
        return
    (finding,) = report.findings
    assert (report.verdict, finding.code) == (Verdict.REFUTED, "VC119"), str(report)


def layers(x: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    for weight in weights.unbind(0):
        x = torch.tanh(x @ weight)
    return [x]


def interleaved(*, wrong: bool) -> Program:
    """Each of two ranks runs two chunks of one layer: the first rank layers 0 and 2, the second layers 1 and 3."""

    def program(x: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
        rank = dist.get_rank()
        for chunk in range(2):
            layer = rank * 2 + chunk if wrong else chunk * 2 + rank
            if (rank, chunk) != (0, 0):
                x = received(3, 4, 1 - rank)
            x = torch.tanh(x @ weights[layer])
            if (rank, chunk) != (1, 1):
                dist.send(x, 1 - rank)
        return [x.clone() if rank else torch.zeros_like(x)]

    return program


@pytest.mark.parametrize("wrong", [False, True])
def test_chunks_of_layers_that_follow_each_other_in_another_order_are_told(wrong: bool) -> None:
    inputs = {"x": torch.empty(3, 4), "weights": torch.empty(4, 4, 4)}
    graphs: list[torch.fx.GraphModule] = []
    for rank in range(2):
        with fake_world(2, rank=rank):
            graphs.append(traced(interleaved(wrong=wrong), inputs))
    report = verify_graphs(traced(layers, inputs), graphs, {}, {"output.0": (Partial(),)})
    if not wrong:
        assert report.verdict is Verdict.VERIFIED, str(report)
        return
    (finding,) = report.findings
    assert finding.impl_location is not None
    place = finding.impl_location
    line = "layer = rank * 2 + chunk if wrong else chunk * 2 + rank"
    found = linecache.getline(place.file, place.line).strip()
    assert (report.verdict, finding.code, found) == (Verdict.REFUTED, "VC108", line), str(report)
    assert finding.hint is not None
    assert "take entry 2 in the place of entry 1 on rank 0" in finding.hint
    assert "take entry 1 in the place of entry 2 on rank 1" in finding.hint
    assert finding.hint.endswith("(checked)")
