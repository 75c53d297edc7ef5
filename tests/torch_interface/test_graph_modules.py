"""Graphs traced again as functional ATen graphs, and what script objects in them say."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support import fake_world
from verifycompile.program import Mesh, MeshAxis
from verifycompile.torch_interface.dynamo.graph_modules import (
    example_of,
    functional_graph,
    group_object,
    members_by_name,
    module_of,
)
from verifycompile.torch_interface.ranks.rank_values import functional_collectives, has_messages, new_coordinate


def test_the_code_of_a_module_is_written_when_it_is_asked_for() -> None:
    source = torch.nn.Linear(2, 2)
    graph = torch.fx.Graph()
    weight = graph.get_attr("weight")
    graph.output(graph.call_function(torch.relu, (weight,)))
    module = module_of(graph, source)
    assert "_code" not in vars(module)
    assert module.weight is source.weight
    assert torch.equal(module(), source.weight.relu())
    assert "relu" in module.code


def test_script_objects_of_a_captured_collective() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y, dist.ReduceOp.AVG)
        return y

    with fake_world(4):
        graph = make_fx(run, tracing_mode="fake")(torch.randn(2))
        held = [getattr(graph, str(node.target)) for node in graph.graph.find_nodes(op="get_attr")]
        groups = [found for value in held if (found := group_object(value)) is not None]
        assert [(group.size, group.ranks) for group in groups] == [(4, (0, 1, 2, 3))]
        assert members_by_name(groups[0].name) == (0, 1, 2, 3)
    assert group_object(held[0]) is not None
    assert group_object(held[0]).ranks is None  # type: ignore[union-attr]
    assert group_object(3) is None
    assert members_by_name("no such group") is None


def test_writes_become_values() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * 2
        view = y.view(-1)
        y.add_(1)
        w.mul_(3)
        return view + 1

    graph = make_fx(run, tracing_mode="fake")(torch.randn(2, 2), torch.randn(2))
    examples = [example_of(node) for node in graph.graph.find_nodes(op="placeholder")]
    functional = functional_graph(graph, examples, "<graph>")
    assert functional.names == ("x_1", "w_1")
    assert list(functional.written) == ["w_1"]
    assert all(
        not str(node.target).split(".")[1].endswith("_")
        for node in functional.graph.graph.nodes
        if "aten" in str(node.target)
    )
    x, w = torch.randn(2, 2), torch.randn(2)
    assert torch.equal(functional.graph(x, w)[0], (x * 2 + 1).view(-1) + 1)


def test_parameters_become_inputs() -> None:
    graph = torch.fx.symbolic_trace(torch.nn.Linear(3, 2))
    functional = functional_graph(graph, [torch.randn(4, 3)], "<graph>")
    assert functional.names == ("weight", "bias", "input_1")
    assert list(functional.lifted) == ["weight", "bias"]


def test_coordinate_node() -> None:
    graph = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
    graph.graph.output(())
    mesh = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 3)), (3, 4, 5, 0, 1, 2))
    node, other = new_coordinate(graph, mesh, 1), new_coordinate(graph, mesh, 0)
    assert [reads.args[1] for reads in (node, other)] == [1, 0]
    rank_map = getattr(graph, str(node.all_input_nodes[0].target))
    assert rank_map.tolist() == [[[3, 4, 5], [0, 1, 2]]]
    # Each rank's coordinates are unknowns of their own.
    symbol, of_other = (reads.meta["val"].node.expr for reads in (node, other))
    assert symbol.is_Symbol
    assert symbol != of_other
    assert not has_messages(graph)
    graph.graph.call_function(functional_collectives().isend.default, (node, 0, 0, "group"))
    assert has_messages(graph)
