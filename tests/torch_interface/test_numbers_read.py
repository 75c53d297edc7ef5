from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.distributed.tensor import DTensor, Partial, Replicate

from tests.support import fake_mesh_world
from verifycompile.program import SourceLocation
from verifycompile.torch_interface.ranks import numbers_read
from verifycompile.torch_interface.ranks.numbers_read import watch_numbers_of_partial_dtensors

handlers = DTensor._op_dispatcher._custom_op_handlers


@pytest.fixture
def lines() -> Iterator[list[SourceLocation | None]]:
    before = handlers.get(numbers_read._READ)
    found: list[SourceLocation | None] = []
    watch_numbers_of_partial_dtensors(found.append)
    yield found
    del handlers[numbers_read._READ]
    if before is not None:
        handlers[numbers_read._READ] = before


def test_torch_reads_the_part_of_this_rank(lines: list[SourceLocation | None]) -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        value = DTensor.from_local(torch.tensor(3.0), mesh, [Partial()])
        assert [float(value), int(value), value.item()] == [3.0, 3, 3.0]
    assert [line.function for line in lines if line is not None] == ["test_torch_reads_the_part_of_this_rank"] * 3


def test_whole_values_and_single_ranks_are_read_in_silence(lines: list[SourceLocation | None]) -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        assert DTensor.from_local(torch.tensor(3.0), mesh, [Replicate()]).item() == 3.0
    with fake_mesh_world((1,), ("tp",)) as mesh:
        assert DTensor.from_local(torch.tensor(3.0), mesh, [Partial()]).item() == 3.0
    assert lines == []
