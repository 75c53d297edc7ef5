"""Clipping of gradients by their total norm: torch's own over mixed placements, and by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.utils import get_total_norm

from tests.programs.updates import COLUMNS, ROWS, SUM, WHOLE, Layout, Update
from tests.soundness.plain import all_reduce

MAXIMUM = 0.5


def gradients(mesh: DeviceMesh, *layouts: Layout) -> list[DTensor]:
    return [DTensor.from_local(torch.randn(4, 4), mesh, layout, run_check=False) for layout in layouts]


def clip(tensors: Sequence[Any], order: float, foreach: bool, maximum: float = MAXIMUM) -> torch.Tensor:
    norm = get_total_norm(tensors, order, foreach=foreach)
    factor = torch.clamp(maximum / (norm + 1e-6), max=1.0)
    for tensor in tensors:
        tensor.mul_(factor)
    return norm


def _torchs(
    name: str, order: float, foreach: bool, *layouts: Layout, mistakes: tuple[str, ...], shape: tuple[int, ...] = (2,)
) -> Update:
    def program(mesh: DeviceMesh, mistake: str) -> Callable[..., Any]:
        def step(tensors: list[DTensor]) -> Any:
            if mistake == "of the shards":
                norm = get_total_norm([t.to_local() for t in tensors], order, foreach=foreach)
                factor = torch.clamp(MAXIMUM / (norm + 1e-6), max=1.0)
                for tensor in tensors:
                    tensor.copy_(DTensor.from_local(tensor.to_local() * factor, mesh, tensor.placements))
                return norm
            used = 1.0 if mistake == "other order" and order != 1.0 else 2.0 if mistake == "other order" else order
            chosen = tensors[1:] if mistake == "one left out" else tensors
            norm = get_total_norm(chosen, used, foreach=foreach)
            maximum = 2 * MAXIMUM if mistake == "other maximum" else MAXIMUM
            factor = torch.clamp(maximum / (norm + 1e-6), max=1.0)
            for tensor in tensors:
                tensor.mul_(factor)
            return norm

        return step

    return Update(
        name,
        lambda tensors: clip(tensors, order, foreach),
        program,
        lambda mesh: (gradients(mesh, *layouts),),
        mistakes,
        shape=shape,
    )


# ------------------------------------------------------------------------------------------------ by hand


def squares(*tensors: torch.Tensor) -> Any:
    return sum((tensor * tensor).sum() for tensor in tensors)


def whole_clip(rows: Any, columns: Any, whole: Any) -> torch.Tensor:
    norm = squares(rows, columns, whole).sqrt()
    factor = (MAXIMUM / (norm + 1e-6)).clamp(max=1.0)
    for tensor in (rows, columns, whole):
        tensor.mul_(factor)
    return norm


def clip_by_hand(mesh: DeviceMesh, mistake: str) -> Callable[..., Any]:
    def step(rows: Any, columns: Any, whole: Any) -> torch.Tensor:
        if mistake == "replicated one counted on every rank":
            total = all_reduce(squares(rows, columns, whole), mesh)
        elif mistake == "not reduced":
            total = squares(rows, columns, whole)
        elif mistake == "norms added":
            total = all_reduce(squares(rows, columns).sqrt(), mesh) ** 2 + squares(whole)
        else:
            total = all_reduce(squares(rows, columns), mesh) + squares(whole)
        norm = total.sqrt()
        factor = (MAXIMUM / (norm + 1e-6)).clamp(max=1.0)
        for tensor in (rows, columns, whole):
            tensor.mul_(factor)
        return norm

    return step


CLIPPING = (
    _torchs("norm-2", 2.0, False, ROWS, COLUMNS, WHOLE, mistakes=("of the shards", "other order", "one left out", "other maximum")),
    _torchs("norm-2-foreach", 2.0, True, ROWS, WHOLE, SUM, mistakes=("other order", "one left out")),
    _torchs("norm-1", 1.0, True, ROWS, COLUMNS, WHOLE, mistakes=("of the shards", "other order")),
    _torchs("norm-inf", float("inf"), True, ROWS, COLUMNS, WHOLE, mistakes=("of the shards", "other order")),
    _torchs(
        "norm-2-2d", 2.0, True, (Replicate(), Replicate()), (Replicate(), Shard(0)), (Shard(0), Shard(1)), (Shard(1), Partial()),
        mistakes=("of the shards", "one left out"), shape=(2, 2),
    ),
    Update(
        "by hand", whole_clip, clip_by_hand,
        lambda mesh: (torch.randn(2, 4), torch.randn(4, 2), torch.randn(3)),
        ("replicated one counted on every rank", "not reduced", "norms added"),
        {"rows": ROWS, "columns": COLUMNS, "whole": WHOLE},
    ),
)  # fmt: skip
