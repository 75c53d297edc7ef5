"""What is read as a stored program, row by row: a program that is written as it was read, or why it is none."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import sympy

from tests.lemmas.conditions import Check
from verifycompile.certificate.storage import (
    StorageError,
    UnregisteredOperator,
    placements_from_data,
    program_from_data,
    require_needed,
    target_from_text,
    value_from_data,
)
from verifycompile.certificate.writing import (
    order_of,
    placements_to_data,
    program_to_data,
    target_to_text,
    value_to_data,
)
from verifycompile.torch_interface.operators.written_expressions import expression_to_data

Data = dict[str, Any]

F32 = {"tensor": "torch.float32", "shape": [4], "stride": [1], "offset": 0}
S, K, R = (expression_to_data(sympy.Symbol(name, integer=True, positive=True)) for name in "skr")


def _given(name: str) -> Data:
    return {"name": name, "op": "placeholder", "value": F32}


def _call(name: str, operand: str, **more: Any) -> Data:
    return {"name": name, "op": "call_function", "value": F32, "target": "aten.neg.default",
            "args": [{"node": operand}], **more}  # fmt: skip


def _input(name: str, **more: Any) -> Data:
    return {"node": name, "role": "input", "name": name, "placements": None, "global_shape": None, "assumed": False,
            "open_axes": [], **more}  # fmt: skip


def _output(name: str, **more: Any) -> Data:
    return {"node": name, "kind": "value", "name": "output.0", "placements": None, "open_axes": [], "outer_mean": [],
            "requires_grad": None, "global_shape": None, "global_stride": None, **more}  # fmt: skip


def program() -> Data:
    layout = {"placements": [["shard", 0, 1], ["partial", "sum"], ["replicate"]], "open_axes": [0]}
    constant = {"dtype": "torch.int64", "shape": [2], "content": [3, 4]}
    nodes = [
        _given("x"), _given("y"),
        {"name": "c", "op": "get_attr", "value": {**F32, "shape": [2]}, "constant": constant},
        {"name": "nothing", "op": "get_attr", "value": None, "constant": None},
        {"name": "group", "op": "call_function", "value": "", "target": "_c10d_functional.wait_tensor.default", "args": []},
        _call("first", "x"), {"name": "second", "like": "first", "operands": ["y"]},
        _call("square", "second", target="aten.mul.Tensor", args=[{"node": "second"}, {"node": "second"}]),
        _call("shifted", "square", target="aten.sub.Tensor", args=[{"node": "square"}, {"node": "first"}],
              kwargs={"alpha": 2}),
        {"names": [[1, "shifted_1"]], "count": 2, "like": "square", "operands": ["shifted", "y"]},
        _call("third", "second", target="aten.add.Tensor",
              args=[{"node": "second"}, {"node": "shifted_1"}], kwargs={"alpha": 2}),
        _call("sized", "third", target="_operator:add", args=[{"node": "third"}, {"node": "c"}]),
        _call("last", "sized", target="aten.add_.Tensor", args=[{"node": "sized"}, {"node": "nothing"}, {"node": "group"}]),
    ]  # fmt: skip
    return {
        "nodes": nodes,
        "inputs": [_input("x", **layout, global_shape=[4, S]), _input("y", role="parameter", assumed=True)],
        "outputs": [_output("last", **layout, global_shape=[4], global_stride=[1], outer_mean=[1])],
        "mesh": [["dp", 2], ["tp", 2], ["pp", 1]],
        "coordinates": [[R, 0]],
        "groups": {"group": [0]},
        "size_values": [[S, ["Mul", 2, K]]],
        "guards": [["GreaterThan", S, 3]],
        "assumptions": ["one"],
        "piecewise": True,
        "by_definition": True,
        "provenance": "given",
    }


def checks() -> Iterator[tuple[str, Check]]:
    yield "program", functools.partial(_is_read, program())
    without = {**program(), "mesh": None, "piecewise": False, "by_definition": False}
    yield "program without a mesh", functools.partial(_is_read, without)
    for number, (change, said) in enumerate(_programs()):
        data = copy.deepcopy(program())
        change(data)
        yield f"program {number}", functools.partial(_is_refused, program_from_data, data, said)
    for number, (change, said) in enumerate(_needed()):
        data = copy.deepcopy(program())
        change(data)
        yield f"needed {number}", functools.partial(_is_refused, _required, data, said)
    for number, value in enumerate(VALUES):
        yield f"value {number}", functools.partial(_is_value, value)
    for number, (data, said) in enumerate(NO_VALUES):
        yield f"no value {number}", functools.partial(_is_refused, lambda data: value_from_data(data, {}), data, said)
    for number, text in enumerate(("aten.neg.default", "_operator:add", "math:floor", "torch:sym_max")):
        yield f"target {number}", functools.partial(_is_target, text)
    yield "unregistered", _is_unregistered
    yield "no target", functools.partial(_is_refused, target_from_text, "os:system", "a call of `os:system`")
    for number, data in enumerate((None, [], [["shard", 1, 2]], [["partial", "max"], ["replicate"]])):
        yield f"placements {number}", functools.partial(_are_placements, data)
    for number, data in enumerate((["replicate", 1], ["shards", 0, 1], ["whole"])):
        yield (
            f"no placement {number}",
            functools.partial(_is_refused, placements_from_data, [data], f"no placement: {data}"),
        )


def _is_read(data: Data) -> None:
    found = program_from_data(data)
    require_needed(found)
    graph: Any = found.graph
    nodes = {node.name: node for node in graph.graph.nodes}
    blocks = {block.call.name: block for block in graph.blocks}
    assert blocks["second"].pattern is blocks["first"].pattern is nodes["first"]
    assert blocks["third"].pattern is nodes["third"]
    assert [len(block.sources) for block in blocks.values()] == [1, 1, 1, 1, 1, 2, 1, 1, 1]
    assert blocks["shifted"].operands == [nodes["square"], nodes["first"]]
    several = blocks["shifted_1"]
    assert several.operands == [nodes["shifted"], nodes["y"]]
    assert several.made == {1: nodes["shifted_1"]}
    assert nodes["shifted_1"].target == UnregisteredOperator("a call like another one")
    assert "square_of_shifted_1" not in nodes
    square, shifted = several.singles
    assert several.made == {0: square.call, 1: nodes["shifted_1"]}
    assert square.call.name == "square_of_shifted_1"
    assert square.call.args == (nodes["shifted"], nodes["shifted"])
    assert (square.pattern, shifted.pattern) == (nodes["square"], nodes["shifted"])
    assert shifted.call.args == (square.call, nodes["y"])
    assert shifted.call.kwargs == {"alpha": 2}
    assert shifted.call.target is nodes["shifted"].target
    assert several.singles[0] is square
    assert blocks["first"].singles == (blocks["first"],)
    require_needed(found)
    assert json.loads(json.dumps(program_to_data(found, *order_of(graph)))) == data
    assert nodes["second"].meta["val"] is nodes["first"].meta["val"] is nodes["x"].meta["val"]
    assert graph.constant_c.tolist() == [3, 4]
    assert graph.constant_nothing is None
    assert [type(size) for size in found.outputs[0].global_shape or ()] == [int]


def _is_refused(read: Callable[[Any], object], data: Any, said: str) -> None:
    try:
        read(data)
    except StorageError as error:
        found = str(error)
    else:
        found = ""
    assert found == said, (found, said)


def _required(data: Data) -> None:
    require_needed(program_from_data(data))


def _is_value(data: Any) -> None:
    assert value_to_data(value_from_data(data, {})) == data


def _is_target(text: str) -> None:
    found = target_from_text(text)
    assert callable(found)
    assert target_to_text(found).partition(":")[2] in text


def _is_unregistered() -> None:
    for name in ("own.operator.default", "aten.own.default"):
        assert target_from_text(name) == UnregisteredOperator(name)


def _are_placements(data: Any) -> None:
    assert placements_to_data(placements_from_data(data)) == data


VALUES: tuple[Any, ...] = (
    None, True, 3, "text", 0.5, [1, [2]], {"float": "inf"}, {"float": "-inf"}, {"complex": [1.0, 2.0]},
    {"tuple": [1, {"tuple": []}]}, F32, {"tensor": "torch.int64", "shape": [2]}, {"expression": S},
    {"number": "SymInt", "expression": S}, {"number": "SymFloat", "expression": S}, {"torch": "torch.float32"},
    {"torch": "torch.strided"}, {"torch": "torch.contiguous_format"}, {"device": "cpu"}, {"slice": [None, 1, None]},
    {"object": "DeviceMesh"}, {"tensor": "torch.float32", "shape": [{"number": "SymInt", "expression": S}],
                               "stride": [1], "offset": {"number": "SymInt", "expression": S}},
)  # fmt: skip

_UNREAD = "it holds what its programs do not need: `more`"

NO_VALUES: tuple[tuple[Any, str], ...] = (
    ({**F32, "more": 1}, _UNREAD),
    ({"tensor": "torch.float32", "shape": [4], "more": 1}, _UNREAD),
    ({"tensor": "torch.float32", "shape": [4], "stride": [1]}, "it holds what its programs do not need: `stride`"),
    ({"number": "SymInt", "expression": S, "more": 1}, _UNREAD),
    ({"tensor": "torch.strided", "shape": [4]}, "`torch.strided` is not what is read of torch here"),
    ({"torch": "torch.nn"}, "`torch.nn` is not what is read of torch here"),
    ({"unknown": 1}, "a value of kind `unknown`"),
)


def _programs() -> Iterator[tuple[Callable[[Data], object], str]]:
    wrong = "no stored program: StorageError: "
    unread = f"{wrong}{_UNREAD}"
    yield lambda d: d.update(more=1), unread
    places = (("nodes", 0), ("nodes", 2), ("nodes", 4), ("nodes", 6), ("nodes", 9), ("inputs", 0), ("outputs", 0))
    for name, place in places:
        yield lambda d, name=name, place=place: d[name][place].update(more=1), unread
    yield lambda d: d["nodes"][2]["constant"].update(more=1), unread
    yield lambda d: d["nodes"][1].update(constant=None), f"{wrong}it holds what its programs do not need: `constant`"
    yield lambda d: d["nodes"][1].update(op="call_module"), f"{wrong}a graph node of kind `call_module`"
    yield lambda d: d["nodes"].append(_call("x", "y")), f"{wrong}two nodes are called `x`"
    yield (
        lambda d: d["nodes"].append({"name": "x", "like": "first", "operands": ["y"]}),
        f"{wrong}two nodes are called `x`",
    )
    yield lambda d: d["nodes"].append(_call("x y", "y")), f"{wrong}two nodes are called `x y`"
    yield lambda d: d["coordinates"][0].__setitem__(0, 3), f"{wrong}3 is no symbol"
    for key in ("mesh", "nodes", "provenance", "guards"):
        yield lambda d, key=key: d.pop(key), f"no stored program: KeyError: '{key}'"
    for operands in (["y", "x"], []):
        yield (
            lambda d, operands=operands: d["nodes"][6].update(operands=operands),
            f"{wrong}calls take more or less than those that they are like",
        )
    yield lambda d: d["nodes"][6].update(like="third"), "no stored program: KeyError: 'third'"
    for operands in (["shifted", "y", "x"], ["shifted"]):
        yield (
            lambda d, operands=operands: d["nodes"][9].update(operands=operands),
            f"{wrong}calls take more or less than those that they are like",
        )
    unread_name = f"{wrong}it holds what its programs do not need: `name`"
    yield lambda d: d["nodes"][9].update(name="square_1"), unread_name
    for count in (0, -1, 99):
        more = {"names": [[0, "more"]], "count": count, "like": "square", "operands": ["shifted", "y"]}
        yield lambda d, more=more: d["nodes"].append(more), f"{wrong}more calls are like others than there are"
    more = {"names": [[2, "more"]], "count": 2, "like": "square", "operands": ["shifted", "y"]}
    yield lambda d: d["nodes"].append(more), "no stored program: IndexError: list index out of range"
    yield lambda d: d["nodes"][9].update(names=[]), "no stored program: KeyError: 'name'"
    yield (
        lambda d: d["nodes"][9].update(names=[[1, "more"], [1, "shifted_1"]]),
        f"{wrong}more calls are like others than there are",
    )
    yield lambda d: d["nodes"][9].update(names=[[1, "x"]]), f"{wrong}two nodes are called `x`"
    none = f"{wrong}no group is like another call"
    yield lambda d: d["nodes"].append({"name": "more", "like": "group", "operands": []}), none
    for name in ("second", "shifted_1", "shifted"):
        yield lambda d, name=name: d["groups"].update({name: [0]}), none
    yield lambda d: d["nodes"].append({"name": "more", "like": "x", "operands": []}), "no stored program: KeyError: x"


def _needed() -> Iterator[tuple[Callable[[Data], object], str]]:
    def told(name: str) -> str:
        return f"it holds what its programs do not need: the node `{name}`"

    yield lambda d: d["nodes"].append(_call("more", "x")), told("more")
    yield lambda d: d["nodes"].append(_given("more")), told("more")
    yield lambda d: d["nodes"].append({"name": "more", "op": "get_attr", "value": None, "constant": None}), told("more")
    yield lambda d: d["nodes"][9].update(names=[[0, "square_1"], [1, "shifted_1"]]), told("square_1")

    def inner(data: Data) -> None:
        data["nodes"][9].update(names=[[0, "square_1"]])
        data["nodes"][10]["args"][1]["node"] = "square_1"

    yield inner, told("shifted")
    yield lambda d: d["nodes"][4].update(args=[1]), told("group")
    yield lambda d: d["nodes"][4].update(kwargs={"name": 1}), told("group")

    def with_place(data: Data, *args: Any) -> None:
        target = "device_mesh._runtime_compute_coordinate_on_dim.default"
        place = {"name": "place", "op": "call_function", "target": target, "args": list(args)}
        data["nodes"].insert(4, {**place, "value": {"number": "SymInt", "expression": R}})
        data["nodes"][-1]["args"].append({"node": "place"})

    yield with_place, ""
    yield lambda d: with_place(d, 0), told("place")
    yield lambda d: with_place(d, {"node": "c"}, 0), told("place")
