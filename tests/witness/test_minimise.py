"""Witnesses are made of few small whole numbers, whatever they were found with."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor.placement_types import Replicate, Shard

from tests.witness.graphs import mesh, trace
from verifycompile.witness import find_witness, minimise

TP = mesh(("tp", 2))
R, S0, S1 = Replicate(), Shard(0), Shard(1)
collective = torch.ops._c10d_functional


def reduced(value, op="sum"):
    return collective.wait_tensor(collective.all_reduce(value, op, "tp"))


def on_ranks(function, local, **layouts):
    return trace(function, local, on=TP, layouts={"output.0": [R], **layouts}, groups={"tp": (0,)})


def numbers(witness):
    values = torch.cat([value.double().flatten() for value in witness.inputs.values()])
    return sorted(values[values != 0].tolist())


def attention(x, wq, wk, wv, wo):
    q, k, v = x @ wq, x @ wk, x @ wv
    return F.softmax(q @ k.t(), -1) @ v @ wo


def normalised(x, w):
    y = x @ w
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)


CASES = [
    (lambda x, w1, w2: F.relu(x @ w1) @ w2, {"x": (4, 8), "w1": (8, 16), "w2": (16, 8)}, {"w1": S1, "w2": S0}, 3),
    (attention, {"x": (4, 8), "wq": (8, 8), "wk": (8, 8), "wv": (8, 8), "wo": (8, 8)}, {"wv": S1, "wo": S0}, 4),
    (normalised, {"x": (4, 8), "w": (8, 8)}, {"x": S1, "w": S0}, 3),
    (lambda x: x.logsumexp(0), {"x": (8,)}, {"x": S0}, 0),
]


@pytest.mark.parametrize(("function", "shapes", "sharded", "most"), CASES)
def test_a_missing_reduction_is_shown_by_few_ones(function, shapes, sharded, most):
    def local(name, shape):
        placement = sharded.get(name)
        return tuple(n // 2 if placement == Shard(d) else n for d, n in enumerate(shape))

    spec = trace(function, {name: torch.zeros(shape) for name, shape in shapes.items()})
    inputs = {name: torch.zeros(local(name, shape)) for name, shape in shapes.items()}
    layouts = {name: [sharded.get(name, R)] for name in shapes}
    witness = find_witness(spec, on_ranks(function, inputs, **layouts))
    assert witness is not None
    assert numbers(witness) == [1.0] * len(numbers(witness))
    assert len(numbers(witness)) <= most


def test_of_many_layers_those_that_are_right_become_zero():
    """On eight ranks, and by computing again only what depends on what is changed."""
    layers = range(6)
    shapes = {"x": (8, 32)} | {
        f"{i}.{name}": shape for i in layers for name, shape in {"up": (32, 64), "down": (64, 32)}.items()
    }
    local = {name: torch.zeros(shape) for name, shape in shapes.items()}
    layouts = {}
    for i in layers:
        local |= {f"{i}.up": torch.zeros(32, 8), f"{i}.down": torch.zeros(8, 32)}
        layouts |= {f"{i}.up": [S1], f"{i}.down": [S0]}

    def network(join):
        def forward(x, *weights):
            for i in layers:
                x = x + join(i, F.silu(x @ weights[2 * i]) @ weights[2 * i + 1])
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1)

        return forward

    spec = trace(network(lambda _, y: y), {name: torch.zeros(shape) for name, shape in shapes.items()})
    ranks = mesh(("tp", 8))
    wrong = trace(
        network(lambda i, y: y if i == 3 else reduced(y)),
        local,
        on=ranks,
        layouts={"output.0": [R], **layouts},
        groups={"tp": (0,)},
    )
    witness = find_witness(spec, wrong)
    assert witness is not None
    assert {name for name, value in witness.inputs.items() if value.any()} == {"x", "3.up", "3.down"}
    assert numbers(witness) == [1.0, 1.0, 1.0]


def test_an_input_outside_of_the_domain_is_not_taken():
    """Zeros would make the spec infinite, where nothing can be compared."""
    spec = trace(lambda x: x.log().sum(), {"x": torch.zeros(8)})
    witness = find_witness(spec, on_ranks(lambda x: x.log().sum(), {"x": torch.zeros(4)}, x=[S0]))
    assert witness is not None
    assert numbers(witness) == sorted(witness.inputs["x"].tolist())
    assert (witness.inputs["x"] > 0).all()


def test_a_difference_that_whole_numbers_do_not_show():
    """The sine of whole multiples of pi is all that the program drops."""
    spec = trace(lambda x: x + torch.sin(x * torch.pi), {"x": torch.zeros(4)})
    witness = find_witness(spec, on_ranks(lambda x: x * 1, {"x": torch.zeros(4)}))
    assert witness is not None
    (number,) = numbers(witness)
    assert number * 4 == round(number * 4)


def test_a_difference_that_nearly_vanishes_on_simple_numbers_is_not_taken():
    """What is left of a difference may be rounding, which is measured only where a step is done."""
    spec = trace(lambda x: x.sum(), {"x": torch.zeros(4)})
    witness = find_witness(spec, on_ranks(lambda x: x.sum() + (x * (x - 1)).sum() + 1e-7 * x.sum(), {"x": torch.zeros(4)}))
    assert witness is not None
    assert witness.max_abs_difference >= 1
    assert all(number == round(number) for number in numbers(witness))


def test_indices_and_masks_become_the_first_and_false():
    inputs = {"ids": torch.zeros(6, dtype=torch.int64), "m": torch.zeros(6, dtype=torch.bool), "w": torch.zeros(4, 2)}
    spec = trace(lambda ids, m, w: torch.where(m[:, None], w[ids], 0.0), inputs)
    witness = find_witness(spec, on_ranks(lambda ids, m, w: w[ids], inputs))
    assert witness is not None
    assert not witness.inputs["ids"].any()
    assert not witness.inputs["m"].any()
    assert numbers(witness) == [1.0]


def test_the_same_output_is_shown_that_was_asked_for():
    spec = trace(lambda x, y: (x + 1, y + 1), {"x": torch.zeros(2), "y": torch.zeros(2)})
    wrong = on_ranks(lambda x, y: (x + 2, y + 3), {"x": torch.zeros(2), "y": torch.zeros(2)})
    for name, expected in (("output.0", 2.0), ("output.1", 3.0), ("", 2.0)):
        witness = find_witness(spec, wrong, output=name)
        assert witness is not None
        assert (witness.spec_value, witness.impl_value) == (1.0, expected)


def test_few_evaluations_leave_a_witness(monkeypatch):
    monkeypatch.setattr(minimise, "_MOST", 0)
    spec = trace(lambda x: x.sum(), {"x": torch.zeros(8)})
    witness = find_witness(spec, on_ranks(lambda x: x.sum(), {"x": torch.zeros(4)}, x=[S0]))
    assert witness is not None
    assert len(numbers(witness)) == 8


def test_large_programs_keep_few_places_of_every_dimension(monkeypatch):
    """Few evaluations must do: each is of many elements, and one input after the other would take too many."""
    monkeypatch.setattr(minimise, "_MOST", 3)
    shapes = {"x": (32, 64), "w1": (64, 128), "w2": (128, 64)}
    spec = trace(lambda x, w1, w2: F.relu(x @ w1) @ w2, {name: torch.zeros(shape) for name, shape in shapes.items()})
    local = {"x": torch.zeros(32, 64), "w1": torch.zeros(64, 64), "w2": torch.zeros(64, 64)}
    witness = find_witness(spec, on_ranks(lambda x, w1, w2: F.relu(x @ w1) @ w2, local, w1=[S1], w2=[S0]))
    assert witness is not None
    assert len(numbers(witness)) <= 12
