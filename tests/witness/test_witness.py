"""Witnesses for small programs: right ones have none, wrong ones have one that says what and where."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard, _StridedShard

from tests.witness.graphs import mesh, trace
from verifycompile.witness import Agreement, compare_outputs, find_witness

TP = mesh(("tp", 2))
DP_TP = mesh(("dp", 2), ("tp", 4))
R, S0, S1, P = Replicate(), Shard(0), Shard(1), Partial()
collective = torch.ops._c10d_functional


def reduced(value, op="sum", group="tp"):
    return collective.wait_tensor(collective.all_reduce(value, op, group))


def gathered(value, size=2, group="tp"):
    return collective.wait_tensor(collective.all_gather_into_tensor(value, size, group))


def scattered(value, size=2, group="tp"):
    return collective.wait_tensor(collective.reduce_scatter_tensor(value, "sum", size, group))


def mlp(x, w1, w2):
    return F.relu(x @ w1) @ w2


SPEC = trace(mlp, {"x": torch.randn(4, 8), "w1": torch.randn(8, 16), "w2": torch.randn(16, 8)})
LOCAL = {"x": torch.randn(4, 8), "w1": torch.randn(8, 8), "w2": torch.randn(8, 8)}
LAYOUTS = {"x": [R], "w1": [S1], "w2": [S0]}


def parallel(function, **layouts):
    return trace(function, LOCAL, on=TP, layouts=LAYOUTS | layouts, groups={"tp": (0,)})


def test_equal_program_has_no_witness():
    implementation = parallel(lambda x, w1, w2: reduced(mlp(x, w1, w2)), **{"output.0": [R]})
    assert find_witness(SPEC, implementation) is None
    assert compare_outputs(SPEC, implementation)["output.0"].agreement is Agreement.EQUAL


def test_missing_all_reduce():
    witness = find_witness(SPEC, parallel(mlp, **{"output.0": [R]}))
    assert witness is not None
    assert (witness.output, len(witness.index)) == ("output.0", 2)
    assert abs(abs(witness.spec_value - witness.impl_value) - witness.max_abs_difference) < 1e-12
    assert witness.max_abs_difference > 1e3 * witness.tolerance


def test_plain_partial_output_is_a_clean_relation():
    comparison = compare_outputs(SPEC, parallel(mlp))["output.0"]
    assert comparison.relation == (Partial("sum"),)


@pytest.mark.parametrize(
    ("function", "different"),
    [
        (lambda x, w1, w2: 2 * reduced(mlp(x, w1, w2)), True),
        (lambda x, w1, w2: reduced(reduced(mlp(x, w1, w2))), True),
        (lambda x, w1, w2: reduced(mlp(x, w1, w2), "max"), True),
        (lambda x, w1, w2: scattered(mlp(x, w1, w2)), False),
        (lambda x, w1, w2: gathered(scattered(mlp(x, w1, w2))), False),
        (lambda x, w1, w2: reduced(mlp(x, w1, w2), "avg"), False),  # the ranks' sum is the spec's value
    ],
)
def test_plain_outputs(function, different):
    witness = find_witness(SPEC, parallel(function))
    assert (witness is not None) is different


def test_wrong_shard_names_rank_and_index():
    spec = trace(lambda x: x + 1, {"x": torch.zeros(4, 2)})
    local = {"x": torch.zeros(2, 2)}
    right = trace(lambda x: x + 1, local, on=TP, layouts={"x": [S0], "output.0": [S0]})
    assert find_witness(spec, right) is None

    def wrong(x):
        return torch.cat([x[:1] + 1, x[1:]])

    witness = find_witness(spec, trace(wrong, local, on=TP, layouts={"x": [S0], "output.0": [S0]}))
    assert witness is not None
    assert witness.index[0] == 2 * witness.rank + 1
    assert witness.inputs["x"][witness.index[0]][witness.index[1]] == witness.impl_value
    assert witness.spec_value == pytest.approx(witness.impl_value + 1)


def test_shape_difference_is_a_witness_only_under_a_required_layout():
    spec = trace(lambda x: x * 2, {"x": torch.zeros(4, 2)})
    local = {"x": torch.zeros(2, 2)}
    required = find_witness(spec, trace(lambda x: x * 2, local, on=TP, layouts={"x": [S0], "output.0": [S1]}))
    assert required is not None
    assert math.isnan(required.impl_value)
    assert required.detail == "shape [2, 4], the spec's is [4, 2], with Shard(1) over tp"
    plain = trace(lambda x: x[:1] * 3, local, on=TP, layouts={"x": [S0]})
    assert find_witness(spec, plain) is None


def test_two_mesh_axes():
    def local(x, w):
        return reduced(x @ w)

    def wrong_axis(x, w):
        return reduced(x @ w, group="dp")

    spec = trace(lambda x, w: x @ w, {"x": torch.zeros(4, 8), "w": torch.zeros(8, 8)})
    inputs = {"x": torch.zeros(2, 2), "w": torch.zeros(2, 8)}
    layouts = {"x": [S0, S1], "w": [R, S0], "output.0": [S0, R]}
    groups = {"dp": (0,), "tp": (1,)}
    assert find_witness(spec, trace(local, inputs, on=DP_TP, layouts=layouts, groups=groups)) is None
    assert find_witness(spec, trace(wrong_axis, inputs, on=DP_TP, layouts=layouts, groups=groups)) is not None
    whole = trace(lambda x, w: reduced(x @ w, group="all"), inputs, on=DP_TP, layouts=layouts, groups={"all": (0, 1)})
    assert find_witness(spec, whole) is not None


def test_partial_and_strided_inputs():
    spec = trace(lambda x, y: x.sum(0) + y, {"x": torch.zeros(16, 2), "y": torch.zeros(2)})
    inputs = {"x": torch.zeros(2, 2), "y": torch.zeros(2)}
    layouts = {"x": [_StridedShard(0, split_factor=4), S0], "y": [P, Partial("avg")], "output.0": [R, R]}

    def implementation(x, y):
        return reduced(x.sum(0), group="all") + reduced(reduced(y, group="dp"), "avg", "tp")

    groups = {"dp": (0,), "tp": (1,), "all": (0, 1)}
    assert find_witness(spec, trace(implementation, inputs, on=DP_TP, layouts=layouts, groups=groups)) is None


def grad_spec(x, w, tangent):
    return {"output.0": x @ w, "grad.w": x.t() @ tangent}


SPEC_INPUTS = {"x": torch.zeros(4, 8), "w": torch.zeros(8, 6), "tangent.output.0": torch.zeros(4, 6)}
RANK_INPUTS = {"x": torch.zeros(2, 8), "w": torch.zeros(8, 6), "tangent.output.0": torch.zeros(2, 6)}


def test_cotangent_of_a_plain_output_follows_its_forward_value():
    def data_parallel(x, w, tangent):
        return {"output.0": x @ w, "grad.w": reduced(x.t() @ tangent)}

    spec = trace(grad_spec, SPEC_INPUTS)
    layouts = {"x": [S0], "w": [R], "grad.w": [R]}
    right = trace(data_parallel, RANK_INPUTS, on=TP, layouts=layouts, groups={"tp": (0,)})
    assert find_witness(spec, right) is None
    witness = find_witness(spec, trace(grad_spec, RANK_INPUTS, on=TP, layouts=layouts))
    assert witness is not None
    assert witness.output == "grad.w"


def test_cotangent_of_a_mean_is_whole():
    def spec(x, tangent):
        return {"output.0": x.mean(), "grad.x": tangent.expand(4) / 4}

    def averaged(x, tangent):
        return {"output.0": x.mean(), "grad.x": tangent.expand(2) / 2}

    whole = trace(spec, {"x": torch.zeros(4), "tangent.output.0": torch.tensor(0.0)})
    local = {"x": torch.zeros(2), "tangent.output.0": torch.tensor(0.0)}
    results = compare_outputs(whole, trace(averaged, local, on=TP, layouts={"x": [S0], "grad.x": [S0]}))
    assert results["output.0"].relation == (Partial("avg"),)
    assert results["grad.x"].agreement is Agreement.DIFFERENT


def test_gradient_that_is_zero_on_paper_is_not_refuted():
    def zero(q, b):
        return torch.softmax(q + b, -1).sum(-1)

    def gradient(x, w):
        with torch.enable_grad():
            weight = w.detach().requires_grad_()
            return torch.autograd.grad(zero(x, weight).sum(), weight)[0]

    spec = trace(gradient, {"x": torch.zeros(4, 8), "w": torch.zeros(1)})
    implementation = trace(
        lambda x, w: reduced(gradient(x, w)),
        {"x": torch.zeros(2, 8), "w": torch.zeros(1)},
        on=TP,
        layouts={"x": [S0], "w": [R], "output.0": [R]},
        groups={"tp": (0,)},
    )
    assert find_witness(spec, implementation) is None


def test_indices_are_valid():
    def loss(tokens, w, labels):
        logits = F.embedding(tokens, w).flatten(0, 1)
        return F.nll_loss(F.log_softmax(logits, -1), labels.flatten())

    inputs = {"tokens": torch.zeros(2, 3).long(), "w": torch.zeros(10, 5), "labels": torch.zeros(2, 3).long()}
    spec = trace(loss, inputs)
    same = trace(loss, inputs, on=TP, layouts={"output.0": [R]})
    assert compare_outputs(spec, same)["output.0"].agreement is Agreement.EQUAL


def test_swapped_operands():
    inputs = {"x": torch.zeros(2, 4), "w1": torch.zeros(4, 4), "w2": torch.zeros(4, 4)}
    spec = trace(lambda x, w1, w2: F.silu(x @ w1) * (x @ w2), inputs)
    swapped = trace(lambda x, w1, w2: F.silu(x @ w2) * (x @ w1), inputs, on=TP, layouts={"output.0": [R]})
    assert find_witness(spec, swapped) is not None


def test_low_precision_is_evaluated_in_float64():
    inputs = {"x": torch.zeros(2, 4, dtype=torch.bfloat16), "w": torch.zeros(4, 4, dtype=torch.bfloat16)}
    spec = trace(lambda x, w: (x.float() @ w.float()).sum(dtype=torch.float32), inputs)
    cast = trace(lambda x, w: (x @ w).to(torch.float16).sum(), inputs, on=TP, layouts={"output.0": [R]})
    assert find_witness(spec, cast) is None


def test_nothing_is_claimed_of_random_programs():
    inputs = {"x": torch.zeros(2, 4)}
    spec = trace(lambda x: torch.native_dropout(x, 0.5, True)[0], inputs)
    implementation = trace(lambda x: torch.native_dropout(x, 0.25, True)[0], inputs, on=TP, layouts={"output.0": [R]})
    assert find_witness(spec, implementation) is None
    without = trace(lambda x: torch.native_dropout(x, 0.0, True)[0] * 2, inputs, on=TP, layouts={"output.0": [R]})
    assert find_witness(trace(lambda x: x, inputs), without) is not None


def inverse(order):
    return torch.empty_like(order).index_put((order,), torch.arange(order.shape[0]))


def test_unset_memory_that_is_written_before_it_is_read():
    inputs = {"x": torch.zeros(6)}
    spec = trace(lambda x: x.sort()[0][inverse(x.argsort())], inputs)
    right = trace(lambda x: x * 1, inputs, on=TP, layouts={"output.0": [R]})
    wrong = trace(lambda x: x.sort()[0][x.argsort()], inputs, on=TP, layouts={"output.0": [R]})
    assert compare_outputs(spec, right)["output.0"].agreement is Agreement.EQUAL
    assert find_witness(spec, wrong) is not None


def test_no_number_is_a_difference_where_unset_memory_is_not_its_cause():
    """As of a block of attention that is masked wholly, in a program with buffers that were empty once."""

    def masked(x):
        buffer = torch.empty_like(x).index_put((torch.arange(6),), x)
        scores = torch.full((6,), -torch.inf)
        return buffer + torch.exp(scores - scores.amax())

    inputs = {"x": torch.randn(6)}
    spec, wrong = trace(lambda x: x, inputs), trace(masked, inputs, on=TP)
    found = find_witness(spec, wrong)
    assert found is not None
    assert math.isnan(found.impl_value)
    reads = trace(lambda x: x + 0 * torch.empty(6), inputs, on=TP)
    assert find_witness(spec, reads) is None


@pytest.mark.parametrize(
    "unset",
    [
        lambda x: x + torch.empty(6),
        lambda x: x + torch.empty(6, dtype=torch.int64),
        lambda x: x[torch.empty(6, dtype=torch.int64)],
        lambda x: torch.where(torch.empty(6) > 0, x, -x),
        lambda x: torch.where(torch.empty(6, dtype=torch.bool), x, -x),
    ],
)
def test_nothing_is_claimed_where_the_spec_reads_unset_memory(unset):
    inputs = {"x": torch.zeros(6)}
    wrong = trace(lambda x: x * 5, inputs, on=TP, layouts={"output.0": [R]})
    assert find_witness(trace(unset, inputs), wrong) is None


def test_nothing_is_claimed_where_the_spec_is_not_finite():
    inputs = {"x": torch.zeros(2, 4)}
    spec = trace(lambda x: torch.log(-x.abs()), inputs)
    implementation = trace(lambda x: x, inputs, on=TP, layouts={"output.0": [R]})
    assert find_witness(spec, implementation) is None


def test_positive_inputs_are_tried_where_normal_ones_are_outside_of_the_domain():
    inputs = {"x": torch.zeros(2, 4)}
    spec = trace(torch.log, inputs)
    implementation = trace(lambda x: torch.log(x) + 1, inputs, on=TP, layouts={"output.0": [R]})
    assert find_witness(spec, implementation) is not None


def test_size_guard():
    wrong = parallel(mlp, **{"output.0": [R]})
    assert find_witness(SPEC, wrong, max_elements=10) is None


def test_views_do_not_count_for_the_size_guard():
    inputs = {"x": torch.randn(4, 8)}
    spec = trace(lambda x: x.expand(10**6, 4, 8)[3] + 1, inputs)
    wrong = trace(lambda x: x.expand(10**6, 4, 8)[3], inputs, on=TP, layouts={"output.0": [R]})
    assert find_witness(spec, wrong, max_elements=10**5) is not None
    written_out = trace(lambda x: (x.expand(10**6, 4, 8) + 1)[3], inputs)
    assert find_witness(written_out, wrong, max_elements=10**5) is None


def test_random_state_and_default_dtype_are_left_alone():
    state = torch.get_rng_state()
    find_witness(SPEC, parallel(mlp, **{"output.0": [R]}))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_default_dtype() == torch.float32


def test_same_seed_same_witness():
    wrong = parallel(mlp, **{"output.0": [R]})
    assert find_witness(SPEC, wrong, seed=3) == find_witness(SPEC, wrong, seed=3)
    assert find_witness(SPEC, wrong, seed=3) != find_witness(SPEC, wrong, seed=4)


def test_an_error_that_shows_where_the_largest_is_not_first():
    """Where the first of two is the larger one the two programs agree."""
    inputs = {"x": torch.zeros(2)}
    spec = trace(lambda x: x.max() - x, inputs)
    implementation = trace(lambda x: x[0] - x, inputs, on=TP, layouts={"output.0": [R]})
    seed = next(
        s for s in range(9) if compare_outputs(spec, implementation, s)["output.0"].agreement is Agreement.EQUAL
    )
    assert find_witness(spec, implementation, seed=seed) is not None


def divergence(student, teacher):
    p, q = torch.log_softmax(student, -1), torch.log_softmax(teacher, -1)
    return (q.exp() * (q - p)).sum()


def divergence_of_shards(student, teacher):
    def log_softmax(logits):
        return logits - torch.log(reduced(logits.exp().sum(-1, keepdim=True)))

    p, q = log_softmax(student), log_softmax(teacher)
    return reduced((q.exp() * (q - p)).sum())


def test_what_cancels_is_not_refuted_by_rounding():
    """Small logits make nearly equal distributions, whose divergence is smaller than the rounding of its summands."""
    whole, local = {"s": torch.randn(4, 8), "t": torch.randn(4, 8)}, {"s": torch.randn(4, 4), "t": torch.randn(4, 4)}
    layouts = {"s": [S1], "t": [S1], "output.0": [R]}

    def on_ranks(function):
        return trace(function, local, on=TP, layouts=layouts, groups={"tp": (0,)})

    spec = trace(divergence, whole)
    assert all(find_witness(spec, on_ranks(divergence_of_shards), seed=seed) is None for seed in (4, 30))
    assert find_witness(spec, on_ranks(lambda s, t: 1.001 * divergence_of_shards(s, t))) is not None
