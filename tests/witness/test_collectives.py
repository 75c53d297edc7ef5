"""Every collective's interpretation, on values that can be computed by hand."""

from __future__ import annotations

import pytest
import torch

from verifycompile.witness.collectives import evaluate
from verifycompile.witness.error import EvaluationError

A, B = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([10.0, 20.0, 30.0, 40.0])


def run(operator, **arguments):
    name = operator if "." in operator else f"_c10d_functional.{operator}.default"
    values = evaluate(name, [{"input": value, "group_name": "g"} | arguments for value in (A, B)])
    return [value.tolist() for value in values]


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("sum", [11.0, 22.0, 33.0, 44.0]),
        ("avg", [5.5, 11.0, 16.5, 22.0]),
        ("max", B.tolist()),
        ("min", A.tolist()),
        ("product", [10.0, 40.0, 90.0, 160.0]),
    ],
)
def test_all_reduce(operator, expected):
    assert run("all_reduce", reduce_op=operator) == [expected, expected]
    assert run("all_reduce_", reduce_op=operator) == [expected, expected]


def test_all_gather():
    whole = [*A.tolist(), *B.tolist()]
    assert run("all_gather_into_tensor", group_size=2) == [whole, whole]
    assert run("_c10d_functional_autograd.all_gather_into_tensor.default", group_size=2) == [whole, whole]


def test_reduce_scatter():
    assert run("reduce_scatter_tensor", reduce_op="sum", group_size=2) == [[11.0, 22.0], [33.0, 44.0]]


def test_all_to_all():
    even = {"input_split_sizes": [2, 2], "output_split_sizes": [2, 2]}
    assert run("all_to_all_single", **even) == [[1.0, 2.0, 10.0, 20.0], [3.0, 4.0, 30.0, 40.0]]
    default = {"input_split_sizes": [], "output_split_sizes": []}
    assert run("all_to_all_single", **default) == [[1.0, 2.0, 10.0, 20.0], [3.0, 4.0, 30.0, 40.0]]
    arguments = [
        {"input": A, "input_split_sizes": [1, 3], "output_split_sizes": [1, 4]},
        {"input": B, "input_split_sizes": [4, 0], "output_split_sizes": [3, 0]},
    ]
    first, second = evaluate("_c10d_functional.all_to_all_single.default", arguments)
    assert (first.tolist(), second.tolist()) == ([1.0, *B.tolist()], [2.0, 3.0, 4.0])


def test_broadcast():
    assert run("broadcast", src=1) == [B.tolist(), B.tolist()]


def test_shard_dim_alltoall():
    first, second = torch.arange(4.0).view(1, 4), torch.arange(4.0, 8.0).view(1, 4)
    arguments = [{"input": value, "gather_dim": 0, "shard_dim": 1} for value in (first, second)]
    values = evaluate("_dtensor.shard_dim_alltoall.default", arguments)
    assert [value.tolist() for value in values] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_coalesced():
    arguments = [{"inputs": [value, 2 * value], "reduce_op": "sum"} for value in (A, B)]
    values = evaluate("_c10d_functional.all_reduce_coalesced.default", arguments)
    assert [tensor.tolist() for tensor in values[1]] == [[11.0, 22.0, 33.0, 44.0], [22.0, 44.0, 66.0, 88.0]]


@pytest.mark.parametrize(
    ("operator", "arguments", "message"),
    [
        ("all_reduce", {"reduce_op": "band"}, "no values for the reduction 'band' of torch.float32"),
        ("all_gather_into_tensor", {"group_size": 4}, "group_size=4 for a group of 2 ranks"),
        ("batch_p2p_ops", {}, "no interpretation of the collective _c10d_functional.batch_p2p_ops.default"),
    ],
)
def test_unknown_collectives_are_refused(operator, arguments, message):
    with pytest.raises(EvaluationError) as error:
        run(operator, **arguments)
    assert str(error.value) == message
