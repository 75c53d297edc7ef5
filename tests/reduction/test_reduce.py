"""Programs at reduced sizes: right ones stay right, wrong ones stay wrong, and every node keeps its name."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor.placement_types import Replicate, Shard

from tests.witness.graphs import mesh, trace
from verifycompile.options import Options
from verifycompile.reduction import reduce_sizes
from verifycompile.two_programs import verify_programs
from verifycompile.witness import Agreement, compare_outputs
from verifycompile.witness.cost import elements

TP = mesh(("tp", 8))
R, S0, S1 = Replicate(), Shard(0), Shard(1)
collective = torch.ops._c10d_functional


def reduced(value, op="sum"):
    return collective.wait_tensor(collective.all_reduce(value, op, "tp"))


def gathered(value):
    return collective.wait_tensor(collective.all_gather_into_tensor(value, 8, "tp"))


def program(function, on=None, layouts=None, **shapes):
    inputs = {name: value if isinstance(value, torch.Tensor) else torch.empty(value) for name, value in shapes.items()}
    return trace(function, inputs, on=on, layouts=layouts or {}, groups={"tp": (0,)} if on is not None else {})


def pair(spec, right, wrong, whole, local, layouts):  # noqa: PLR0917
    """The spec and two implementations, at sizes that cannot be evaluated."""
    return program(spec, **whole), *(program(f, on=TP, layouts=layouts, **local) for f in (right, wrong))


def check(spec, right, wrong, sizes=None, pinned=()):
    for implementation, expected in ((right, Agreement.EQUAL), (wrong, Agreement.DIFFERENT)):
        small = reduce_sizes(spec, implementation)
        assert small is not None
        if sizes is not None:
            assert small.sizes == sizes
        assert small.pinned == pinned
        for old, new in ((spec, small.spec), (implementation, small.implementation)):
            assert [node.name for node in new.graph.graph.nodes] == [node.name for node in old.graph.graph.nodes]
            assert [(entry.name, entry.node.name) for entry in new.inputs] == [
                (e.name, e.node.name) for e in old.inputs
            ]
            assert elements(new) <= 6_000_000
        agreements = {
            name: result.agreement for name, result in compare_outputs(small.spec, small.implementation).items()
        }
        assert set(agreements.values()) == {expected}, agreements
    return small


def mlp(x, w1, w2):
    return F.relu(x @ w1) @ w2


MLP = {"x": (4096, 4096), "w1": (4096, 14336), "w2": (14336, 4096)}
MLP_LOCAL = {"x": (4096, 4096), "w1": (4096, 1792), "w2": (1792, 4096)}
MLP_LAYOUTS = {"x": [R], "w1": [S1], "w2": [S0], "output.0": [R]}


def test_a_missing_reduction_at_the_sizes_of_a_model():
    spec, right, wrong = pair(mlp, lambda x, a, b: reduced(mlp(x, a, b)), mlp, MLP, MLP_LOCAL, MLP_LAYOUTS)
    assert elements(right) > 500_000_000
    check(spec, right, wrong, ((1792, 2), (4096, 2), (14336, 16)))
    small = reduce_sizes(spec, right)
    assert small is not None
    assert verify_programs(small.spec, small.implementation, Options()).verdict.value == "verified"


def test_the_original_programs_stay_as_they_are():
    spec, right, _ = pair(mlp, lambda x, a, b: reduced(mlp(x, a, b)), mlp, MLP, MLP_LOCAL, MLP_LAYOUTS)
    before = [
        (node.format_node(), tuple(node.meta["val"].shape)) for node in spec.graph.graph.nodes if "val" in node.meta
    ]
    assert reduce_sizes(spec, right) is not None
    assert before == [(n.format_node(), tuple(n.meta["val"].shape)) for n in spec.graph.graph.nodes if "val" in n.meta]


def test_small_programs_have_nothing_to_reduce():
    spec = program(mlp, x=(4, 8), w1=(8, 8), w2=(8, 8))
    assert reduce_sizes(spec, spec) is None


def test_a_mean_over_a_sharded_dimension_divides_by_the_reduced_size():
    layouts = {"x": [S1], "output.0": [R]}
    spec, right, wrong = pair(
        lambda x: x.mean(1),
        lambda x: reduced(x.sum(1)) / 4096,
        lambda x: reduced(x.sum(1)) / 512,
        {"x": (16384, 4096)}, {"x": (16384, 512)}, layouts,
    )  # fmt: skip
    small = check(spec, right, wrong, ((512, 2), (4096, 16), (16384, 2)))
    assert [reading.numbers for reading in small.readings] == [{512: (2,)}]


def test_the_reciprocal_of_a_size_and_the_root_of_another():
    def spec(q, k):
        return (q @ k.T * 128**-0.5).sum(1) * (1 / 4096)

    def right(q, k):
        return reduced((q @ k.T / 128**0.5).mean(1) / 8)

    def wrong(q, k):
        return reduced((q @ k.T / 128**0.5).mean(1))

    programs = pair(spec, right, wrong, {"q": (4096, 128), "k": (4096, 128)}, {"q": (4096, 128), "k": (512, 128)},
                    {"q": [R], "k": [S0], "output.0": [R]})  # fmt: skip
    check(*programs)


def test_a_fused_projection_is_cut_at_its_parts():
    def spec(x, w):
        q, k, v = (x @ w).split((4096, 1024, 1024), 1)
        return q[:, :1024] * k + v

    def parallel(x, w):
        y = x @ w
        return y[:, :1024] * y[:, 4096:5120] + y[:, 5120:]

    def wrong(x, w):
        y = x @ w
        return y[:, 1024:2048] * y[:, 4096:5120] + y[:, 5120:]

    shapes = {"x": (8192, 4096), "w": (4096, 6144)}
    programs = pair(
        spec, parallel, wrong, shapes, shapes | {"x": (1024, 4096)}, {"x": [S0], "w": [R], "output.0": [S0]}
    )
    check(*programs)


def test_shifted_labels_keep_their_distance_from_the_ends():
    def spec(x, w):
        return (x[:, :-1] * x[:, 1:]) @ w

    def right(x, w):
        return reduced((x[:, :8191] * x[:, 1:]) @ w)

    def wrong(x, w):
        return reduced((x[:, :8191] * x[:, :8191]) @ w)

    programs = pair(
        lambda x, w: spec(x, w).sum(1), lambda x, w: right(x, w).sum(1), lambda x, w: wrong(x, w).sum(1),
        {"x": (64, 8192, 1024), "w": (1024, 1024)}, {"x": (64, 8192, 128), "w": (128, 1024)},
        {"x": [Shard(2)], "w": [S0], "output.0": [R]},
    )  # fmt: skip
    check(*programs)


def test_a_vocabulary_with_padding_is_cut_where_it_ends():
    def spec(x, table):
        return torch.log_softmax(x @ F.pad(table, (0, 47))[:, :50257], 1)

    def right(x, table):
        return torch.log_softmax((x @ F.pad(table, (0, 47)))[:, :50257], 1)

    def wrong(x, table):
        return torch.log_softmax(x @ F.pad(table, (0, 47)), 1)[:, :50257]

    shapes = {"x": (8192, 768), "table": (768, 50257)}
    layouts = {"x": [S0], "table": [R], "output.0": [S0]}
    programs = pair(spec, right, wrong, shapes, shapes | {"x": (1024, 768)}, layouts)
    small = reduce_sizes(programs[0], programs[2])
    assert small is not None
    assert dict(small.sizes)[768] == 2
    assert compare_outputs(small.spec, small.implementation)["output.0"].agreement is Agreement.DIFFERENT
    small = reduce_sizes(programs[0], programs[1])
    assert small is not None
    assert compare_outputs(small.spec, small.implementation)["output.0"].agreement is Agreement.EQUAL


def test_the_most_likely_experts():
    def spec(x, gate, w):
        weights, chosen = torch.topk(torch.softmax(x @ gate, 1), 6)
        return (weights.unsqueeze(2) * (x.unsqueeze(1).expand(-1, 6, -1) * w[chosen])).sum(1)

    shapes = {"x": (8192, 4096), "gate": (4096, 256), "w": (256, 4096)}
    layouts = {"x": [S0], "gate": [R], "w": [R], "output.0": [S0]}
    wrong = lambda x, gate, w: spec(x, gate, w.flip(0))  # noqa: E731
    programs = pair(spec, spec, wrong, shapes, shapes | {"x": (1024, 4096)}, layouts)
    small = check(*programs)
    assert dict(small.sizes)[256] == 7


def test_ranks_take_positions_of_their_own():
    def spec(x):
        return x * torch.arange(8192).unsqueeze(1) + torch.tril(torch.ones(8192, 8192)).sum(1, keepdim=True)

    shapes = {"x": (8192, 4096)}
    programs = pair(spec, spec, lambda x: spec(x) + 1, shapes, {"x": (8192, 512)}, {"x": [S1], "output.0": [S1]})
    check(*programs)


def test_what_is_not_understood_is_pinned_and_named():
    def spec(x, w):
        return F.conv2d(x, w, stride=16).flatten(1)

    shapes = {"x": (256, 3, 224, 224), "w": (1024, 3, 16, 16)}
    layouts = {"x": [S0], "w": [R], "output.0": [S0]}
    programs = pair(spec, spec, lambda x, w: spec(x, w) * 2, shapes, shapes | {"x": (32, 3, 224, 224)}, layouts)
    reason = "`aten.convolution.default` moves a kernel along it"
    check(
        *programs, ((32, 2), (256, 16), (1024, 2), (200704, 392)), (f"14: {reason}", f"16: {reason}", f"224: {reason}")
    )


@pytest.mark.parametrize("form", ["held", "strided"])
def test_numbers_that_the_graph_holds_stay(form):
    def spec(x):
        held = (
            x @ torch.tensor([[1.0, 2.0]] * 64)
            if form == "held"
            else x[:, :64] @ torch.as_strided(x, (64, 64), (64, 1))
        )
        return held.sum(1)

    shapes = {"x": (65536, 64)}
    programs = pair(spec, spec, lambda x: spec(x) + 1, shapes, {"x": (65536, 64)}, {"x": [R], "output.0": [R]})
    small = reduce_sizes(programs[0], programs[1])
    if form == "strided":
        assert small is None
        return
    assert small is not None
    assert small.sizes == ((65536, 2),)
    assert small.pinned == ("64: the graph holds the values of `_tensor_constant0`",)


def test_one_number_that_two_dimensions_have():
    # 1024 is a rank's part of the sequence, and the width of the keys.
    def spec(x, w):
        return torch.relu(x) @ w

    def right(x, w):
        return torch.relu(gathered(x)) @ w

    def wrong(x, w):
        return gathered(torch.relu(x).flip(0)) @ w

    whole = {"x": (8192, 4096), "w": (4096, 1024)}
    layouts = {"x": [S0], "w": [R], "output.0": [R]}
    small = check(*pair(spec, right, wrong, whole, whole | {"x": (1024, 4096)}, layouts))
    assert small.sizes == ((1024, 2), (4096, 2), (8192, 16))


def test_a_table_has_a_row_for_every_position():
    def spec(x, table):
        return x + table[torch.arange(x.shape[1])]

    whole = {"x": (64, 4096, 2048), "table": (16384, 2048)}
    layouts = {"x": [S0], "table": [R], "output.0": [S0]}
    wrong = lambda x, table: spec(x, table.flip(0))  # noqa: E731
    small = check(*pair(spec, spec, wrong, whole, whole | {"x": (8, 4096, 2048)}, layouts))
    assert dict(small.sizes)[16384] >= dict(small.sizes)[4096]


def test_every_second_element():
    whole = {"x": (4096, 16384)}
    layouts = {"x": [S0], "output.0": [S0]}
    programs = pair(
        lambda x: x[:, ::2] * x[:, 1::2], lambda x: x[:, 1::2] * x[:, ::2], lambda x: x[:, ::2] * x[:, ::2],
        whole, {"x": (512, 16384)}, layouts,
    )  # fmt: skip
    check(*programs, ((512, 2), (4096, 16), (8192, 2), (16384, 4)))
