"""Certificates that record a number as another one than the program has: at the sizes that are tried, or read from data."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import verifycompile
from tests.attacks.test_certificates import Data, holds, proved_again
from verifycompile import check_certificate
from verifycompile.certificate.annotations import LARGEST_SIZE, choices_of
from verifycompile.certificate.certificate import seal_of
from verifycompile.certificate.storage import program_from_data

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


def test_no_factor_and_no_summand_of_a_size_is_said_to_be_positive() -> None:
    """A number that is another input, of which the largest of it and one is then the number itself."""
    x, whole = torch.randn(4, 6), '["symbol", "s30", "whole"]'
    spec, data = certified(lambda x, n: x * n, x, 3), certified(lambda x, n: x * torch.sym_max(n, 1), x, 3)
    assert accepted(spec, spec)
    for kind in ("Add", "Mul"):
        changed: list[Data] = []
        for text in map(json.dumps, (spec, data)):
            positive = text.replace(whole, whole.replace("whole", "size"))
            together = json.dumps([kind, SIZE, json.loads(whole.replace("whole", "size"))])
            changed.append(json.loads(positive.replace(json.dumps(SIZE), together)))
        _node(changed[1], "sym_max")["value"]["expression"] = json.loads(whole.replace("whole", "size"))
        assert not accepted(*changed)


def test_sizes_that_are_taken_to_be_even_or_equal_are_told() -> None:
    given = torch.randn(4, 6), torch.randn(5, 6)
    data = certified(lambda x, y: (x * (x.size(0) // 2 * 2), y * 1), *given)
    assert told(data) == ("y_1.size(1) is x_1.size(1)",)
    even = json.loads(json.dumps(data).replace(json.dumps(SIZE), json.dumps(["Mul", 2, SIZE])))
    for node in even["implementation"]["nodes"]:
        if "torch.FloorDiv" in json.dumps(node["value"]):
            factor = 2 if node["target"] == "_operator:mul" else 1
            node["value"]["expression"] = ["Mul", factor, SIZE] if factor > 1 else SIZE
    even["spec"]["nodes"] = even["implementation"]["nodes"]
    assert "x_1.size(0) is 2*s75" in told(even)
    other = next(node["value"]["shape"][0] for node in data["spec"]["nodes"] if node["name"] == "arg1_1")
    equal = json.loads(json.dumps(data).replace(json.dumps(other["expression"]), json.dumps(SIZE)))
    assert "y_1.size(0) is x_1.size(0)" in told(equal)


def told(data: Data) -> tuple[str, ...]:
    """What is said of sizes in a certificate that a forger proves again."""
    again = proved_again(data)
    assert again is not None
    found = check_certificate(json.dumps({**again, "seal": seal_of(again)}))
    assert found, found.reason
    return found.sizes


# ------------------------------------------------------------------------------------------------ behind other calls


@functools.cache
def _of_size() -> str:
    return json.dumps(certified(lambda x: x * x.size(0), torch.randn(4, 6)))


@functools.cache
def _of_another_number() -> str:
    """What is added to the size is zero at the sizes that are tried."""
    choices = itertools.islice(choices_of(program_from_data(json.loads(_of_size())["spec"])), 3)
    tried = [next(number for symbol, number in sizes.items() if str(symbol) == SIZE[1]) for sizes in choices]

    def hidden(x: torch.Tensor) -> torch.Tensor:
        return x * (x.size(0) + math.prod(x.size(0) - size for size in tried))

    return json.dumps(certified(hidden, torch.randn(4, 6)))


class Calls:
    """Calls in the way from a number to where it is used: of the size ``n``, or of one that only seems to be it.

    ``n`` and ``zero`` are operands, ``value`` what is known of the first one, ``none`` of the second.
    """

    def __init__(self, n: Any, value: Any, zero: Any, none: Any) -> None:
        self.n, self.value, self.zero, self.none = n, value, zero, none
        self.nodes: list[dict[str, Any]] = []

    def call(self, target: str, value: Any, *args: Any) -> Any:
        node = {"name": f"call_{len(self.nodes)}", "op": "call_function", "target": target, "args": [*args], "value": value}
        self.nodes.append(node)
        return {"node": node["name"]}

    def ones(self, *shape: Any, recorded: list[Any]) -> Any:
        return self.call("aten.full.default", _tensor(*recorded), [*shape], 1.0)

    def size_of(self, tensor: Any, dim: int = 0, value: Any = None) -> Any:
        return self.call("aten.sym_size.int", _number(SIZE) if value is None else value, tensor, dim)

    def with_size(self, zero: Any) -> Any:
        return self.call("_operator:add", _number(SIZE), {"node": "sym_size_int"}, zero)


def _number(expression: Any) -> Any:
    return expression if isinstance(expression, int) else {"number": "SymInt", "expression": expression}


def _tensor(*shape: Any) -> dict[str, Any]:
    strides = [1 if d == len(shape) - 1 else shape[d + 1] for d in range(len(shape))]
    return {"tensor": "torch.float32", "shape": [*map(_number, shape)], "stride": [*map(_number, strides)], "offset": 0}


def _item_of_a_list(c: Calls) -> Any:
    return c.call("_operator:getitem", _number(SIZE), [c.n], 0)


def _sum_of_a_list(c: Calls) -> Any:
    return c.call("torch:sym_sum", _number(SIZE), [c.n])


def _product_of_a_list(c: Calls) -> Any:
    return c.call("math:prod", _number(SIZE), [c.n])


def _number_of_an_unknown_number(c: Calls) -> Any:
    return c.call("_operator:add", _number(SIZE), c.call("_operator:floordiv", _number(SIZE), c.n, 1), 0)


def _pieces(c: Calls) -> Any:
    ones = c.ones(c.n, recorded=[c.value])
    piece = c.call("aten.split.Tensor", [_tensor(SIZE)], ones, c.n)
    return c.size_of(c.call("_operator:getitem", _tensor(SIZE), piece, 0))


def _one_piece(c: Calls) -> Any:
    ones = c.ones(c.n, recorded=[c.value])
    piece = c.call("aten.split.Tensor", [_tensor(c.value)], ones, c.n)
    return c.size_of(c.call("_operator:getitem", _tensor(SIZE), piece, 0))


def _one_of_several(c: Calls) -> Any:
    places = {**_tensor(c.value), "tensor": "torch.int64"}
    largest = c.call("aten.max.dim", {"tuple": [_tensor(c.value), places]}, c.ones(1, c.n, recorded=[1, c.value]), 0)
    return c.size_of(c.call("_operator:getitem", _tensor(SIZE), largest, 0))


def _beside_no_elements(c: Calls) -> Any:
    return c.size_of(c.ones(c.n, 0, recorded=[SIZE, 0]))


def _of_a_range(c: Calls) -> Any:
    found = c.call("aten.arange.start", _tensor(SIZE), 0.5, c.n)
    c.nodes[-1]["kwargs"] = {"dtype": {"torch": "torch.float32"}}
    return c.size_of(found)


def _of_an_unknown_tensor(c: Calls) -> Any:
    drawn = c.call("aten.rand.default", _tensor(SIZE), [c.n])
    return c.call("aten.sum.default", _tensor(), c.call("aten.ones_like.default", _tensor(SIZE), drawn))


def _no_elements(c: Calls) -> Any:
    none = c.call("aten.sum.default", _tensor(), c.ones(c.zero, recorded=[0]))
    return c.call("aten.add.Tensor", _tensor(), none, {"node": "sym_size_int"})


def _dimension(c: Calls) -> Any:
    size = c.size_of(c.ones(5, 7, recorded=[5, 7]), c.zero, 5)
    return c.with_size(c.call("_operator:sub", 0, size, 5))


def _longer(c: Calls, length: Any) -> tuple[Any, Any]:
    """A length and as much as it is longer, which is not negative."""
    more = 0 if c.none == 0 else ["Pow", c.none, 2]
    squared = c.call("_operator:mul", _number(more), c.zero, c.zero)
    value = length if more == 0 else ["Add", length, more]
    operand = {"node": "sym_size_int"} if length is SIZE else length
    return c.call("_operator:add", _number(value), operand, squared), value


def _slice_that_is_cut_off(c: Calls) -> Any:
    longer, value = _longer(c, 8)
    cut = c.call("aten.slice.Tensor", _tensor(value), c.ones(8, recorded=[8]), 0, 0, longer)
    return c.with_size(c.call("_operator:sub", 0, c.size_of(cut, 0, _number(value)), longer))


def _slice_of_a_size_that_is_cut_off(c: Calls) -> Any:
    longer, value = _longer(c, SIZE)
    ones = c.ones({"node": "sym_size_int"}, recorded=[SIZE])
    cut = c.call("aten.slice.Tensor", _tensor(value), ones, 0, 0, longer)
    return c.with_size(c.call("_operator:sub", 0, c.size_of(cut, 0, _number(value)), longer))


def _place_from_the_end(c: Calls) -> Any:
    longer, value = _longer(c, 0)
    before = c.call("_operator:neg", _number(0 if value == 0 else ["Mul", -1, value]), longer)
    size = {"node": "sym_size_int"}
    total = SIZE if value == 0 else ["Add", SIZE, value]
    part = c.call("aten.slice.Tensor", _tensor(total), c.ones(size, recorded=[SIZE]), 0, before, size)
    return c.call("_operator:sub", _number(SIZE), c.size_of(part, 0, _number(total)), longer)


REFUSED_TOO = {_of_a_range, _of_an_unknown_tensor}
"""Nothing computes their sizes again."""


@pytest.mark.parametrize(
    "hide",
    [
        _item_of_a_list, _sum_of_a_list, _product_of_a_list, _number_of_an_unknown_number, _pieces, _one_piece,
        _one_of_several, _beside_no_elements, _of_a_range, _of_an_unknown_tensor, _no_elements, _dimension,
        _slice_that_is_cut_off, _slice_of_a_size_that_is_cut_off, _place_from_the_end,
    ],
)  # fmt: skip
def test_no_call_hides_a_number_that_is_another_one(hide: Callable[[Calls], Any]) -> None:
    """What is recorded of a call is believed nowhere: not of lists, pieces, empty tensors, or what has no value."""
    spec, right, wrong = (json.loads(text) for text in (_of_size(), _of_size(), _of_another_number()))
    zero, n = [node for node in wrong["implementation"]["nodes"] if "number" in node["value"]][-2:]
    of_wrong = Calls({"node": n["name"]}, n["value"]["expression"], {"node": zero["name"]}, zero["value"]["expression"])
    of_right = Calls({"node": "sym_size_int"}, SIZE, 0, 0)
    for data, calls in ((wrong, of_wrong), (right, of_right)):
        found, nodes = hide(calls), data["implementation"]["nodes"]
        (place,) = (number for number, node in enumerate(nodes) if node.get("target") == "aten.mul.Tensor")
        nodes[place]["args"][1] = found
        nodes[place:place] = calls.nodes
        used = json.dumps(nodes)
        data["implementation"]["nodes"] = [m for m in nodes if m is not n or f'"node": "{n["name"]}"' in used]
    assert not accepted(spec, wrong)
    assert accepted(spec, right) is (hide not in REFUSED_TOO)
