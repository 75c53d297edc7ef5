"""What stands for a value says where it lies in memory: keys of parts that are proved once, and stored programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest
import torch

from tests.lowering.graphs import GraphBuilder
from tests.soundness.plain import verify_functions
from verifycompile import Report, Verdict
from verifycompile.certificate import check_certificate
from verifycompile.certificate.certificate import seal_of
from verifycompile.refinement.reading import Forms, Reading
from verifycompile.rewrites.building.numbers import Call

aten = torch.ops.aten

Graph = Callable[[GraphBuilder], torch.fx.Node]
"""Writes one graph; the node whose call is looked at."""


def relu_recorded_as(dtype: torch.dtype, shape: tuple[int, ...] = (4, 4)) -> Graph:
    def write(g: GraphBuilder) -> torch.fx.Node:
        node = g.call(aten.relu.default, g.input("x", torch.ones(shape)))
        node.meta["val"] = torch.ones(shape, dtype=dtype)
        return node

    return write


def product_of(first: torch.dtype) -> Graph:
    """A product that torch promotes: its own dtype is float64 in each case."""

    def write(g: GraphBuilder) -> torch.fx.Node:
        x, y = g.input("x", torch.ones(4, dtype=first)), g.input("y", torch.ones(4, dtype=torch.float64))
        return g.call(aten.mul.Tensor, x, y)

    return write


def negated(*dtypes: torch.dtype) -> Graph:
    def write(g: GraphBuilder) -> torch.fx.Node:
        items = [g.input(f"x{k}", torch.ones(4, dtype=dtype)) for k, dtype in enumerate(dtypes)]
        return g.call(aten._foreach_neg.default, items)

    return write


def read_through(lies: Callable[[torch.Tensor], torch.Tensor]) -> Graph:
    """The first 16 elements in memory, of a tensor computed from an input that lies as ``lies`` says."""

    def write(g: GraphBuilder) -> torch.fx.Node:
        x = g.call(aten.tanh.default, g.input("x", lies(torch.ones(4, 4))))
        return g.call(aten.as_strided.default, x, [16], [1], 0)

    return write


def later(lies: Callable[[torch.Tensor], torch.Tensor]) -> Graph:
    """The same of a view of an input, which may begin anywhere in memory."""

    def write(g: GraphBuilder) -> torch.fx.Node:
        return g.call(aten.as_strided.default, g.input("x", lies(torch.ones(2, 4, 4))), [16], [1])

    return write


DIFFERENT: dict[str, list[tuple[Graph, Graph]]] = {
    "dtypes": [(product_of(torch.float32), product_of(torch.float64))],
    "shape": [(relu_recorded_as(torch.float32), relu_recorded_as(torch.float32, (2, 8)))],
    "dtype": [(relu_recorded_as(torch.float32), relu_recorded_as(torch.bfloat16))],
    "elements": [(negated(torch.float32, torch.float32), negated(torch.float32, torch.bfloat16))],
    "memory": [
        (read_through(lambda x: x), read_through(lambda x: x.t())),
        (later(lambda x: x[0]), later(lambda x: x[1])),
    ],
}
"""Field of ``Call`` -> pairs of calls that differ in it."""


def test_every_field_of_a_call_has_an_example() -> None:
    assert set(DIFFERENT) == {field.name for field in dataclasses.fields(Call)}


@pytest.mark.parametrize(
    ("field", "first", "second"), [(field, *pair) for field, pairs in DIFFERENT.items() for pair in pairs]
)
def test_calls_that_differ_in_a_field_have_different_forms(field: str, first: Graph, second: Graph) -> None:
    forms = Forms()
    seen: list[tuple[object, int, int]] = []
    for write in (first, second, first):
        g = GraphBuilder()
        node = write(g)
        lowering = g.lower(node)
        seen.append((getattr(lowering.builder.call, field), *Reading(lowering, [node], forms).forms[-1:], id(g)))
    assert seen[0][0] == seen[2][0]
    assert seen[0][1] == seen[2][1]
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] != seen[1][1]


# ------------------------------------------------------------------------------------------------- programs

Read = Callable[[torch.Tensor], torch.Tensor]


def layered(layers: int, read: Read) -> Callable[[torch.Tensor], torch.Tensor]:
    """Layers that turn their input: its memory is that of the whole turned in every second one."""

    def program(x: torch.Tensor) -> torch.Tensor:
        out, x = torch.sin(x), torch.tanh(x)
        for _ in range(layers):
            x = torch.sin(torch.tanh(torch.exp(torch.cos(torch.sin(torch.tanh(x.t())) + 1.0) * 2)))
            out = out + torch.sigmoid(torch.exp(torch.sin(torch.tanh(read(x)))))
        return out

    return program


def in_memory(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((4, 4), (4, 1))


def turned(x: torch.Tensor) -> torch.Tensor:
    return x.t()


def verify_layers(layers: int, spec: Read, implementation: Read) -> Report:
    program = layered(layers, implementation)
    return verify_functions(layered(layers, spec), lambda _, x: program(x), (torch.randn(4, 4),))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("layers", [3, 7, 8, 9])
def test_a_layer_that_reads_other_memory_is_no_repetition(layers: int) -> None:
    x = torch.randn(4, 4)
    assert not torch.allclose(layered(layers, in_memory)(x), layered(layers, turned)(x))
    assert verify_layers(layers, turned, in_memory).verdict is Verdict.REFUTED


def by_layer(x: torch.Tensor) -> torch.Tensor:
    """What ``in_memory`` is: the strides are known while tracing."""
    return x if x.is_contiguous() else x.t()


@pytest.mark.parametrize("layers", [3, 7, 8, 9])
def test_layers_that_read_their_memory(layers: int) -> None:
    x = torch.randn(4, 4)
    assert torch.equal(layered(layers, in_memory)(x), layered(layers, by_layer)(x))
    assert verify_layers(layers, by_layer, in_memory), "the values in memory, written out"
    same = verify_layers(layers, in_memory, in_memory)
    assert same
    assert (same.stats.counts.memo > 0) is (layers > 3)


# ---------------------------------------------------------------------------------------------- certificates


def test_strides_are_part_of_a_certificate() -> None:
    report = verify_layers(2, by_layer, in_memory)
    assert report.certificate is not None
    text = report.certificate.to_json()
    assert check_certificate(text)
    data = json.loads(text)
    nodes = {node["name"]: node for node in data["implementation"]["nodes"]}
    node = next(node for node in nodes.values() if node.get("target") == "aten.as_strided.default")
    read = nodes[node["args"][0]["node"]]
    read = nodes[read.get("like", read["name"])]  # calls that are alike are written once
    assert read["value"]["stride"] == [1, 4]
    read["value"]["stride"] = [4, 1]
    assert not check_certificate(json.dumps({**data, "seal": seal_of(data)}))
