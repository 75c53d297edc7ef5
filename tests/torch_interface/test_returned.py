"""Layouts of returned tensors: known by the tensor, until it is written to."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from verifycompile.program import MeshAxis
from verifycompile.torch_interface.dynamo.frames import Frame, frame_under_compilation
from verifycompile.torch_interface.dynamo.returned import (
    _KEPT,
    ReturnedLayout,
    is_argument_of_resumed,
    keeping_layouts,
    returned_layout,
)


def layout(*placements: Placement) -> ReturnedLayout:
    return ReturnedLayout(tuple(MeshAxis("x", 2) for _ in placements), placements)


def doubled(x: torch.Tensor) -> list[torch.Tensor]:
    return [x * 2, x * 3]


def test_a_layout_is_known_by_its_tensor_until_it_is_written_to() -> None:
    call = keeping_layouts(doubled, {1: layout(Shard(0))}, (0,))
    for _ in range(2):
        first, second = call(torch.ones(2))
        assert (returned_layout(first), returned_layout(second)) == (None, layout(Shard(0)))
        assert returned_layout(second.clone()) is None
    second.add_(1)
    assert returned_layout(second) is None
    assert returned_layout(None) is None


@pytest.mark.parametrize("write", [lambda x: x.data.add_(1), lambda x: torch.Tensor.copy_(x.detach(), x + 1)])
def test_a_partial_sum_is_known_by_its_content(write: Any) -> None:
    call = keeping_layouts(doubled, {0: layout(Partial())}, (0,))
    value = call(torch.ones(2))[0]
    assert returned_layout(value) == layout(Partial())
    write(value)  # as a collective does, which torch does not count as a write
    assert returned_layout(value) is None
    assert returned_layout(call(torch.ones(2))[0]) == layout(Partial())


def test_nothing_is_kept_longer_than_its_tensor() -> None:
    gc.collect()
    before = len(_KEPT)
    value = keeping_layouts(doubled, {0: layout(Replicate())}, (0,))(torch.ones(2))
    assert len(_KEPT) == before + 1
    del value
    gc.collect()
    assert len(_KEPT) == before


def test_arguments_of_the_function_that_goes_on_after_a_break() -> None:
    frames: list[Frame] = []

    def backend(gm: torch.fx.GraphModule, _: Any) -> Any:
        frames.append(frame_under_compilation())
        return gm.forward

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x + 1
        torch._dynamo.graph_break()
        return z * y

    torch._dynamo.reset()
    torch.compile(program, backend=backend)(torch.ones(2), torch.ones(2))
    before, after = frames
    assert [is_argument_of_resumed(after, name) for name in ("x", "y", "z")] == [True, True, False]
    assert not is_argument_of_resumed(before, "x")
