"""Certificates of programs that repeat themselves: parts that are alike are checked once, and nothing more is shared.

What is attacked is the sharing: a layer of other operands, memory, dtype or constants than the one that it is said to be
like, ends of parts at every place, outputs of one layer exchanged for those of another one.
"""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard
from torch.fx.experimental.proxy_tensor import make_fx

from tests.certificate.test_certificate import of_case, sealed
from tests.programs import llama
from verifycompile.certificate import Certificate, CertificateCheck, check_certificate
from verifycompile.certificate.parts import Side
from verifycompile.certificate.storage import Block
from verifycompile.frontends.graphs import verify_graphs
from verifycompile.lowering.lower import Lowering
from verifycompile.torch_interface.operators.derivation import Derivation

LAYERS = 5
RANKS = 2
ROWS, WIDTH = 4, 4

collective = torch.ops._c10d_functional
Layer = Callable[[Tensor, Tensor], Tensor]


def plain(x: Tensor, w: Tensor) -> Tensor:
    return x + torch.tanh(x @ w) * torch.sigmoid(x * 3) + torch.exp(torch.sin(x))


def traced(layer: Layer, ranks: int, layers: int = LAYERS) -> torch.fx.GraphModule:
    """The value of all layers, and the gradients of its sum for the input and for all weights, those of all rows."""

    def run(x: Tensor, *weights: Tensor) -> list[Tensor]:
        inputs = [x, *weights]
        for weight in weights:
            x = layer(x, weight)
        with torch.enable_grad():
            found = list(torch.autograd.grad(x.sum(), inputs))
        if ranks > 1:
            found[1:] = [collective.wait_tensor(collective.all_reduce(g, "sum", "group")) for g in found[1:]]
        return [x, *found]

    x = torch.randn(ROWS // ranks, WIDTH, requires_grad=True)
    return make_fx(run, tracing_mode="fake")(x, *(torch.randn(WIDTH, WIDTH, requires_grad=True) for _ in range(layers)))


def certificate(layer: Layer, layers: int = LAYERS) -> str:
    spec, implementation = traced(layer, 1, layers), traced(layer, RANKS, layers)
    x, *weights = [node.name for node in implementation.graph.find_nodes(op="placeholder")]
    report = verify_graphs(
        spec,
        implementation,
        {x: (Shard(0),), **dict.fromkeys(weights, (Replicate(),))},
        {f"output.{k}": (Shard(0),) if k < 2 else (Replicate(),) for k in range(layers + 2)},
        mesh={"dp": RANKS},
        groups={"group": tuple(range(RANKS))},
    )
    assert report.certificate is not None, str(report)
    return report.certificate.to_json()


@functools.cache
def text_of(name: str) -> str:
    if name == "llama":
        report = of_case(llama.case(RANKS, layers=4))
        assert report.certificate is not None, str(report)
        return report.certificate.to_json()
    return certificate({"plain": plain, "memory": in_memory}[name])


def written(name: str) -> dict[str, Any]:
    return json.loads(json.dumps(Certificate.from_json(text_of(name)).data))


def content(name: str) -> dict[str, Any]:
    """What was written, with each call by itself where several are like several others."""
    data = written(name)
    for side in ("spec", "implementation"):
        data[side]["nodes"] = list(_one_by_one(data[side]["nodes"]))
    return data


def _one_by_one(nodes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    calls: dict[str, tuple[str, list[str]]] = {}
    for node in nodes:
        if "like" not in node and node["op"] != "call_function":
            yield node
            continue
        if "count" not in node:
            taken = node["operands"] if "like" in node else list(_operands([node["args"], node.get("kwargs")]))
            calls[node["name"]] = node.get("like", node["name"]), taken
            yield node
            continue
        start = list(calls).index(node["like"])
        sources = dict(itertools.islice(calls.items(), start, start + node["count"]))
        outside = dict.fromkeys(o for _, operands in sources.values() for o in operands if o not in sources)
        first = node["names"][0][1]
        names = {place: f"{source}_of_{first}" for place, source in enumerate(sources)} | dict(node["names"])
        stands_for = dict(zip([*outside, *sources], [*node["operands"], *names.values()], strict=True))
        for name, (like, operands) in zip(names.values(), sources.values(), strict=True):
            calls[name] = like, [stands_for[operand] for operand in operands]
            yield {"name": name, "like": like, "operands": calls[name][1]}


def _operands(data: Any) -> dict[str, None]:
    if isinstance(data, dict):
        return {data["node"]: None} if data.keys() == {"node"} else _operands(list(data.values()))
    return {o: None for item in data for o in _operands(item)} if isinstance(data, list) else {}


def test_calls_one_by_one_say_the_same() -> None:
    for name in ("plain", "memory", "llama"):
        several = [node for side in ("spec", "implementation") for node in written(name)[side]["nodes"] if "count" in node]
        assert len(several) >= 4
        assert all(len(node["names"]) < node["count"] for node in several)
        assert str(check_certificate(sealed(content(name)))) == str(check_certificate(text_of(name)))


def in_memory(x: Tensor, w: Tensor) -> Tensor:
    """What is added is read in the order in which a tensor of the layer lies in memory."""
    inner = torch.sin(torch.tanh(x @ w) * torch.sigmoid(x))
    return x + torch.as_strided(inner, (inner.shape[1], inner.shape[0]), (1, inner.shape[1])).t() * torch.exp(x)


# ------------------------------------------------------------------------------------------------ what is shared


@pytest.mark.parametrize("name", ["plain", "memory", "llama"])
def test_layers_are_lowered_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the ends of parts every call is."""
    lowered: list[str] = []
    original = Lowering._lower_node

    def counted(self: Lowering, node: torch.fx.Node) -> None:
        lowered.append(node.name)
        original(self, node)

    data = content(name)
    assert sum(alike for phase in data["parts"].values() for _, _, alike in phase) >= LAYERS
    monkeypatch.setattr(Lowering, "_lower_node", counted)
    found = check_certificate(text_of(name))
    assert found, str(found)
    in_parts = len(lowered)
    whole = {**data, "parts": {"forward": [], "backward": []}}
    check_certificate(sealed(whole))
    assert in_parts < (len(lowered) - in_parts) * 0.7


def test_another_layer_takes_no_more_than_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither steps, nor calls that are lowered or looked up, nor nodes but those that others take, nor calls of torch."""
    made: list[str] = []
    lower, derive, node, look_up = Lowering._lower_node, Derivation.call, torch.fx.Graph.create_node, Side.lower

    def lowered(self: Lowering, node: torch.fx.Node) -> None:
        made.append(f"lowered {node.op}")
        lower(self, node)

    def derived(self: Derivation, target: Any, args: Any, kwargs: Any) -> Any:
        made.append("derived")
        return derive(self, target, args, kwargs)

    def created(self: torch.fx.Graph, op: str, *args: Any, **kwargs: Any) -> torch.fx.Node:
        made.append(f"created {op}")
        return node(self, op, *args, **kwargs)

    def looked_up(self: Side, block: Block) -> None:
        made.append("looked up")
        look_up(self, block)

    texts = [certificate(plain, layers) for layers in (8, 6)]
    monkeypatch.setattr(Lowering, "_lower_node", lowered)
    monkeypatch.setattr(Derivation, "call", derived)
    monkeypatch.setattr(torch.fx.Graph, "create_node", created)
    monkeypatch.setattr(Side, "lower", looked_up)
    counts: list[collections.Counter[str]] = []
    for text in texts:
        made.clear()
        assert check_certificate(text)
        counts.append(collections.Counter(made))
    deep, shallow = map(json.loads, texts)
    assert len(deep["steps"]) == len(shallow["steps"])
    assert len(deep["views"]) == len(shallow["views"])
    for what in ("derived", "lowered call_function"):
        assert counts[0][what] == counts[1][what] > 0
    several, named = (
        [
            sum(measure(item) for side in ("spec", "implementation") for item in data[side]["nodes"] if "count" in item)
            for data in (deep, shallow)
        ]
        for measure in (lambda item: 1, lambda item: len(item["names"]))
    )
    assert counts[0]["looked up"] - counts[1]["looked up"] == several[0] - several[1] > 0
    assert counts[0]["created call_function"] - counts[1]["created call_function"] == named[0] - named[1] > 0


# ------------------------------------------------------------------------------------------------ attacks


def rejected(data: dict[str, Any]) -> str:
    found = check_certificate(sealed(data))
    assert not found
    return found.reason


def alike(data: dict[str, Any], side: str = "implementation") -> list[dict[str, Any]]:
    return [node for node in data[side]["nodes"] if "like" in node]


@pytest.mark.parametrize("name", ["plain", "llama"])
def test_a_layer_is_like_another_one_than_it_is(name: str) -> None:
    """Of calls that are like several others: others that they are like, other operands, one call more or less."""
    data, draw, tried = written(name), random.Random(0), 0
    for side in ("spec", "implementation"):
        nodes = data[side]["nodes"]
        singles = [n["name"] for n in nodes if n.get("op") == "call_function"]
        for node in draw.sample([n for n in nodes if "count" in n], 3):
            before = dict(node)
            own, names = node["operands"], node["names"]
            outside = next(place for place in range(node["count"]) if place not in dict(names))
            other = draw.choice([n for n in nodes if "count" in n and n["like"] != node["like"]])
            for change in (
                {"like": draw.choice([name for name in singles if name != node["like"]])},
                {"operands": [own[-1], *own[1:-1], own[0]]},
                {"operands": [draw.choice(own[1:]), *own[1:]]},
                {"count": node["count"] - 1},
                {"count": node["count"] + 1},
                {"names": names[:-1]},
                {"names": [*names, [outside, "more"]]},
                {"names": [[outside, names[0][1]], *names[1:]]},
                {"names": [[names[-1][0], names[0][1]], *names[1:-1], [names[0][0], names[-1][1]]]},
                {"names": [*names[:-1], [names[-1][0], names[0][1]]]},
                {name: other[name] for name in ("like", "count", "operands")},
            ):
                node.update(change)
                if node != before:
                    tried += 1
                    assert rejected(data), change
                node.update(before)
    assert tried >= 50
    assert check_certificate(sealed(data))


@pytest.mark.parametrize("name", ["plain", "memory"])
@pytest.mark.parametrize("side", ["spec", "implementation"])
def test_a_layer_that_takes_what_another_one_takes(name: str, side: str) -> None:
    """One operand of one call is that of a call that it is like, of another layer."""
    draw, tried = random.Random(0), 0
    for _ in range(12):
        data = content(name)
        node = draw.choice(alike(data, side))
        before = data[side]["nodes"][: data[side]["nodes"].index(node)]
        same = [n for n in before if n.get("like") == node["like"]]
        others = [(k, n["operands"][k]) for n in same for k, o in enumerate(node["operands"]) if n["operands"][k] != o]
        if not others:
            continue
        position, taken = draw.choice(others)
        node["operands"][position] = taken
        tried += 1
        assert rejected(data), node
    assert tried >= 4


@pytest.mark.parametrize("name", ["plain", "llama"])
def test_gradients_of_two_layers_are_exchanged(name: str) -> None:
    """Within their parts both are the same expression of what the part takes."""
    data = content(name)
    outputs = [o for o in data["implementation"]["outputs"] if o["name"].startswith(("output.", "grad."))]
    shapes: dict[str, list[Any]] = {}
    nodes = {node["name"]: node for node in data["implementation"]["nodes"]}
    for output in outputs:
        node = nodes[output["node"]]
        shapes.setdefault(node.get("like", node["name"]), []).append(output)
    tried = 0
    for same in shapes.values():
        for first, second in itertools.pairwise(same):
            if first["placements"] != second["placements"] or tried == 4:
                continue
            first["node"], second["node"] = second["node"], first["node"]
            tried += 1
            assert rejected(data).startswith(("no relation of", "it holds what"))
            first["node"], second["node"] = second["node"], first["node"]
    assert tried >= 3
    assert check_certificate(sealed(data))


def test_a_call_is_like_another_one() -> None:
    """Every call that is like some call, as like another call of as many operands."""
    data, draw, tried = content("plain"), random.Random(0), 0
    patterns = {n["name"]: n for n in data["implementation"]["nodes"] if n.get("op") == "call_function"}
    counts = {n["like"]: len(n["operands"]) for n in alike(data)}
    for node in draw.sample(alike(data), 12):
        others = [
            name for name, count in counts.items()
            if count == len(node["operands"]) and patterns[name]["target"] != patterns[node["like"]]["target"]
        ]  # fmt: skip
        if not others:
            continue
        before, node["like"] = node["like"], draw.choice(others)
        tried += 1
        assert rejected(data), node
        node["like"] = before
    assert tried >= 5


def test_what_is_like_nothing() -> None:
    data = content("plain")
    node = alike(data)[0]
    names = [n["name"] for n in data["implementation"]["nodes"]]
    for like in (node["name"], names[-1], names[0], "nothing"):
        assert rejected({**data, "implementation": {**data["implementation"], "nodes": [
            {**n, "like": like} if n is node else n for n in data["implementation"]["nodes"]]}})  # fmt: skip
    for operands in ([], [*node["operands"], node["operands"][0]], [node["operands"][0]] * len(node["operands"])):
        if operands != node["operands"]:
            assert rejected({**data, "implementation": {**data["implementation"], "nodes": [
                {**n, "operands": operands} if n is node else n for n in data["implementation"]["nodes"]]}})  # fmt: skip


def test_operands_that_lie_otherwise_in_memory() -> None:
    """What a call reads through memory is another value where its operand lies otherwise, also in a later layer."""
    data = content("memory")
    reads = [n for n in data["implementation"]["nodes"] if n.get("target") == "aten.as_strided.default"]
    nodes = {n["name"]: n for n in data["implementation"]["nodes"]}
    later = next(n for n in alike(data) if n["like"] == reads[0]["name"])
    assert later["name"] not in {n["name"] for n in reads}
    read = nodes[later["operands"][0]]
    pattern = nodes[read["like"]]
    own = {**{key: part for key, part in pattern.items() if key != "name"}, "name": read["name"]}
    own["args"] = _with_operands(pattern, read["operands"])
    own["value"] = {**own["value"], "stride": own["value"]["stride"][::-1]}
    nodes_now = [own if n is read else n for n in data["implementation"]["nodes"]]
    forged = {**data, "implementation": {**data["implementation"], "nodes": nodes_now}}
    assert "lies otherwise in memory" in rejected(forged)


def test_an_operand_of_another_dtype() -> None:
    """A cast is an identity, so the value is the same one; what is recorded is not."""
    data = content("plain")
    nodes = data["implementation"]["nodes"]
    node = next(n for n in reversed(alike(data)) if len(n["operands"]) == 1)
    held = next(n for n in nodes if n["name"] == node["operands"][0])
    pattern = next(n for n in nodes if n["name"] == held.get("like", held["name"]))
    cast = {
        "name": "cast", "op": "call_function", "target": "aten._to_copy.default", "args": [{"node": held["name"]}],
        "kwargs": {"dtype": {"torch": "torch.float64"}}, "value": {**pattern["value"], "tensor": "torch.float64"},
    }  # fmt: skip
    position = nodes.index(node)
    forged = [*nodes[:position], cast, {**node, "operands": ["cast"]}, *nodes[position + 1 :]]
    assert "is recorded as" in rejected({**data, "implementation": {**data["implementation"], "nodes": forged}})


def _with_operands(pattern: dict[str, Any], operands: list[str]) -> Any:
    names: list[str] = []
    for argument in pattern["args"]:
        if isinstance(argument, dict) and "node" in argument and argument["node"] not in names:
            names.append(argument["node"])
    replaced = dict(zip(names, operands, strict=True))
    return [{"node": replaced[a["node"]]} if isinstance(a, dict) and "node" in a else a for a in pattern["args"]]


# ------------------------------------------------------------------------------------------------ ends of parts


def _held_or_rejected(data: dict[str, Any], before: CertificateCheck) -> bool:
    """Where parts end decides nothing: a certificate with other ends says the same, or nothing."""
    found = check_certificate(sealed(data))
    assert not found or str(found) == str(before)
    return bool(found)


def test_other_ends_of_parts() -> None:
    data, draw = content("plain"), random.Random(0)
    before = check_certificate(text_of("plain"))
    for _ in range(6):
        other = copy.deepcopy(data)
        end = draw.choice([*other["parts"]["forward"], *other["parts"]["backward"]])
        end[draw.randrange(2)] += draw.choice([1, -1, 3, -2])
        _held_or_rejected(other, before)
    for phase in ("forward", "backward"):
        other = copy.deepcopy(data)
        for end in other["parts"][phase]:
            end[2] = True
        _held_or_rejected(other, before)
        del other["parts"][phase][-1:]
        _held_or_rejected(other, before)


@pytest.mark.parametrize(
    "end", [[-1, 0, True], [0, 10**9, True], [1.5, 2, True], [True, True, True], ["1", "2", True], [1]]
)
def test_ends_that_are_none(end: list[Any]) -> None:
    data = content("plain")
    for phase in ("forward", "backward"):
        assert rejected({**data, "parts": {**data["parts"], phase: [end, *data["parts"][phase]]}})
        assert rejected({**data, "parts": {**data["parts"], phase: [*data["parts"][phase], end]}})


def test_parts_that_are_not_in_order() -> None:
    data = content("plain")
    forward = data["parts"]["forward"]
    assert rejected({**data, "parts": {**data["parts"], "forward": forward[::-1]}}) == "its parts are not in order"
    assert rejected({**data, "parts": {"forward": data["parts"]["backward"], "backward": forward}})
    assert rejected({**data, "parts": {**data["parts"], "sideways": []}})
