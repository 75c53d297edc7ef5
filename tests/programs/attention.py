"""Attention over sharded heads, batches and sequences: fused, written out, gathered keys, exchanged heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from tests.programs.updates import WHOLE, Layout, Update
from tests.soundness.plain import all_gather, reduce_scatter

HEADS, SEQUENCE = (Shard(1),), (Shard(2),)
Tensor = torch.Tensor


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def grouped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)


def written_out(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    rows = key.shape[2]
    mask = torch.full((rows, rows), float("-inf")).triu(1)
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    return (scores + mask).softmax(-1) @ value


class _Gather(torch.autograd.Function):
    """The whole sequence; its gradient is reduced to the own part."""

    @staticmethod
    def forward(context: Any, x: Tensor, mesh: DeviceMesh, reduce: bool) -> Tensor:
        context.mesh, context.reduce = mesh, reduce
        return all_gather(x, mesh, dim=2)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        own = reduce_scatter(gradient.contiguous(), context.mesh, dim=2)
        return own if context.reduce else own / 2, None, None


def _own(x: Tensor, mesh: DeviceMesh) -> Tensor:
    return DTensor.from_local(x, mesh, WHOLE, run_check=False).redistribute(mesh, (Shard(0),)).to_local()


def gathered_keys(mesh: DeviceMesh, mistake: str) -> Callable[..., Tensor]:
    """Context parallelism: own rows of the query, all keys and values, a mask at the rows' own positions."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        reduce = mistake != "gradient scaled"
        keys = _Gather.apply(key, mesh, reduce)
        values = _Gather.apply(value, mesh, reduce)
        positions = torch.arange(keys.shape[2])  # type: ignore[union-attr]
        rows = positions[: query.shape[2]] if mistake == "positions of the first rank" else _own(positions, mesh)
        mask = positions[None] <= rows[:, None] if mistake != "strictly before" else positions[None] < rows[:, None] + 2
        if mistake == "not causal":
            return F.scaled_dot_product_attention(query, keys, values)
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)

    return attend


def own_keys_written_out(mesh: DeviceMesh, mistake: str) -> Callable[..., Tensor]:
    """The same without the fused operator; the spec has it."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys = key if mistake == "own keys" else _Gather.apply(key, mesh, True)
        values = value if mistake == "own keys" else _Gather.apply(value, mesh, True)
        positions = torch.arange(keys.shape[2])  # type: ignore[union-attr]
        rows = positions if mistake == "own keys" else _own(positions, mesh)
        width = query.shape[-1] if mistake != "scale" else key.shape[2]
        scores = query @ keys.transpose(-1, -2) / width**0.5  # type: ignore[union-attr]
        dim = -1 if mistake != "over the rows" else -2
        return scores.masked_fill(positions[None] > rows[:, None], float("-inf")).softmax(dim) @ values

    return attend


class _Exchange(torch.autograd.Function):
    """Splits one dimension over the ranks and assembles another."""

    @staticmethod
    def forward(context: Any, x: Tensor, mesh: DeviceMesh, split: int, gather: int) -> Tensor:
        context.arguments = mesh, gather, split
        return _exchange(x, mesh, split, gather)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        return _exchange(gradient, *context.arguments), None, None, None


def _exchange(x: Tensor, mesh: DeviceMesh, split: int, gather: int) -> Tensor:
    ranks = mesh.size()
    pieces = torch.stack(x.chunk(ranks, split))
    received = collectives.all_to_all_single(pieces.flatten(0, 1).contiguous(), None, None, (mesh, 0))
    return torch.cat(received.view_as(pieces).unbind(0), gather)


def exchanged_heads(mesh: DeviceMesh, mistake: str) -> Callable[..., Tensor]:
    """Ulysses: from shards of the sequence to shards of the heads, and back."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        wide = [_Exchange.apply(x, mesh, 1, 2) for x in (query, key, value)]
        if mistake == "query not exchanged":
            wide[0] = query.repeat_interleave(2, 2)[:, :1]
        if mistake == "key and value":
            wide = [wide[0], wide[2], wide[1]]
        result = causal(*wide)  # type: ignore[arg-type]
        if mistake == "rows in another order":
            result = result.unflatten(2, (2, -1)).transpose(2, 3).flatten(2, 3)
        return _Exchange.apply(result, mesh, 2, 1)  # type: ignore[return-value]

    return attend


