"""What no declaration covers is an unknown, named as a blocker, and equal to nothing but itself."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tests.lowering.graphs import GraphBuilder, blockers
from verifycompile.ir.term import TermPool, View
from verifycompile.lowering.lower import Lowering
from verifycompile.program import Blocker
from verifycompile.refinement.placement import same_value
from verifycompile.rewrites.operations import UNKNOWN

aten = torch.ops.aten
X = torch.arange(12.0).reshape(3, 4)


def value(lowering: Lowering, node: torch.fx.Node) -> View:
    view = lowering.view(node)
    assert view is not None
    return view


def test_an_operator_without_declaration() -> None:
    g = GraphBuilder()
    node = g.call(aten._add_relu.Tensor, x := g.input("x", X), x)
    lowering = g.lower(node)
    assert blockers(lowering) == [("_add_relu_tensor", "VC201", "operator `aten._add_relu.Tensor` has no declaration")]
    assert value(lowering, node).term.operation is UNKNOWN
    assert value(lowering, node).shape == (3, 4)


def test_an_argument_without_declaration() -> None:
    g = GraphBuilder()
    node = g.call(aten.expand.default, g.input("x", X), [2, 3, 4], implicit=True)
    assert blockers(g.lower(node)) == [
        ("expand_default", "VC202", "`aten.expand.default` has no declaration for `implicit=True`")
    ]


@pytest.mark.filterwarnings("ignore:Raw SymInt")
@pytest.mark.parametrize("is_named", [False, True])
def test_a_number_that_is_read_from_a_tensor_and_stands_in_a_call(is_named: bool) -> None:
    """The other program may read another number of the same name."""
    g, number = GraphBuilder(), ShapeEnv().create_unbacked_symint()
    x, place = g.input("x", X), g.input("place", torch.tensor(2))
    read = g.graph.call_function(aten._local_scalar_dense.default, (place,))
    read.meta["val"] = number
    node = g.graph.call_function(aten.mul.Tensor, (x, read if is_named else number))
    node.meta["val"] = X
    assert blockers(g.lower(read, node)) == [
        ("mul_tensor", "VC206", "`aten.mul.Tensor` makes a dimension whose size is read from a tensor")
        if is_named
        else ("mul_tensor", "VC206", f"the number `{number}` is read from a tensor")
    ]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_narrow_dtypes(dtype: torch.dtype) -> None:
    g = GraphBuilder()
    node = g.call(aten._to_copy.default, g.input("x", X), dtype=dtype)
    assert blockers(g.lower(node)) == [
        ("_to_copy_default", "VC202", f"`aten._to_copy.default` gives a tensor of {dtype}")
    ]


def test_narrow_integers_are_moved_and_not_computed() -> None:
    g = GraphBuilder()
    x = g.input("x", X.to(torch.int8))
    moved = g.call(aten.view.default, g.item(g.call(aten.split.Tensor, x, 1), 0), [4])
    doubled = g.call(aten.add.Tensor, x, x)
    lowering = g.lower(moved, doubled)
    message = "`aten.add.Tensor` computes a tensor of torch.int8"
    assert blockers(lowering) == [("add_tensor", "VC202", message)]
    assert value(lowering, moved).term is value(lowering, x).term


def test_a_result_that_a_declaration_leaves_out_is_handed_on_and_not_computed_with() -> None:
    """The state of the generator of an attention that draws nothing."""
    g = GraphBuilder()
    operands = [g.input(name, torch.empty(1, 2, 4, 8, device="meta")) for name in "qkv"]
    forward = g.call(aten._scaled_dot_product_flash_attention.default, *operands, 0.0, True)
    output, logsumexp, _, _, _, _, seed, offset, _ = (g.item(forward, k) for k in range(9))
    saved = (output, logsumexp, None, None, 4, 4, 0.0, True, seed, offset)
    backward = g.call(aten._scaled_dot_product_flash_attention_backward.default, output, *operands, *saved)
    gradient = g.item(backward, 0)
    lowering = g.lower(gradient, seed)
    message = "`aten._scaled_dot_product_flash_attention.default`: result 6 is not declared"
    assert blockers(lowering)[0] == (seed.name, "VC206", message)
    assert value(lowering, seed).term.operation is UNKNOWN
    assert value(lowering, gradient).term.operation is not UNKNOWN


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_casts_between_real_dtypes_are_identities_and_listed(dtype: torch.dtype) -> None:
    g = GraphBuilder()
    x = g.input("x", X)
    node = g.call(aten._to_copy.default, x, dtype=dtype)
    lowering = g.lower(node)
    assert blockers(lowering) == []
    assert same_value(value(lowering, node), value(lowering, x))
    assert list(lowering.casts) == [f"float32 to {str(dtype)[6:]}"]


def test_a_shape_other_than_recorded() -> None:
    g = GraphBuilder()
    node = g.call(aten.mm.default, g.input("x", X), g.input("w", torch.ones(4, 5)))
    node.meta["val"] = torch.ones(3, 6)
    lowering = g.lower(node)
    assert blockers(lowering) == [("mm_default", "VC206", "`aten.mm.default` has shape (3, 6), its declaration (3, 5)")]
    assert value(lowering, node).shape == (3, 6)


def test_another_rank_than_recorded() -> None:
    g = GraphBuilder()
    node = g.call(aten.sum.dim_IntList, g.input("x", X), [0], True)
    node.meta["val"] = torch.ones(4)
    assert blockers(g.lower(node))[0][1] == "VC206"


def test_one_wrong_output_of_several() -> None:
    g = GraphBuilder()
    node = g.call(aten.native_layer_norm.default, g.input("x", X), [4], None, None, 1e-5)
    y, mean, rstd = node.meta["val"]
    node.meta["val"] = (y, mean, rstd.squeeze(-1))
    first = g.item(node, 0)
    lowering = g.lower(first)
    assert blockers(lowering)[0][1] == "VC206"
    assert value(lowering, first).term.operation is UNKNOWN


def test_operands_that_do_not_fit() -> None:
    g = GraphBuilder()
    node = g.call(aten.mm.default, g.input("x", X), g.input("w", torch.ones(4, 5)))
    g.graph.find_nodes(op="placeholder")[1].meta["val"] = torch.ones(6, 5)
    assert blockers(g.lower(node)) == [("mm_default", "VC206", "`aten.mm.default`: index 'k' has sizes 4 and 6")]


def test_numbers_that_are_not_real() -> None:
    g = GraphBuilder()
    x = g.input("x", X)
    divided = g.call(aten.div.Scalar, x, math.inf)
    zero = g.call(aten.div.Scalar, x, 0)
    undefined = g.call(aten.mul.Scalar, x, math.nan)
    lowering = g.lower(divided, zero, undefined)
    assert blockers(lowering) == [
        ("div_scalar", "VC206", "`aten.div.Scalar`: inf is not a real number"),
        ("div_scalar_1", "VC206", "division by zero"),
        ("mul_scalar", "VC206", "NaN is not a real number"),
    ]


def test_a_node_that_the_capture_blocked() -> None:
    g = GraphBuilder()
    x = g.input("x", X)
    node = g.call(aten.exp.default, x)
    lowering = g.lower(node, blockers=(Blocker(node, "VC203", "a rank constant"),))
    assert blockers(lowering) == [("exp_default", "VC203", "a rank constant")]


def test_an_input_without_counterpart() -> None:
    g = GraphBuilder()
    x = g.input("x", X)
    node = g.call(aten.exp.default, x)
    pool = TermPool()
    lowering = g.lower(node, pool=pool)
    other = Lowering(lowering.program, pool, "impl")
    other.lower([node])
    assert blockers(other) == [("x", "VC206", "the input `x` has no counterpart in the other program")]


def test_a_node_of_another_kind() -> None:
    g = GraphBuilder()
    x = g.input("x", X)
    node = g.graph.call_method("exp", (x,))
    node.meta["val"] = X.exp()
    assert blockers(g.lower(node)) == [("exp", "VC206", "a graph node of kind `call_method`")]


def test_a_defect_of_a_declaration_is_no_crash_and_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    from verifycompile.lowering import lower
    from verifycompile.rewrites.registry import Declaration

    def broken(b: object, self: View) -> View:
        raise KeyError("lost")

    target = aten.exp.default
    monkeypatch.setattr(lower, "declaration_of", lambda t: Declaration(target, broken, frozenset({"self"}), ""))
    g = GraphBuilder()
    node = g.call(target, g.input("x", X))
    assert blockers(g.lower(node)) == [("exp_default", "VC206", "`aten.exp.default`: internal error, KeyError: 'lost'")]


# ------------------------------------------------------------------------------------------------ propagation

CONSUMERS = [
    lambda g, u, x: g.call(aten.add.Tensor, u, x),
    lambda g, u, x: g.call(aten.mul.Tensor, u, x),
    lambda g, u, x: g.call(aten.mm.default, u, g.call(aten.t.default, x)),
    lambda g, u, x: g.call(aten.sum.dim_IntList, u, [0]),
    lambda g, u, x: g.call(aten._softmax.default, u, 1, False),
    lambda g, u, x: g.call(aten.cat.default, [u, x], 0),
    lambda g, u, x: g.call(aten.gelu.default, u),
    lambda g, u, x: g.call(aten.view.default, u, [12]),
    lambda g, u, x: g.item(g.call(aten.split.Tensor, u, 1), 1),
    lambda g, u, x: g.item(g.call(aten.native_layer_norm.default, u, [4], None, None, 1e-5), 0),
]


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_what_is_computed_from_an_unknown_is_equal_to_itself_alone(consumer: object) -> None:
    """Two unknowns, of one program or of two, and a known value: all results differ, whatever is computed."""
    pool = TermPool()

    def build() -> tuple[GraphBuilder, list[torch.fx.Node]]:
        g = GraphBuilder()
        x = g.input("x", X)
        sources = [
            g.call(aten._add_relu.Tensor, x, x),
            g.call(aten._add_relu.Tensor, x, x),
            g.call(aten._add_relu.Tensor, x, g.call(aten.neg.default, x)),
            x,
        ]
        return g, [consumer(g, s, x) for s in sources]  # type: ignore[operator]

    values: list[View] = []
    for side in ("spec", "impl"):
        g, nodes = build()
        lowering = g.lower(*nodes, pool=pool, side=side)
        values.extend(value(lowering, node) for node in nodes)
        again = g.lower(*nodes, pool=pool, side=side)
        assert all(same_value(value(again, n), v) for n, v in zip(nodes, values[-len(nodes) :], strict=True))
    unknown = [v for k, v in enumerate(values) if k % 4 != 3]
    for left, right in itertools.combinations(unknown, 2):
        assert not same_value(left, right)
    for left in unknown:
        assert not same_value(left, values[3])
    assert same_value(values[3], values[7])


def test_an_unknown_of_a_rank_program_differs_from_rank_to_rank() -> None:
    g = GraphBuilder()
    node = g.call(aten._add_relu.Tensor, x := g.input("x", X), x)
    view = value(g.lower(node, mesh=(2,), side="impl"), node)
    assert view.shape == (2, 3, 4)
    assert view.uses(0)


def test_only_what_an_output_needs_is_lowered() -> None:
    g = GraphBuilder()
    x = g.input("x", X)
    g.call(aten._add_relu.Tensor, x, x)
    node = g.call(aten.exp.default, x)
    assert blockers(g.lower(node)) == []


# ------------------------------------------------------------------------------------------------ constants


def test_equal_constants_are_one_term() -> None:
    g = GraphBuilder()
    nodes = [
        g.constant(n, torch.tensor(v))
        for n, v in (("a", [1.0, 2.0]), ("b", [1.0, 2.0]), ("c", [1.0, 3.0]), ("d", [1, 2]))
    ]
    lowering = g.lower(*nodes)
    a, b, c, d = (value(lowering, n) for n in nodes)
    assert same_value(a, b)
    assert not same_value(a, c)
    assert not same_value(a, d)


def test_scalar_constants_are_numbers() -> None:
    g = GraphBuilder()
    nodes = [
        g.constant("a", torch.tensor(0.5)),
        g.constant("b", torch.tensor(True)),
        g.constant("c", torch.tensor(-math.inf)),
    ]
    lowering = g.lower(*nodes, mesh=(2,))
    assert [value(lowering, n).coefficient for n in nodes[:2]] == [0.5, 1]
    assert value(lowering, nodes[2]).term.operation.name == "infinity"


def test_large_constants_are_not_compared() -> None:
    g = GraphBuilder()
    node = g.constant("a", torch.zeros(65_537))
    assert blockers(g.lower(node)) == [("a", "VC206", "the constant `a` has no readable content")]
