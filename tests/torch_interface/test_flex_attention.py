"""``flex_attention`` written out computes what the operator does, in regions of a graph as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from verifycompile.torch_interface.dynamo.flex_attention import has_flex_attention, with_attention_written_out

Attention = Callable[..., Any]


def capped(query: Any, key: Any, value: Any) -> Any:
    return flex_attention(query, key, value, score_mod=lambda s, b, h, i, j: 5 * torch.tanh(s / 5) + h - (i - j).abs())


def in_a_region(query: Any, key: Any, value: Any) -> Any:
    return checkpoint(capped, query, key, value, use_reentrant=False)


@pytest.mark.parametrize("attention", [capped, in_a_region])
def test_written_out(attention: Attention) -> None:
    seen: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, _inputs: Any) -> Any:
        seen.append(module)
        return module

    torch._dynamo.reset()
    operands = [torch.randn(2, 2, 16, 8) for _ in range(3)]
    expected = torch.compile(attention, backend=backend)(*operands)  # pyright: ignore[reportArgumentType]
    (module,) = seen
    assert has_flex_attention(module)
    written = with_attention_written_out(module)
    assert not has_flex_attention(written)
    assert has_flex_attention(module)
    torch.testing.assert_close(written(*operands)[0], expected)


def test_a_graph_without_it_has_none() -> None:
    assert not has_flex_attention(torch.fx.symbolic_trace(torch.nn.Linear(2, 2)))
