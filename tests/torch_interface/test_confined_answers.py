"""What a constructor sets after code asked for a degree is confirmed where no answer can have reached it, and there alone."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest
from torch.distributed.device_mesh import DeviceMesh

from tests.support import fake_mesh_world
from tests.torch_interface.asking_scripts import CONFIG, LEFT, SETTINGS, STAYED, Row
from verifycompile.capture.numbers.plain_values import Place


@pytest.fixture
def mesh() -> Generator[DeviceMesh]:
    SETTINGS.clear()
    CONFIG.number = 8
    with fake_mesh_world((2,), ("tp",)) as found:
        os.environ["WORLD_SIZE"] = "2"
        yield found
        del os.environ["WORLD_SIZE"]


def is_confirmed(model: Any) -> bool:
    return Place(model, ((".", "number"),)).is_confirmed


@pytest.mark.parametrize("row", STAYED)
def test_an_answer_that_stays_confirms_the_numbers(row: Row, mesh: DeviceMesh) -> None:
    assert is_confirmed(row(mesh))


@pytest.mark.parametrize("row", LEFT)
def test_an_answer_that_may_leave_confirms_nothing(row: Row, mesh: DeviceMesh) -> None:
    assert not is_confirmed(row(mesh))
