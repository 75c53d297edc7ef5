"""The line that makes a style is known by the module it is applied to, whenever torch's styles were imported."""

from __future__ import annotations

import copy
import inspect
import subprocess
import sys
from typing import Any

import pytest
from torch import nn
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Replicate, Shard

from tests.support import fake_mesh_world
from verifycompile.torch_interface.source_lines.plan_lines import STYLES, line_of_style


class Renamed(ColwiseParallel):
    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        return super()._apply(module, device_mesh)


def applied(key: str) -> tuple[nn.Module, int]:
    """A module to which a style was applied, and the line that made the style."""
    first = inspect.currentframe()
    assert first is not None
    made = first.f_lineno + 1
    styles = {
        "column": lambda: ColwiseParallel(),
        "rows": lambda: SequenceParallel(),
        "input": lambda: PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate()),
        "own": lambda: Renamed(),
    }
    model = nn.Sequential(nn.LayerNorm(4) if key == "rows" else nn.Linear(4, 4))
    with fake_mesh_world((2,), ("tp",)) as mesh:
        parallelize_module(model, mesh, {"0": styles[key]()})
    return model[0], made + 1 + list(styles).index(key)


@pytest.mark.parametrize("key", ["column", "rows", "input", "own"])
def test_the_line_of_a_style(key: str) -> None:
    module, line = applied(key)
    place = line_of_style(module)
    assert (place.file, place.line) == (__file__, line)
    written = inspect.getsourcelines(sys.modules[__name__])[0][place.line - 1]
    assert written[place.column - 1 : place.end_column - 1].endswith(")")


def test_what_no_line_of_the_users_made_has_none() -> None:
    assert line_of_style(nn.Linear(4, 4)) is None
    with fake_mesh_world((2,), ("tp",)) as mesh:
        module = parallelize_module(nn.Linear(4, 4), mesh, copy.deepcopy(ColwiseParallel()))
    assert line_of_style(module) is None


@pytest.mark.parametrize("early", ["import torch.distributed.tensor.parallel; ", ""])
def test_styles_are_watched_however_they_are_imported(early: str) -> None:
    """Importing the package imports no styles: they take a second."""
    program = (
        f"import sys, torch; {early}import verifycompile; print({STYLES!r} in sys.modules); "
        "from torch.distributed.tensor.parallel import ColwiseParallel; "
        "from verifycompile.torch_interface.source_lines import plan_lines; print(ColwiseParallel.__new__ is plan_lines._made)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(bool(early)), "True"]
