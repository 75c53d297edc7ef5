"""Fused attention of every device against torch's own CPU operator."""

from __future__ import annotations

import pytest
import torch

from verifycompile.witness import attention

generator = torch.Generator().manual_seed(0)
Q, K, V, G = (torch.randn(2, 4, 8, 4, generator=generator, dtype=torch.float64) for _ in range(4))
CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
CPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "kind", ["flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention"]
)
def test_forward_and_backward(kind, causal):
    operands = {"query": Q, "key": K, "value": V, "dropout_p": 0.0, "is_causal": causal}
    output, logsumexp = CPU(Q, K, V, 0.0, causal)
    results = attention.attention_of(f"aten._scaled_dot_product_{kind}.default", operands)
    torch.testing.assert_close(results[0], output)
    kept = results[1].squeeze(-1)[:, :, :8]
    torch.testing.assert_close(kept, logsumexp)
    assert kind != "efficient_attention" or (results[1].shape[2] == 32 and results[1][:, :, 8:].isinf().all())
    gradient = {"grad_out_" if kind.startswith("efficient") else "grad_out": G, "grad_input_mask": [True] * 3 + [False]}
    gradient |= {"out": output, "logsumexp": results[1]}
    backward = attention.attention_of(f"aten._scaled_dot_product_{kind}_backward.default", operands | gradient)
    for value, expected in zip(backward[:3], CPU_BACKWARD(G, Q, K, V, output, logsumexp, 0.0, causal), strict=True):
        torch.testing.assert_close(value, expected)


def test_gradients_of_some_of_the_keys_are_by_the_logarithm_that_is_given():
    output, logsumexp = CPU(Q, K, V)
    name = "aten._scaled_dot_product_flash_attention_backward.default"
    saved = {"out": output, "logsumexp": logsumexp, "grad_out": G}
    parts = [{"query": Q, "key": K[:, :, rows], "value": V[:, :, rows]} | saved for rows in (slice(4), slice(4, 8))]
    (first, *_), (second, *_) = (attention.attention_of(name, part) for part in parts)
    torch.testing.assert_close(first + second, CPU_BACKWARD(G, Q, K, V, output, logsumexp, 0.0, False)[0])


def test_grouped_heads():
    operands = {"query": Q, "key": K[:, :2], "value": V[:, :2], "is_causal": True, "scale": 0.5, "grad_out": G}
    name = "aten._scaled_dot_product_flash_attention.default"
    wide = operands | {"key": K[:, :2].repeat_interleave(2, 1), "value": V[:, :2].repeat_interleave(2, 1)}
    torch.testing.assert_close(attention.attention_of(name, operands)[0], attention.attention_of(name, wide)[0])
    backward = name.replace(".default", "_backward.default")
    narrow, repeated = attention.attention_of(backward, operands), attention.attention_of(backward, wide)
    torch.testing.assert_close(narrow[1], repeated[1].unflatten(1, (2, 2)).sum(2))


def test_dropout_is_refused():
    with pytest.raises(ValueError, match="draws random numbers"):
        attention.attention_of("aten._scaled_dot_product_flash_attention.default", {"dropout_p": 0.1})
