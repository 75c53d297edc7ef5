"""Calls without a declaration are lowered by torch's decomposition, and named where that is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.lowering.graphs import GraphBuilder, blockers
from verifycompile.ir.term import TermPool
from verifycompile.lowering import unfolding
from verifycompile.lowering.unfolding import UNFOLDED
from verifycompile.refinement.placement import same_value
from verifycompile.rewrites.operations import UNKNOWN
from verifycompile.torch_interface.operators import decompositions
from verifycompile.torch_interface.operators.decompositions import Decomposition

aten = torch.ops.aten
REFUSED = "operator `{}` has no declaration, and torch's decomposition of it is refused: "
X = torch.arange(12.0).reshape(3, 4)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompositions, "_known", {})


Pair = tuple[torch.fx.Node, torch.fx.Node]


def unfolded_and_by_hand(g: GraphBuilder) -> Pair:
    x, y = g.input("x", X), g.input("y", X + 1)
    unfolded = g.call(aten.rrelu_with_noise_backward.default, x, y, y, 0.25, 0.75, False, False)
    return unfolded, g.call(aten.leaky_relu_backward.default, x, y, 0.5, False)


def second_of_several_results(g: GraphBuilder) -> Pair:
    v = g.input("v", X)
    pair = g.call(aten._weight_norm_interface.default, v, g.input("g", X[:, :1]), 0)
    return g.item(pair, 1), g.call(aten.linalg_vector_norm.default, v, 2, [1], True)


def refused_by_its_declaration(g: GraphBuilder) -> Pair:
    x = g.input("x", X)
    return g.item(g.call(aten.chunk.default, x, 2), 0), g.call(aten.slice.Tensor, x, 0, 0, 2)


@pytest.mark.parametrize("write", [unfolded_and_by_hand, second_of_several_results, refused_by_its_declaration])
def test_a_call_is_what_torch_decomposes_it_into(write: Callable[[GraphBuilder], Pair]) -> None:
    g = GraphBuilder()
    nodes = write(g)
    lowering = g.lower(*nodes)
    assert blockers(lowering) == []
    left, right = (lowering.view(node) for node in nodes)
    assert left is not None
    assert right is not None
    assert same_value(left, right)
    assert set(lowering.values) <= set(lowering.program.graph.graph.nodes)
    assert list(lowering.pool.assumptions) == []


def test_the_casts_of_a_decomposition_are_those_of_the_call() -> None:
    g = GraphBuilder()
    node = g.call(aten._euclidean_dist.default, x := g.input("x", X), x)
    low = g.call(aten.special_spherical_bessel_j0.default, x)
    half = g.call(aten.rrelu_with_noise_backward.default, *[g.input("h", X.bfloat16())] * 3, 0.25, 0.75, False, False)
    lowering = g.lower(node, low, half)
    assert blockers(lowering) == []
    assert set(lowering.casts.values()) <= {node, low, half}


@pytest.mark.parametrize("as_recorded", [False, True])
def test_a_result_other_than_recorded(as_recorded: bool) -> None:
    g = GraphBuilder()
    node = g.call(aten._euclidean_dist.default, x := g.input("x", X), x)
    if not as_recorded:
        node.meta["val"] = torch.ones(3, 4)
    refusal = "it gives float32[3, 3] where torch recorded float32[3, 4]"
    message = REFUSED.format("aten._euclidean_dist.default") + refusal
    assert blockers(g.lower(node)) == ([] if as_recorded else [("_euclidean_dist_default", "VC201", message)])


def test_an_operator_that_is_refused_within_is_named() -> None:
    g = GraphBuilder()
    lowering = g.lower(node := g.call(aten.empty_like.default, g.input("x", X)))
    assert blockers(lowering) == [
        (
            "empty_like_default",
            "VC201",
            f"{REFUSED.format('aten.empty_like.default')}operator `aten.empty_permuted.default` has no declaration",
        )
    ]
    view = lowering.view(node)
    assert view is not None
    assert view.term.operation is UNKNOWN


def test_what_both_refuse_is_refused_for_the_reason_of_the_declaration() -> None:
    g = GraphBuilder()
    node = g.call(aten.histc.default, g.input("x", X), 4)
    message = "histc between the smallest and the largest element"
    assert blockers(g.lower(node)) == [("histc_default", "VC202", message)]


def test_a_decomposition_that_calls_its_operator_again(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = aten.rrelu_with_noise_backward.default
    graph = make_fx(lambda x: [operator(x, x, x, 0.25, 0.75, False, False)])(X)
    placeholder, call, end = graph.graph.nodes
    for node in (placeholder, call):
        node.meta["val"] = X
    cyclic = Decomposition(graph, (placeholder,) * 3, (call,), end.args[0], {}, lambda _: True)
    monkeypatch.setattr(unfolding, "decompose", lambda *_: cyclic)
    g = GraphBuilder()
    x = g.input("x", X)
    node = g.call(operator, x, x, x, 0.25, 0.75, False, False)
    message = f"{REFUSED.format(operator)}operator `{operator}` has no declaration"
    assert blockers(g.lower(node)) == [(node.name, "VC201", message)]


def test_what_was_not_compared_on_numbers_is_an_assumption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompositions, "_compared", lambda *_: False)
    g = GraphBuilder()
    x = g.input("x", X)
    pool = TermPool()
    lowering = g.lower(g.call(aten.rrelu_with_noise_backward.default, x, x, x, 0.1, 0.3, False, False), pool=pool)
    assert blockers(lowering) == []
    assert list(pool.assumptions) == [f"operator `aten.rrelu_with_noise_backward.default` is {UNFOLDED}"]
    assert UNFOLDED == "what torch decomposes it into: the two were not compared on numbers"


def test_a_random_operator_is_refused_by_its_name() -> None:
    g = GraphBuilder()
    node = g.call(aten.native_dropout.default, g.input("x", X), 0.5, None)
    ((_, code, message),) = blockers(g.lower(node))
    assert (code, message[:35]) == ("VC216", "dropout with p=0.5 draws random num")
