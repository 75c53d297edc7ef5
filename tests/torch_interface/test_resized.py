import operator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from verifycompile.torch_interface.operators.resized import WithoutMemory, resized_number, resized_tensor

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("recorded", "shape", "strides"),
    [
        (torch.empty(4, 6), (2, 3), (3, 1)),
        (torch.empty(4, 6).t(), (3, 2), (1, 3)),
        (torch.empty(1, 6).expand(4, 6), (2, 3), (0, 1)),
        (torch.empty(4, 1, 6), (2, 1, 3), (3, 3, 1)),
        (torch.empty(()), (), ()),
    ],
)
def test_the_order_of_dimensions_in_memory_stays(recorded, shape, strides):
    new = resized_tensor(recorded.half(), shape) if recorded.dim() == 0 else resized_tensor(recorded, shape)
    assert (tuple(new.shape), new.stride(), new.device.type) == (shape, strides, "meta")


def test_a_tensor_keeps_its_dtype():
    assert resized_tensor(torch.empty(4, dtype=torch.int32), (2,)).dtype is torch.int32


def test_numbers_in_a_symbolic_number_are_sizes():
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        read = mode.shape_env.create_unbacked_symint()
        tensor = torch.empty(read * 16, 64)
    new = resized_number(tensor.shape[0], lambda size: size // 8)
    assert new.node.expr == read.node.expr * 2
    assert resized_number(7, lambda size: 1) == 7
    small = resized_tensor(tensor, (new, 8))
    assert [str(size) for size in small.shape] == [str(new), "8"]


def test_operators_without_memory():
    meta = torch.empty(1 << 20, 1 << 20, device="meta")
    assert WithoutMemory()(aten.sum.dim_IntList, (meta, [1]), {}).shape == (1 << 20,)
    created = WithoutMemory()(aten.full.default, ([1 << 40], 1), {"device": torch.device("cpu")})
    assert created.device.type == "meta"
    assert WithoutMemory()(operator.add, (1, 2), {}) == 3


def test_equal_calls_without_memory_are_made_once():
    calls: list[torch.Tensor] = []

    def doubled(x: torch.Tensor, factor: object) -> torch.Tensor:
        calls.append(x)
        return x * 2

    without_memory = WithoutMemory()
    meta = torch.empty(4, 6, device="meta")
    first = without_memory(doubled, (meta, 1), {})
    assert without_memory(doubled, (torch.empty(4, 6, device="meta"), 1), {}) is first
    assert len(calls) == 1
    different = [
        (torch.empty(6, 4, device="meta"), 1),
        (torch.empty(6, 4, device="meta").t(), 1),
        (torch.empty(4, 6, device="meta", dtype=torch.int64), 1),
        (torch.empty(5, 6, device="meta")[1:], 1),
        (torch.empty(5, 6, device="meta")[:4], 1),
        (meta, True),
        (meta, 1.0),
        (meta, -0.0),
        (meta, 0.0),
    ]
    for number, arguments in enumerate(different):
        without_memory(doubled, arguments, {})
        assert len(calls) == number + 2
