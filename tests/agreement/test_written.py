"""Programs as the ranks tell them: equal on every rank, read back as they were, others where they differ."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.programs import data_parallel, llama, mlp, torch_transformer
from tests.programs.captured import capture
from tests.programs.case import Case
from tests.support import fake_mesh_world
from verifycompile import Verdict
from verifycompile.agreement.written import large_constants, read, write
from verifycompile.capture import capture_model
from verifycompile.options import Options
from verifycompile.program import Program
from verifycompile.two_programs import verify_programs

CASES = [
    mlp.case(2),
    mlp.case(2, data_parallel=2),
    torch_transformer.case(2),
    llama.block_case(2),
    *list(data_parallel.programs().values())[:2],
]


def captured_as(case: Case, rank: int) -> tuple[Program, Program]:
    given = case if case.name.startswith("transformer") else None
    with fake_mesh_world(case.mesh_shape, case.mesh_names, rank) as mesh:
        return capture(case, mesh, given_spec=given)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_rank_writes_the_same_and_what_is_read_verifies(case: Case) -> None:
    first_spec, first = captured_as(case, 0)
    spec, last = captured_as(case, case.world_size - 1)
    written = write(last)
    assert write(first).data == written.data
    assert write(first_spec).data == write(spec).data
    assert first.own is not None
    assert last.own is not None
    assert (first.own.frame, first.own.axes, first.own.places) == (last.own.frame, last.own.axes, last.own.places)
    again = read(written, large_constants(last))
    assert write(again).data == written.data
    report = verify_programs(spec, again, Options())
    assert report.verdict is Verdict.VERIFIED, str(report)


def test_sizes_that_are_symbols_are_read_as_such() -> None:
    case = mlp.case(2)
    with fake_mesh_world(case.mesh_shape, case.mesh_names) as mesh:
        (x,) = case.rank_inputs(0)
        torch._dynamo.mark_dynamic(x, 0)
        spec, implementation = capture_model(case.build(mesh), (x,), {}, Options())
    written = write(implementation)
    again = read(written, {})
    assert write(again).data == written.data
    assert any(isinstance(size, torch.SymInt) for node in again.graph.graph.nodes for size in shape(node))
    report = verify_programs(spec, again, Options())
    assert report.verdict is Verdict.VERIFIED, str(report)


def shape(node: torch.fx.Node) -> tuple[object, ...]:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.factor, self.constant, self.slope = 2.0, [1.0, 2.0, 3.0, 4.0], 0.1
        self.dim = -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(nn.functional.leaky_relu(self.up(x), self.slope)) * self.factor
        return y.softmax(self.dim) + torch.tensor(self.constant)


def digest_with(rank: int = 0, *, frozen: bool = False, **attributes: object) -> str:
    with fake_mesh_world((2,), ("tp",), rank) as mesh:
        model = parallelize_module(Model(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        model.down.bias.requires_grad_(not frozen)
        for name, value in attributes.items():
            setattr(model, name, value)
        spec, implementation = capture_model(model, (torch.ones(2, 4),), {}, Options())
    return write(spec).digest + write(implementation).digest


def test_any_difference_is_another_digest() -> None:
    same = digest_with()
    assert digest_with(rank=1) == same
    others = [
        digest_with(factor=2.5),
        digest_with(slope=0.2),
        digest_with(constant=[1.0, 2.0, 3.0, 4.5]),
        digest_with(dim=0),
        digest_with(frozen=True),
    ]
    assert len({same, *others}) == 6
