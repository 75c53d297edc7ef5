"""Certificates forged where what they say is tried at some sizes alone, said by a table, or not of values at all."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor import Shard
from torch.fx.experimental.proxy_tensor import make_fx

from tests.attacks.test_certificates import text_of_ranks
from tests.certificate.test_certificate import sealed
from tests.certificate.test_forged import _proved_again
from tests.soundness.plain import all_reduce, verify_functions
from verifycompile import verify_graphs
from verifycompile.certificate import check_certificate
from verifycompile.certificate.annotations import Derived, Sizes, check_annotations
from verifycompile.certificate.storage import StorageError, program_from_data
from verifycompile.refinement.attempt import ClaimError

Data = dict[str, Any]


@pytest.mark.parametrize("dimension", [0, 1])
def test_a_coordinate_has_no_arguments(dimension: int) -> None:
    """A map of ranks by which it would be another one says nothing: the program's table says on which axis it is one."""
    data = json.loads(text_of_ranks("offsets by rank"))
    nodes = data["implementation"]["nodes"]
    (place,) = (k for k, node in enumerate(nodes) if "_runtime_compute_coordinate_on_dim" in str(node.get("target")))
    name = nodes[place]["name"]
    nodes[place]["args"] = [dimension]
    wanted = f"it holds what its programs do not need: the node `{name}`"
    assert check_certificate(sealed(data)).reason == wanted
    held = {"dtype": "torch.int32", "shape": [1, 2], "content": [0, 0]}
    value = {"tensor": "torch.int32", "shape": [1, 2], "stride": [2, 1], "offset": 0}
    nodes.insert(0, {"name": "ranks", "op": "get_attr", "constant": held, "value": value})
    nodes[place + 1]["args"] = [{"node": "ranks"}, dimension]
    assert check_certificate(sealed(data)).reason == wanted


def test_a_coordinate_that_is_another_number() -> None:
    data = json.loads(text_of_ranks("offsets by rank"))
    (place,) = (n for n in data["implementation"]["nodes"] if "_runtime_compute" in str(n.get("target")))
    place["value"]["expression"] = ["Add", 1, ["Mul", -1, place["value"]["expression"]]]
    assert not check_certificate(sealed(data))


def test_a_result_that_is_not_waited_for() -> None:
    """Its value would be right, and is undefined before the wait."""
    report = verify_functions(
        lambda a: a.sum(0),
        lambda mesh, a: all_reduce(a.sum(0), mesh),
        (torch.randn(4, 3),),
        in_placements={"a": (Shard(0),)},
    )
    assert report.certificate is not None
    data = json.loads(report.certificate.to_json())
    assert check_certificate(sealed(data))
    side = data["implementation"]
    (wait,) = (node for node in side["nodes"] if node.get("target") == "_c10d_functional.wait_tensor.default")
    side["nodes"].remove(wait)
    side["outputs"][0]["node"] = wait["args"][0]["node"]
    told = "`output.0` is the result of a collective before `wait_tensor`"
    assert check_certificate(sealed(data)).reason == told
    with pytest.raises(StorageError, match=told):
        _proved_again(data)


@pytest.mark.parametrize("placement", [["shard", 0, 1], ["partial", "sum"]])
def test_a_number_that_is_said_to_lie_on_the_mesh(placement: list[Any]) -> None:
    """It is the spec's own, and neither a part of it nor a summand, as the check would tell."""
    given = (torch.randn(4, 6), 3)
    graphs = [make_fx(lambda x, n: x * n, tracing_mode="symbolic")(*given) for _ in range(2)]
    certificate = verify_graphs(*graphs, mesh=(2,)).certificate
    assert certificate is not None
    data = json.loads(certificate.to_json())
    assert check_certificate(sealed(data))
    number = data["implementation"]["inputs"][1]
    number["placements"] = [placement]
    told = f"`{number['name']}` of the implementation is no tensor, and lies on a mesh or is a cotangent"
    assert check_certificate(sealed(data)).reason == told


Function = Callable[..., torch.Tensor]


def _convolved(convolution: Function, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """All elements times the size of the result of a convolution."""
    return x * convolution(x, w).size(2)


def _times_length(convolution: Function, *given: torch.Tensor) -> Data:
    graphs = [make_fx(functools.partial(_convolved, convolution), tracing_mode="symbolic")(*given) for _ in range(2)]
    certificate = verify_graphs(*graphs, mesh=(2,)).certificate
    assert certificate is not None
    return json.loads(certificate.to_json())


@pytest.mark.parametrize(
    ("function", "kernel"), [(functools.partial(F.conv_transpose1d, stride=2), (4, 5, 6)), (F.conv1d, (5, 4, 6))]
)
def test_a_convolution_that_is_recorded_longer_at_all_sizes_but_those_tried(
    function: Function, kernel: tuple[int, ...]
) -> None:
    """What is added is taken away again, and so the size that the convolution has would be another one than it has.

    Of the sizes that are drawn torch refuses those with a kernel that is longer than the line.
    """
    data = _times_length(function, torch.randn(3, 4, 9), torch.randn(*kernel))
    assert check_certificate(sealed(data))
    nodes = data["implementation"]["nodes"]
    (last,) = (k for k, node in enumerate(nodes) if node["name"] == "mul")
    size, convolution = (
        next(node for node in nodes if node["name"] == name) for name in ("sym_size_int", "convolution")
    )
    length = size["value"]["expression"]
    reach = nodes[1]["value"]["shape"][2]["expression"]
    tried = _tried(data, reach[1])
    differences = [["Add", reach, -number] for number in tried]
    none = ["Mul", *differences]
    added = _number(["Add", length, none])
    convolution["value"]["shape"][2] = size["value"] = added
    factors = [
        _call(f"less_{k}", "sub", {"node": "reach"}, number, is_now=differences[k]) for k, number in enumerate(tried)
    ]
    nodes[last:last] = [
        {**_call("reach", "sub", is_now=reach), "target": "aten.sym_size.int", "args": [{"node": nodes[1]["name"]}, 2]},
        *factors,
        _call("product", "mul", {"node": "less_0"}, {"node": "less_1"}, is_now=["Mul", *differences[:2]]),
        _call("none", "mul", {"node": "product"}, {"node": "less_2"}, is_now=none),
        _call("less", "sub", {"node": "sym_size_int"}, {"node": "none"}, is_now=length),
    ]
    nodes[-1]["args"][1] = {"node": "less"}
    with pytest.raises(ClaimError, match="no relation of"):
        _proved_again(data)
    assert not check_certificate(sealed(data))


def _tried(data: Data, name: str) -> list[int]:
    """What a size is when annotations are put to the test, where torch takes all calls."""
    found, run = list[int](), Derived.run

    def noted(derived: Derived, sizes: Sizes) -> None:
        run(derived, sizes)
        found.extend(number for symbol, number in sizes.items() if str(symbol) == name)

    with mock.patch.object(Derived, "run", noted):
        check_annotations(program_from_data(data["implementation"]))
    assert len(set(found)) == 3
    return found


def _number(expression: Any) -> Data:
    return {"number": "SymInt", "expression": expression}


def _call(name: str, operator: str, *args: Any, is_now: Any) -> Data:
    value = _number(is_now)
    return {"name": name, "op": "call_function", "target": f"_operator:{operator}", "args": list(args), "value": value}
