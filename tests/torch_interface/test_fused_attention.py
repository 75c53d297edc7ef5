"""Attention written out computes what torch's operators do, in regions of a graph as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.attention.varlen import varlen_attn
from torch.utils.checkpoint import checkpoint

from verifycompile.torch_interface.dynamo.fused_attention import said_of_attention, with_attention_written_out

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
    assert said_of_attention(module)
    written = with_attention_written_out(module)
    assert not said_of_attention(written)
    assert said_of_attention(module)
    torch.testing.assert_close(written(*operands)[0], expected)


@pytest.mark.parametrize(("window", "heads"), [((-1, -1), 4), ((-1, 0), 4), ((2, 0), 2), ((1, 2), 1)])
def test_packed_sequences(window: tuple[int, int], heads: int) -> None:
    lengths = (3, 6, 1)
    query, key, value = (torch.randn(10, count, 8) for count in (4, heads, heads))

    def packed(bounds: torch.Tensor) -> torch.Tensor:
        named: Any = {"window_size": window, "enable_gqa": heads < 4}
        return varlen_attn(query, key, value, bounds, bounds, 6, 6, **named)  # pyright: ignore[reportReturnType]

    def backend(module: torch.fx.GraphModule, _inputs: Any) -> Any:
        assert said_of_attention(module)
        return with_attention_written_out(module)

    bounds = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(torch.int32)
    torch._dynamo.reset()
    found = torch.compile(packed, backend=backend)(bounds)  # pyright: ignore[reportArgumentType]
    for part, length in zip(found.split(lengths), lengths, strict=True):
        at = int(bounds[list(lengths).index(length)])
        rows = [tensor[at : at + length].transpose(0, 1) for tensor in (query, key, value)]
        place = torch.arange(length)
        before = place[:, None] - place
        seen = (before <= window[0]) | (window[0] < 0)
        seen &= (before >= -window[1]) | (window[1] < 0)
        expected = F.scaled_dot_product_attention(*rows, attn_mask=seen, enable_gqa=True)
        torch.testing.assert_close(part, expected.transpose(0, 1))


def test_a_cache_in_pages_stays_one_operator() -> None:
    query, pages = torch.randn(4, 2, 8), torch.randn(3, 4, 2, 8)
    bounds, table = torch.tensor([0, 4], dtype=torch.int32), torch.zeros(1, 3, dtype=torch.int32)
    seen: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, _inputs: Any) -> Any:
        seen.append(module)
        return lambda *_: (query,)

    def paged() -> Any:
        return varlen_attn(query, pages, pages, bounds, bounds, 4, 12, seqused_k=bounds[1:], block_table=table)

    torch._dynamo.reset()
    torch.compile(paged, backend=backend)()  # pyright: ignore[reportArgumentType]
    assert len(seen) == 1
    assert not said_of_attention(seen[0])


def test_a_graph_without_it_has_none() -> None:
    assert not said_of_attention(torch.fx.symbolic_trace(torch.nn.Linear(2, 2)))
