"""From nodes to the user's lines."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.support import fake_mesh_world
from verifycompile.torch_interface.dynamo.aot import export_joint
from verifycompile.torch_interface.dynamo.frames import frame_of_call, trace_frame
from verifycompile.torch_interface.source_lines.source import is_user_file, location_of, module_of


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16, bias=False)
        self.down = nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.up(x))
        return self.down(hidden)


def nodes_of(model: nn.Module) -> dict[str, torch.fx.Node]:
    frame = frame_of_call(model, (torch.ones(4, 8),), {})
    joint = trace_frame(frame, lambda traced: export_joint(traced.graph, traced.example_inputs))
    return {node.name: node for node in joint.graph.graph.nodes}


def test_forward_and_backward_nodes_have_the_users_line() -> None:
    nodes = nodes_of(nn.Sequential(Block()))
    lines, first = inspect.getsourcelines(Block)
    number = next(first + i for i, line in enumerate(lines) if "torch.relu" in line)
    for name in ("relu", "threshold_backward"):
        location = location_of(nodes[name])
        assert location is not None
        assert (location.file, location.line, location.function) == (__file__, number, "forward")
        text = lines[number - first]
        assert text[location.column - 1 : location.end_column and location.end_column - 1] == "torch.relu(self.up(x))"
    location = location_of(nodes["mm"])
    assert location is not None
    assert location.line == number
    assert location.module == "0.up"
    assert module_of(nodes["mm_1"]) == "0.down"


def test_a_statement_without_carets_is_marked_whole() -> None:
    nodes = nodes_of(nn.Sequential(Block()))
    location = location_of(nodes["mm_1"])
    assert location is not None
    assert location.column == 9 + len("return ") or location.column == 9
    assert location.end_column is not None


def test_collectives_of_parallel_styles_have_the_users_line() -> None:
    with fake_mesh_world((4,), ("tp",)) as mesh:
        model = parallelize_module(Block(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        nodes = nodes_of(model)
        location = location_of(nodes["all_reduce"])
        assert location is not None
        assert location.file == __file__
        assert location.module == "down"


def test_code_of_a_string_has_its_lines() -> None:
    written: dict[str, Any] = {}
    exec("def double(x):\n    y = x + 1\n    return y.relu()\n", written)
    model = nn.Module()
    model.forward = written["double"]  # type: ignore[method-assign]
    place = location_of(nodes_of(model)["relu"])
    assert place is not None
    assert (place.file, place.line, place.function) == ("<string>", 3, "double")


def test_placeholders_have_no_location() -> None:
    nodes = nodes_of(nn.Sequential(Block()))
    assert location_of(nodes["primals_1"]) is None
    assert module_of(nodes["primals_1"]) == ""


def test_user_files() -> None:
    assert is_user_file(__file__)
    assert not is_user_file(inspect.getfile(nn.Linear))
    assert is_user_file(torch.testing.__file__)
