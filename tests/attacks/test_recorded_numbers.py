"""Certificates that record a number as another one than the program has: at the sizes that are tried, or read from data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import verifycompile
from tests.attacks.test_certificates import Data, holds, proved_again
from verifycompile.certificate.annotations import LARGEST_SIZE

SIZE = ["symbol", "s75", "size"]


def certified(function: Callable[..., Any], *given: Any, mode: Any = "symbolic") -> Data:
    """The certificate that a program equals itself."""
    graphs = (make_fx(function, tracing_mode=mode)(*given) for _ in range(2))
    certificate = verifycompile.verify_graphs(*graphs, mesh=(2,)).certificate
    assert certificate is not None
    return json.loads(certificate.to_json())


def accepted(spec: Data, implementation: Data) -> bool:
    """Whether the one is said to be the other, as it stands and as a forger proves it."""
    data = {**implementation, "spec": spec["spec"]}
    again = proved_again(data)
    return holds(data) or (again is not None and holds(again))


def _node(data: Data, name: str) -> dict[str, Any]:
    return next(node for node in data["implementation"]["nodes"] if node["name"] == name)


def test_a_quotient_that_is_rounded_is_not_exact() -> None:
    """Half of an odd size, rounded down, is recorded as half of it, which is no whole number."""
    x = torch.randn(4, 6)
    spec = certified(lambda x: x * x.size(0), x)
    data = certified(lambda x: x * (x.size(0) // 2) * 2, x)
    assert not accepted(spec, data)
    _node(data, "floordiv")["value"]["expression"] = ["Mul", ["rational", 1, 2], SIZE]
    assert not accepted(spec, data)


def test_numbers_that_are_equal_at_the_sizes_that_are_tried() -> None:
    """A product that is zero at all of them, which the program adds to a size."""
    x = torch.randn(4, 6)
    tried = range(2, LARGEST_SIZE + 1)

    def added(x: torch.Tensor) -> torch.Tensor:
        return x * (x.size(0) + math.prod(x.size(0) - size for size in tried))

    spec, data = certified(lambda x: x * x.size(0), x), certified(added, x)
    assert not accepted(spec, data)
    numbers = [node for node in data["implementation"]["nodes"] if "number" in node["value"]]
    numbers[-1]["value"]["expression"] = SIZE
    assert not accepted(spec, data)


def test_a_size_is_that_of_its_dimension() -> None:
    """Two sizes of which the product of differences is zero wherever they are tried."""
    x = torch.randn(4, 6)
    spec = certified(lambda x: x * x.size(0), x)
    data = certified(lambda x: x * (x.size(0) + math.prod(x.size(1) - size for size in range(2, 13))), x)
    first = next(node for node in data["implementation"]["nodes"] if node.get("target") == "aten.sym_size.int")
    for node in data["implementation"]["nodes"]:
        if "number" in node["value"] and node is not first:
            node["value"]["expression"] = SIZE if node.get("target") == "_operator:add" else node["value"]["expression"]
    assert not accepted(spec, data)


@pytest.mark.parametrize("value", [4, 4.0, True])
def test_a_number_that_is_read_from_a_tensor_is_no_constant(value: float) -> None:
    x, k = torch.randn(4, 6), torch.tensor(value)
    data = certified(lambda x, k: (x * float(value), k * 1), x, k, mode="real")
    assert accepted(data, data)
    read = {
        "name": "read",
        "op": "call_function",
        "target": "aten._local_scalar_dense.default",
        "args": [{"node": "arg1_1"}],
    }
    nodes = data["implementation"]["nodes"]
    place = next(number for number, node in enumerate(nodes) if node["name"] == "mul")
    nodes[place]["args"][1] = {"node": "read"}
    forged = {
        **data,
        "implementation": {
            **data["implementation"],
            "nodes": [*nodes[:place], {**read, "value": value}, *nodes[place:]],
        },
    }
    assert not accepted(data, forged)


def test_as_many_elements_as_are_not_zero() -> None:
    """Recorded as twelve of twenty-four, a tensor of ones for each of them adds up to a number."""
    x = torch.randn(4, 6)

    def counted(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return x * torch.full_like(k, 1.0, dtype=torch.float32).sum()

    data = certified(lambda x: x * 24.0, x, mode="real")
    implementation = certified(counted, x, torch.zeros(12, 2, dtype=torch.int64), mode="real")["implementation"]
    given = next(item for item in implementation["inputs"] if item["name"] == "k_1")
    node = next(node for node in implementation["nodes"] if node["name"] == given["node"])
    implementation["inputs"].remove(given)
    node |= {"op": "call_function", "target": "aten.nonzero.default", "args": [{"node": "arg0_1"}]}
    node["value"]["stride"] = [1, 12]
    next(n for n in implementation["nodes"] if n["name"] == "full_like")["value"]["stride"] = [1, 12]
    assert not accepted(data, {**data, "implementation": implementation})


@pytest.mark.parametrize("known", [{"even": True}, {"integer": True, "positive": True, "even": True}, "even"])
def test_what_is_known_of_a_symbol_is_told(known: object) -> None:
    data = certified(lambda x: x * x.size(0), torch.randn(4, 6))
    text = json.dumps(data)
    assert holds(data)
    assert not holds(json.loads(text.replace(json.dumps(SIZE), json.dumps([*SIZE[:2], known]))))


@pytest.mark.parametrize("kind", ["size", "coordinate"])
def test_a_number_among_the_inputs_is_not_said_to_be_positive(kind: str) -> None:
    data = certified(lambda x, n: x * n, torch.randn(4, 6), 3)
    text = json.dumps(data)
    whole = '["symbol", "s30", "whole"]'
    assert whole in text
    assert holds(data)
    assert not holds(json.loads(text.replace(whole, whole.replace("whole", kind))))
