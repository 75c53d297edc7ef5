"""The private interfaces behind numeric evaluation."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from verifycompile.torch_interface.operators import elements, evaluation

aten = torch.ops.aten


def test_real_tensors_leaves_fake_modes():
    with FakeTensorMode(), elements.real_tensors():
        value = aten.ones.default([2])
        assert not isinstance(value, FakeTensor)
        assert value.dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32


def test_real_tensors_leaves_autocast_and_gradients():
    matrix = torch.ones(2, 2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16), elements.real_tensors():
        product = aten.mm.default(matrix, matrix)
    assert (product.dtype, product.requires_grad) == (torch.float32, False)


def test_real_tensors_restores_the_default_dtype_after_an_error():
    with pytest.raises(RuntimeError), elements.real_tensors():
        aten.mm.default(torch.ones(2), torch.ones(2))
    assert torch.get_default_dtype() == torch.float32


def test_real_tensors_inside_a_backend():
    seen: list[torch.Tensor] = []

    def backend(graph, inputs):
        with elements.real_tensors():
            seen.append(aten.ones.default([2]) + 1)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(2))
    assert seen[0].tolist() == [2.0, 2.0]


def test_constant_value():
    assert elements.constant_value(torch.ones(2)) is not None
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(2))
    assert elements.constant_value(fake) is None


def test_operator_facts():
    assert evaluation.operator_name(aten.mm.default) == "aten.mm.default"
    assert evaluation.operator_name(torch.mm) is None
    assert evaluation.returns_fresh_memory(aten.mm.default)
    assert not evaluation.returns_fresh_memory(aten.view.default)
    assert evaluation.is_view(aten.expand.default)
    assert evaluation.is_view(aten.split.Tensor)
    assert not any(map(evaluation.is_view, (aten.mm.default, aten.add_.Tensor, aten.clone.default, max)))
    assert callable(evaluation.decomposition(aten._fused_rms_norm_backward.default))


def test_sizes():
    graph = make_fx(lambda x: x + 1, tracing_mode="symbolic")(torch.ones(6))
    size = graph.graph.find_nodes(op="placeholder")[-1].meta["val"].shape[0]
    symbol = evaluation.symbolic_expression(size)
    assert symbol is not None
    assert evaluation.size_hint(size, {}) == 6
    assert evaluation.size_hint(2 * size + 1, {symbol: 4}) == 9
    assert evaluation.size_hint(3, {}) == 3
    assert evaluation.symbolic_expression(3) is None
