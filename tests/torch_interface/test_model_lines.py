"""The line of the model that a finding names, where a helper made the node."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.fx
from torch.distributed.device_mesh import DeviceMesh
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support import fake_mesh_world
from verifycompile.torch_interface.dynamo.aot import export_joint
from verifycompile.torch_interface.dynamo.frames import frame_of_call, trace_frame
from verifycompile.torch_interface.source_lines.model_lines import (
    helper_location_of,
    model_location_of,
    pass_over_functions_of_spec,
)
from verifycompile.torch_interface.source_lines.traced_lines import keep_lines
from verifycompile.torch_interface.source_lines.value_names import value_name

UTILITIES = """\
import torch
import torch.distributed._functional_collectives as fc


def everyone(x, group):
    return fc.wait_tensor(fc.all_reduce(x.contiguous(), "sum", group))


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return everyone(grad, ctx.group), None


def spread(x, group):
    return Sum.apply(x, group)


def scaled(x, group):
    return fc.all_reduce(x, "sum", group) / 2


def projected(x, w, group):
    return fc.all_reduce(x @ w, "sum", group)
"""
MODEL = """\
import torch
import torch.nn.functional as F
from torch import nn

from utilities import everyone, projected, scaled, spread


class Block(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.up, self.down = nn.Parameter(torch.ones(4, 6)), nn.Parameter(torch.ones(6, 4))
        self.group = group

    def mixed(self, x):
        return F.gelu(spread(x, self.group) @ self.up)

    def forward(self, x):
        h = self.mixed(x)
        y = everyone(h @ self.down, self.group)
        return x + y


class Net(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.blocks = nn.ModuleList([Block(group)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def plain(x, w, group):
    z = projected(x, w, group)
    first = scaled(z, group)
    return first + scaled(z.sin(), group)


def alone(x, group):
    return everyone(x, group)


def rotated(y, first):
    return y.cos() + first


class Whole(nn.Module):
    def tail(self, y):
        return y.sin()

    def forward(self, x, w):
        return self.tail(rotated(x @ w, 0))


class Parallel(Whole):
    def forward(self, x, w):
        return self.tail(rotated(x @ w, 1))
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "utilities.py").write_text(UTILITIES)
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "utilities", raising=False)
    spec = importlib.util.spec_from_file_location("model", tmp_path / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        yield mesh


def captured(function: Callable[..., object], *args: object) -> list[torch.fx.Node]:
    frame = frame_of_call(function, args, {})
    joint = trace_frame(frame, lambda traced: export_joint(traced.graph, traced.example_inputs))
    return list(joint.graph.graph.nodes)


def line(text: str, source: str) -> int:
    return next(number for number, own in enumerate(source.splitlines(), 1) if text in own)


def places(node: torch.fx.Node) -> tuple[tuple[str, int] | None, tuple[str, int] | None]:
    found = (model_location_of(node), helper_location_of(node))
    first, second = (None if place is None else (Path(place.file).name, place.line) for place in found)
    return first, second


def test_a_helper_in_another_file_is_passed_over_forward_and_backward(model: ModuleType, mesh: DeviceMesh) -> None:
    nodes = captured(model.Net(mesh.get_group()), torch.ones(2, 4, requires_grad=True))
    reductions = [node for node in nodes if "all_reduce" in str(node.target)]
    inside = ("utilities.py", line("fc.wait_tensor(", UTILITIES))
    assert [places(node) for node in reductions] == [
        (("model.py", line("y = everyone", MODEL)), inside),
        (("model.py", line("y = everyone", MODEL)), inside),
        (("model.py", line("return F.gelu(spread", MODEL)), inside),
    ]
    place = model_location_of(reductions[0])
    assert place is not None
    assert (place.function, place.module) == ("forward", "blocks.0")


def test_what_computes_is_no_helper(model: ModuleType, mesh: DeviceMesh) -> None:
    nodes = captured(model.plain, torch.ones(2, 4), torch.ones(4, 3), mesh.get_group())
    reductions = [node for node in nodes if "all_reduce" in str(node.target)]
    assert places(reductions[0]) == (("utilities.py", line("x @ w", UTILITIES)), None)


def test_a_helper_with_a_scale_is_one_where_several_lines_call_it(model: ModuleType, mesh: DeviceMesh) -> None:
    nodes = captured(model.plain, torch.ones(2, 4), torch.ones(4, 3), mesh.get_group())
    scales = [node for node in nodes if "div" in str(node.target)]
    inside = ("utilities.py", line("/ 2", UTILITIES))
    assert [places(node) for node in scales] == [
        (("model.py", line("first = scaled", MODEL)), inside),
        (("model.py", line("return first", MODEL)), inside),
    ]


def test_a_program_that_only_communicates_is_named_itself(model: ModuleType, mesh: DeviceMesh) -> None:
    nodes = captured(model.alone, torch.ones(2, 4), mesh.get_group())
    reduction = next(node for node in nodes if "all_reduce" in str(node.target))
    assert places(reduction)[0] == ("model.py", line("return everyone(x, group)", MODEL))


def test_graphs_of_make_fx_have_the_lines_of_every_function(model: ModuleType, mesh: DeviceMesh) -> None:
    keep_lines()
    group = mesh.get_group()
    graph = make_fx(lambda x, w: model.plain(x, w, group), record_stack_traces=True)(torch.ones(2, 4), torch.ones(4, 3))
    found = {node.name: places(node)[0] for node in graph.graph.nodes if node.op == "call_function"}
    assert found["mm"] == ("utilities.py", line("x @ w", UTILITIES))
    assert found["sin"] == ("model.py", line("return first", MODEL))
    assert found["div"] == ("model.py", line("first = scaled", MODEL))


def test_graphs_of_export_have_lines(model: ModuleType, mesh: DeviceMesh) -> None:
    graph = torch.export.export(model.Net(mesh.get_group()), (torch.ones(2, 4),)).graph
    reduction = next(node for node in graph.nodes if "all_reduce" in str(node.target))
    assert places(reduction)[0] == ("model.py", line("y = everyone", MODEL))


def test_values_are_named_as_in_the_source(model: ModuleType, mesh: DeviceMesh) -> None:
    nodes = captured(model.Net(mesh.get_group()), torch.ones(2, 4, requires_grad=True))
    names = {node.name: value_name(node) for node in nodes if node.op == "call_function"}
    assert names["mm"] == "spread(x, self.group) @ self.up"
    assert names["gelu"] == "F.gelu(spread(x, self.group) @ self.up)"
    assert names["mm_1"] == "h @ self.down"
    assert names["all_reduce"] == names["wait_tensor"] == "y"
    assert names["add"] == "x + y"
    assert names["gelu_backward"] == "backward of F.gelu(spread(x, self.group) @ self.up)"
    assert names["all_reduce_2"] == "backward of spread(x, self.group)"


def test_a_function_that_the_spec_runs_too_is_passed_over_and_a_method_is_not(
    model: ModuleType, mesh: DeviceMesh
) -> None:
    x, w = torch.ones(2, 4), torch.ones(4, 3)
    spec = captured(model.Whole(), x, w)[0].graph
    nodes = captured(model.Parallel(), x, w)
    pass_over_functions_of_spec(spec, nodes[0].graph)
    cosine, sine = (next(node for node in nodes if node.name == name) for name in ("cos", "sin"))
    assert places(cosine) == (("model.py", line("rotated(x @ w, 1)", MODEL)), ("model.py", line("y.cos()", MODEL)))
    assert places(sine) == (("model.py", line("y.sin()", MODEL)), None)


def test_where_the_spec_runs_everything_nothing_is_passed_over(model: ModuleType, mesh: DeviceMesh) -> None:
    x, w = torch.ones(2, 4), torch.ones(4, 3)
    spec, nodes = captured(model.Whole(), x, w)[0].graph, captured(model.Whole(), x, w)
    pass_over_functions_of_spec(spec, nodes[0].graph)
    cosine = next(node for node in nodes if node.name == "cos")
    assert places(cosine) == (("model.py", line("y.cos()", MODEL)), None)


def test_long_expressions_are_shortened_and_inner_operators_named(mesh: DeviceMesh) -> None:
    def program(some_activation: torch.Tensor, some_other_weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(some_activation, (4,), some_other_weight.sin(), eps=1e-6) + some_activation

    nodes = captured(program, torch.ones(2, 4), torch.ones(4))
    names = {node.name: value_name(node) for node in nodes if node.op == "call_function"}
    assert names["rsqrt"] == "rsqrt in torch.nn.functional.rms_norm...ther_weight.sin(), eps=1e-6)"