def exchanged_by_redistribution(mesh: DeviceMesh, mistake: str) -> Callable[..., Tensor]:
    def move(x: Tensor, before: Layout, after: Layout) -> Tensor:
        return DTensor.from_local(x, mesh, before, run_check=False).redistribute(mesh, after).to_local()

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        wide = [move(x, SEQUENCE, HEADS) for x in (query, key, value)]
        result = causal(*wide) if mistake != "not causal" else F.scaled_dot_product_attention(*wide)
        if mistake == "scaled":
            result = result / 2
        if mistake == "twice":
            result = causal(result, wide[1], wide[2])
        return move(result, HEADS, SEQUENCE)

    return attend


def grouped_heads(mesh: DeviceMesh, mistake: str) -> Callable[..., Tensor]:
    """Each key/value head serves a group of query heads."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        groups = query.shape[1] // key.shape[1]
        if mistake == "heads interleaved":
            return F.scaled_dot_product_attention(query, key.repeat(1, groups, 1, 1), value.repeat(1, groups, 1, 1))
        if mistake == "values reversed":
            return F.scaled_dot_product_attention(query, key, value.flip(1), enable_gqa=True)
        scale = 1.0 if mistake == "scale" else None
        wide = [x.repeat_interleave(groups, 1) for x in (key, value)]
        return F.scaled_dot_product_attention(query, *wide, scale=scale)

    return attend


def _by_flash(*operands: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
    return torch.ops.aten._scaled_dot_product_flash_attention(*operands, **options)[0]


def _by_cudnn(*operands: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
    return torch.ops.aten._scaled_dot_product_cudnn_attention(*operands, mask, True, **options)[0]


def _by_efficient(*operands: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
    return torch.ops.aten._scaled_dot_product_efficient_attention(*operands, mask, True, **options)[0]


def kernel_of_a_gpu(kernel: Callable[..., Tensor], masked: bool) -> Callable[[DeviceMesh, str], Callable[..., Tensor]]:
    """What attention becomes where tensors lie on a GPU; its backward operator is torch's derivative of it."""

    def program(mesh: DeviceMesh, mistake: str) -> Callable[..., Tensor]:
        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            batch, heads, rows, width = query.shape
            future = torch.ones(rows, rows, dtype=torch.bool).triu(1)
            mask = torch.zeros(rows, rows).masked_fill(future, -1e4)[None, None].expand(batch, heads, rows, rows)
            if mistake == "key and value":
                key, value = value, key
            scale = width**-0.5 if mistake != "scale" else 1.0
            sees_past = mistake != "mask dropped"
            options = {"mask": mask if masked and sees_past else None, "is_causal": not masked and sees_past}
            return kernel(query, key, value, scale=scale, **options)

        return attend

    return program


KERNELS = {"flash": (_by_flash, False), "cuDNN": (_by_cudnn, True), "memory-efficient": (_by_efficient, True)}


def _operands(mesh: DeviceMesh) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(1, 2, 4, 6, requires_grad=True) for _ in range(3))  # type: ignore[return-value]


def _grouped_operands(mesh: DeviceMesh) -> tuple[Tensor, ...]:
    return tuple(torch.randn(1, heads, 3, 4, requires_grad=True) for heads in (4, 2, 2))


def _layouts(layout: Layout) -> dict[str, Layout]:
    return {"query": layout, "key": layout, "value": layout}


ATTENTION = (
    Update(
        "gathered keys", causal, gathered_keys, _operands,
        ("positions of the first rank", "strictly before", "not causal", "gradient scaled"), _layouts(SEQUENCE),
    ),
    Update(
        "gathered keys written out", causal, own_keys_written_out, _operands,
        ("own keys", "scale", "over the rows"), _layouts(SEQUENCE),
    ),
    Update("gathered keys, both written out", written_out, own_keys_written_out, _operands, ("scale",), _layouts(SEQUENCE)),
    Update(
        "exchanged heads", causal, exchanged_heads, _operands,
        ("query not exchanged", "key and value", "rows in another order"), _layouts(SEQUENCE),
    ),
    Update(
        "exchanged by redistribution", written_out, exchanged_by_redistribution, _operands,
        ("not causal", "scaled", "twice"), _layouts(SEQUENCE),
    ),
    Update(
        "grouped heads", grouped, grouped_heads, _grouped_operands,
        ("heads interleaved", "values reversed", "scale"), _layouts(HEADS),
    ),
    *(
        Update(
            f"kernel of a GPU, {name}", kernel_of_a_gpu(*kernel)(None, ""), kernel_of_a_gpu(*kernel), _operands,
            ("mask dropped", "scale", "key and value"), _layouts(HEADS),
        )
        for name, kernel in KERNELS.items()
    ),
)  # fmt: skip
